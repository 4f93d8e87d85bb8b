//! Connections over RDMA whose other end is not the rank that was meant: connection information of two ranks exchanged,
//! of a former start, of another communicator, and ends that say nothing or something else first. No rank has a result
//! then, and the failure names a rank within the bound.

use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use emu_config::Machine;
use emu_provider::Emulated;
use flexcast::p2p::algorithm::{Allgather, Blocks, Operation};
use flexcast::p2p::{self, Connections, Group};
use flexcast::{Cause, Communicator, Config, Control, Endpoint, FailureCode, Outcome, Pending};
use flexcast_proto::RankInfo;
use flexcast_proto::service::SharedList;
use flexcast_proto::service::wire;
use flexcast_service::{Agent, AgentLimits, Client};
use flexcast_tests::assert_mentions;
use flexcast_tests::communicators::{check, config, ended, gather, gathers, with_cards};
use flexio::{
    Access, CompletionQueue, Connection, HostBuffer, InlineRequest, MemoryRegion, ProtectionDomain, Provider,
    QueueDepths, QueuePair, RemoteQp, SendKind, Transport,
};

const BYTES: usize = 5_000;
/// Where connection information has its rank, and its nonce.
const RANK_AT: usize = 20;
const NONCE_AT: std::ops::Range<usize> = 58..74;
/// The same in that of `p2p`.
const P2P_RANK_AT: usize = 4;
const P2P_NONCE_AT: std::ops::Range<usize> = 36..52;

/// Where the protocol runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Carrier {
    Verbs,
    /// A DPA receives, the host talks to peers.
    Host,
    /// The DPA talks to peers.
    Device,
}

const CARRIERS: [Carrier; 3] = [Carrier::Verbs, Carrier::Host, Carrier::Device];

impl Carrier {
    fn config(self) -> Config {
        let control = if self == Self::Device { Control::Device } else { Control::Host };
        let config = config().control(control).retry_exponent(3);
        if self == Self::Verbs { config.with_subgroups(1).slots(64) } else { config }
    }

    fn with_cards(self, count: usize, body: impl FnOnce(&Provider, &[Endpoint])) {
        if self != Self::Verbs {
            return with_cards(count, body);
        }
        let machine = Machine::default().config_of(count).expect("a switch");
        let provider = emu_provider::emulated(machine).expect("a machine");
        let open = |number| Endpoint::verbs(&provider, &format!("mlx5_{number}")).expect("it opens");
        let cards: Vec<Endpoint> = (0..count).map(open).collect();
        body(&provider, &cards);
    }

    fn pending(self, cards: &[Endpoint]) -> (Vec<Pending>, Vec<Vec<u8>>) {
        let part = |(rank, card)| Pending::new(card, rank, cards.len() as u32, self.config()).expect("its part");
        let pending: Vec<Pending> = (0..).zip(cards).map(part).collect();
        let infos = pending.iter().map(Pending::connect_info).collect();
        (pending, infos)
    }
}

/// Connects all ranks, rank 0 with other connection information.
fn connect(pending: Vec<Pending>, infos: &[Vec<u8>], altered: &[Vec<u8>]) -> Vec<Communicator> {
    let given = |rank| if rank == 0 { altered } else { infos };
    (0..).zip(pending).map(|(rank, pending)| pending.connect(given(rank)).expect("connected")).collect()
}

fn renamed(info: &[u8], at: usize, rank: u32) -> Vec<u8> {
    let mut bytes = info.to_vec();
    bytes[at..at + 4].copy_from_slice(&rank.to_le_bytes());
    bytes
}

/// The connection information with ranks 1 and 2 in one another's place.
fn swapped(infos: &[Vec<u8>], at: usize) -> Vec<Vec<u8>> {
    let mut altered = infos.to_vec();
    altered[1] = renamed(&infos[2], at, 1);
    altered[2] = renamed(&infos[1], at, 2);
    altered
}

fn outcomes(provider: &Provider, communicators: &[Communicator]) -> Vec<Outcome> {
    ended(provider, communicators.iter().map(|one| (one, gather(one, 3, BYTES))))
}

