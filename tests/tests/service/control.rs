//! Communicators whose operations service processes carry out (`control = service`): four ranks on two emulated cards,
//! each a thread with a session of its own.
#![allow(unsafe_code)] // Whoever gives memory by its address vouches for it.

use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use emu_config::Machine;
use emu_provider::Emulated;
use flexcast::bootstrap::{Exchange, ExchangeError};
use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::registration::Limits;
use flexcast::{
    Allgather, Alltoall, Blocks, Buffer, Cause, Communicator, Config, Control, Done, Endpoint, Error, Firmware,
    Overheads, Request, ServiceDelivery, ServiceOptions, UserMemory,
};
use flexcast_proto::service::wire::Secret;
use flexcast_proto::service::{Multicast, StagedReader, Staging};
use flexcast_service::{AgentLimits, Pace, ProcessStatus, Processes, ServerSettings, address_of};
use flexcast_tests::image_bytes;
use tempfile::TempDir;

const SECRET: [u8; 32] = [0x5a; 32];
/// Longest that anything here may take; it is far less.
const BOUND: Duration = Duration::from_secs(60);
/// Bytes of a block.
const BLOCK: usize = 3000;
const RANKS: u32 = 4;
const STAGING: Staging = Staging {
    staging_bytes: 64 << 10,
    segments: 2,
    transfers: 16,
    collectives: 8,
    scatter_bytes: 1 << 20,
    reader: StagedReader::OfRoot,
    multicast: None,
};

/// Two hosts with a card and two service processes each.
struct World {
    machine: Emulated,
    daemons: Vec<Processes>,
    folder: TempDir,
}

impl World {
    fn new(staging: Option<Staging>) -> Self {
        Self::with_dpa_memory(staging, 1 << 20)
    }

    fn with_dpa_memory(staging: Option<Staging>, heap_bytes: u64) -> Self {
        let config = Machine { arm_functions: true, ..Machine::default() };
        let mut config = config.config_of(2).expect("cards");
        config.heap_bytes = heap_bytes;
        let machine = Emulated::new(config).expect("a machine");
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("secret");
        std::fs::write(&path, "5a".repeat(32)).expect("written");
        let only_owner = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        std::fs::set_permissions(&path, only_owner).expect("set");
        let daemons = (0..2).map(|host| daemon(&machine, host, staging)).collect();
        Self { machine, daemons, folder }
    }

    /// What the ranks of a host give.
    fn options(&self, host: usize) -> ServiceOptions {
        let endpoints = self.daemons[host].endpoints().iter().map(|endpoint| address_of(*endpoint).to_string());
        ServiceOptions::new(endpoints.collect(), self.folder.path().join("secret")).operation(Duration::from_secs(20))
    }

    /// Each buffer has an alias of its own, so that aliases show which buffers are shared.
    fn options_without_pool(&self, rank: u32) -> ServiceOptions {
        self.options(rank as usize / 2).bound_keys(0)
    }

    fn keys(&self) -> u64 {
        self.daemons.iter().flat_map(Processes::statuses).map(|status| status.now.keys).sum()
    }

    fn counted(&self, of: impl Fn(&ProcessStatus) -> u64) -> u64 {
        self.daemons.iter().flat_map(Processes::statuses).map(|status| of(&status)).sum()
    }

    /// Runs `body` for each rank in a thread of its own.
    fn run(&self, options: impl Fn(u32) -> ServiceOptions + Sync, body: impl Fn(&Place) + Sync) {
        let open = |device: &str| Endpoint::verbs(&self.machine.provider, device);
        self.run_on(open, options, body);
    }

    /// The same on cards that `open` opens.
    fn run_on(
        &self,
        open: impl Fn(&str) -> Result<Endpoint, Error> + Sync,
        options: impl Fn(u32) -> ServiceOptions + Sync,
        body: impl Fn(&Place) + Sync,
    ) {
        let hub = Arc::new(Hub::default());
        let (open, options, body) = (&open, &options, &body);
        std::thread::scope(|scope| {
            for rank in 0..RANKS {
                let hub = Arc::clone(&hub);
                let run = move || {
                    let card = open(&format!("mlx5_{}", rank / 2)).expect("a card");
                    // Virtual time goes on while a thread is not run: bounds that are longer than any of these tests.
                    let long = Duration::from_secs(1000);
                    let overheads = Overheads { cutoff_slack: Duration::from_secs(1), ..Overheads::default() };
                    let config = Config::for_endpoint(&card).barrier_timeout(long).recovery_timeout(long);
                    let config = config.overheads(overheads).control(Control::Service).service(options(rank));
                    body(&Place { rank, card, config, hub });
                };
                std::thread::Builder::new().name(format!("rank {rank}")).spawn_scoped(scope, run).expect("a thread");
            }
        });
    }

    fn run_all(&self, body: impl Fn(&Place) + Sync) {
        self.run(|rank| self.options(rank as usize / 2), body);
    }
}

