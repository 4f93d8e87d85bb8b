//! Cards with a timing model: the same behaviour as with the simple one, times by the published figures, and what it
//! refuses.

#[path = "suites/threads.rs"]
mod suite;

use crate::support;
use emu_machine::timing::{Model, Parameters};
use emu_machine::{Config, CostModel, DrivenFrom, MachineError, MemoryModel, World};
use support::*;

fn machine() -> Config {
    Config { cards: 1, timing: Some(Parameters::m2()), ..Config::default() }
}

fn with_gap(millicycles: u64) -> Config {
    let timing = Parameters::m2().with("instructions", "gap_millicycles", millicycles).unwrap();
    Config { timing: Some(timing), ..machine() }
}

/// `bne a, b, offset`, `offset` in bytes.
fn bne(a: u32, b: u32, offset: i32) -> u32 {
    support::weak::beq(a, b, offset) | 1 << 12
}

/// Cycles that `ping(rounds)` takes for each further round of a loop that counts `a0` down.
fn cycles_per_round(config: &Config, body: &[u32]) -> f64 {
    let mut code = body.to_vec();
    code.extend([addi(A0, A0, -1), bne(A0, 0, -4 * (body.len() as i32 + 1)), RET]);
    let (mut world, process) = boot(&image(&[RET], &code), config.clone());
    let mut took = |rounds: u64| {
        let before = world.now_ps();
        ping(&mut world, process, rounds).unwrap();
        world.now_ps() - before
    };
    took(10);
    let (short, long) = (took(1000), took(3000));
    (long - short) as f64 * 1.8e-3 / 2000.0
}

fn near(value: f64, expected: f64) -> bool {
    (value - expected).abs() < 0.02
}

#[test]
fn a_lone_thread_takes_its_gaps_and_the_latencies_of_its_accesses() {
    for gap in [3631, 5743] {
        let (config, k) = (with_gap(gap), gap as f64 / 1e3);
        let model = Model::new(config.timing.as_ref().unwrap()).unwrap();
        let mul = 0x0200_0033 | A2 << 20 | A1 << 15 | A1 << 7;
        let div = mul | 4 << 12;
        for (body, cycles) in [
            (vec![], 0.0),
            (vec![addi(A1, A1, 1); 5], 5.0 * k),
            (vec![mul], model.multiply_cycles as f64),
            (vec![div], model.divide_cycles as f64),
            (vec![ld(A1, SP, -64)], model.l1_cycles as f64),
            (vec![sd(A1, SP, -64)], model.store_hit_cycles as f64),
            // The gap before the store hides nothing: nothing is on its way when the fence comes after a load.
            (vec![ld(A1, SP, -64), support::weak::fence(2, 2)], (model.l1_cycles + model.fence_cycles) as f64),
        ] {
            let took = cycles_per_round(&config, &body);
            assert!(near(took, cycles + 2.0 * k), "k {k}, {body:x?}: {took:.3} cycles, not {cycles} + 2 k");
        }
    }
}

/// A card whose event handlers `0..threads` on execution units from 16 on all execute `handler`.
fn crowd(config: Config, handler: &[u32], threads: u32) -> (World, u32, Vec<u32>) {
    let (mut world, process) = boot(&image(handler, &[addi(A7, 0, 11), ECALL, RET]), config);
    let entry = world.card(0).unwrap().process(process).unwrap().image.symbol("handler").unwrap();
    let mut all = Vec::new();
    for number in 0..threads {
        let thread = world.create_thread(0, process, entry, 0, 0, Some(16 + number)).unwrap();
        world.run_event_handler(0, thread, 0).unwrap();
        all.push(thread);
    }
    for thread in &all {
        ping(&mut world, process, u64::from(*thread)).unwrap();
    }
    (world, process, all)
}