/// Every rank fails, names a rank, and has its buffer back. Where hosts talk to one another one has received a wrong
/// greeting, and has notified the others.
#[track_caller]
fn all_fail(carrier: Carrier, outcomes: &[Outcome]) {
    let failures = outcomes.iter().map(|outcome| {
        let failed = outcome.as_ref().expect_err("no rank has a result");
        assert!(failed.receive.is_some(), "{carrier:?}: the buffer comes back");
        let failure = failed.report.failure.unwrap_or_else(|| panic!("{carrier:?}: why, {failed}"));
        assert!(failure.failed_rank < outcomes.len() as u32, "{carrier:?}: {failure}");
        assert_mentions(&failed.error, &[&format!("rank {}", failure.failed_rank)]);
        failure
    });
    let failures: Vec<_> = failures.collect();
    match carrier {
        Carrier::Verbs | Carrier::Host => {
            let wrong = failures.iter().filter(|one| one.cause == Cause::Connection(FailureCode::WrongPeer)).count();
            assert!(wrong > 0, "{carrier:?}: {failures:?}");
        }
        Carrier::Device => {
            let is_typed = |cause| matches!(cause, Cause::Connection(_) | Cause::Silent(_));
            assert!(failures.iter().all(|one| is_typed(one.cause)), "{failures:?}");
        }
    }
}

#[test]
fn ranks_whose_connection_information_was_exchanged_are_not_taken_for_one_another() {
    for carrier in CARRIERS {
        carrier.with_cards(3, |provider, cards| {
            let (pending, infos) = carrier.pending(cards);
            let communicators = connect(pending, &infos, &swapped(&infos, RANK_AT));
            all_fail(carrier, &outcomes(provider, &communicators));
        });
    }
}

#[test]
fn connection_information_of_a_former_start_is_refused() {
    for carrier in CARRIERS {
        for ranks in [2, 3] {
            carrier.with_cards(ranks, |provider, cards| {
                let (former, of_former) = carrier.pending(cards);
                drop(former);
                let (pending, infos) = carrier.pending(cards);
                // Its queue pairs have the numbers that those of the new one have.
                let mut altered = infos.clone();
                altered[1][NONCE_AT].copy_from_slice(&of_former[1][NONCE_AT]);
                assert_ne!(altered[1], infos[1]);
                let communicators = connect(pending, &infos, &altered);
                all_fail(carrier, &outcomes(provider, &communicators));
            });
        }
    }
}

#[test]
fn a_rank_of_another_communicator_is_not_taken_for_one_of_this() {
    for carrier in CARRIERS {
        carrier.with_cards(2, |provider, cards| {
            let (pending, infos) = carrier.pending(cards);
            let (others, of_others) = carrier.pending(cards);
            let altered = [infos[0].clone(), of_others[1].clone()];
            let communicators = connect(pending, &infos, &altered);
            let others = connect(others, &of_others, &of_others);
            all_fail(carrier, &outcomes(provider, &communicators));
            let outcomes = outcomes(provider, &others);
            if carrier == Carrier::Device {
                // Its cards have dropped what was not for it.
                outcomes.iter().for_each(|done| check(done.as_ref().expect("success"), 3, 2, BYTES));
            } else {
                all_fail(carrier, &outcomes);
            }
        });
    }
}

#[test]
fn ranks_that_were_meant_know_one_another_however_often_they_meet() {
    for carrier in CARRIERS {
        carrier.with_cards(3, |provider, cards| {
            for seed in 0..3 {
                let (pending, infos) = carrier.pending(cards);
                let communicators = connect(pending, &infos, &infos);
                gathers(provider, &communicators, seed, BYTES);
                gathers(provider, &communicators, seed + 7, BYTES);
            }
        });
    }
}

const RECEIVES: u32 = 8;

/// Somebody at the other end of a rank's host connections who is no rank.
struct Impostor {
    asking: QueuePair,
    answering: QueuePair,
    memory: MemoryRegion,
}

impl Impostor {
    fn new(card: &Endpoint) -> Self {
        let pd = ProtectionDomain::new(card.device().expect("a card")).expect("a domain");
        let cq = CompletionQueue::new(pd.device(), 2 * (4 + RECEIVES)).expect("a queue");
        let pair = || {
            let depths = QueueDepths { send: 4, receive: RECEIVES };
            let pair = QueuePair::builder(&pd, Transport::Rc, depths).inline(64).build(&cq, &cq).expect("a queue pair");
            pair.init(Access::REMOTE_READ, 0).expect("INIT");
            pair
        };
        let memory = HostBuffer::zeroed(4096).expect("memory");
        let memory = MemoryRegion::register(&pd, memory, Access::LOCAL_WRITE).expect("a region");
        Self { asking: pair(), answering: pair(), memory }
    }

    fn connect(&self, to: &Endpoint, [asking, answering]: [u32; 2]) {
        let device = to.device().expect("a card");
        let remote = |qpn| RemoteQp { qpn, gid: device.port().gid, mac: device.info().mac, first_psn: 0 };
        self.asking.connect(&Connection::to(remote(answering))).expect("RTS");
        self.answering.connect(&Connection::to(remote(asking))).expect("RTS");
        // It takes what it is sent, and says nothing to it.
        for id in 0..RECEIVES {
            self.answering.post_receive(id.into(), self.memory.slice(0, 4096).expect("inside")).expect("posted");
        }
    }
}

