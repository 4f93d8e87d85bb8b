//! Keys that programs bind to their memory, with service processes on the Arm cores of emulated cards: no control
//! operation of the Arm function for a registration, no binding while anything uses one, and what a registration takes.

use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex};

use emu_config::Machine;
use emu_machine::FunctionId;
use emu_provider::Emulated;
use flexcast_lab::service::{Load, ServiceError, ServiceOp, Shape, World};
use flexcast_proto::service::wire::{
    self, AccessKey, Body, Endpoint, Group, KeyExport, KeyForm, KeyName, KeyRefusal, NO_CORE, Packet, Place, Refused,
    Rights,
};
use flexcast_proto::service::{
    Blocks, Cause, ContextId, Datatype, Delivery, FailedParty, Limits, Locality, Region, SharedList, StagedRefusal,
    Staging,
};
use flexcast_service::{Agent, AgentLimits, AgentStatus, Client, Error, MemoryId, PeerId};
use flexio::{Access, HostBuffer, MemoryRegion, ProtectionDomain};

const LOAD: Load = Load { bytes: 1009, varies: false };
const COMMAND_PS: u64 = 10_000_000;

fn machine(cards: u32, command_ps: u64) -> Emulated {
    let config = Machine { arm_functions: true, command_ps: Some(command_ps), ..Machine::default() };
    let mut config = config.config_of(cards as usize).expect("a switch");
    config.heap_bytes = 1 << 20;
    Emulated::new(config).expect("a machine")
}

fn world(shape: Shape, keys: u16) -> World {
    World::with_keys(machine(shape.hosts.max(2), 0), shape, LOAD, Limits::default(), None, keys)
        .unwrap_or_else(|error| panic!("{shape:?}, {keys} keys: {error}"))
}

fn arm_commands(world: &World, shape: Shape) -> Vec<u64> {
    (0..shape.hosts as usize).map(|card| world.arm_commands(card).expect("a card")).collect()
}

/// All ranks call, and end well.
fn exchange(world: &mut World, op: ServiceOp, ranks: u32, turn: u32) {
    let contexts: Vec<ContextId> = (0..ranks).map(|rank| world.call(op, rank, turn).expect("called")).collect();
    world.end_all(&contexts).expect("all end well");
    for rank in 0..ranks {
        assert!(world.is_right(op, rank, turn).expect("memory"), "{op}, rank {rank}, turn {turn}");
    }
}

const OPS: [ServiceOp; 2] = [ServiceOp::Alltoallv, ServiceOp::Allgatherv];

/// Has a program share 64 bytes.
fn share(client: &mut Client) -> MemoryId {
    let pd = client.pd().clone();
    client.share(memory(&pd, 64)).expect("sent")
}

#[test]
fn registrations_cost_the_arm_cores_no_control_operation() {
    let shape = Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 1 };
    let registrations = |keys: u16| {
        let mut world = world(shape, keys);
        let joined = arm_commands(&world, shape);
        for turn in 0..6 {
            exchange(&mut world, OPS[turn as usize % 2], 4, turn);
            for rank in 0..4 {
                world.share_anew(rank).expect("memory");
                let bound = world.memory(rank).map(|memory| world.ranks[rank as usize].client.is_bound(memory));
                assert_eq!(bound, [keys >= 1, keys >= 2]);
            }
        }
        let after = arm_commands(&world, shape);
        let counts = world.counts();
        assert_eq!(counts.wrong, 0);
        let each: Vec<u64> = after.iter().zip(&joined).map(|(after, joined)| after - joined).collect();
        (joined, each, counts.bindings, counts.aliases_replaced)
    };
    let (joined, each, bindings, replaced) = registrations(0);
    // An alias made and one destroyed for each buffer of two ranks, six times.
    assert_eq!((&each[..], bindings, replaced), (&[48, 48][..], 0, 0));
    let (joined_with, each, bindings, replaced) = registrations(4);
    assert_eq!((&each[..], bindings, replaced), (&[0, 0][..], 4 * 2 + 6 * 4 * 2, 0), "no control operation");
    // Four aliases for each program, once, in place of one for each of its buffers.
    let more: Vec<u64> = joined_with.iter().zip(&joined).map(|(with, without)| with - without).collect();
    assert_eq!(more, [2 * (4 - 2), 2 * (4 - 2)]);
    // One key is not enough for two buffers: the other one has a key of its own.
    let (_, each, bindings, replaced) = registrations(1);
    assert_eq!((&each[..], bindings, replaced), (&[24, 24][..], 4 + 6 * 4, 0));
}

