//! Instructions that threads execute before the cycles of their issue: nothing shows it but how fast the emulator
//! is.

use crate::support;
use emu_machine::timing::{Counts, Parameters};
use emu_machine::{Config, MachineError, World};
use proptest::prelude::*;
use support::weak::{DATA, RESCHEDULE, S0, amoadd, beq, code, fence, make_handlers, offer_nop, two_handlers, word};
use support::*;

fn machine(most_ahead: u32) -> Config {
    Config { cards: 1, heap_bytes: 1 << 20, timing: Some(Parameters::m2()), most_ahead, ..Config::default() }
}

/// `bne a, b, offset`, `offset` in bytes.
fn bne(a: u32, b: u32, offset: i32) -> u32 {
    beq(a, b, offset) | 1 << 12
}

/// `csrr rd, time`: nanoseconds.
fn time(rd: u32) -> u32 {
    0xC010_2073 | rd << 7
}

fn mv(rd: u32, rs: u32) -> u32 {
    addi(rd, rs, 0)
}

/// What can be observed of a run.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    /// Of all events with their times.
    trace: u64,
    issues: Vec<u64>,
    counts: Counts,
    /// Of each thread: registers, instructions, cycles.
    threads: Vec<([u64; 32], u64, u64)>,
    /// Words that are not zero.
    data: Vec<(usize, u64)>,
}

fn outcome(mut world: World, process: u32) -> Outcome {
    let mut data = vec![0; 4096];
    world.peek_memory(0, process, DATA, &mut data).unwrap();
    assert_eq!(world.process(0, process).unwrap().stopped(), None);
    let threads = world.process(0, process).unwrap().threads.values();
    let threads = threads.map(|thread| (thread.hart.x, thread.hart.instret, thread.busy_cycles)).collect();
    let card = world.card(0).unwrap();
    let (issues, counts) = (card.issues().unwrap(), card.access_counts().unwrap());
    let words = data.chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap()));
    let data = words.enumerate().filter(|(_, word)| *word != 0).collect();
    Outcome { trace: world.trace_hash(), issues, counts, threads, data }
}

