//! Ranks whose protocol runs on their cards, and what they call.

use emu_config::Machine;
use emu_machine::{Config as MachineConfig, with_world};
use emu_provider::emulated;
use flexcast::{
    Allgather, Buffer, Communicator, Config, Control, Done, Endpoint, Firmware, MessageCounts, Pending, Request,
    Selection, Test,
};
use flexcast_tests::image_bytes;

pub(crate) const PS_PER_US: u64 = 1_000_000;

/// What none of these operations is short enough to ride on the barrier with.
pub(crate) fn config() -> Config {
    Config::default()
        .eager_bytes(0)
        .with_subgroups(2)
        .control(Control::Device)
        .algorithm(Selection::Multicast)
        .slots(64)
        .receive_batch(8)
        .send_batch(4)
        .send_depth(32)
        .chunk_bytes(1024)
        .max_receive_bytes(1 << 20)
}

pub(crate) fn machine(cards: usize) -> MachineConfig {
    Machine::default().config_of(cards).expect("a switch")
}

/// Runs `body` with communicators of so many ranks, each on a card of its own.
pub(crate) fn with_ranks(machine: MachineConfig, config: &Config, body: impl FnOnce(&mut [Communicator])) {
    let ranks = machine.cards as u32;
    let provider = emulated(machine).expect("a machine");
    let elf = image_bytes("allgather");
    let open = |number| {
        let firmware = Firmware { name: "allgather", elf: &elf };
        Endpoint::open(&provider, &format!("mlx5_{number}"), firmware).expect("the card opens")
    };
    let cards: Vec<Endpoint> = (0..ranks).map(open).collect();
    let pending: Vec<Pending> = (0..)
        .zip(&cards)
        .map(|(rank, card)| Pending::new(card, rank, ranks, config.clone()).expect("its part is made"))
        .collect();
    let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
    let mut all: Vec<Communicator> =
        pending.into_iter().map(|pending| pending.connect(&infos).expect("connected")).collect();
    body(&mut all);
}

pub(crate) fn byte(seed: usize, rank: usize, at: usize) -> u8 {
    (at * 11 + at / 253 + rank * 37 + seed * 5) as u8
}

pub(crate) fn bytes(seed: usize, rank: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| byte(seed, rank, at)).collect()
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Call {
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
    pub(crate) fn post(self, communicator: &Communicator, seed: usize) -> Request {
        let (card, rank, ranks) = (communicator.endpoint(), communicator.rank() as usize, communicator.size() as usize);
        let filled = |own: &[u8], len: usize| -> Buffer {
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
                communicator.post(Allgather::counts(&counts).buffers(send, filled(&[], total))).expect("accepted")
            }
        }
    }

    pub(crate) fn expected(self, ranks: usize, seed: usize) -> Vec<u8> {
        match self {
            Call::Broadcast { root, len } => bytes(seed, root, len),
            Call::Allgather { len } => (0..ranks).flat_map(|rank| bytes(seed, rank, len)).collect(),
            Call::Allgatherv { step } => (0..ranks).flat_map(|rank| bytes(seed, rank, rank * step)).collect(),
        }
    }

    /// Ranks that activate another: all but the last of each chain.
    pub(crate) fn activations(self, ranks: u64, chains: u64) -> u64 {
        match self {
            Call::Broadcast { .. } => 0,
            _ => ranks - chains.min(ranks),
        }
    }
}

/// Lets the emulated world run by itself, hosts silent, for this time.
pub(crate) fn pass(time_ps: u64) {
    let arrived = with_world(|world| world.advance(world.now_ps() + time_ps, 100_000_000)).expect("a world");
    assert!(arrived, "the world does more than it can in {time_ps} ps");
}

pub(crate) fn taken(mut request: Request) -> Done {
    for _ in 0..3 {
        match request.test().expect("success") {
            Test::Done(done) => return done,
            Test::Pending(pending) => request = pending,
        }
    }
    panic!("flagged and not done")
}