#[test]
fn bound_memory_has_the_bytes_of_all_collectives_on_any_placement() {
    for shape in [
        Shape { hosts: 2, ranks_per_host: 3, processes_per_host: 2 },
        Shape { hosts: 1, ranks_per_host: 3, processes_per_host: 1 },
        Shape { hosts: 3, ranks_per_host: 2, processes_per_host: 2 },
    ] {
        let mut world = world(shape, 2);
        for turn in 0..4 {
            exchange(&mut world, OPS[turn as usize % 2], shape.ranks(), turn);
        }
        assert_eq!((world.counts().bindings, world.counts().wrong), (2 * u64::from(shape.ranks()), 0));
        world.leave().expect("all are let go");
    }
}

#[test]
fn memory_taken_back_while_it_is_read_costs_the_alias_and_its_collective_alone() {
    let shape = Shape { hosts: 2, ranks_per_host: 1, processes_per_host: 1 };
    // Before the other rank has called, between, and while the Reads are under way.
    let mut replaced = 0;
    for pause in [0, 50, 200, 400, 600, 800, 1000, 1500, 4000] {
        let load = Load { bytes: 3_000_000, varies: false };
        let mut world =
            World::with_keys(machine(2, 0), shape, load, Limits::default(), None, 4).expect("all ranks join");
        let before = arm_commands(&world, shape);
        let contexts: Vec<ContextId> =
            (0..2).map(|rank| world.call(ServiceOp::Alltoallv, rank, 0).expect("called")).collect();
        (0..pause).for_each(|_| _ = world.let_pass().expect("service processes go on"));
        let [send, _] = world.memory(0);
        let was = world.ranks[0].client.key(send).expect("an alias").expect("bound").key;
        world.ranks[0].client.take_back(send).expect("sent");
        let mut ends = [None; 2];
        let mut back = None;
        world
            .drive("both ranks learn how it has ended", |world| {
                for (rank, end) in (0..).zip(&mut ends) {
                    let client = &mut world.ranks[rank as usize].client;
                    match client.end(contexts[rank as usize], rank) {
                        Ok(false) => {}
                        Ok(true) => *end = Some(true),
                        Err(Error::Failed(failure)) => {
                            assert_eq!(failure.failed_rank, FailedParty::Rank(0), "pause {pause}");
                            assert!(matches!(failure.cause, Cause::Read(_)), "{failure}");
                            *end = Some(false);
                        }
                        Err(error) => panic!("pause {pause}, rank {rank}: {error}"),
                    }
                }
                back = back.take().or_else(|| world.ranks[0].client.taken_back(send));
                Ok(back.is_some() && ends.iter().all(Option::is_some))
            })
            .expect("nobody waits for ever");
        let after = arm_commands(&world, shape);
        let cost = after[0] - before[0];
        assert!(cost == 0 || cost == 2, "pause {pause}: nothing, or an alias destroyed and one made: {cost}");
        assert_eq!((cost / 2, after[1] - before[1]), (world.counts().aliases_replaced, 0));
        replaced += cost / 2;
        // The key is bound again, and what is late does not reach it.
        let client = &mut world.ranks[0].client;
        let pd = client.pd().clone();
        let next = client.share(memory(&pd, 4096)).expect("sent");
        assert!(client.is_bound(next));
        let key = client.key(next).expect("an alias").expect("at once").key;
        assert_eq!(key == was, cost == 0, "another number where something may still know the old one");
        (0..2000).for_each(|_| _ = world.let_pass().expect("service processes go on"));
        let mut bytes = vec![1; 4096];
        world.ranks[0].client.region(next).read(0, &mut bytes).expect("memory");
        assert_eq!(bytes, [0; 4096], "pause {pause}");
    }
    assert!(replaced > 0, "some of it was early enough");
}