#[test]
fn threads_of_a_core_share_its_issue_slots_and_those_of_another_do_not() {
    for (threads, per_cycle) in [(1, 1.0 / 4.0), (3, 3.0 / 4.0), (4, 1.0), (16, 1.0), (17, 1.25), (32, 2.0)] {
        let (mut world, _, _) = crowd(with_gap(4000), &[addi(A1, A1, 1), addi(A1, A1, 1), 0xFF9F_F06F], threads);
        let issues = |world: &mut World| world.card(0).unwrap().issues().unwrap().iter().sum::<u64>();
        let before = (issues(&mut world), world.now_ps());
        for _ in 0..2000 {
            assert!(world.step());
        }
        let cycles = (world.now_ps() - before.1) as f64 * 1.8e-3;
        let rate = (issues(&mut world) - before.0) as f64 / cycles;
        assert!((rate / per_cycle - 1.0).abs() < 0.01, "{threads} threads: {rate:.3} instructions per cycle");
    }
}

#[test]
fn atomics_and_reservations_of_many_threads_lose_nothing() {
    // 50 times: *0x80000000 += 1 by amoadd, *0x80000008 += 1 by a loop of lr and sc. Then reschedule.
    let (lr, sc) = (0x1000_302F | A1 << 15 | A2 << 7, 0x1800_302F | A3 << 20 | A1 << 15 | A4 << 7);
    let handler = [
        lui(A1, 0x40000),
        slli(A1, A1, 1),
        addi(A0, 0, 50),
        addi(T0, 0, 1),
        support::weak::amoadd(A2, T0, A1, 0, 0),
        addi(A1, A1, 8),
        lr,
        addi(A3, A2, 1),
        sc,
        bne(A4, 0, -12),
        addi(A1, A1, -8),
        addi(A0, A0, -1),
        bne(A0, 0, -32),
        addi(A7, 0, 1),
        ECALL,
    ];
    let run = || {
        let (mut world, process, _) = crowd(machine(), &handler, 40);
        while world.step() {}
        assert_eq!(world.process(0, process).unwrap().stopped(), None);
        let word = |world: &mut World, at| support::weak::word(world, process, at);
        assert_eq!((word(&mut world, 0x8000_0000), word(&mut world, 0x8000_0008)), (2000, 2000));
        (world.trace_hash(), world.now_ps())
    };
    assert_eq!(run(), run(), "the same run twice");
}

#[test]
fn code_beyond_the_code_cache_is_slower() {
    // 240 instructions are 960 bytes: they fit. 480 do not, and each line is gone when the loop comes back to it.
    let per_instruction =
        |count: usize| cycles_per_round(&with_gap(4000), &vec![addi(A1, A1, 1); count]) / count as f64;
    let (fits, thrashes) = (per_instruction(230), per_instruction(480));
    assert!(near(fits, 4.0 + 8.0 / 230.0), "{fits:.3}");
    // Sixteen instructions to a line, which comes from L2: 64 cycles.
    assert!((thrashes - 8.0).abs() < 0.2, "{thrashes:.3}");
}

#[test]
fn accesses_are_counted_by_the_level_that_serves_them() {
    let (mut world, process) =
        boot(&image(&[RET], &[ld(A1, SP, -64), ld(A1, SP, -64), sd(A1, SP, -64), RET]), machine());
    let before = world.card(0).unwrap().access_counts().unwrap();
    ping(&mut world, process, 0).unwrap();
    let after = world.card(0).unwrap().access_counts().unwrap();
    // Besides: `ping__unpack` loads its argument, and there is code to fetch.
    assert_eq!((after.l1 - before.l1, after.store_hits - before.store_hits), (1, 1));
    assert_eq!((after.dpa_memory - before.dpa_memory) - (after.code_misses - before.code_misses), 2);
    let plain = Config { cards: 1, ..Config::default() };
    assert_eq!(World::new(plain).unwrap().card(0).unwrap().access_counts(), None);
}

#[test]
fn activation_and_calls_take_what_the_model_says() {
    let took = |name: &str, value: u64| {
        let timing = Parameters::m2().with("events", name, value).unwrap();
        let (mut world, process) = boot(&image(&[RET], &[RET]), Config { timing: Some(timing), ..machine() });
        let before = world.now_ps();
        ping(&mut world, process, 0).unwrap();
        world.now_ps() - before
    };
    assert_eq!(took("rpc_ps", 1_000_000) - took("rpc_ps", 0), 2_000_000, "there and back");
    assert_eq!(took("activate_ps", 1_000_000), took("activate_ps", 0), "a call is not an event");
}

