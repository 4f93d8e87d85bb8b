//! The protocol on the card: from the moment all have posted until the flags are in host memory, nobody calls the library, and the host does
//! nothing. Emulated cards, the real firmware.

use emu_machine::{Config as MachineConfig, MemoryModel, with_world};
use flexcast::{
    Buffer, Card, Communicator, Config, Control, Done, Firmware, MessageCounts, Pending, Request, Test, Transport,
};
use flexcast_cli::machine::MachineParams;
use flexcast_cli::provider::emulated;
use flexcast_cli::sim::algorithm::Algorithm;
use flexcast_cli::sim::campaign::run_case;
use flexcast_cli::sim::params::{Operation, SimParams, Trouble};
use flexcast_cli::sim::random::Case;
use flexcast_cli::sim::report::Report;
use flexcast_cli::sim::run as simulation;
use flexcast_cli::tput::run::ImageFile;
use flexcast_tests::image_bytes;

const PS_PER_US: u64 = 1_000_000;

fn config() -> Config {
    Config {
        control: Control::Device,
        slots: 64,
        receive_batch: 8,
        send_batch: 4,
        send_depth: 32,
        chunk_bytes: 1024,
        max_receive_bytes: 1 << 20,
        ..Config::default().with_subgroups(2)
    }
}

fn machine(cards: usize) -> MachineConfig {
    MachineParams::default().config_of(cards).expect("a switch")
}

/// Runs `body` with communicators of so many ranks, each on a card of its own.
fn with_ranks(machine: MachineConfig, config: &Config, body: impl FnOnce(&mut [Communicator<'_>])) {
    let ranks = machine.cards as u32;
    let provider = emulated(machine).expect("a machine");
    let elf = image_bytes("allgather");
    let open = |number| {
        let firmware = Firmware { name: "allgather", elf: &elf };
        Card::open(&provider, &format!("mlx5_{number}"), firmware).expect("the card opens")
    };
    let cards: Vec<Card<'_>> = (0..ranks).map(open).collect();
    let pending: Vec<Pending<'_>> = (0..)
        .zip(&cards)
        .map(|(rank, card)| Pending::new(card, rank, ranks, config.clone()).expect("its part is made"))
        .collect();
    let endpoints: Vec<Vec<u8>> = pending.iter().map(Pending::endpoint).collect();
    let mut all: Vec<Communicator<'_>> =
        pending.into_iter().map(|pending| pending.connect(&endpoints).expect("connected")).collect();
    body(&mut all);
}

fn byte(seed: usize, rank: usize, at: usize) -> u8 {
    (at * 11 + at / 253 + rank * 37 + seed * 5) as u8
}

fn bytes(seed: usize, rank: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| byte(seed, rank, at)).collect()
}

#[derive(Clone, Copy, Debug)]
enum Call {
    Broadcast {
        root: usize,
        len: usize,
    },
    Allgather {
        len: usize,
    },
    /// Rank r contributes `step` x r bytes.
    Allgatherv {
        step: usize,
    },
}

impl Call {
    fn post<'c>(self, communicator: &mut Communicator<'c>, seed: usize) -> Request {
        let (card, rank, ranks) = (communicator.card(), communicator.rank() as usize, communicator.size() as usize);
        let filled = |own: &[u8], len: usize| -> Buffer<'c> {
            let mut buffer = card.buffer(len).expect("a buffer");
            buffer.write(0, own).expect("written");
            buffer
        };
        match self {
            Call::Broadcast { root, len } => {
                let own = if rank == root { bytes(seed, root, len) } else { Vec::new() };
                communicator.broadcast(filled(&own, len), root as u32).expect("accepted")
            }
            Call::Allgather { len } => {
                let send = filled(&bytes(seed, rank, len), len);
                communicator.allgather(send, filled(&[], len * ranks)).expect("accepted")
            }
            Call::Allgatherv { step } => {
                let counts: Vec<u64> = (0..ranks).map(|rank| (rank * step) as u64).collect();
                let send = filled(&bytes(seed, rank, rank * step), rank * step);
                let total = counts.iter().sum::<u64>() as usize;
                communicator.allgatherv(send, filled(&[], total), &counts).expect("accepted")
            }
        }
    }

    fn expected(self, ranks: usize, seed: usize) -> Vec<u8> {
        match self {
            Call::Broadcast { root, len } => bytes(seed, root, len),
            Call::Allgather { len } => (0..ranks).flat_map(|rank| bytes(seed, rank, len)).collect(),
            Call::Allgatherv { step } => (0..ranks).flat_map(|rank| bytes(seed, rank, rank * step)).collect(),
        }
    }

    /// Ranks that activate another: all but the last of each chain.
    fn activations(self, ranks: u64, chains: u64) -> u64 {
        match self {
            Call::Broadcast { .. } => 0,
            _ => ranks - chains.min(ranks),
        }
    }
}