fn daemon(machine: &Emulated, host: u32, staging: Option<Staging>) -> Processes {
    let listeners = (0..2).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let device = machine.provider.open(&format!("mlx5_{host}_arm")).expect("Arm cores");
    let limits = AgentLimits { peers: 32, lanes: 256, staging, staging_bytes: 8 << 20, ..AgentLimits::default() };
    let settings =
        ServerSettings { limits, heartbeat: Duration::from_millis(500), ..ServerSettings::new(Secret::new(SECRET), 1) };
    let pace = Pace { busy: Duration::from_millis(1), list: 1 << 10 };
    Processes::start(&device, listeners, settings, pace).expect("service processes")
}

/// What ranks send one another, by the number of the exchange.
#[derive(Default)]
struct Hub {
    rounds: Mutex<BTreeMap<u32, Vec<Option<Vec<u8>>>>>,
    contributed: Condvar,
}

struct HubExchange {
    hub: Arc<Hub>,
    rank: u32,
    round: u32,
}

impl Exchange for HubExchange {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        RANKS
    }

    fn exchange(&mut self, tag: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        let mut rounds = self.hub.rounds.lock().expect("whole");
        let round = rounds.entry(self.round).or_insert_with(|| vec![None; RANKS as usize]);
        round[self.rank as usize] = Some(contribution.to_vec());
        self.hub.contributed.notify_all();
        let number = self.round;
        self.round += 1;
        let is_open = |rounds: &mut BTreeMap<u32, Vec<Option<Vec<u8>>>>| rounds[&number].iter().any(Option::is_none);
        let (rounds, late) = self.hub.contributed.wait_timeout_while(rounds, BOUND, is_open).expect("whole");
        let all = rounds[&number].iter().cloned().collect::<Option<Vec<_>>>();
        all.ok_or_else(|| ExchangeError { tag: tag.to_owned(), reason: format!("late: {}", late.timed_out()) })
    }
}

/// A rank.
struct Place {
    rank: u32,
    card: Endpoint,
    config: Config,
    hub: Arc<Hub>,
}

impl Place {
    fn exchange_from(&self, round: u32) -> HubExchange {
        HubExchange { hub: Arc::clone(&self.hub), rank: self.rank, round }
    }

    /// A communicator; exchanges of several are distinguished by their first number.
    fn create(&self, round: u32) -> Communicator {
        Communicator::create(&self.card, &mut self.exchange_from(round), self.config.clone()).expect("a communicator")
    }

    /// Waits until all ranks are here.
    fn meet(&self, round: u32) {
        self.exchange_from(round).exchange("all are here", &[]).expect("they are");
    }

    fn buffer(&self, bytes: &[u8]) -> Buffer {
        let mut buffer = self.card.buffer(bytes.len()).expect("memory");
        buffer.write(0, bytes).expect("written");
        buffer
    }

    fn empty(&self, len: usize) -> Buffer {
        self.buffer(&vec![0xA5; len])
    }

    /// Waits for the flag without any call in between.
    fn until_flagged(&self, communicator: &Communicator) {
        until("a flag", || communicator.is_flagged().expect("memory").then_some(()));
    }
}

fn until<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    flexcast_tests::processes::until(what, BOUND, poll)
}

fn content(seed: u32, from: u32, to: u32, len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(7) + at / 251 + from * 31 + to * 17 + seed * 3) as u8).collect()
}

/// What each sends to each.
fn sent(seed: u32, rank: u32) -> Vec<u8> {
    (0..RANKS).flat_map(|to| content(seed, rank, to, BLOCK)).collect()
}

fn received(seed: u32, rank: u32) -> Vec<u8> {
    (0..RANKS).flat_map(|from| content(seed, from, rank, BLOCK)).collect()
}

fn gathered(seed: u32) -> Vec<u8> {
    (0..RANKS).flat_map(|from| content(seed, from, 0, BLOCK)).collect()
}

fn bytes(done: &Done) -> Vec<u8> {
    done.receive.to_vec().expect("memory")
}