#[test]
fn programs_and_processes_go_with_keys_bound() {
    let shape = Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 1 };
    let mut world = world(shape, 3);
    let agent_status = |world: &World, process: usize| world.agents[process].as_ref().expect("it lives").status();
    assert_eq!((agent_status(&world, 0).bound_keys, agent_status(&world, 1).bound_keys), (6, 6));
    let contexts: Vec<ContextId> =
        (0..3).map(|rank| world.call(ServiceOp::Alltoallv, rank, 0).expect("called")).collect();
    world.lose(3);
    world
        .drive("all learn of it", |world| {
            let mut all = true;
            for (rank, context) in (0..3).zip(&contexts) {
                match world.ranks[rank as usize].client.end(*context, rank) {
                    Ok(ended) => all &= ended,
                    Err(Error::Failed(failure)) => assert_eq!(failure.failed_rank, FailedParty::Rank(3)),
                    Err(error) => panic!("rank {rank}: {error}"),
                }
            }
            Ok(all || world.ranks[0].client.end(contexts[0], 0).is_err())
        })
        .expect("all learn of it");
    assert_eq!(agent_status(&world, 1).bound_keys, 3, "aliases of a program go with it");
    // What Reads of the failed collective may still know is given up, and comes back.
    for rank in 0..3 {
        let memories = world.memory(rank);
        let client = &mut world.ranks[rank as usize].client;
        memories.iter().for_each(|memory| client.take_back(*memory).expect("sent"));
        let mut back = 0;
        world
            .drive("memory comes back", |world| {
                let client = &mut world.ranks[rank as usize].client;
                back += memories.iter().filter(|memory| client.taken_back(**memory).is_some()).count();
                Ok(back == 2)
            })
            .expect("it comes back");
        assert_eq!(world.ranks[rank as usize].client.free_keys(), 3);
    }
    assert_eq!(world.counts().aliases_replaced, 6);
    // A service process that is gone lets nobody reach memory, either.
    let client = &mut world.ranks[0].client;
    let pd = client.pd().clone();
    let shared = client.share(memory(&pd, 64)).expect("sent");
    assert!(client.is_bound(shared));
    world.lose_process(0);
    let client = &mut world.ranks[0].client;
    client.lose();
    client.take_back(shared).expect("there is nobody to notify");
    assert_eq!(client.taken_back(shared).expect("the key is freed").len(), 64);
    assert_eq!(client.free_keys(), 2, "it is not bound again");
}

fn memory(pd: &ProtectionDomain, bytes: usize) -> MemoryRegion {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    MemoryRegion::register(pd, HostBuffer::zeroed(bytes).expect("memory"), access).expect("a region")
}

/// One service process and programs of its host.
struct Host {
    machine: Emulated,
    agent: Agent,
    endpoint: Endpoint,
}

impl Host {
    fn new(bound_keys: u32, command_ps: u64) -> Self {
        let machine = machine(2, command_ps);
        let pd = ProtectionDomain::new(&machine.provider.open("mlx5_0_arm").expect("a device")).expect("a domain");
        let endpoint = Endpoint { address: Ipv6Addr::LOCALHOST, port: 4000 };
        let limits = AgentLimits { bound_keys, staging: Some(Staging::default()), ..AgentLimits::default() };
        let list = Arc::new(Mutex::new(SharedList::new(1 << 10)));
        let agent = Agent::new(&pd, endpoint, list, limits).expect("a service process");
        Self { machine, agent, endpoint }
    }

    fn program(&mut self) -> (Client, PeerId) {
        let pd = ProtectionDomain::new(&self.machine.provider.open("mlx5_0").expect("a device")).expect("a domain");
        let (mut client, end) = Client::open(&pd).expect("a connection");
        let (peer, far) = self.agent.open_program().expect("room");
        self.agent.connect(peer, end).expect("connected");
        client.connect(far).expect("connected");
        (client, peer)
    }

    fn until(&mut self, clients: &mut [&mut Client], mut is_over: impl FnMut(&mut [&mut Client]) -> bool) {
        let mut polls = 0;
        while !is_over(clients) {
            polls += 1;
            assert!(polls < 1_000_000, "nothing happens");
            let mut any = self.agent.progress().expect("the card works");
            for client in &mut *clients {
                any |= client.progress().expect("the card works");
            }
            if !any {
                self.machine.provider.relax().relax();
            }
        }
    }

    fn with_keys(&mut self, keys: u16) -> (Client, PeerId) {
        let (mut client, peer) = self.program();
        client.offer_keys(keys).expect("sent");
        self.until(&mut [&mut client], |clients| !clients[0].awaits_keys());
        (client, peer)
    }