/// Lets the emulated world run by itself, hosts silent, for this time.
fn pass(time_ps: u64) {
    with_world(|world| {
        let bound_ps = world.now_ps() + time_ps;
        world.run_until(bound_ps, |_| false);
    })
    .expect("a world");
}

fn taken<'c>(communicator: &mut Communicator<'c>, mut request: Request) -> Done<'c> {
    for _ in 0..3 {
        match communicator.test(request).expect("a test") {
            Test::Done(done) => return done,
            Test::Pending(pending) => request = pending,
        }
    }
    panic!("flagged and not done")
}

/// One operation of all ranks that no host touches between its post and its flag. Its control messages are all that it takes.
fn operates(all: &mut [Communicator<'_>], call: Call, seed: usize, chains: u64) {
    let ranks = all.len() as u64;
    let before: Vec<MessageCounts> = all.iter().map(Communicator::messages).collect();
    let requests: Vec<Request> = all.iter_mut().map(|communicator| call.post(communicator, seed)).collect();
    assert!(all.iter().all(|communicator| !communicator.is_flagged().expect("read")), "too early");
    pass(3_000 * PS_PER_US);
    for communicator in all.iter() {
        let rank = communicator.rank();
        assert!(communicator.is_flagged().expect("read"), "rank {rank} of {ranks}: {call:?} {seed} is not over");
    }
    let expected = call.expected(all.len(), seed);
    let mut sum = MessageCounts::default();
    for ((communicator, request), before) in all.iter_mut().zip(requests).zip(before) {
        let done = taken(communicator, request);
        done.result.as_ref().expect("success");
        assert!(done.receive.as_ref().expect("a buffer").to_vec().expect("read") == expected, "{call:?} {seed}");
        let phases = done.report.phases;
        // Who receives nothing has received everything as soon as it is armed.
        for between in [phases.ready_ps, phases.received_ps, phases.complete_ps] {
            let times = [Some(phases.posted_ps), phases.armed_ps, between, phases.released_ps];
            assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{phases:?}");
        }
        let messages = communicator.messages();
        assert_eq!(messages.barrier - before.barrier, u64::from((ranks as u32).next_power_of_two().ilog2()));
        assert!(messages.activate - before.activate <= 1);
        assert_eq!(messages.last - before.last, u64::from(ranks > 1));
        sum.activate += messages.activate - before.activate;
        sum.fetch += messages.fetch + messages.acknowledge + messages.failed;
    }
    assert_eq!((sum.fetch, sum.activate), (0, call.activations(ranks, chains)));
}

fn run(ranks: usize, machine: impl Fn(usize) -> MachineConfig, config: &Config) {
    let chains = u64::from(config.chains);
    with_ranks(machine(ranks), config, |all| {
        let calls = [
            Call::Allgather { len: 5000 },
            Call::Broadcast { root: ranks - 1, len: 20_000 },
            Call::Allgatherv { step: 700 },
            Call::Allgather { len: 1 },
            Call::Broadcast { root: 0, len: 0 },
            Call::Allgather { len: 4096 },
        ];
        for (seed, call) in calls.into_iter().enumerate() {
            operates(all, call, seed, chains);
        }
    });
    assert_eq!(with_world(|world| world.take_races()).expect("a world"), []);
}

/// The same calls with hosts that look all the time: whatever they find is whole, and so are the bytes as soon as it says so.
fn run_watched(ranks: usize, machine: MachineConfig, config: &Config) {
    with_ranks(machine, config, |all| {
        for (seed, len) in (0..).zip([5000, 0, 1, 9000, 4096, 300]) {
            let call = if seed % 2 == 0 { Call::Allgather { len } } else { Call::Broadcast { root: ranks - 1, len } };
            let expected = call.expected(ranks, seed);
            let mut left: Vec<_> = all.iter_mut().map(|communicator| Some(call.post(communicator, seed))).collect();
            let mut looks = 0;
            while left.iter().any(Option::is_some) {
                looks += 1;
                assert!(looks < 20_000, "no end");
                pass(PS_PER_US / 4);
                for (communicator, request) in all.iter_mut().zip(&mut left) {
                    let Some(waiting) = request.take() else { continue };
                    match communicator.test(waiting).expect("a test") {
                        Test::Pending(pending) => *request = Some(pending),
                        Test::Done(done) => {
                            done.result.as_ref().expect("success");
                            let got = done.receive.as_ref().expect("a buffer").to_vec().expect("read");
                            assert!(got == expected, "{call:?} {seed}");
                            let phases = done.report.phases;
                            let times = [Some(phases.posted_ps), phases.ready_ps, phases.released_ps];
                            assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{phases:?}");
                        }
                    }
                }
            }
        }
    });
    assert_eq!(with_world(|world| world.take_races()).expect("a world"), []);
}

#[test]
fn no_host_is_needed_between_post_and_flag() {
    for ranks in [1, 2, 3, 5, 8, 13] {
        run(ranks, machine, &Config { chains: 1, ..config() });
    }
}

#[test]
fn nor_with_chains_side_by_side_several_send_workers_and_small_quotas() {
    for (ranks, chains, quota) in [(5, 2, 4096), (8, 8, 1), (13, 4, 2)] {
        run(ranks, machine, &Config { chains, quota, send_threads: 2, lead_chunks: 1, ..config() });
    }
}

/// Seeds of weak memory; `FLEXCAST_WEAK_SEEDS` asks for another number.
fn seeds() -> u64 {
    std::env::var("FLEXCAST_WEAK_SEEDS").map_or(4, |text| text.parse().expect("a number of seeds"))
}

#[test]
fn image_allgather_conducts_when_memory_is_weak_and_races_are_looked_for() {
    for seed in 1..=seeds() {
        let weak = |ranks| MachineConfig { memory: MemoryModel::weak(seed), detect_races: true, ..machine(ranks) };
        run(4, weak, &Config { chains: 2, ..config() });
    }
}

#[test]
fn image_allgather_tells_hosts_that_look_all_the_time_what_is_whole() {
    for seed in 1..=2 * seeds() {
        let weak = MachineConfig { memory: MemoryModel::weak(seed), detect_races: true, ..machine(3) };
        run_watched(3, weak, &Config { chains: 2, ..config() });
    }
}

fn image() -> ImageFile {
    ImageFile { name: "allgather".to_owned(), elf: image_bytes("allgather") }
}

/// An Allgather of five ranks in which this happens.
fn troubled(control: Control, trouble: Trouble) -> Report {
    let params = SimParams {
        ranks: 5,
        ranks_per_card: 1,
        operation: Operation::Allgather,
        algorithm: Algorithm::Multicast,
        bytes: 20_000,
        total_bytes: None,
        root: 0,
        warm_up: 0,
        iterations: 1,
        seed: 1,
        config: Config { control, patience_ps: 20_000 * PS_PER_US, ..config() },
        trouble: vec![trouble],
    };
    let provider = emulated(machine(5)).expect("a machine");
    simulation::run(&provider, Some(&image()), &params, &simulation::source(&params), &mut |_| {}).expect("it runs")
}

#[test]
fn ranks_that_call_different_things_all_fail_and_say_so_wherever_the_protocol_runs() {
    for control in [Control::Host, Control::Device] {
        let report = troubled(control, Trouble::Disagree { rank: 1 });
        assert_eq!((report.failures, report.live), (5, 5), "{control:?}");
        assert!(report.errors.iter().all(|text| text.contains("called another operation")), "{:?}", report.errors);
    }
}

#[test]
fn a_cancelled_operation_fails_as_such_in_every_phase() {
    for control in [Control::Host, Control::Device] {
        let mut failed = 0;
        for after_us in (0..240).step_by(20) {
            let trouble = Trouble::Cancel { rank: 2, after_ps: after_us * PS_PER_US };
            let report = troubled(control, trouble);
            assert!(report.bytes_ok, "{control:?}, {after_us} us");
            let cancelled = |text: &String| text.contains("rank 2 cancelled");
            assert!(report.errors.iter().all(cancelled), "{control:?}, {after_us} us: {:?}", report.errors);
            failed += u64::from(report.failures > 0);
        }
        assert!(failed >= 3, "{control:?}: {failed}");
    }
}

/// Nothing of an operation needs the host of a rank that has posted it, so that one that dies then harms nobody.
#[test]
fn a_host_that_dies_after_posting_leaves_its_card_at_work() {
    let dead = Trouble::Dead { rank: 3, after_ps: 0 };
    let report = troubled(Control::Device, dead);
    assert_eq!((report.failures, report.live), (0, 4), "{:?}", report.errors);
    assert!(report.bytes_ok);
    let report = troubled(Control::Host, dead);
    assert_eq!((report.failures, report.live), (4, 4), "on the host the protocol dies with it");
    assert!(report.errors.iter().all(|text| text.contains("silent")), "{:?}", report.errors);
}

/// Loss, duplicates, delays, links that go down, dead and cancelling ranks, stalled workers, weak memory: whatever the case, what comes out is
/// what must, on the host and on the card.
#[test]
fn cases_drawn_from_seeds_come_out_right_wherever_the_protocol_runs() {
    let (image, mut lost, mut failed) = (image(), 0, 0);
    for seed in 1001..1025 {
        for control in [Control::Host, Control::Device] {
            let mut case = Case::new(seed);
            if case.params.config.transport == Transport::UcUnicast {
                // On the card it is refused.
                case.params.config.transport = Transport::Ud;
                case.params.config.chunk_bytes = case.params.config.chunk_bytes.min(4096);
            }
            case.params.config.control = control;
            let tally = run_case(&case, &image).unwrap_or_else(|wrong| panic!("{control:?}: {wrong}"));
            lost += tally.recovered_chunks;
            failed += tally.failed;
        }
    }
    assert!(lost > 100 && failed > 4, "{lost} chunks recovered, {failed} cases failed");
}