#[test]
fn operations_of_service_processes_and_of_the_host_come_out_right_in_any_order() {
    let world = World::new(None);
    world.run_all(|place| {
        let communicator = place.create(0);
        assert_eq!(communicator.control().control, Control::Service, "{:?}", communicator.control());
        let (own, ranks) = (place.rank, RANKS as usize);
        for seed in 0..3 {
            let sizes: Vec<u64> = (0..RANKS).map(|rank| u64::from(rank * 700)).collect();
            let starts: Vec<u64> = (0..RANKS).rev().map(|rank| u64::from(rank) * 2500).collect();
            // To rank r as many bytes as its number says, from everybody; to be found in the reverse order.
            let counts = vec![u64::from(own) * 700; ranks];
            let send = Blocks { counts: &sizes, displs: &starts };
            let receive = Blocks { counts: &counts, displs: &starts };
            let mut from = vec![0; 10_000];
            for to in 0..ranks {
                let block = content(seed, own, to as u32, sizes[to] as usize);
                from[starts[to] as usize..][..block.len()].copy_from_slice(&block);
            }
            // Posted one behind the other, each before the ones before it are over.
            let all_to_all = communicator.alltoall(place.buffer(&sent(seed, own)), place.empty(BLOCK * ranks));
            let gather =
                communicator.allgather(place.buffer(&content(seed, own, 0, BLOCK)), place.empty(BLOCK * ranks));
            let root = if own == 1 { place.buffer(&content(seed, 1, 9, BLOCK)) } else { place.empty(BLOCK) };
            let broadcast = communicator.broadcast(root, 1);
            let sum = communicator.allreduce(
                place.buffer(&[own as u8 + 1; 8]),
                place.empty(8),
                Reduction::new(Operator::Sum, DataType::U8).expect("a sum"),
            );
            let vector =
                communicator.post(Alltoall::blocks(send, receive).buffers(place.buffer(&from), place.empty(10_000)));
            let lengths: Vec<u64> = (0..RANKS).map(|rank| u64::from(rank) * 1000 + 1).collect();
            let mine = content(seed, own, 3, lengths[own as usize] as usize);
            let total = lengths.iter().sum::<u64>() as usize;
            let gatherv =
                communicator.post(Allgather::counts(&lengths).buffers(place.buffer(&mine), place.empty(total)));
            let barrier = communicator.barrier();
            let wait = |request: Result<Request, _>| request.expect("posted").wait().expect("it ends well");
            let done = wait(all_to_all);
            assert!(bytes(&done) == received(seed, own), "Alltoall, seed {seed}");
            // There is no multicast in it.
            assert_eq!((done.report.decision.name(), done.report.decision.is_by_service()), ("service", true));
            let done = wait(gather);
            assert!(bytes(&done) == gathered(seed), "Allgather, seed {seed}");
            assert_eq!(done.report.foreign_bytes, 3 * BLOCK as u64);
            assert!(bytes(&wait(broadcast)) == content(seed, 1, 9, BLOCK), "Broadcast, seed {seed}");
            let done = wait(sum);
            assert_eq!((bytes(&done), done.report.decision.is_by_service()), (vec![10; 8], false));
            let found = bytes(&wait(vector));
            for from in 0..ranks {
                let block = content(seed, from as u32, own, counts[from] as usize);
                assert!(found[starts[from] as usize..][..block.len()] == block[..], "Alltoallv from {from}");
            }
            let expected: Vec<u8> =
                (0..RANKS).flat_map(|from| content(seed, from, 3, lengths[from as usize] as usize)).collect();
            assert!(bytes(&wait(gatherv)) == expected, "Allgatherv, seed {seed}");
            wait(barrier);
        }
        place.meet(100);
    });
    // Four operations a turn by the service processes: each rank's flag once.
    let all = 3 * 4 * u64::from(RANKS);
    until("all flags counted", || (world.counted(|status| status.counts.flags) >= all).then_some(()));
    assert_eq!(world.counted(|status| status.counts.flags), all);
    // Of a turn: Alltoall between hosts 4 x 2 blocks, Alltoallv 3 x 2, since nothing goes to rank 0; of Allgather and
    // Allgatherv each block once for each other host. The rest comes from the other rank of the host: of these two each
    // block once on each host.
    assert_eq!(world.counted(|status| status.counts.crossings), 3 * (8 + 6 + 4 + 4));
    assert_eq!(world.counted(|status| status.counts.local_reads), 3 * (4 + 3 + 8 + 8));
}

/// Allgathers by alias keys: a block crosses to each other host once, the card copies it to the other rank there, and
/// no rank calls anything.
#[test]
fn allgathers_cross_once_per_host_and_need_no_call() {
    let world = World::new(None);
    world.run_all(|place| {
        let communicator = place.create(0);
        let own = place.rank;
        let lengths: Vec<u64> = (0..RANKS).map(|rank| u64::from(rank) * 1000).collect();
        let total = lengths.iter().sum::<u64>() as usize;
        let (mut block, mut all) = (place.empty(BLOCK), place.empty(BLOCK * 4));
        let (mut part, mut parts) = (place.empty(lengths[own as usize] as usize), place.empty(total));
        for seed in 0..3 {
            block.write(0, &content(seed, own, 0, BLOCK)).expect("written");
            let done = flagged(place, &communicator, seed, 0, communicator.allgather(block, all).expect("posted"));
            assert!(bytes(&done) == gathered(seed), "Allgather, turn {seed}");
            (block, all) = (done.send.expect("it is back"), done.receive);
            part.write(0, &content(seed, own, 3, part.len())).expect("written");
            let posted = communicator.post(Allgather::counts(&lengths).buffers(part, parts)).expect("posted");
            let done = flagged(place, &communicator, seed, 1, posted);
            let expected: Vec<u8> =
                (0..RANKS).flat_map(|from| content(seed, from, 3, lengths[from as usize] as usize)).collect();
            assert!(bytes(&done) == expected, "Allgatherv, turn {seed}");
            (part, parts) = (done.send.expect("it is back"), done.receive);
        }
    });
    let flags = 3 * 2 * u64::from(RANKS);
    until("all flags counted", || (world.counted(|status| status.counts.flags) >= flags).then_some(()));
    // Rank 0 has nothing in an Allgatherv: an empty block is not read.
    assert_eq!(world.counted(|status| status.counts.crossings), 3 * (4 + 3));
    assert_eq!(world.counted(|status| status.counts.local_reads), 3 * 2 * (4 + 3));
    // The own block is in its place.
    assert_eq!(world.counted(|status| status.counts.reads), 3 * 3 * (4 + 3));
}

