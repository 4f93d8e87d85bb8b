//! Service processes with sockets, as threads, and concurrent jobs that connect to them over TCP: two hosts,
//! whose cards are emulated in this process.

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use emu_config::Machine;
use emu_provider::Emulated;
use flexcast_proto::service::wire::{
    self, Body, Endpoint, Group, GroupError, Hello, NO_CORE, Packet, Place, Refused, Rejection, Role, Secret,
};
use flexcast_proto::service::{
    Blocks, Cause, ContextId, Datatype, FailedParty, LocalCopies, Locality, Region, Topology,
};
use flexcast_proto::session::MessageTags;
use flexcast_service::{
    AgentLimits, End, Error, LocalCopy, MemoryId, Pace, ProcessStatus, Processes, Reason, ServerSettings, Session,
    SessionError, SessionTiming, address_of,
};
use flexcast_tests::harness::is_long;
use flexio::{Access, HostBuffer, MemoryRegion, ProtectionDomain, Provider};
use socket2::{Domain, Socket, Type};

const SECRET: [u8; 32] = [0x5a; 32];
/// Bytes of a block.
const BLOCK: u64 = 100;
/// Longest that anything here may take; it is far less.
const BOUND: Duration = Duration::from_secs(60);

fn machine() -> Emulated {
    machine_of(2)
}

fn machine_of(cards: usize) -> Emulated {
    let config = Machine { arm_functions: true, ..Machine::default() };
    let mut config = config.config_of(cards).expect("cards");
    config.heap_bytes = 1 << 20;
    Emulated::new(config).expect("a machine")
}

fn settings() -> ServerSettings {
    let limits = AgentLimits { peers: 16, lanes: 256, ..AgentLimits::default() };
    ServerSettings { limits, heartbeat: Duration::from_millis(500), ..ServerSettings::new(Secret::new(SECRET), 1) }
}

/// The service processes of a host's card.
fn daemon_with(machine: &Emulated, host: u32, processes: u32, settings: ServerSettings) -> Processes {
    let listeners = (0..processes).map(|_| TcpListener::bind("127.0.0.1:0").expect("a port")).collect();
    let device = machine.provider.open(&format!("mlx5_{host}_arm")).expect("Arm cores");
    let pace = Pace { busy: Duration::from_millis(1), list: 1 << 10 };
    Processes::start(&device, listeners, settings, pace).expect("service processes")
}

fn daemon(machine: &Emulated, host: u32, processes: u32) -> Processes {
    daemon_with(machine, host, processes, settings())
}

fn timing() -> SessionTiming {
    SessionTiming { connect: Duration::from_secs(5), greeting: Duration::from_secs(5) }
}

fn domain(provider: &Provider, host: u32) -> ProtectionDomain {
    ProtectionDomain::new(&provider.open(&format!("mlx5_{host}")).expect("a card")).expect("a domain")
}

/// Waits until something is so.
fn until<T>(what: &str, poll: impl FnMut() -> Option<T>) -> T {
    flexcast_tests::processes::until(what, BOUND, poll)
}

/// Waits until what the processes of a daemon have, all together, is so.
fn settles(daemon: &Processes, what: &str, is_it: impl Fn(&[ProcessStatus]) -> bool) -> Vec<ProcessStatus> {
    until(what, || Some(daemon.statuses()).filter(|statuses| is_it(statuses)))
}

struct Rank {
    session: Session,
    send: MemoryId,
    receive: MemoryId,
}

/// All ranks of one job, which one thread drives.
struct Job {
    provider: Provider,
    group: u32,
    ranks: Vec<Rank>,
}

fn content(group: u32, source: u32, target: u32) -> Vec<u8> {
    (0..BLOCK as u32).map(|at| (at * 7 + source * 31 + target * 17 + group * 3) as u8).collect()
}

fn blocks<'b>(region: Region, counts: &'b [u64], displs: &'b [u64]) -> Blocks<'b> {
    let datatype = Datatype { size_bytes: 1, extent_bytes: 1 };
    Blocks { address: region.address, key: region.key, datatype, counts, displs }
}

impl Job {
    /// Connects `per_host` ranks on each of hosts 0 and 1, and joins them to a group.
    fn new(provider: &Provider, group: u32, endpoints: [&[Endpoint]; 2], per_host: u32) -> Result<Self, Error> {
        Self::on(provider, group, [(0, endpoints[0]), (1, endpoints[1])], per_host)
    }