/// Where the connection information of one of two ranks over verbs has the numbers of its host's queue pairs for the
/// other one: behind them there are 24 bytes.
fn ends_at(info: &[u8]) -> usize {
    info.len() - 24 - 8
}

#[test]
fn whoever_says_nothing_or_something_else_first_is_named_within_the_bound() {
    let carrier = Carrier::Verbs;
    for says in [false, true] {
        carrier.with_cards(2, |provider, cards| {
            let (mut pending, mut infos) = carrier.pending(cards);
            let impostor = Impostor::new(&cards[1]);
            let at = ends_at(&infos[0]);
            let word = |at: usize| u32::from_le_bytes(infos[0][at..at + 4].try_into().expect("four bytes"));
            impostor.connect(&cards[0], [word(at), word(at + 4)]);
            infos[1][at..at + 4].copy_from_slice(&impostor.asking.qpn().to_le_bytes());
            infos[1][at + 4..at + 8].copy_from_slice(&impostor.answering.qpn().to_le_bytes());
            let one = pending.remove(0).connect(&infos).expect("connected");
            if says {
                let request =
                    InlineRequest { id: 1, kind: SendKind::Send, bytes: &[7; 40], immediate: None, signaled: true };
                impostor.asking.post_inline([request]).expect("posted");
            }
            let start_ps = provider.relax().now_ps();
            let outcomes = ended(provider, [(&one, gather(&one, 3, BYTES))]);
            let took = Duration::from_nanos((provider.relax().now_ps() - start_ps) / 1000);
            let failed = outcomes[0].as_ref().expect_err("nobody is there");
            let failure = failed.report.failure.expect("why");
            assert_eq!(failure.failed_rank, 1, "{failure}");
            assert!(took <= one.config().barrier_timeout * 3, "{took:?}");
            let is_wrong = failure.cause == Cause::Connection(FailureCode::WrongPeer);
            assert_eq!(is_wrong, says, "{failure}");
            if says {
                assert_mentions(&failed.error, &["rank 1", "the other end is not the rank that was meant"]);
            }
        });
    }
}

/// The ranks of a group, each with the connection information that it is given.
fn groups(
    domains: &[ProtectionDomain],
    given: impl Fn(usize, &[Vec<u8>]) -> Vec<Vec<u8>>,
) -> Result<Vec<Group>, p2p::Error> {
    let ranks = domains.len() as u32;
    let config = p2p::Config { bound: flexio::Bound::millis(100), ..p2p::Config::default() };
    let (mut pending, mut infos) = (Vec::new(), Vec::new());
    for (rank, pd) in (0..).zip(domains) {
        let place = RankInfo::new(rank, ranks).expect("few ranks");
        let connections = Connections::new(place, &[Operation::Allgather(Allgather::Linear)], config)?;
        let queue = CompletionQueue::new(pd.device(), connections.completions())?;
        let (part, info) = connections.prepare(pd, &queue)?;
        pending.push(part);
        infos.push(info);
    }
    pending.into_iter().enumerate().map(|(rank, part)| part.connect(&given(rank, &infos))).collect()
}