#[test]
fn between_post_and_flag_no_rank_calls_anything() {
    without_calls(None);
}

/// The same where the daemons multicast staged segments.
#[test]
fn between_post_and_flag_no_rank_calls_anything_by_multicast() {
    without_calls(Some(Multicast::default()));
}

fn without_calls(multicast: Option<Multicast>) {
    let world = World::new(Some(Staging { multicast, ..STAGING }));
    let options = |rank: u32| world.options(rank as usize / 2).delivery(ServiceDelivery::Flat);
    world.run(options, |place| {
        let communicator = place.create(0);
        let own = place.rank;
        let (mut send, mut receive) = (place.empty(BLOCK * 4), place.empty(BLOCK * 4));
        let (mut block, mut all) = (place.empty(BLOCK), place.empty(BLOCK * 4));
        let mut message = place.empty(BLOCK);
        for seed in 0..3 {
            send.write(0, &sent(seed, own)).expect("written");
            // The first time the processes get to know the memory, which takes a few calls.
            let done = flagged(place, &communicator, seed, 0, communicator.alltoall(send, receive).expect("posted"));
            assert!(bytes(&done) == received(seed, own), "Alltoall, turn {seed}");
            (send, receive) = (done.send.expect("it is back"), done.receive);
            block.write(0, &content(seed, own, 0, BLOCK)).expect("written");
            let done = flagged(place, &communicator, seed, 1, communicator.allgather(block, all).expect("posted"));
            assert!(bytes(&done) == gathered(seed), "Allgather, turn {seed}");
            (block, all) = (done.send.expect("it is back"), done.receive);
            if own == 2 {
                message.write(0, &content(seed, 2, 9, BLOCK)).expect("written");
            }
            let done = flagged(place, &communicator, seed, 2, communicator.broadcast(message, 2).expect("posted"));
            assert!(bytes(&done) == content(seed, 2, 9, BLOCK), "Broadcast, turn {seed}");
            message = done.receive;
        }
    });
    // Of each staged collective flags of all of its processes to each rank; of an Alltoall one to each.
    assert!(world.counted(|status| status.counts.writes) > 0, "staging memory was used");
    // Three turns of an Allgather of all blocks and of a Broadcast; each process once.
    let sent = if multicast.is_some() { 3 * (4 + 1) * BLOCK as u64 } else { 0 };
    // A process counts what it has sent once the card says so, which may be after all ranks have it.
    until("all blocks that are multicast are counted", || {
        (world.counted(|status| status.counts.multicast_bytes) >= sent).then_some(())
    });
    assert_eq!(world.counted(|status| status.counts.multicast_bytes), sent);
    until("no queue pair of a multicast is left", || {
        (world.counted(|status| status.now.multicast_groups) == 0).then_some(())
    });
}

/// Runs turns of a Broadcast of rank 1 and an Allgather of these bytes, posted one behind the other; all bytes are
/// compared.
fn broadcasts_and_allgathers(world: &World, options: impl Fn(u32) -> ServiceOptions + Sync, lengths: &[usize]) {
    world.run(options, |place| {
        let communicator = place.create(0);
        assert_eq!(communicator.control().control, Control::Service, "{:?}", communicator.control());
        let own = place.rank;
        for seed in 0..3 {
            let posted: Vec<(usize, [Request; 2])> = lengths
                .iter()
                .map(|&len| {
                    let root = if own == 1 { place.buffer(&content(seed, 1, 9, len)) } else { place.empty(len) };
                    let broadcast = communicator.broadcast(root, 1).expect("posted");
                    let block = place.buffer(&content(seed, own, 0, len));
                    let all = place.empty(len * RANKS as usize);
                    (len, [broadcast, communicator.allgather(block, all).expect("posted")])
                })
                .collect();
            for (len, [broadcast, gather]) in posted {
                let done = broadcast.wait().expect("it ends well");
                assert!(bytes(&done) == content(seed, 1, 9, len), "Broadcast of {len} bytes, turn {seed}");
                let done = gather.wait().expect("it ends well");
                let expected: Vec<u8> = (0..RANKS).flat_map(|from| content(seed, from, 0, len)).collect();
                assert!(bytes(&done) == expected, "Allgather of {len} bytes, turn {seed}");
            }
        }
        place.meet(100);
    });
}

