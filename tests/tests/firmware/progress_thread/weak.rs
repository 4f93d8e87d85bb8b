//! The progress thread on weak memory. These tests detect a missing fence (`cargo xtask mutants`).

use std::time::Duration;

use emu_config::Machine;
use emu_machine::{Config as MachineConfig, CostModel, MemoryModel, with_world};
use flexcast::{Config, Test};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::calls::{
    Call, PS_PER_US, config, eager_calls, machine, operates, pass, run, run_eagerly, taken, with_ranks,
};

/// Seeds of weak memory; `FLEXCAST_WEAK_SEEDS` asks for another number.
fn seeds() -> u64 {
    std::env::var("FLEXCAST_WEAK_SEEDS").map_or(4, |text| text.parse().expect("a number of seeds"))
}

fn weak(seed: u64, machine: MachineConfig) -> MachineConfig {
    MachineConfig { memory: MemoryModel::weak(seed), detect_races: true, ..machine }
}

/// Harts that need next to no time, those of the cost model, and slow ones, relative to the card, the hosts and what is
/// under way in memory, whose times stay the same. A doorbell is obeyed, or a message comes, while a slow one is still
/// at the next instruction.
fn speeds() -> [CostModel; 3] {
    let fast = CostModel {
        gap_cycles: 1,
        l1_load_cycles: 0,
        l2_load_cycles: 0,
        store_hit_cycles: 0,
        store_new_line_cycles: 0,
        fence_cycles: 0,
        window_store_cycles: 0,
        outbox_store_cycles: 0,
        ..CostModel::default()
    };
    [fast, CostModel::default(), CostModel { gap_cycles: 50, ..CostModel::default() }]
}

#[test]
fn image_allgather_drives_operations_on_weak_memory_under_the_race_detector() {
    for seed in 1..=seeds() {
        run(4, |ranks| weak(seed, machine(ranks)), &config().chains(2));
    }
}

/// Two ranks: nobody else's message wakes a progress thread that has missed what it was woken for.
#[test]
fn image_allgather_conducts_on_harts_of_any_speed() {
    for seed in 1..=2 * seeds() {
        for cost in speeds() {
            for ranks in [2, 3] {
                let machine = MachineConfig { cost, ..weak(seed, machine(ranks)) };
                with_ranks(machine, &config().chains(1), |all| {
                    for number in 0..8 {
                        let root = number % ranks;
                        let call =
                            if number < 4 { Call::Broadcast { root, len: 1500 } } else { Call::Allgather { len: 700 } };
                        operates(all, call, number, 1);
                    }
                });
                let races = with_world(|world| world.take_races()).expect("a world");
                assert!(races.is_empty(), "seed {seed}, {ranks} ranks, {cost:?}: {}", races[0]);
            }
        }
    }
}

/// Operations whose hosts poll now and then: whatever they find is whole, and so are report and bytes as soon as the
/// flag is up. Blocks fetched.
fn watched(machine: MachineConfig, config: &Config, calls: &[Call], mut until_next_ps: impl FnMut() -> u64) -> u64 {
    let (ranks, mut recovered) = (machine.cards, 0);
    with_ranks(machine, config, |all| {
        for (seed, call) in calls.iter().enumerate() {
            let expected = call.expected(ranks, seed);
            let mut left: Vec<_> = all.iter_mut().map(|communicator| Some(call.post(communicator, seed))).collect();
            let mut polls = 0;
            while left.iter().any(Option::is_some) {
                polls += 1;
                assert!(polls < 100_000, "{call:?} {seed} does not end");
                pass(until_next_ps());
                for (communicator, request) in all.iter_mut().zip(&mut left) {
                    let Some(waiting) = request.take() else {
                        communicator.progress().expect("no failure");
                        continue;
                    };
                    let done = if communicator.is_flagged().expect("read") {
                        taken(waiting)
                    } else {
                        match waiting.test().unwrap_or_else(|error| panic!("{call:?} {seed}: {error}")) {
                            Test::Pending(pending) => {
                                *request = Some(pending);
                                continue;
                            }
                            Test::Done(done) => done,
                        }
                    };
                    let got = done.receive.to_vec().expect("read");
                    assert!(got == expected, "{call:?} {seed}");
                    let phases = done.report.phases.in_ps();
                    let times = [Some(phases.posted_ps), phases.ready_ps, phases.released_ps];
                    assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{phases:?}");
                    recovered += done.report.recovered_chunks;
                }
            }
        }
    });
    let races = with_world(|world| world.take_races()).expect("a world");
    assert!(races.is_empty(), "{}", races[0]);
    recovered
}

/// Eager data, of which some comes early.
#[test]
fn image_allgather_takes_blocks_that_ride_on_the_barrier_when_memory_is_weak() {
    for seed in 1..=seeds() {
        for cost in speeds() {
            for ranks in [2, 5] {
                run_eagerly(ranks, MachineConfig { cost, ..weak(seed, machine(ranks)) }, &config());
            }
        }
    }
}

#[test]
fn image_allgather_reports_to_hosts_that_poll_all_the_time_which_eager_blocks_are_there() {
    for seed in 1..=2 * seeds() {
        for cost in speeds() {
            let machine = MachineConfig { cost, ..weak(seed, machine(3)) };
            let calls: Vec<Call> = eager_calls(3).into_iter().chain(calls(3)).collect();
            watched(machine, &config().chains(2).eager_bytes(4096), &calls, || PS_PER_US / 50);
        }
    }
}

fn calls(ranks: usize) -> [Call; 6] {
    let broadcast = |len| Call::Broadcast { root: ranks - 1, len };
    let allgather = |len| Call::Allgather { len };
    [allgather(5000), broadcast(0), allgather(1), broadcast(9000), allgather(4096), broadcast(300)]
}

#[test]
fn image_allgather_reports_to_hosts_that_poll_all_the_time_what_is_whole() {
    for seed in 1..=2 * seeds() {
        for cost in speeds() {
            let machine = MachineConfig { cost, ..weak(seed, machine(3)) };
            watched(machine, &config().chains(2), &calls(3), || PS_PER_US / 50);
        }
    }
}

/// What is to be read, and where, is in several lines of a report: a host that comes between two reports must not see
/// half of each.
#[test]
fn image_allgather_reports_to_hosts_that_poll_now_and_then_what_to_read() {
    let mut recovered = 0;
    for seed in 1..=3 * seeds() {
        let lossy = Machine { loss_ppm: Some(30_000), seed: Some(seed), ..Machine::default() };
        // A slow hart takes long over a report.
        let cost = speeds()[seed as usize % 3];
        let machine = MachineConfig { cost, ..weak(seed, lossy.config_of(3).expect("a switch")) };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let calls = [Call::Allgather { len: 6000 }; 12];
        // Control messages are lost, too: what a connection repeats comes soon.
        let config = config()
            .retry_exponent(8)
            .barrier_timeout(Duration::from_micros(20_000))
            .recovery_timeout(Duration::from_micros(50_000))
            .packet_lifetime(Duration::from_micros(100));
        recovered += watched(machine, &config, &calls, || random.random_range(1..8 * PS_PER_US));
    }
    assert!(recovered > 0, "nothing was lost");
}