/// What each rank's Allgather ends with.
fn gather_between_pairs(
    ranks: usize,
    given: impl Fn(usize, &[Vec<u8>]) -> Vec<Vec<u8>>,
) -> Vec<Result<(), p2p::Error>> {
    let provider = emu_provider::emulated(Machine::default().config_of(ranks).expect("a switch")).expect("a machine");
    let domain = |rank| ProtectionDomain::new(&provider.open(&format!("mlx5_{rank}")).expect("a card")).expect("one");
    let domains: Vec<ProtectionDomain> = (0..ranks).map(domain).collect();
    let mut groups = groups(&domains, given).expect("connected");
    let memory = |pd| {
        let buffer = HostBuffer::zeroed(ranks * 64).expect("memory");
        MemoryRegion::register(pd, buffer, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("a region")
    };
    let memory: Vec<MemoryRegion> = domains.iter().map(memory).collect();
    let mut ends: Vec<Option<Result<(), p2p::Error>>> = Vec::new();
    for (rank, (group, region)) in groups.iter_mut().zip(&memory).enumerate() {
        region.write(rank * 64, &[rank as u8 + 1; 64]).expect("written");
        let blocks = Blocks::equal(64, ranks as u32).expect("few bytes");
        let begun = group.allgather(Allgather::Linear, blocks, None, p2p::Buffer { region, offset: 0 });
        ends.push(begun.err().map(Err));
    }
    while ends.iter().any(Option::is_none) {
        for (group, end) in groups.iter_mut().zip(&mut ends).filter(|(_, end)| end.is_none()) {
            *end = match group.progress() {
                Err(error) => Some(Err(error)),
                Ok(()) => group.is_complete().then_some(Ok(())),
            };
        }
        provider.relax().relax();
    }
    let right: Vec<u8> = (0..ranks).flat_map(|rank| [rank as u8 + 1; 64]).collect();
    for (end, region) in ends.iter().zip(&memory) {
        let mut bytes = vec![0; ranks * 64];
        region.read(0, &mut bytes).expect("read");
        let is_in_place = |(got, right): (&u8, &u8)| *got == 0 || got == right;
        assert!(bytes.iter().zip(&right).all(is_in_place), "no byte of another rank");
        assert!(!matches!(end, Some(Ok(()))) || bytes == right, "success means all bytes");
    }
    ends.into_iter().flatten().collect()
}

#[test]
fn groups_between_pairs_take_nobody_for_somebody_else() {
    assert!(gather_between_pairs(3, |_, infos| infos.to_vec()).iter().all(Result::is_ok));
    let is_wrong = |end: &Result<(), p2p::Error>| matches!(end, Err(p2p::Error::WrongPeer { .. }));
    let names_a_rank = |end: &Result<(), p2p::Error>| {
        matches!(end, Err(p2p::Error::WrongPeer { .. } | p2p::Error::Timeout { .. } | p2p::Error::Connection { .. }))
    };
    // Two ranks exchanged.
    let ends = gather_between_pairs(3, |rank, infos| match rank {
        0 => swapped(infos, P2P_RANK_AT),
        _ => infos.to_vec(),
    });
    assert!(ends.iter().all(names_a_rank) && ends.iter().any(is_wrong), "{ends:?}");
    // Of a former start.
    let stale = |rank: usize, infos: &[Vec<u8>]| {
        let mut altered = infos.to_vec();
        if rank == 0 {
            altered[1][P2P_NONCE_AT.start] ^= 1;
        }
        altered
    };
    for ranks in [2, 3] {
        let ends = gather_between_pairs(ranks, stale);
        assert!(ends.iter().take(2).all(names_a_rank) && ends.iter().any(is_wrong), "{ends:?}");
    }
    // Two connections of one rank exchanged: those for data alone, and all.
    for words in [1..3, 1..5] {
        let ends = gather_between_pairs(3, |rank, infos| {
            let mut altered = infos.to_vec();
            if rank == 0 {
                // Entries have 24 bytes; rank 1 has one for rank 0 and one for rank 2.
                for at in words.clone().flat_map(|word: usize| 52 + 4 * word..56 + 4 * word) {
                    altered[1].swap(at, at + 24);
                }
            }
            altered
        });
        assert!(ends.iter().any(is_wrong) && ends[..2].iter().all(names_a_rank), "{ends:?}");
    }
}

#[test]
fn programs_and_service_processes_take_nobody_for_somebody_else() {
    for (stale_here, stale_there) in [(false, false), (true, false), (false, true)] {
        let machine = Machine { arm_functions: true, ..Machine::default() };
        let machine = Emulated::new(machine.config_of(2).expect("a switch")).expect("a machine");
        let domain = |name| ProtectionDomain::new(&machine.provider.open(name).expect("a device")).expect("a domain");
        let (arm, host) = (domain("mlx5_0_arm"), domain("mlx5_0"));
        let endpoint = wire::Endpoint { address: Ipv6Addr::LOCALHOST, port: 4000 };
        let list = Arc::new(Mutex::new(SharedList::new(1 << 10)));
        let limits = AgentLimits { bound_keys: 64, ..AgentLimits::default() };
        let mut agent = Agent::new(&arm, endpoint, list, limits).expect("a service process");
        let (mut client, end) = Client::open(&host).expect("a connection");
        let (peer, far) = agent.open_program().expect("room");
        let stale = |end: flexcast_service::LinkEnd| flexcast_service::LinkEnd { nonce: [0; 16], ..end };
        agent.connect(peer, if stale_there { stale(end) } else { end }).expect("connected");
        client.connect(if stale_here { stale(far) } else { far }).expect("connected");
        client.offer_keys(1).expect("sent");
        // What it says is answered, or the connection is cut off.
        let is_wrong = stale_here || stale_there;
        let bound_ps = machine.provider.relax().now_ps() + 1_000_000_000_000;
        while client.awaits_keys() && agent.status().programs == 1 {
            assert!(machine.provider.relax().now_ps() < bound_ps, "no end");
            agent.progress().expect("the card works");
            client.progress().expect("the card works");
            machine.provider.relax().relax();
        }
        let status = agent.status();
        assert_eq!(
            (client.awaits_keys(), status.programs, status.bound_keys),
            if is_wrong { (true, 0, 0) } else { (false, 1, 1) }
        );
    }
}