/// Compares what has been counted with what is expected: Writes from staging memory, Reads between hosts, and Reads
/// between ranks of a host.
fn are_transfers(world: &World, expected: [u64; 3], what: &str) {
    let found = || {
        [
            world.counted(|status| status.counts.writes),
            world.counted(|status| status.counts.crossings),
            world.counted(|status| status.counts.local_reads),
        ]
    };
    // Service processes show what they have done a little later.
    until("the last transfer", || found().iter().zip(expected).all(|(found, least)| *found >= least).then_some(()));
    assert_eq!(found(), expected, "{what}");
}

/// Data of hierarchical collectives is written once per host, and ranks copy it from memory that they share. What has
/// no room there goes as with few ranks on a host.
#[test]
fn hierarchical_delivery_writes_once_per_host() {
    let world = World::new(Some(STAGING));
    // The segment has room for an Allgather of blocks of up to 4,080 bytes; the process announces flags before the
    // data.
    let options =
        |rank: u32| world.options(rank as usize / 2).delivery(ServiceDelivery::Hierarchical).segment_bytes(16 << 10);
    broadcasts_and_allgathers(&world, options, &[BLOCK, 10_000]);
    // Of both Broadcasts a Write on each of 2 hosts; of the short Allgather one of each of 4 processes to each host. Of
    // the long one each block crosses once, and is copied once on each host.
    are_transfers(&world, [3 * (2 + 2 + 8), 3 * 4, 3 * 8], "hierarchical");
}

/// By ranks on a host and bytes, both to be set.
#[test]
fn thresholds_choose_the_delivery() {
    for (ranks, bytes, expected) in [
        // Both lengths; the longer one; none, since 3 ranks are on no host.
        (2, 0, [3 * (2 + 8) * 2, 0, 0]),
        (2, 2000, [3 * (2 + 8 + 3), 3 * 4, 3 * 8]),
        (3, 0, [3 * 2 * 3, 3 * 2 * 4, 3 * 2 * 8]),
    ] {
        let world = World::new(Some(STAGING));
        let options = |rank: u32| world.options(rank as usize / 2).thresholds(ranks, bytes);
        broadcasts_and_allgathers(&world, options, &[BLOCK, 1000]);
        are_transfers(&world, expected, &format!("from {ranks} ranks and {bytes} bytes on"));
    }
}

/// Direct delivery takes no staging memory: the message of rank 1 is read by two ranks of the other host and one of its
/// own.
#[test]
fn direct_delivery_writes_nothing() {
    let world = World::new(Some(STAGING));
    let options = |rank: u32| world.options(rank as usize / 2).delivery(ServiceDelivery::Direct);
    broadcasts_and_allgathers(&world, options, &[BLOCK]);
    are_transfers(&world, [0, 3 * (2 + 4), 3 * (1 + 8)], "direct");
}

#[test]
fn ranks_that_give_other_thresholds_use_the_host_and_say_so() {
    let world = World::new(Some(STAGING));
    let options = |rank: u32| world.options(rank as usize / 2).thresholds(if rank == 3 { 9 } else { 2 }, 0);
    world.run(options, |place| {
        let communicator = place.create(0);
        let report = communicator.control();
        let reason = report.reason.as_deref().expect("a reason");
        let expected = "rank 3 has delivery auto, thresholds 9,0, segments of 8388608 bytes, datapath with control \
            host, but rank 0 delivery auto, thresholds 2,0, ";
        assert!(report.control == Control::Host && reason.starts_with(expected), "{reason}");
        let done = communicator.allgather(place.buffer(&content(0, place.rank, 0, BLOCK)), place.empty(BLOCK * 4));
        assert!(bytes(&done.expect("posted").wait().expect("by the host")) == gathered(0));
    });
}

/// Waits for an operation: from the second turn on by its flag alone, which comes although no rank calls anything.
fn flagged(place: &Place, communicator: &Communicator, seed: u32, number: u32, request: Request) -> Done {
    let round = 1000 + 10 * (3 * seed + number);
    if seed > 0 {
        place.until_flagged(communicator);
        assert!(!communicator.is_done(&request), "nothing has moved the communicator on");
    }
    // Nobody calls anything before all have seen their flags, nor posts before all are done.
    place.meet(round);
    let done = request.wait().expect("it ends well");
    place.meet(round + 1);
    done
}