    /// The same on any two hosts.
    fn on(provider: &Provider, group: u32, hosts: [(u32, &[Endpoint]); 2], per_host: u32) -> Result<Self, Error> {
        let endpoints = hosts.map(|(_, endpoints)| endpoints);
        let processes = endpoints[0].len().min(per_host as usize) as u32;
        let locality = |rank: u32| Locality { host: rank / per_host, socket: 0 };
        let localities: Vec<Locality> = (0..2 * per_host).map(locality).collect();
        let topology = Topology::new(&localities, processes).expect("a topology");
        let process_of = |rank: u32| {
            let process = topology.process_of(rank).expect("it is served");
            endpoints[(process / processes) as usize][(process % processes) as usize]
        };
        let places: Vec<Place> = (0..)
            .zip(&localities)
            .map(|(rank, locality)| Place { locality: *locality, core: NO_CORE, process: process_of(rank) })
            .collect();
        let mut ranks = Vec::new();
        for rank in 0..2 * per_host {
            let host = hosts[(rank / per_host) as usize].0;
            let pd = domain(provider, host);
            let mut session =
                // These tests count the keys of buffers, each of which has its own.
                Session::connect_with_keys(&pd, process_of(rank), &Secret::new(SECRET), timing(), 0).expect("connected");
            let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
            let mut share = || {
                let buffer = HostBuffer::zeroed((2 * u64::from(per_host) * BLOCK) as usize)?;
                session.client().share(MemoryRegion::register(&pd, buffer, access)?)
            };
            let (send, receive) = (share()?, share()?);
            session.client().join(&Group::new(group, u64::from(group) + 1000, rank, processes, &places)?)?;
            ranks.push(Rank { session, send, receive });
        }
        let mut job = Self { provider: provider.clone(), group, ranks };
        job.drive("all ranks join", |job| {
            for (rank, state) in (0..).zip(&mut job.ranks) {
                let client = state.session.client();
                if client.key(state.send)?.is_none()
                    || client.key(state.receive)?.is_none()
                    || !client.has_joined(group, rank)?
                {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        Ok(job)
    }

    fn drive(&mut self, what: &str, mut is_over: impl FnMut(&mut Self) -> Result<bool, Error>) -> Result<(), Error> {
        let start = Instant::now();
        loop {
            let mut any = false;
            for number in 0..self.ranks.len() {
                any |= self.ranks[number].session.progress()?;
                while let Some(copy) = self.ranks[number].session.client().next_copy() {
                    self.copy(number, &copy)?;
                }
            }
            if is_over(self)? {
                return Ok(());
            }
            if !any {
                self.provider.relax().relax();
            }
            assert!(start.elapsed() < BOUND, "{what} does not come");
        }
    }

    fn copy(&mut self, number: usize, copy: &LocalCopy) -> Result<(), Error> {
        let holder = &mut self.ranks[copy.holder as usize];
        let mut bytes = vec![0; copy.from.bytes as usize];
        let ids = [holder.send, holder.receive];
        for memory in ids {
            let region = holder.session.client().region(memory);
            let start = region.addr().get();
            if (start..start + region.len() as u64).contains(&copy.from.address) {
                region.read((copy.from.address - start) as usize, &mut bytes)?;
            }
        }
        let own = &mut self.ranks[number];
        own.session.client().region(own.receive).write((u64::from(copy.source) * BLOCK) as usize, &bytes)?;
        own.session.client().copied(copy)
    }

    fn call_all(&mut self, gather: bool) -> Result<Vec<ContextId>, Error> {
        (0..self.ranks.len() as u32).map(|rank| self.call(rank, gather)).collect()
    }

    fn call(&mut self, rank: u32, gather: bool) -> Result<ContextId, Error> {
        let (group, all) = (self.group, self.ranks.len() as u64);
        let counts = vec![BLOCK; all as usize];
        let displs: Vec<u64> = (0..all).map(|at| at * BLOCK).collect();
        let Rank { session, send, receive, .. } = &mut self.ranks[rank as usize];
        let client = session.client();
        let data: Vec<u8> = (0..all as u32).flat_map(|to| content(group, rank, if gather { 0 } else { to })).collect();
        client.region(*send).write(0, &data)?;
        client.region(*receive).fill(0xA5);
        let from = client.key(*send)?.expect("shared");
        let into = client.key(*receive)?.expect("shared");
        let into = blocks(into, &counts, &displs);
        if gather {
            client.allgatherv(group, rank, Some(Region { bytes: BLOCK, ..from }), &into, LocalCopies::Host)
        } else {
            client.alltoallv(group, rank, &blocks(from, &counts, &displs), &into)
        }
    }

    fn end(&mut self, contexts: &[ContextId]) -> Result<(), Error> {
        self.drive("a collective", |job| {
            for ((rank, state), context) in (0..).zip(&mut job.ranks).zip(contexts) {
                if !state.session.client().end(*context, rank)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    fn is_right(&mut self, gather: bool) -> bool {
        let (group, all) = (self.group, self.ranks.len() as u32);
        (0..).zip(&mut self.ranks).all(|(rank, state)| {
            let expected: Vec<u8> =
                (0..all).flat_map(|from| content(group, from, if gather { 0 } else { rank })).collect();
            let mut found = vec![0; expected.len()];
            let receive = state.receive;
            state.session.client().region(receive).read(0, &mut found).expect("memory");
            found == expected
        })
    }

    /// A few collectives, all bytes checked.
    fn work(&mut self) -> Result<(), Error> {
        for turn in 0..4 {
            let gather = turn % 2 == 1;
            let contexts = self.call_all(gather)?;
            self.end(&contexts)?;
            assert!(self.is_right(gather), "group {}, turn {turn}", self.group);
        }
        Ok(())
    }

    fn leave(&mut self) -> Result<(), Error> {
        let group = self.group;
        for (rank, state) in (0..).zip(&mut self.ranks) {
            state.session.client().leave(group, rank)?;
        }
        self.drive("all ranks leave", |job| {
            Ok((0..).zip(&mut job.ranks).all(|(rank, state)| state.session.client().has_left(group, rank)))
        })
    }
}

/// Nothing of any job is left; connections to other processes may be.
fn is_idle(statuses: &[ProcessStatus]) -> bool {
    statuses.iter().all(|status| {
        let now = status.now;
        let pairs = now.queue_pairs == now.processes;
        now.programs + now.groups + now.waiting_groups + now.collectives + now.active_reads + now.keys + now.bound_keys
            == 0
            && pairs
    })
}

fn failure(error: Error) -> (FailedParty, Cause) {
    match error {
        Error::Failed(failure) => (failure.failed_rank, failure.cause),
        other => panic!("{other}"),
    }
}

#[test]
fn concurrent_jobs_leave_nothing() {
    let machine = machine();
    let daemons = [daemon(&machine, 0, 2), daemon(&machine, 1, 2)];
    let endpoints = [daemons[0].endpoints(), daemons[1].endpoints()];
    for round in 0..2 {
        std::thread::scope(|scope| {
            for job in 0..3 {
                let provider = &machine.provider;
                scope.spawn(move || {
                    let mut job = Job::new(provider, 10 * round + job, endpoints, 1 + job % 2).expect("all join");
                    job.work().expect("all ends well");
                    job.leave().expect("all leave");
                });
            }
        });
        for daemon in &daemons {
            let statuses = settles(daemon, "an idle daemon", is_idle);
            for status in &statuses {
                // Both sides of a pair may begin at once: one gives way when it is asked to, or when it is connected
                // to.
                let crossed = status.net.refused_for(Reason::Crossing) + status.net.refused_for(Reason::Closed);
                let refused: u64 = status.net.refused.iter().sum();
                assert_eq!((status.counts.wrong, status.net.deaths, refused - crossed), (0, 0, 0), "{status:?}");
            }
        }
    }
    let statuses: Vec<ProcessStatus> = daemons.iter().flat_map(Processes::statuses).collect();
    let sum = |of: &dyn Fn(&ProcessStatus) -> u64| statuses.iter().map(of).sum::<u64>();
    // Each pair of processes on the two hosts at most once, whatever begins at once; those of a card as well.
    let pairs = 4 * 3 / 2;
    let accepted = sum(&|status| status.connections.accepted);
    assert!(accepted <= pairs, "{accepted} connections of {pairs} pairs");
    assert_eq!(sum(&|status| status.net.set_up), accepted);
    assert!(sum(&|status| status.connections.hits) > 0, "later groups find them");
    assert_eq!(sum(&|status| status.net.goodbyes), 2 * (2 + 4 + 2), "one of each rank");
}

#[test]
fn a_rank_whose_connection_is_cut_is_named_and_the_next_job_runs() {
    let machine = machine();
    let daemons = [daemon(&machine, 0, 1), daemon(&machine, 1, 1)];
    let endpoints = [daemons[0].endpoints(), daemons[1].endpoints()];
    let mut job = Job::new(&machine.provider, 1, endpoints, 2).expect("all join");
    let contexts: Vec<ContextId> = (0..3).map(|rank| job.call(rank, false).expect("called")).collect();
    // Rank 3 does not call, and goes.
    drop(job.ranks.pop());
    for (rank, context) in (0..).zip(contexts) {
        let mut ended = None;
        job.drive("the death of rank 3", |job| {
            ended = job.ranks[rank as usize].session.client().end(context, rank).err();
            Ok(ended.is_some())
        })
        .expect("it is reported");
        assert_eq!(failure(ended.expect("it fails")), (FailedParty::Rank(3), Cause::Died));
    }
    // After a failure memory is taken back: nobody can reach it any more.
    let Rank { session, send, .. } = &mut job.ranks[0];
    let memory = *send;
    session.client().take_back(memory).expect("sent");
    let mut back = None;
    job.drive("memory that was taken back", |job| {
        back = job.ranks[0].session.client().taken_back(memory);
        Ok(back.is_some())
    })
    .expect("it is given back");
    assert_eq!(back.expect("memory").len() as u64, 4 * BLOCK);
    assert!(job.ranks[0].session.client().take_back(memory).is_err(), "once");
    let statuses = settles(&daemons[0], "an alias less", |statuses| statuses[0].now.keys == 2 * 3 - 1);
    assert_eq!(statuses[0].now.programs, 2);
    drop(job);
    daemons.iter().for_each(|daemon| _ = settles(daemon, "an idle daemon", is_idle));
    let mut next = Job::new(&machine.provider, 1, endpoints, 2).expect("all join");
    next.work().expect("all ends well");
}

/// A program that makes and leaves groups does not use up its keys.
#[test]
fn a_group_that_is_forgotten_leaves_no_key() {
    let machine = machine();
    let daemons = [daemon(&machine, 0, 1), daemon(&machine, 1, 1)];
    let mut job =
        Job::new(&machine.provider, 1, [daemons[0].endpoints(), daemons[1].endpoints()], 1).expect("all join");
    assert!(matches!(job.ranks[0].session.client().forget(1, 0), Err(Error::Order { .. })), "it has not left");
    job.work().expect("all ends well");
    job.leave().expect("all leave");
    for (rank, state) in (0..).zip(&mut job.ranks) {
        state.session.client().forget(1, rank).expect("left");
        assert!(state.session.client().has_left(1, rank));
    }
    job.drive("keys that are let go", |job| {
        let provider = &job.provider;
        provider.relax().relax();
        Ok(daemons.iter().all(|daemon| daemon.statuses()[0].now.keys == 2))
    })
    .expect("reported");
}

/// A rank takes memory back from which another process is to read: the collective fails on all ranks, and other groups
/// go on.
#[test]
fn memory_that_is_taken_back_fails_what_reads_it() {
    let machine = machine();
    let daemons = [daemon(&machine, 0, 1), daemon(&machine, 1, 1)];
    let endpoints = [daemons[0].endpoints(), daemons[1].endpoints()];
    let mut other = Job::new(&machine.provider, 2, endpoints, 1).expect("all join");
    let mut job = Job::new(&machine.provider, 1, endpoints, 1).expect("all join");
    let first = job.call(0, false).expect("called");
    settles(&daemons[1], "its announcement", |statuses| statuses[0].now.waiting_reads > 0);
    let send = job.ranks[0].send;
    job.ranks[0].session.client().take_back(send).expect("sent");
    let mut back = None;
    job.drive("memory that was taken back", |job| {
        back = job.ranks[0].session.client().taken_back(send);
        Ok(back.is_some())
    })
    .expect("it is given back");
    let second = job.call(1, false).expect("called");
    let mut ends = [None, None];
    job.drive("both ends", |job| {
        for (rank, context) in [first, second].into_iter().enumerate() {
            if let Err(error) = job.ranks[rank].session.client().end(context, rank as u32) {
                ends[rank] = Some(failure(error));
            }
        }
        Ok(ends.iter().all(Option::is_some))
    })
    .expect("reported");
    // The Read that fails breaks the queue pair for the one of the other direction, if that is under way.
    for end in ends {
        assert!(matches!(end, Some((FailedParty::Rank(_), Cause::Read(_)))), "{end:?}");
    }
    other.work().expect("another group goes on");
}

#[test]
fn a_daemon_that_dies_is_named_and_a_new_one_serves() {
    let machine = machine();
    let daemons = [daemon(&machine, 0, 1), daemon(&machine, 1, 1)];
    let mut job =
        Job::new(&machine.provider, 1, [daemons[0].endpoints(), daemons[1].endpoints()], 1).expect("all join");
    let context = job.call(0, false).expect("called");
    let [living, dying] = daemons;
    drop(dying);
    let mut ended = None;
    job.drive("the death of process 1", |job| {
        ended = job.ranks[0].session.client().end(context, 0).err();
        Ok(ended.is_some())
    })
    .expect("it is reported");
    assert_eq!(failure(ended.expect("it fails")), (FailedParty::Process(1), Cause::Died));
    // Its own rank learns it by the end of its connection.
    until("its end", || job.ranks[1].session.end().filter(|end| *end == End::Died));
    job.ranks[1].session.progress().expect("nothing came");
    assert!(matches!(job.call(1, false), Err(Error::Gone)));
    let receive = job.ranks[1].receive;
    assert!(job.ranks[1].session.client().taken_back(receive).is_some(), "at once, since nobody has an alias");
    drop(job);
    settles(&living, "an idle daemon", is_idle);
    let again = daemon(&machine, 1, 1);
    let mut next = Job::new(&machine.provider, 2, [living.endpoints(), again.endpoints()], 1).expect("all join");
    next.work().expect("all ends well");
}

#[test]
fn a_group_whose_other_process_is_not_there_is_refused() {
    let machine = machine();
    let here = daemon(&machine, 0, 1);
    // A port on which nobody listens.
    let nobody = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port");
    let nobody = [flexcast_service::endpoint_of(nobody)];
    let pd = domain(&machine.provider, 0);
    let mut session = Session::connect(&pd, here.endpoints()[0], &Secret::new(SECRET), timing()).expect("connected");
    let place = |host: u32, process| Place { locality: Locality { host, socket: 0 }, core: NO_CORE, process };
    let places = [place(0, here.endpoints()[0]), place(1, nobody[0])];
    session.client().join(&Group::new(7, 1, 0, 1, &places).expect("a group")).expect("sent");
    let refused = until("a refusal", || {
        session.progress().expect("it goes on");
        machine.provider.relax().relax();
        session.client().has_joined(7, 0).err()
    });
    assert!(matches!(refused, Error::Refused(Refused::Group(GroupError::Unreachable { process: 1 }))), "{refused}");
    let statuses = settles(&here, "a set-up that fails", |statuses| statuses[0].net.set_ups_failed == 1);
    assert_eq!((statuses[0].now.waiting_groups, statuses[0].now.groups), (0, 0));
}

/// Connections that no group uses give way to others, and those that groups use do not.
#[test]
fn connections_give_way_to_others_once_they_are_idle() {
    let machine = machine_of(4);
    let one = || ServerSettings { connections: 1, connect: Duration::from_secs(2), ..settings() };
    let daemons: Vec<Processes> = (0..4).map(|host| daemon_with(&machine, host, 1, one())).collect();
    let on = |group: u32, hosts: [u32; 2]| {
        Job::on(&machine.provider, group, hosts.map(|host| (host, daemons[host as usize].endpoints())), 1)
    };
    // Each has room for one connection of its own and for one of others.
    let pairs = [[0, 1], [0, 2], [1, 2], [1, 0], [2, 0], [2, 1], [3, 1], [2, 3]];
    let rounds = if is_long() { 4 } else { 1 };
    for (group, hosts) in pairs.repeat(rounds).into_iter().enumerate() {
        let mut job = on(group as u32, hosts).unwrap_or_else(|error| panic!("{hosts:?}: {error}"));
        job.work().expect("all ends well");
        job.leave().expect("all leave");
        drop(job);
        daemons.iter().for_each(|daemon| _ = settles(daemon, "an idle daemon", is_idle));
    }
    // While groups use both connections of process 0 another one waits, and not for ever.
    let mut using = on(100, [0, 1]).expect("all join");
    let other = on(101, [0, 2]).expect("all join");
    let refused = on(102, [0, 3]).map(|_| ()).expect_err("there is no room");
    assert!(matches!(refused, Error::Refused(Refused::Group(GroupError::Unreachable { .. }))), "{refused}");
    using.work().expect("it goes on");
    using.leave().expect("all leave");
    drop((using, other));
    on(102, [0, 3]).expect("there is room").work().expect("all ends well");
    daemons.iter().for_each(|daemon| _ = settles(daemon, "an idle daemon", is_idle));
    let statuses: Vec<ProcessStatus> = daemons.iter().flat_map(Processes::statuses).collect();
    assert!(statuses.iter().map(|status| status.connections.evictions).sum::<u64>() > 0, "{statuses:?}");
    for status in &statuses {
        assert_eq!((status.net.deaths, status.counts.wrong), (0, 0), "{status:?}");
        assert!(status.now.processes <= 2, "{status:?}");
    }
}

/// What a socket has sent until it ends.
fn rest(stream: &mut TcpStream) -> Vec<u8> {
    stream.set_read_timeout(Some(BOUND)).expect("a bound");
    let mut bytes = Vec::new();
    // Who has sent what was not read may be answered by a reset.
    _ = stream.read_to_end(&mut bytes);
    bytes
}

fn rejection(bytes: &[u8]) -> Option<Rejection> {
    match wire::decode(bytes).ok()?.body {
        Body::Rejected(rejection) => Some(rejection),
        _ => None,
    }
}

fn encoded(body: Body<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::encode(&Packet { context: ContextId { group: 0, collective: 0 }, body }, &mut bytes).expect("a message");
    bytes
}

fn hello() -> Vec<u8> {
    encoded(Body::Hello(Hello { role: Role::Rank, epoch: 1, nonce: [3; 32] }))
}

#[test]
fn whoever_may_not_connect_is_refused_by_its_reason() {
    let machine = machine();
    let limits = AgentLimits { peers: 1, lanes: 8, ..AgentLimits::default() };
    let greeting = Duration::from_secs(1);
    let daemon = daemon_with(&machine, 0, 1, ServerSettings { limits, greeting, greetings: 4, ..settings() });
    let endpoint = daemon.endpoints()[0];
    let connect = || TcpStream::connect(address_of(endpoint)).expect("connected");
    let pd = domain(&machine.provider, 0);
    // Another secret.
    let other = Session::connect(&pd, endpoint, &Secret::new([1; 32]), timing()).expect_err("another secret");
    assert!(matches!(other, SessionError::Secret { .. }), "{other}");
    // Another version.
    let mut stream = connect();
    let mut bytes = hello();
    bytes[4] = wire::VERSION + 1;
    stream.write_all(&bytes).expect("sent");
    assert_eq!(rejection(&rest(&mut stream)), Some(Rejection::Format));
    // Nothing of this library, and a message that is not due.
    for garbage in [&b"GET / HTTP/1.1\r\n"[..], &encoded(Body::Goodbye)] {
        let mut stream = connect();
        stream.write_all(garbage).expect("sent");
        assert_eq!(rejection(&rest(&mut stream)), Some(Rejection::Format));
    }
    // Silence, and a byte now and then: nobody else waits for it.
    let mut slow: Vec<TcpStream> = (0..3).map(|_| connect()).collect();
    let hello = hello();
    slow.iter_mut().for_each(|stream| stream.write_all(&hello[..20]).expect("sent"));
    let session = Session::connect(&pd, endpoint, &Secret::new(SECRET), timing()).expect("connected meanwhile");
    slow.iter_mut().for_each(|stream| assert!(rest(stream).is_empty()));
    // More than there is room for.
    let full = Session::connect(&pd, endpoint, &Secret::new(SECRET), timing()).expect_err("no room");
    assert!(matches!(full, SessionError::Rejected { rejection: Rejection::Connections { limit: 1 }, .. }), "{full}");
    // Many that are half open: there is room for four at a time.
    let mut crowd: Vec<TcpStream> = (0..12).map(|_| connect()).collect();
    let rejections: Vec<Option<Rejection>> = crowd.iter_mut().map(|stream| rejection(&rest(stream))).collect();
    let crowded = rejections.iter().filter(|rejection| **rejection == Some(Rejection::Crowded { limit: 4 })).count();
    assert!((1..=8).contains(&crowded), "{rejections:?}");
    drop(session);
    let statuses = settles(&daemon, "room", |statuses| statuses[0].now.programs == 0);
    let reasons = [Reason::Secret, Reason::Version, Reason::Format, Reason::Connections];
    assert_eq!(reasons.map(|reason| statuses[0].net.refused_for(reason)), [1, 1, 2, 1]);
    let late = statuses[0].net.refused_for(Reason::Deadline);
    assert_eq!((statuses[0].net.refused_for(Reason::Crowded), late), (crowded as u64, 3 + 12 - crowded as u64));
    assert_eq!(statuses[0].half_open, 0);
    // It serves as before.
    Session::connect(&pd, endpoint, &Secret::new(SECRET), timing()).expect("room again");
}

/// A connection from another address of this computer.
fn connect_from(address: &str, to: SocketAddr) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let own: IpAddr = address.parse().expect("an address");
    socket.bind(&SocketAddr::new(own, 0).into()).expect("an address of this computer");
    socket.connect(&to.into()).expect("connected");
    socket.into()
}

/// The ranks of a service process's own host are not crowded out by those who only open connections, however many these
/// are.
#[test]
fn an_address_with_many_silent_connections_gives_way_to_others() {
    let machine = machine();
    let greeting = Duration::from_secs(20);
    let daemon = daemon_with(&machine, 0, 1, ServerSettings { greeting, greetings: 4, ..settings() });
    let to = address_of(daemon.endpoints()[0]);
    let mut silent: Vec<TcpStream> = (0..4).map(|_| connect_from("127.0.0.2", to)).collect();
    settles(&daemon, "no room for another greeting", |statuses| statuses[0].half_open == 4);
    // None of them has had its time: the oldest goes all the same.
    let pd = domain(&machine.provider, 0);
    let session = Session::connect(&pd, daemon.endpoints()[0], &Secret::new(SECRET), timing()).expect("connected");
    let mut oldest = silent.remove(0);
    assert_eq!(rejection(&rest(&mut oldest)), Some(Rejection::Crowded { limit: 4 }));
    // The same address gets no more than it has, and keeps what it has: the second is refused, and not one of those
    // before it.
    silent.push(connect_from("127.0.0.2", to));
    settles(&daemon, "no room for another greeting", |statuses| statuses[0].half_open == 4);
    let mut second = connect_from("127.0.0.2", to);
    assert_eq!(rejection(&rest(&mut second)), Some(Rejection::Crowded { limit: 4 }));
    for mut other in silent {
        other.set_read_timeout(Some(Duration::from_millis(1))).expect("a bound");
        let waits = other.read(&mut [0]).expect_err("nothing is said to it");
        assert!(matches!(waits.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{waits}");
    }
    drop(session);
    settles(&daemon, "an idle daemon", |statuses| statuses[0].now.programs == 0 && statuses[0].half_open == 0);
}

/// Bytes between a program and a service process go through somebody who says again what the program has said.
#[test]
fn a_message_that_is_said_again_on_the_way_ends_the_session() {
    let machine = machine();
    let daemon = daemon(&machine, 0, 1);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let relay = flexcast_service::endpoint_of(listener.local_addr().expect("bound"));
    let repeats = Arc::new(AtomicBool::new(false));
    let (to, again) = (address_of(daemon.endpoints()[0]), Arc::clone(&repeats));
    std::thread::spawn(move || {
        let (program, _) = listener.accept().expect("a connection");
        let process = TcpStream::connect(to).expect("connected");
        let back = (process.try_clone().expect("a copy"), program.try_clone().expect("a copy"));
        std::thread::spawn(move || pass_on(back.0, back.1, &AtomicBool::new(false)));
        pass_on(program, process, &again);
    });
    let pd = domain(&machine.provider, 0);
    let session = Session::connect(&pd, relay, &Secret::new(SECRET), timing()).expect("connected");
    until("a heartbeat", || (daemon.statuses()[0].now.programs == 1).then_some(()));
    assert_eq!(session.end(), None);
    repeats.store(true, Ordering::Release);
    let end = until("the end of the session", || session.end());
    assert_eq!(end, End::Died);
    let statuses = settles(&daemon, "a death", |statuses| statuses[0].now.programs == 0);
    assert_eq!((statuses[0].net.deaths, statuses[0].net.goodbyes), (1, 0));
}

/// Passes on what is said, once or, if so, twice.
fn pass_on(mut from: TcpStream, mut to: TcpStream, twice: &AtomicBool) {
    let mut bytes = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut bytes) {
        for _ in 0..1 + u32::from(twice.load(Ordering::Acquire)) {
            if to.write_all(&bytes[..read]).is_err() {
                return;
            }
        }
    }
    _ = to.shutdown(Shutdown::Both);
}

#[test]
fn who_is_not_there_is_reported_at_once() {
    let machine = machine();
    let pd = domain(&machine.provider, 0);
    let socket = TcpListener::bind("127.0.0.1:0").expect("a port");
    let endpoint = flexcast_service::endpoint_of(socket.local_addr().expect("bound"));
    let timing = SessionTiming { greeting: Duration::from_millis(50), ..timing() };
    // Somebody listens who says nothing.
    let silent = Session::connect(&pd, endpoint, &Secret::new(SECRET), timing).expect_err("silence");
    assert!(matches!(silent, SessionError::Silent { .. }), "{silent}");
    drop(socket);
    let absent = Session::connect(&pd, endpoint, &Secret::new(SECRET), timing).expect_err("nobody");
    assert!(matches!(absent, SessionError::Absent { .. }), "{absent}");
    assert!(absent.to_string().contains("start flexcast-service"), "{absent}");
}

/// A side that says nothing any more, with its connection open: as of a computer that has lost its power.
#[test]
fn silence_is_death() {
    let machine = machine();
    let fast = ServerSettings { heartbeat: Duration::from_millis(100), ..settings() };
    let daemon = daemon_with(&machine, 0, 1, fast);
    // A greeting by hand, so that nobody answers heartbeats.
    let secret = Secret::new(SECRET);
    let pd = domain(&machine.provider, 0);
    let (_client, end) = flexcast_service::Client::open(&pd).expect("a queue pair");
    let mut stream = TcpStream::connect(address_of(daemon.endpoints()[0])).expect("connected");
    stream.set_read_timeout(Some(BOUND)).expect("a bound");
    let next = |stream: &mut TcpStream| {
        let mut bytes = vec![0; wire::HEADER_BYTES];
        stream.read_exact(&mut bytes).expect("a header");
        let length = wire::length_of(&bytes).expect("a message");
        bytes.resize(length, 0);
        stream.read_exact(&mut bytes[wire::HEADER_BYTES..]).expect("its body");
        bytes
    };
    let connecting = wire::Connecting::new(secret, Role::Rank, 1, [9; 32]);
    stream.write_all(&encoded(Body::Hello(connecting.hello()))).expect("sent");
    let bytes = next(&mut stream);
    let Body::Challenge(challenge) = wire::decode(&bytes).expect("a message").body else { panic!("{bytes:?}") };
    let hash = |secret: &Secret, message: &[u8]| flexcast_service::keyed_hash(secret, message);
    let (confirming, proof) = connecting.answer(&challenge, &hash).expect("the secret");
    stream.write_all(&encoded(Body::Proof(proof))).expect("sent");
    let bytes = next(&mut stream);
    let Body::Proof(proof) = wire::decode(&bytes).expect("a message").body else { panic!("{bytes:?}") };
    let own = confirming.conclude(&proof, &hash).expect("the service process");
    let mut tags = MessageTags::new(&own.send);
    let mut say = |stream: &mut TcpStream, body: Body<'_>| {
        let message = encoded(body);
        let tag = tags.next(&message, &hash);
        stream.write_all(&[&message[..], &tag].concat()).expect("sent");
    };
    let next = |stream: &mut TcpStream| {
        next(stream);
        stream.read_exact(&mut [0; wire::TAG_BYTES]).expect("its tag");
    };
    next(&mut stream);
    say(&mut stream, Body::Link(wire::Link { gid: end.gid.0, mac: end.mac.0, queue_pair: end.qpn, nonce: end.nonce }));
    next(&mut stream);
    say(&mut stream, Body::Heartbeat(wire::Heartbeat { number: 1, seen: 0 }));
    // Heartbeats come, and then the end.
    let heartbeat = encoded(Body::Heartbeat(wire::Heartbeat { number: 1, seen: 0 })).len() + wire::TAG_BYTES;
    let heartbeats = rest(&mut stream).len() / heartbeat;
    assert!(heartbeats >= 2, "{heartbeats} heartbeats");
    let statuses = settles(&daemon, "a death", |statuses| statuses[0].net.deaths == 1);
    assert!(statuses[0].net.heartbeats_missed >= 4 && statuses[0].now.programs == 0, "{statuses:?}");
    // Who answers stays.
    let mut session = Session::connect(&pd, daemon.endpoints()[0], &Secret::new(SECRET), timing()).expect("connected");
    std::thread::sleep(Duration::from_secs(1));
    session.progress().expect("it goes on");
    assert_eq!((session.end(), daemon.statuses()[0].now.programs), (None, 1));
}

#[test]
fn a_stop_lets_collectives_end_and_notifies_everybody() {
    let machine = machine();
    let daemons = [daemon(&machine, 0, 1), daemon(&machine, 1, 1)];
    let endpoints = [daemons[0].endpoints().to_vec(), daemons[1].endpoints().to_vec()];
    let mut job = Job::new(&machine.provider, 1, [&endpoints[0], &endpoints[1]], 1).expect("all join");
    let first = job.call(0, false).expect("called");
    settles(&daemons[0], "the call", |statuses| statuses[0].now.collectives == 1);
    daemons[0].stop(BOUND);
    // New connections are refused meanwhile.
    let pd = domain(&machine.provider, 0);
    let refused = until("a refusal", || Session::connect(&pd, endpoints[0][0], &Secret::new(SECRET), timing()).err());
    assert!(matches!(refused, SessionError::Rejected { rejection: Rejection::Stopping, .. }), "{refused}");
    let second = job.call(1, false).expect("called");
    job.end(&[first, second]).expect("it ends well");
    assert!(job.is_right(false));
    until("its end", || job.ranks[0].session.end().filter(|end| *end == End::Stopped));
    let [stopped, other] = daemons;
    until("the end of its threads", || stopped.are_over().then_some(()));
    stopped.join().expect("in order");
    assert_eq!(job.ranks[1].session.end(), None, "the other daemon goes on");
    drop(job);
    settles(&other, "an idle daemon", is_idle);
    // One whose collective does not end waits for as long as it may, and can be ended before.
    let first = daemon(&machine, 0, 1);
    let mut job = Job::new(&machine.provider, 2, [first.endpoints(), other.endpoints()], 1).expect("all join");
    job.call(0, false).expect("called");
    settles(&first, "the call", |statuses| statuses[0].now.collectives == 1);
    first.stop(BOUND);
    std::thread::sleep(Duration::from_millis(50));
    assert!(!first.is_over());
    first.end();
    until("the end of its threads", || first.are_over().then_some(()));
    until("its end", || job.ranks[0].session.end().filter(|end| *end == End::Died));
    // And one that has had its time notifies its ranks.
    let second = daemon(&machine, 0, 1);
    let mut job = Job::new(&machine.provider, 3, [second.endpoints(), other.endpoints()], 1).expect("all join");
    job.call(0, false).expect("called");
    settles(&second, "the call", |statuses| statuses[0].now.collectives == 1);
    second.stop(Duration::from_millis(50));
    until("its end", || job.ranks[0].session.end().filter(|end| *end == End::Stopped));
}