/// Cycles of a call that does `body` with the address of three lines behind the window in `a0`.
fn cycles_behind_the_window(config: Config, body: &[u32]) -> f64 {
    let program = support::weak::code(&[&support::weak::open_window(), body, &[RET]]);
    let (mut world, process) = boot(&image(&[RET], &program), config);
    support::weak::show_host(&mut world, process);
    let before = world.now_ps();
    ping(&mut world, process, 0).unwrap();
    (world.now_ps() - before) as f64 * 1.8e-3
}

#[test]
fn a_card_driven_from_its_arm_cores_reads_their_memory() {
    let plain = || Config { cards: 1, ..Config::default() };
    let model = Model::new(&Parameters::m2()).unwrap();
    let timed = model.host_window_cycles - model.arm_window_cycles;
    let cost = CostModel::default();
    for (config, nearer) in [
        (plain as fn() -> Config, cost.window_load_cycles - cost.arm_window_load_cycles),
        (machine as fn() -> Config, timed),
    ] {
        for (body, loads) in [
            (vec![], 0),
            (vec![ld(A1, A0, 0)], 1),
            (vec![ld(A1, A0, 0), ld(A1, A0, 64), ld(A1, A0, 128)], 3),
            // Stores are posted, and what goes to the DPA's own memory is the same.
            (vec![sd(A1, A0, 0), sd(A1, A0, 64), ld(A1, SP, -64)], 0),
        ] {
            let took = |driven_from| cycles_behind_the_window(Config { driven_from, ..config() }, &body);
            let (host, arm) = (took(DrivenFrom::Host), took(DrivenFrom::Arm));
            assert!(
                near(host - arm, (nearer * loads) as f64),
                "{body:x?}: {host} from the host, {arm} from the Arm cores"
            );
        }
    }
    assert_eq!(Config::default().driven_from, DrivenFrom::Host);
}

#[test]
fn windows_to_arm_memory_have_paths_of_their_own() {
    let reads = [ld(A1, A0, 0), ld(A1, A0, 64)];
    let writes = [sd(A1, A0, 0), sd(A1, A0, 64), support::weak::fence(support::weak::O, support::weak::O)];
    for (name, body) in [("arm_window_read", &reads[..]), ("arm_window_write", &writes)] {
        let slow = Parameters::m2().with("lines_per_s", name, 1_000_000).unwrap();
        let added = |driven_from| {
            let took = |timing: &Parameters| {
                let timing = Some(timing.clone());
                cycles_behind_the_window(Config { driven_from, timing, ..machine() }, body)
            };
            took(&slow) - took(&Parameters::m2())
        };
        assert!(near(added(DrivenFrom::Host), 0.0), "{name}: {}", added(DrivenFrom::Host));
        // A line in 1800 cycles: the second waits for most of that.
        assert!((1000.0..1800.0).contains(&added(DrivenFrom::Arm)), "{name}: {}", added(DrivenFrom::Arm));
    }
}

#[test]
fn what_does_not_go_together_is_refused() {
    let refusal = |config: Config| World::new(config).unwrap_err().to_string();
    let weak = refusal(Config { memory: MemoryModel::weak(1), ..machine() });
    assert!(weak.contains("timing model M.2 has strong memory"), "{weak}");
    assert!(refusal(Config { detect_races: true, ..machine() }).contains("leave the timing model out"));
    let mut broken = Parameters::m2();
    broken.groups.get_mut("loads").unwrap().remove("l3_cycles");
    assert!(refusal(Config { timing: Some(broken), ..machine() }).contains("loads.l3_cycles is missing"));
    struct Hook;
    impl emu_machine::Debugger for Hook {
        fn stopped(&mut self, _: &mut World, _: &emu_machine::Stopped) -> emu_machine::Resume {
            unreachable!("it is never attached")
        }
        fn interrupted(&mut self) -> bool {
            false
        }
        fn ended(&mut self, _: bool) {}
    }
    let mut world = World::new(machine()).unwrap();
    assert!(matches!(world.attach_debugger(Box::new(Hook)), Err(MachineError::TimingDebugged { .. })));
}