#[test]
fn without_a_daemon_on_one_rank_all_ranks_use_the_host_and_say_so() {
    let world = World::new(None);
    let nowhere = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("its own").to_string();
    let unnamed = |rank: u32| if rank == 3 { ServiceOptions::default() } else { world.options(rank as usize / 2) };
    // It alone names this process, and so is on a host of its own.
    let absent = |rank: u32| {
        let options = world.options(rank as usize / 2);
        if rank == 3 { ServiceOptions::new(vec![nowhere.clone()], options.secret).processes(1) } else { options }
    };
    let check = |place: &Place, word: &str| {
        let communicator = place.create(0);
        let report = communicator.control();
        assert_eq!(report.control, Control::Host);
        let reason = report.reason.as_deref().expect("a reason");
        assert!(reason.starts_with("rank 3: ") && reason.contains(word), "{reason}");
        let request = communicator.alltoall(place.buffer(&sent(1, place.rank)), place.empty(BLOCK * 4));
        let done = request.expect("posted").wait().expect("it ends well");
        assert!(bytes(&done) == received(1, place.rank));
        place.meet(100);
    };
    world.run(unnamed, |place| check(place, "FLEXCAST_SERVICE"));
    world.run(absent, |place| check(place, "no service process listens"));
    assert_eq!(world.counted(|status| status.counts.flags), 0);
}

#[test]
fn the_dpa_has_broadcasts_and_allgathers_where_it_moves_the_data() {
    let world = World::with_dpa_memory(Some(STAGING), 32 << 20);
    let elf = image_bytes("allgather");
    let firmware = Firmware { name: "allgather", elf: &elf }.load(&world.machine.provider).expect("firmware");
    // Ranks of a host share the units of its card's DPA.
    let cards = ["mlx5_0", "mlx5_1"]
        .map(|device| Endpoint::open_with(&world.machine.provider, device, &firmware).expect("a card with firmware"));
    let open = |device: &str| Ok(cards[usize::from(device == "mlx5_1")].clone());
    let options = |rank: u32| world.options(rank as usize / 2).datapath_control(Control::Device);
    world.run_on(open, options, |place| {
        // Not on the messages of the barrier, however short.
        let config = place.config.clone().eager_bytes(0);
        let communicator =
            Communicator::create(&place.card, &mut place.exchange_from(0), config).expect("a communicator");
        assert_eq!(communicator.control().control, Control::Service, "{:?}", communicator.control());
        let own = place.rank;
        let wait = |request: Result<Request, _>| request.expect("posted").wait().expect("it ends well");
        for seed in 0..2 {
            let done = wait(communicator.alltoall(place.buffer(&sent(seed, own)), place.empty(BLOCK * 4)));
            assert!(bytes(&done) == received(seed, own), "Alltoall, seed {seed}");
            let block = place.buffer(&content(seed, own, 0, BLOCK));
            let done = wait(communicator.allgather(block, place.empty(BLOCK * 4)));
            assert!(bytes(&done) == gathered(seed), "Allgather, seed {seed}");
            let root = if own == 1 { place.buffer(&content(seed, 1, 9, BLOCK)) } else { place.empty(BLOCK) };
            assert!(
                bytes(&wait(communicator.broadcast(root, 1))) == content(seed, 1, 9, BLOCK),
                "Broadcast, seed {seed}"
            );
        }
        // Chunks of three blocks in an Allgather, of one in a Broadcast unless the rank is its root.
        let chunks = communicator.receive_statistics().expect("statistics").accepted;
        assert!(chunks >= 2 * 3, "{chunks} chunks came to the DPA");
        let refused = communicator.barrier().expect_err("the protocol inside runs on the DPA");
        assert!(refused.error.to_string().contains("set control to host"), "{}", refused.error);
        let done = wait(communicator.alltoall(place.buffer(&sent(7, own)), place.empty(BLOCK * 4)));
        assert!(bytes(&done) == received(7, own), "the refusal has broken nothing");
        place.meet(100);
    });
    assert_eq!(world.counted(|status| status.counts.gathers + status.counts.writes), 0, "nothing was staged");
    let all = 3 * u64::from(RANKS);
    until("all flags counted", || (world.counted(|status| status.counts.flags) >= all).then_some(()));
    assert_eq!(world.counted(|status| status.counts.flags), all, "Alltoall alone");
}

#[test]
fn a_rank_that_is_gone_is_named_and_nothing_hangs() {
    let world = World::new(None);
    world.run_all(|place| {
        let communicator = place.create(0);
        if place.rank == 3 {
            // As its program would end: in the middle of an operation that the others have not called.
            let request = communicator.alltoall(place.empty(BLOCK * 4), place.empty(BLOCK * 4)).expect("posted");
            until("the post", || {
                communicator.progress().expect("moves");
                // Both buffers are bound to keys of the rank's pool.
                (world.counted(|status| status.counts.bindings) >= 2).then_some(())
            });
            (0..100).for_each(|_| _ = communicator.progress().expect("moves"));
            drop((request, communicator));
            place.meet(100);
            return;
        }
        place.meet(100);
        let request = communicator.alltoall(place.empty(BLOCK * 4), place.empty(BLOCK * 4)).expect("posted");
        let failed = request.wait().expect_err("rank 3 is gone");
        let Error::Failed { failure, .. } = &failed.error else { panic!("{}", failed.error) };
        assert_eq!(failure.failed_rank, 3, "{failure}");
        assert!(failed.send.is_some() && failed.receive.is_some(), "the buffers are back");
        let refused = communicator.barrier().expect_err("it is of no use");
        assert!(
            matches!(&refused.error, Error::Broken { failure, .. } if failure.failed_rank == 3),
            "{}",
            refused.error
        );
    });
}