    /// Until all that was sent is received.
    fn settle(&mut self, client: &mut Client) {
        let mut quiet = 0;
        self.until(&mut [client], |_| {
            quiet += 1;
            quiet > 2000
        });
    }

    fn now_ps(&self) -> u64 {
        self.machine.provider.relax().now_ps()
    }

    fn arm_commands(&self) -> u64 {
        self.machine.machine.with(|world| world.command_count(FunctionId::arm(0))).expect("a card")
    }

    /// A group of one rank of each program, and its number.
    fn join(&mut self, clients: &mut [&mut Client], number: u32) {
        let place = Place { locality: Locality { host: 0, socket: 0 }, core: NO_CORE, process: self.endpoint };
        let places = vec![place; clients.len()];
        for (rank, client) in (0..).zip(&mut *clients) {
            client.join(&Group::new(number, 9, rank, 1, &places).expect("a group")).expect("sent");
        }
        self.until(clients, |clients| {
            (0..).zip(clients).all(|(rank, client)| client.has_joined(number, rank).expect("taken"))
        });
    }
}

fn say(client: &mut Client, body: Body<'_>) {
    let mut bytes = Vec::new();
    wire::encode(&Packet { context: ContextId { group: 0, collective: 0 }, body }, &mut bytes).expect("a message");
    client.say_bytes(bytes).expect("sent");
}

fn bound(key: u32, generation: u32) -> Body<'static> {
    let rights = Rights { local_write: true, remote_write: true, remote_read: true, remote_atomic: false };
    let region = Region { address: 0x1000, key, bytes: 64 };
    let access_key = AccessKey([0; 32]);
    Body::KeyExport(KeyExport { form: KeyForm::Bound, region, rights, virtual_hca: 0, generation, access_key })
}

const BYTE: Datatype = Datatype { size_bytes: 1, extent_bytes: 1 };

fn blocks(region: Region) -> Blocks<'static> {
    Blocks { address: region.address, key: region.key, datatype: BYTE, counts: &[16, 16], displs: &[0, 16] }
}

fn key(client: &Client, memory: MemoryId) -> Region {
    client.key(memory).expect("an alias").expect("bound")
}

#[test]
fn bindings_that_are_old_or_unknown_are_refused_and_change_nothing() {
    let mut host = Host::new(64, 0);
    let (mut client, _) = host.with_keys(1);
    let first = share(&mut client);
    host.settle(&mut client);
    assert_eq!(host.agent.counts().bindings, 1);
    let alias = key(&client, first);
    let name = client.key_name(first).expect("it is shared");
    assert_eq!(name.generation, 1);
    // A key that there is no alias of, and the first generation: unknown, and known.
    say(&mut client, bound(0x7700, 1));
    host.settle(&mut client);
    assert_eq!(key(&client, first), alias);
    // The same binding once more, when the program counts wrong: that is reported to it, with the name of the binding.
    say(&mut client, bound(name.key, 1));
    host.settle(&mut client);
    let refused = client.key(first).expect_err("sent twice");
    assert!(matches!(refused, Error::Key(KeyRefusal::Generation { known: 1 })), "{refused}");
    // A later one before the first is taken back.
    say(&mut client, bound(name.key, 2));
    host.settle(&mut client);
    assert_eq!((host.agent.counts().bindings, host.agent.counts().wrong), (1, 0));
    // What is taken back by an older name stays: bindings are taken back by their own.
    let mut host = Host::new(64, 0);
    let (mut client, _) = host.with_keys(1);
    let first = share(&mut client);
    client.take_back(first).expect("sent");
    host.until(&mut [&mut client], |clients| clients[0].taken_back(first).is_some());
    let second = share(&mut client);
    assert_eq!(
        (client.is_bound(second), client.key_name(second)),
        (true, Some(KeyName { key: name.key, generation: 2 }))
    );
    say(&mut client, Body::KeyRevoke { name: KeyName { key: name.key, generation: 1 }, is_idle: true });
    say(&mut client, bound(name.key, 1));
    host.settle(&mut client);
    host.join(&mut [&mut client], 5);
    let own = share(&mut client);
    host.until(&mut [&mut client], |clients| clients[0].key(own).expect("an alias").is_some());
    client.region(second).write(0, &[7; 16]).expect("memory");
    let one = |region: Region| Blocks { counts: &[16], displs: &[0], ..blocks(region) };
    let (send, receive) = (one(key(&client, second)), one(key(&client, own)));
    let context = client.alltoallv(5, 0, &send, &receive).expect("called");
    host.until(&mut [&mut client], |clients| clients[0].end(context, 0).expect("it ends well"));
    let mut bytes = [0; 16];
    client.region(own).read(0, &mut bytes).expect("memory");
    assert_eq!((bytes, host.agent.counts().aliases_replaced), ([7; 16], 0));
}