/// One operation of all ranks that no host touches between its post and its flag. Its control messages are all that it
/// takes.
pub(crate) fn operates(all: &[Communicator], call: Call, seed: usize, chains: u64) {
    let ranks = all.len() as u64;
    let before: Vec<MessageCounts> = all.iter().map(Communicator::messages).collect();
    let requests: Vec<Request> = all.iter().map(|communicator| call.post(communicator, seed)).collect();
    assert!(all.iter().all(|communicator| !communicator.is_flagged().expect("read")), "too early");
    pass(3_000 * PS_PER_US);
    for communicator in all.iter() {
        let rank = communicator.rank();
        assert!(communicator.is_flagged().expect("read"), "rank {rank} of {ranks}: {call:?} {seed} is not over");
    }
    let expected = call.expected(all.len(), seed);
    let mut sum = MessageCounts::default();
    for ((communicator, request), before) in all.iter().zip(requests).zip(before) {
        let done = taken(request);
        assert!(done.receive.to_vec().expect("read") == expected, "{call:?} {seed}");
        let phases = done.report.phases.in_ps();
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

/// [`operates`] with blocks that ride on the barrier: its signals are all that is sent.
pub(crate) fn operates_eagerly(all: &[Communicator], call: Call, seed: usize) {
    let before: Vec<MessageCounts> = all.iter().map(Communicator::messages).collect();
    let requests: Vec<Request> = all.iter().map(|communicator| call.post(communicator, seed)).collect();
    assert!(all.iter().all(|communicator| !communicator.is_flagged().expect("read")), "too early");
    pass(3_000 * PS_PER_US);
    let expected = call.expected(all.len(), seed);
    for ((communicator, request), before) in all.iter().zip(requests).zip(before) {
        let rank = communicator.rank();
        assert!(communicator.is_flagged().expect("read"), "rank {rank}: {call:?} {seed} is not over");
        let done = taken(request);
        assert!(done.receive.to_vec().expect("read") == expected, "{call:?} {seed}");
        let phases = done.report.phases.in_ps();
        let times = [Some(phases.posted_ps), phases.armed_ps, phases.ready_ps, phases.complete_ps, phases.released_ps];
        assert!(times.iter().all(Option::is_some) && times.is_sorted(), "{phases:?}");
        let MessageCounts { barrier, activate, fetch, acknowledge, last, failed } = communicator.messages();
        assert_eq!(barrier - before.barrier, u64::from((all.len() as u32).next_power_of_two().ilog2()));
        assert_eq!(activate + fetch + acknowledge + last + failed, 0, "{call:?} {seed}");
    }
}

/// Calls whose blocks ride on the barrier where 4096 bytes may, just fit, and just do not.
pub(crate) fn eager_calls(ranks: usize) -> Vec<Call> {
    let most = 4096 / ranks;
    vec![
        Call::Allgather { len: 64 },
        Call::Allgather { len: 1 },
        Call::Broadcast { root: ranks - 1, len: 2048 },
        Call::Allgather { len: most },
        Call::Allgatherv { step: 2 },
        Call::Broadcast { root: 0, len: 0 },
        Call::Broadcast { root: ranks / 2, len: 1500 },
        Call::Allgather { len: most - 1 },
    ]
}

/// [`operates_eagerly`], all calls, some of them twice so that both rows are used for each.
pub(crate) fn run_eagerly(ranks: usize, machine: MachineConfig, config: &Config) {
    with_ranks(machine, &config.clone().eager_bytes(4096), |all| {
        for (seed, call) in eager_calls(ranks).into_iter().chain(eager_calls(ranks).into_iter().skip(1)).enumerate() {
            operates_eagerly(all, call, seed);
        }
    });
    assert_eq!(with_world(|world| world.take_races()).expect("a world"), []);
}

pub(crate) fn run(ranks: usize, machine: impl Fn(usize) -> MachineConfig, config: &Config) {
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