/// The rank whose memory the others of its host copy from is gone in the middle of an operation.
#[test]
fn a_rank_that_is_gone_leaves_no_hierarchical_operation_open() {
    let world = World::new(Some(STAGING));
    let options = |rank: u32| world.options_without_pool(rank).delivery(ServiceDelivery::Hierarchical);
    world.run(options, |place| {
        let communicator = place.create(0);
        if place.rank == 2 {
            let request = communicator.allgather(place.empty(BLOCK), place.empty(BLOCK * 4)).expect("posted");
            // Flags of each rank, a segment of each host, and the receive buffer.
            until("the post", || {
                communicator.progress().expect("moves");
                (world.keys() > u64::from(RANKS) + 2).then_some(())
            });
            (0..100).for_each(|_| _ = communicator.progress().expect("moves"));
            drop((request, communicator));
            place.meet(100);
            return;
        }
        place.meet(100);
        let request = communicator.allgather(place.empty(BLOCK), place.empty(BLOCK * 4)).expect("posted");
        let failed = request.wait().expect_err("rank 2 is gone");
        let Error::Failed { failure, .. } = &failed.error else { panic!("{}", failed.error) };
        assert_eq!(failure.failed_rank, 2, "{failure}");
        assert!(failed.send.is_some() && failed.receive.is_some(), "the buffers are back");
    });
}

#[test]
fn a_daemon_that_dies_fails_what_is_under_way() {
    let world = World::new(None);
    let [first, second] = [world.options(0), world.options(1)];
    let World { machine, daemons, folder } = world;
    let daemons = Mutex::new(daemons);
    let world = World { machine, daemons: Vec::new(), folder };
    let options = |rank: u32| if rank < 2 { first.clone() } else { second.clone() };
    world.run(options, |place| {
        let communicator = place.create(0);
        let request = communicator.alltoall(place.buffer(&sent(0, place.rank)), place.empty(BLOCK * 4));
        request.expect("posted").wait().expect("it ends well");
        place.meet(100);
        if place.rank == 0 {
            daemons.lock().expect("whole").pop();
        }
        place.meet(101);
        let posted = communicator.alltoall(place.empty(BLOCK * 4), place.empty(BLOCK * 4));
        // Another rank may have reported it before the post.
        let failed = posted.and_then(|request| request.wait()).expect_err("a daemon is gone");
        let (Error::Failed { failure, .. } | Error::Broken { failure, .. }) = &failed.error else {
            panic!("{}", failed.error)
        };
        // A rank that it has served.
        assert!(failure.failed_rank >= 2 && matches!(failure.cause, Cause::Device(_)), "{failure}");
        assert!(failed.send.is_some() && failed.receive.is_some(), "the buffers are back");
        assert!(communicator.barrier().is_err(), "it is of no use");
        place.meet(102);
    });
}

#[test]
fn buffers_that_are_made_anew_use_up_no_keys() {
    let world = World::new(None);
    world.run_all(|place| {
        let communicator = place.create(0);
        place.meet(100);
        // Processes report what they have a little after they have it.
        let before = u64::from(RANKS);
        until("the keys of the flags of each rank", || (world.keys() == before).then_some(()));
        place.meet(101);
        for seed in 0..12 {
            let request = communicator.alltoall(place.buffer(&sent(seed, place.rank)), place.empty(BLOCK * 4));
            let done = request.expect("posted").wait().expect("it ends well");
            assert!(bytes(&done) == received(seed, place.rank));
        }
        // In place the own blocks go through a copy, whose key goes as well.
        let request = communicator.post(Alltoall::new().in_place(place.buffer(&sent(50, place.rank))));
        let done = request.expect("posted").wait().expect("it ends well");
        assert!(bytes(&done) == received(50, place.rank));
        drop(done);
        // Memory by its address is never kept.
        let users = UserMemory::new(&place.card, Limits::default());
        let (mut from, mut to) = (sent(51, place.rank), vec![0; BLOCK * 4]);
        // SAFETY: both live until their buffers are dropped and are not accessed before.
        let (send, receive) = unsafe {
            let send = users.source(from.as_mut_ptr(), from.len()).expect("registered");
            (send, users.buffer(to.as_mut_ptr(), to.len()).expect("registered"))
        };
        let done = communicator.alltoall(send, receive).expect("posted").wait().expect("it ends well");
        drop(done);
        users.invalidate(from.as_ptr(), from.len());
        users.invalidate(to.as_ptr(), to.len());
        assert!(to == received(51, place.rank));
        until("all keys given back", || {
            communicator.progress().expect("moves");
            (world.keys() == before).then_some(())
        });
        place.meet(102);
    });
    until("no key", || (world.keys() == 0).then_some(()));
    // Each buffer was bound to a key, which was let go of in order.
    assert!(world.counted(|status| status.counts.bindings) >= u64::from(RANKS) * 2 * 14);
    assert_eq!(world.counted(|status| status.counts.aliases_replaced + status.now.bound_keys), 0);
}