#[test]
fn memory_of_another_program_is_not_named() {
    let mut host = Host::new(64, 0);
    let (mut owner, _) = host.with_keys(2);
    let (mut other, _) = host.with_keys(2);
    let (secret, own) = (share(&mut owner), share(&mut other));
    let stolen = owner.key_name(secret).expect("it is shared");
    host.join(&mut [&mut owner, &mut other], 3);
    // A binding of its key, and a taking back: the keys of a program are its own.
    let before = host.agent.counts().bindings;
    say(&mut other, bound(stolen.key, 9));
    say(&mut other, Body::KeyRevoke { name: stolen, is_idle: true });
    host.settle(&mut other);
    assert_eq!(host.agent.counts().bindings, before);
    let (theirs, mine) = (key(&owner, secret), key(&other, own));
    let context = other.alltoallv(3, 1, &blocks(theirs), &blocks(mine)).expect("called");
    host.settle(&mut other);
    let refused = other.end(context, 1).expect_err("it names the other one's memory");
    assert!(matches!(refused, Error::Refused(Refused::NotShared { key }) if key == theirs.key), "{refused}");
    // The same of a staged call.
    let staged = other.broadcast((3, 1), 1, Delivery::Flat, Region { bytes: 32, ..theirs }, None).expect("called");
    host.settle(&mut other);
    let refused = other.end_staged(staged, None).expect_err("it names the other one's memory");
    let is_it = matches!(
        refused,
        Error::Refused(Refused::Staged(StagedRefusal::Buffer { name: "send", rank: 1, found: 0, expected: 32 }))
    );
    assert!(is_it, "{refused}");
    // The owner takes its memory back at once: nothing uses it.
    owner.take_back(secret).expect("sent");
    host.until(&mut [&mut owner, &mut other], |clients| clients[0].taken_back(secret).is_some());
    assert_eq!((host.agent.counts().aliases_replaced, host.agent.counts().wrong), (0, 0));
}

#[test]
fn without_keys_to_bind_all_goes_by_the_four_steps() {
    // The service process takes none, or a few; or the host makes none.
    for (taken, keys, free) in [(0, 16, 0), (3, 16, 3), (64, 0, 0), (64, flexio::MAX_POOL_KEYS + 1, 0)] {
        let mut host = Host::new(taken, 0);
        let (mut client, peer) = host.with_keys(keys);
        assert_eq!((client.free_keys(), host.agent.status().bound_keys), (free, free as u64), "{keys} of {taken}");
        let pd = client.pd().clone();
        let all: Vec<MemoryId> = (0..5).map(|_| client.share(memory(&pd, 64)).expect("sent")).collect();
        assert_eq!(all.iter().filter(|memory| client.is_bound(**memory)).count(), free);
        host.until(&mut [&mut client], |clients| {
            all.iter().all(|memory| clients[0].key(*memory).expect("taken").is_some())
        });
        assert_eq!(host.agent.status().keys, 5 - free as u64);
        host.agent.lose(peer);
        host.settle(&mut client);
        assert_eq!(host.agent.status(), AgentStatus::default(), "nothing is left");
    }
}