/// An instruction of a loop on the thread's stack and its own 512 bytes at `S0`. T0 and S0 are left alone.
fn instruction() -> impl Strategy<Value = u32> {
    let register = || A1..=A4;
    prop_oneof![
        3 => (register(), prop::sample::select(vec![S0, SP]), 1i32..64).prop_map(|(rd, base, word)| {
            ld(rd, base, if base == SP { -8 * word } else { 8 * (word - 1) })
        }),
        3 => (register(), prop::sample::select(vec![S0, SP]), 1i32..64).prop_map(|(rs, base, word)| {
            sd(rs, base, if base == SP { -8 * word } else { 8 * (word - 1) })
        }),
        6 => (register(), register(), register()).prop_map(|(rd, a, b)| add(rd, a, b)),
        2 => (register(), register(), -9i32..9).prop_map(|(rd, a, value)| addi(rd, a, value)),
        // A multiplication, a fence, and a branch over the next instruction.
        1 => (register(), register()).prop_map(|(rd, a)| 0x0200_0033 | a << 20 | rd << 15 | rd << 7),
        1 => Just(fence(3, 3)),
        2 => (register(), register()).prop_map(|(a, b)| beq(a, b, 8)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Threads with memory of their own, each on a core or all on two: the same registers, memory and instructions.
    /// Times and counts are the same, too, where no thread starts on a core on which others run: the start may find the
    /// core a few cycles ahead.
    #[test]
    fn private_memory_does_not_show_execution_ahead(
        body in prop::collection::vec(instruction(), 1..40),
        rounds in 1i32..40,
        threads in 1u64..8,
        spread: bool,
        most_ahead in 1u32..40,
    ) {
        let handler = code(&[
            &[mv(S0, A0), addi(T0, 0, rounds), mv(A1, T0), mv(A2, A0), mv(A3, 0), mv(A4, 0)],
            &body,
            &[addi(A1, A1, 1), addi(T0, T0, -1), bne(T0, 0, -4 * (body.len() as i32 + 2))],
            &RESCHEDULE,
        ]);
        let run = |most_ahead: u32| {
            let (mut world, process) = boot(&image(&handler, &[addi(A7, 0, 11), ECALL, RET]), machine(most_ahead));
            let entry = world.card(0).unwrap().process(process).unwrap().image.symbol("handler").unwrap();
            let all: Vec<u32> = (0..threads).map(|number| {
                let unit = if spread { 16 * (number + 1) } else { 16 + number % 2 * 16 + number / 2 } as u32;
                let thread = world.create_thread(0, process, entry, DATA + 512 * number, 0, Some(unit)).unwrap();
                world.run_event_handler(0, thread, DATA + 512 * number).unwrap();
                thread
            }).collect();
            for thread in all {
                ping(&mut world, process, u64::from(thread)).unwrap();
            }
            while world.step() {}
            outcome(world, process)
        };
        let (mut ahead, mut exact) = (run(most_ahead), run(0));
        if !spread {
            for outcome in [&mut ahead, &mut exact] {
                (outcome.trace, outcome.counts) = (0, Counts::default());
                outcome.threads.iter_mut().for_each(|(_, _, cycles)| *cycles = 0);
            }
        }
        prop_assert_eq!(ahead, exact);
    }

    /// One thread rings for a NOP, another on another core polls the line where the card writes the completion, in a
    /// loop of its own and sees it in the same round, whatever it had executed ahead.
    #[test]
    fn what_the_card_writes_is_seen_at_once(pads in 0usize..14, wait in 100i32..500, stores in 0usize..3) {
        let ring = code(&[
            &[addi(T0, 0, wait), addi(T0, T0, -1), bne(T0, 0, -4)],
            &[mv(S0, A0), ld(A0, S0, 0), addi(A7, 0, 6), ECALL],
            &[ld(T0, S0, 8), ld(A1, S0, 16), sd(A1, T0, 0), ld(A1, S0, 24), sd(A1, T0, 8), fence(5, 5)],
            &[ld(A2, TP, 8), ld(A1, S0, 32), sd(A1, A2, 0x1C0)],
            &RESCHEDULE,
        ]);
        // a3 counts rounds; each loads the end of the completion entry, and stores to the thread's own line.
        let round = code(&[
            &vec![add(A4, A4, A3); pads],
            &vec![sd(A3, SP, -64); stores],
            &[addi(A3, A3, 1), ld(A1, T0, 56)],
        ]);
        let poll = code(&[
            &[mv(S0, A0), ld(T0, S0, 8), addi(A1, 0, 1024), add(T0, T0, A1), add(T0, T0, A1), ld(A2, T0, 56), mv(A3, 0)],
            &round,
            &[beq(A1, A2, -4 * round.len() as i32), time(A2), sd(A3, S0, 512), sd(A2, S0, 520)],
            &RESCHEDULE,
        ]);
        let run = |most_ahead: u32| {
            let (mut world, process) = boot(&two_handlers(&ring, &poll), machine(most_ahead));
            offer_nop(&mut world, process);
            let first = make_handlers(&mut world, process);
            ping(&mut world, process, first).unwrap();
            while world.step() {}
            let seen = [512, 520].map(|at| word(&mut world, process, DATA + at));
            (seen, outcome(world, process))
        };
        let (exact, ahead) = (run(0), run(32));
        prop_assert!(exact.0[0] > 1, "it has waited");
        prop_assert_eq!(ahead, exact);
    }
}

/// Two threads hand a number to and fro through lines that are new each time. Each reads the other's in a loop that
/// hits its L1 alone, so that it has executed rounds of it ahead when the other stores. Gives the last numbers, when
/// each thread was done (ns), and the instructions of both.
fn hand_over(most_ahead: u32, units: [u32; 2], pads: usize) -> ([u64; 4], u64) {
    // Each waits until the other's word is `a2`, and stores the next number; the one that serves stores 1 before.
    let player = |own: i32, others: i32, serves: bool| {
        let wait = code(&[&[ld(A1, S0, others)], &vec![add(A4, A4, A1); pads], &[bne(A1, A2, -4 * (pads as i32 + 1))]]);
        let publish = [sd(A2, S0, own), addi(A2, A2, 1)];
        let round =
            if serves { [&publish[..], &wait, &[addi(A2, A2, 1)]] } else { [&wait[..], &[addi(A2, A2, 1)], &publish] };
        let round = code(&[&round.concat(), &[addi(S0, S0, 128), addi(T0, T0, -1)]]);
        // The one that serves loads all lines before: a first load of a line takes so long that it depends on chance
        // who is first.
        let warm =
            [mv(A3, A0), addi(T0, 0, 2 * HANDED), ld(A1, A3, 0), addi(A3, A3, 64), addi(T0, T0, -1), bne(T0, 0, -12)];
        code(&[
            if serves { &warm } else { &[] },
            &[mv(S0, A0), addi(A2, 0, 1), addi(T0, 0, HANDED)],
            &round,
            &[bne(T0, 0, -4 * round.len() as i32), sd(A2, S0, own), time(A3), sd(A3, S0, own + 8)],
            &RESCHEDULE,
        ])
    };
    let elf = two_handlers(&player(0, 64, true), &player(64, 0, false));
    let (mut world, process) = boot(&elf, machine(most_ahead));
    let threads = ["handler", "second"].into_iter().zip(units).map(|(name, unit)| {
        let entry = world.card(0).unwrap().process(process).unwrap().image.symbol(name).unwrap();
        let thread = world.create_thread(0, process, entry, DATA, 0, Some(unit)).unwrap();
        world.run_event_handler(0, thread, DATA).unwrap();
        u64::from(thread)
    });
    let first = threads.min().unwrap();
    ping(&mut world, process, first).unwrap();
    while world.step() {}
    let end = DATA + 128 * HANDED as u64;
    let last = [0, 64, 8, 72].map(|at| word(&mut world, process, end + at));
    (last, world.process(0, process).unwrap().threads.values().map(|thread| thread.hart.instret).sum())
}

const HANDED: i32 = 28;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Of one core, to the nanosecond.
    #[test]
    fn threads_of_a_core_see_each_others_stores_at_once(pads in 0usize..8, most_ahead in 1u32..33) {
        let exact = hand_over(0, [1, 2], pads);
        prop_assert_eq!(&exact.0[..2], &[2 * HANDED as u64 + 1; 2]);
        prop_assert_eq!(hand_over(most_ahead, [1, 2], pads), exact);
    }

    /// Of two cores, later by no more than a burst each time: of up to 32 instructions, of 12 cycles at most.
    #[test]
    fn threads_of_two_cores_see_each_others_stores_soon(pads in 0usize..8) {
        let (exact, ahead) = (hand_over(0, [16, 32], pads).0, hand_over(32, [16, 32], pads).0);
        prop_assert_eq!(&ahead[..2], &exact[..2]);
        for thread in 2..4 {
            let later_ns = ahead[thread] as i64 - exact[thread] as i64;
            prop_assert!((-50..2 * i64::from(HANDED) * 32 * 12 * 556 / 1000).contains(&later_ns), "{later_ns} ns: \
                {ahead:?} {exact:?}");
        }
    }
}

/// Atomic additions of many threads to a word that others load and store concurrently: none is lost.
#[test]
fn atomics_find_what_has_been_stored_before() {
    // 100 times: stores to its own word of the shared line, adds 1 to the common one, and loads its own again.
    let handler = code(&[
        &[mv(S0, A0), lui(A1, 0x40000), slli(A1, A1, 1), addi(T0, 0, 100), addi(A2, 0, 1), mv(A4, 0)],
        &[sd(T0, S0, 0), ld(A3, S0, 0), add(A4, A4, A3), amoadd(A3, A2, A1, 0, 0), sd(A4, S0, 0), ld(A4, S0, 0)],
        &[addi(T0, T0, -1), bne(T0, 0, -4 * 7)],
        &RESCHEDULE,
    ]);
    let run = |most_ahead: u32| {
        let (mut world, process) = boot(&image(&handler, &[addi(A7, 0, 11), ECALL, RET]), machine(most_ahead));
        let entry = world.card(0).unwrap().process(process).unwrap().image.symbol("handler").unwrap();
        let threads = (0..7u64).map(|number| {
            let at = DATA + 8 * (number + 1);
            let thread = world.create_thread(0, process, entry, at, 0, Some(16 + 5 * number as u32)).unwrap();
            world.run_event_handler(0, thread, at).unwrap();
            u64::from(thread)
        });
        for thread in threads.collect::<Vec<_>>() {
            ping(&mut world, process, thread).unwrap();
        }
        while world.step() {}
        (0..8).map(|number| word(&mut world, process, DATA + 8 * number)).collect::<Vec<_>>()
    };
    assert_eq!(run(32), [700, 5050, 5050, 5050, 5050, 5050, 5050, 5050]);
    assert_eq!(run(0), run(32));
}

#[test]
fn accesses_to_where_no_memory_is_are_refused() {
    let (mut world, process) = boot(&image(&[RET], &[RET]), machine(32));
    ping(&mut world, process, 0).unwrap();
    for addr in [0, DATA - 4, DATA + 4092, u64::MAX - 3, u64::MAX] {
        let refused = |result| matches!(result, Err(MachineError::BadDeviceRange { bytes: 8, .. }));
        assert!(refused(world.peek_memory(0, process, addr, &mut [0; 8])), "{addr:#x}");
        assert!(refused(world.write_memory(0, process, addr, &[0; 8])), "{addr:#x}");
    }
}