/// A slice promises that nobody else writes: it is given once no service process has a key of the buffer any more.
#[test]
fn bytes_are_borrowed_only_while_no_service_process_may_write_to_them() {
    let world = World::new(None);
    let known: Vec<_> =
        world.daemons.iter().flat_map(|host| host.endpoints().iter().copied().map(address_of)).collect();
    let refuses = |buffer: &mut Buffer| {
        for refusal in [buffer.as_slice().map(drop), buffer.as_mut_slice().map(drop)] {
            let error = refusal.expect_err("it is shared");
            assert!(matches!(&error, Error::Leased { process } if known.contains(process)), "{error}");
            assert!(error.to_string().contains("call `Communicator::take_back`"), "{error}");
        }
    };
    world.run(
        |rank| world.options_without_pool(rank),
        |place| {
            let (communicator, other) = (place.create(0), place.create(10));
            place.meet(100);
            // Flags of both communicators, at each rank.
            let before = 2 * u64::from(RANKS);
            until("the keys of the flags", || (world.keys() == before).then_some(()));
            place.meet(101);
            let (mut send, mut receive) = (place.buffer(&sent(0, place.rank)), place.empty(BLOCK * 4));
            assert!(receive.as_slice().expect("nobody has a key yet") == [0xA5; BLOCK * 4]);
            for seed in 0..2 {
                send.write(0, &sent(seed, place.rank)).expect("a copy");
                let request = communicator.alltoall(send, receive).expect("posted");
                let done = request.wait().expect("it ends well");
                (send, receive) = (done.send.expect("it is back"), done.receive);
                refuses(&mut send);
                refuses(&mut receive);
                assert!(receive.to_vec().expect("a copy") == received(seed, place.rank));
                other.take_back(&mut receive).expect("it has not shared it");
                refuses(&mut receive);
                for buffer in [&mut send, &mut receive] {
                    communicator.take_back(buffer).expect("the process lets go of it");
                    communicator.take_back(buffer).expect("nothing is left to take back");
                }
                assert!(receive.as_slice().expect("its own") == received(seed, place.rank));
                receive.as_mut_slice().expect("its own").fill(0xA5);
                assert!(send.as_slice().expect("its own") == sent(seed, place.rank));
                place.meet(102 + seed);
                until("keys given back", || (world.keys() == before).then_some(()));
                place.meet(110 + seed);
            }
            // The keys of a communicator go with it.
            let request = communicator.alltoall(send, receive).expect("posted");
            receive = request.wait().expect("it ends well").receive;
            refuses(&mut receive);
            place.meet(120);
            drop(communicator);
            assert!(receive.as_slice().expect("nobody has a key") == received(1, place.rank));
        },
    );
}

#[test]
fn concurrent_communicators_share_buffers() {
    let world = World::new(None);
    world.run_all(|place| {
        let all = [place.create(0), place.create(10)];
        let halves =
            all[0].split(&mut place.exchange_from(20), Some(place.rank % 2), 0).expect("split").expect("a half");
        assert_eq!(halves.control().control, Control::Service, "{:?}", halves.control());
        let (mut send, mut receive) = (place.buffer(&sent(0, place.rank)), place.empty(BLOCK * 4));
        for turn in 0..4 {
            let communicator = &all[turn % 2];
            let done = communicator.alltoall(send, receive).expect("posted").wait().expect("it ends well");
            assert!(bytes(&done) == received(0, place.rank));
            (send, receive) = (done.send.expect("it is back"), done.receive);
        }
        // Ranks 0 and 2, or 1 and 3.
        let block = content(4, place.rank, 0, BLOCK);
        let done = halves.allgather(place.buffer(&block), place.empty(2 * BLOCK)).expect("posted");
        let done = done.wait().expect("it ends well");
        let other = |rank| content(4, rank, 0, BLOCK);
        assert!(bytes(&done) == [other(place.rank % 2), other(place.rank % 2 + 2)].concat());
        place.meet(100);
        drop((send, receive));
        for communicator in all.iter().chain([&halves]) {
            communicator.progress().expect("moves");
        }
        place.meet(101);
    });
}