#[test]
fn memory_in_use_is_taken_back_when_the_call_is_over_although_the_program_says_that_it_is_idle() {
    let mut host = Host::new(64, 0);
    let (mut one, _) = host.with_keys(4);
    let (mut other, _) = host.with_keys(4);
    let own = [share(&mut one), share(&mut one)];
    let theirs = [share(&mut other), share(&mut other)];
    host.join(&mut [&mut one, &mut other], 3);
    let first = one.alltoallv(3, 0, &blocks(key(&one, own[0])), &blocks(key(&one, own[1]))).expect("called");
    let name = one.key_name(own[0]).expect("it is shared");
    // A program that lies: the process knows better.
    say(&mut one, Body::KeyRevoke { name, is_idle: true });
    host.settle(&mut one);
    assert_eq!((one.is_bound(own[0]), host.agent.counts().aliases_replaced), (true, 0));
    let second =
        other.alltoallv(3, 1, &blocks(key(&other, theirs[0])), &blocks(key(&other, theirs[1]))).expect("called");
    host.until(&mut [&mut one, &mut other], |clients| {
        clients[0].end(first, 0).expect("well") && clients[1].end(second, 1).expect("well")
    });
    // Taken back once more, in order, it is known to be gone.
    one.take_back(own[0]).expect("sent");
    host.until(&mut [&mut one, &mut other], |clients| clients[0].taken_back(own[0]).is_some());
    assert_eq!(host.agent.counts().aliases_replaced, 0);
}

/// From [`Client::share`] until calls can name the memory and the service process can read and write it, in virtual
/// time; a control operation takes 10 us, a figure chosen. Times of work requests and messages are those of model
/// uncalibrated-1. The registration of the region itself, which both have, is not in it.
#[test]
fn a_registration_by_a_bound_key_takes_less_time_than_by_a_key_of_its_own() {
    let mut host = Host::new(64, COMMAND_PS);
    let (mut client, _) = host.with_keys(1);
    let pd = client.pd().clone();
    let registration = |host: &mut Host, client: &mut Client| {
        let region = memory(&pd, 4096);
        let (begun, before) = (host.now_ps(), host.arm_commands());
        let shared = client.share(region).expect("sent");
        host.until(&mut [client], |clients| clients[0].key(shared).expect("taken").is_some());
        (client.is_bound(shared), host.now_ps() - begun, host.arm_commands() - before)
    };
    let bound = registration(&mut host, &mut client);
    let own = registration(&mut host, &mut client);
    println!("bound, emulated ps, control operations of the Arm function: {bound:?}; by a key of its own {own:?}");
    assert_eq!(bound, (true, 750_000, 0), "one work request of the host");
    assert_eq!((own.0, own.2), (false, 1));
    // Three operations of the host and one of the Arm function; a message there and one back take about 5 us each.
    assert!((50_000_000..51_000_000).contains(&own.1), "{} ps", own.1);
}

#[test]
fn jobs_with_and_without_keys_fail_alike() {
    let shape = Shape { hosts: 2, ranks_per_host: 1, processes_per_host: 1 };
    for keys in [0, 2] {
        let mut world = world(shape, keys);
        // Memory that is named after it was taken back: its rank is named to all.
        let [send, _] = world.memory(0);
        let name = world.ranks[0].client.key(send).expect("an alias").expect("shared");
        world.ranks[0].client.take_back(send).expect("sent");
        world
            .drive("it is taken back", |world| Ok(world.ranks[0].client.free_keys() == usize::from(keys / 2)))
            .expect("back");
        (0..2000).for_each(|_| _ = world.let_pass().expect("service processes go on"));
        let [_, receive] = world.memory(0);
        let client = &mut world.ranks[0].client;
        let into = key(client, receive);
        let first = client.alltoallv(7, 0, &blocks(name), &blocks(into)).expect("called");
        let own = world.memory(1);
        let client = &mut world.ranks[1].client;
        let (from, into) = (key(client, own[0]), key(client, own[1]));
        let second = client.alltoallv(7, 1, &blocks(from), &blocks(into)).expect("called");
        let mut has_failed = [false; 2];
        world
            .drive("both learn of it", |world| {
                for (rank, context) in [(0, first), (1, second)] {
                    match world.ranks[rank].client.end(context, rank as u32) {
                        Ok(false) => {}
                        Err(Error::Failed(failure)) => {
                            assert_eq!(failure.failed_rank, FailedParty::Rank(0), "{keys} keys: {failure}");
                            has_failed[rank] = true;
                        }
                        other => panic!("{keys} keys, rank {rank}: {other:?}"),
                    }
                }
                Ok::<bool, ServiceError>(has_failed == [true; 2])
            })
            .unwrap_or_else(|error| panic!("{keys} keys: {error}"));
    }
}
