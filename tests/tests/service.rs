//! Service processes on the Arm cores of emulated cards: they move the blocks of Alltoallv and Allgatherv from host memory to host memory, every byte
//! compared, with the number of messages and Reads that closed forms give.

use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex};

use emu_config::Machine;
use emu_provider::Emulated;
use flexcast_proto::service::wire::{Endpoint, Group, NO_CORE, Place};
use flexcast_proto::service::{Blocks, Cause, ContextId, Datatype, Limits, Locality, Region, SharedList};
use flexcast_service::{Agent, AgentLimits, Client, Error, MemoryId, PeerId};
use flexio::{Access, HostBuffer, MemoryRegion, ProtectionDomain};

const GROUP: u32 = 7;
/// Looks in which nothing happens before something hangs.
const MOST_LOOKS: u32 = 400_000;

#[derive(Clone, Copy, Debug)]
struct Shape {
    hosts: u32,
    ranks_per_host: u32,
    processes_per_host: u32,
}

impl Shape {
    const fn ranks(self) -> u32 {
        self.hosts * self.ranks_per_host
    }
}

/// The program of one rank, with a send and a receive buffer.
struct Rank {
    client: Client,
    host: u32,
    send: MemoryId,
    receive: MemoryId,
    is_dead: bool,
}

struct World {
    shape: Shape,
    machine: Emulated,
    agents: Vec<Agent>,
    ranks: Vec<Rank>,
    /// By rank: its service process, and the connection that this one has to it.
    served: Vec<(usize, PeerId)>,
}

/// Bytes from `source` for `target`: different lengths, some of none.
fn count(source: u32, target: u32) -> u64 {
    u64::from((source * 5 + target * 3) % 7) * 111
}

/// Bytes of a rank's block of an Allgatherv.
fn block(source: u32) -> u64 {
    u64::from(source % 4) * 500 + 3
}

fn content(source: u32, target: u32, turn: u32, len: u64) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + u64::from(source * 31 + target * 17 + turn * 101)) as u8).collect()
}

/// Displacements of blocks that lie one behind the other, and the end of the last.
fn places(counts: &[u64]) -> (Vec<u64>, u64) {
    let mut end = 0;
    let next = |count: &u64| {
        end += count;
        end - count
    };
    let displs = counts.iter().map(next).collect();
    (displs, end)
}

fn blocks<'b>(region: Region, counts: &'b [u64], displs: &'b [u64]) -> Blocks<'b> {
    let datatype = Datatype { size_bytes: 1, extent_bytes: 1 };
    Blocks { address: region.address, key: region.key, datatype, counts, displs }
}

fn memory(pd: &ProtectionDomain, bytes: u64) -> MemoryRegion {
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    MemoryRegion::register(pd, HostBuffer::zeroed(bytes.max(1) as usize).expect("memory"), access).expect("registered")
}

impl World {
    fn new(shape: Shape, limits: Limits) -> Self {
        let config = Machine { arm_functions: true, ..Machine::default() };
        let mut config = config.config_of(shape.hosts.max(2) as usize).expect("a switch");
        config.heap_bytes = 1 << 20;
        let machine = Emulated::new(config).expect("a machine");
        let domain = |name: String| {
            let device = machine.provider.open(&name).expect("a device");
            ProtectionDomain::new(&device).expect("a domain")
        };
        let endpoint = |process: u32| Endpoint { address: Ipv6Addr::LOCALHOST, port: 4000 + process as u16 };
        let mut agents = Vec::new();
        for host in 0..shape.hosts {
            let list = Arc::new(Mutex::new(SharedList::new(1 << 16)));
            for process in 0..shape.processes_per_host {
                let pd = domain(format!("mlx5_{host}_arm"));
                let limits = AgentLimits { machine: limits, ..AgentLimits::default() };
                let endpoint = endpoint(host * shape.processes_per_host + process);
                agents.push(Agent::new(&pd, endpoint, Arc::clone(&list), limits).expect("an agent"));
            }
        }
        for one in 0..agents.len() {
            for other in one + 1..agents.len() {
                let (to_other, end) = agents[one].open_process(endpoint(other as u32)).expect("open");
                let (to_one, far) = agents[other].open_process(endpoint(one as u32)).expect("open");
                agents[one].connect(to_other, far).expect("connected");
                agents[other].connect(to_one, end).expect("connected");
            }
        }
        let place = |rank: u32| {
            let host = rank / shape.ranks_per_host;
            Locality { host, socket: 0 }
        };
        let localities: Vec<Locality> = (0..shape.ranks()).map(place).collect();
        let topology =
            flexcast_proto::service::Topology::new(&localities, shape.processes_per_host).expect("a topology");
        let process_of = |rank: u32| topology.process_of(rank).expect("a rank");
        let place = |(rank, locality): (u32, &Locality)| Place {
            locality: *locality,
            core: NO_CORE,
            process: endpoint(process_of(rank)),
        };
        let places: Vec<Place> = (0..).zip(&localities).map(place).collect();
        let (mut ranks, mut served) = (Vec::new(), Vec::new());
        for rank in 0..shape.ranks() {
            let host = rank / shape.ranks_per_host;
            let pd = domain(format!("mlx5_{host}"));
            let (mut client, end) = Client::open(&pd).expect("a client");
            let process = process_of(rank) as usize;
            let (peer, far) = agents[process].open_program().expect("open");
            agents[process].connect(peer, end).expect("connected");
            client.connect(far).expect("connected");
            let most: u64 =
                (0..shape.ranks()).map(|other| count(rank, other).max(count(other, rank)).max(block(other))).sum();
            let [send, receive] = [0, 1].map(|_| client.share(memory(&pd, most)).expect("shared"));
            let group = Group::new(GROUP, 0x77, rank, shape.processes_per_host, &places).expect("a group");
            client.join(&group).expect("told");
            ranks.push(Rank { client, host, send, receive, is_dead: false });
            served.push((process, peer));
        }
        let mut world = Self { shape, machine, agents, ranks, served };
        world.drive("all join", |world| {
            (0..).zip(&mut world.ranks).all(|(rank, state)| {
                let shared =
                    [state.send, state.receive].map(|memory| state.client.key(memory).expect("an alias").is_some());
                shared == [true; 2] && state.client.has_joined(GROUP, rank).expect("a group")
            })
        });
        world
    }

    /// Lets all go on; returns whether anything happened.
    fn turn(&mut self) -> bool {
        let mut any = false;
        for agent in &mut self.agents {
            any |= agent.progress().expect("an agent goes on");
            assert!(agent.active_reads() <= Limits::default().active_reads);
        }
        for rank in self.ranks.iter_mut().filter(|rank| !rank.is_dead) {
            any |= rank.client.progress().expect("a client goes on");
        }
        any | self.copy()
    }

    /// Copies blocks between ranks of a host, as their programs do.
    fn copy(&mut self) -> bool {
        let mut any = false;
        for number in 0..self.ranks.len() {
            while let Some(copy) = self.ranks[number].client.next_copy() {
                any = true;
                let holder = &self.ranks[copy.holder as usize];
                assert_eq!(holder.host, self.ranks[number].host, "{copy:?}");
                let mut bytes = vec![0; copy.from.bytes as usize];
                let region = [holder.send, holder.receive]
                    .map(|memory| holder.client.region(memory))
                    .into_iter()
                    .find(|region| {
                        let start = region.addr().get();
                        (start..start + region.len() as u64).contains(&copy.from.address)
                    })
                    .expect("a buffer of the holder");
                region.read((copy.from.address - region.addr().get()) as usize, &mut bytes).expect("there");
                let counts: Vec<u64> = (0..self.shape.ranks()).map(block).collect();
                let (displs, _) = places(&counts);
                let own = &self.ranks[number];
                own.client.region(own.receive).write(displs[copy.source as usize] as usize, &bytes).expect("room");
                self.ranks[number].client.copied(&copy).expect("told");
            }
        }
        any
    }

    fn drive(&mut self, what: &str, mut is_over: impl FnMut(&mut Self) -> bool) {
        let mut looks = 0;
        while !is_over(self) {
            if self.turn() {
                looks = 0;
                continue;
            }
            looks += 1;
            assert!(looks < MOST_LOOKS, "{what}: nothing happens any more");
            self.machine.provider.relax().relax();
        }
    }

    fn key(&self, rank: u32, memory: impl Fn(&Rank) -> MemoryId) -> Region {
        let state = &self.ranks[rank as usize];
        state.client.key(memory(state)).expect("an alias").expect("shared")
    }

    /// Writes what a rank sends to each in an Alltoallv, and calls it.
    fn call_alltoallv(&mut self, rank: u32, turn: u32) -> ContextId {
        let all = 0..self.shape.ranks();
        let (to, from): (Vec<u64>, Vec<u64>) =
            all.clone().map(|other| (count(rank, other), count(other, rank))).unzip();
        let ((to_displs, _), (from_displs, _)) = (places(&to), places(&from));
        let data: Vec<u8> = all.flat_map(|other| content(rank, other, turn, count(rank, other))).collect();
        let (send, receive) = (self.key(rank, |rank| rank.send), self.key(rank, |rank| rank.receive));
        let state = &mut self.ranks[rank as usize];
        state.client.region(state.send).write(0, &data).expect("room");
        state.client.region(state.receive).fill(0xA5);
        let (send, receive) = (blocks(send, &to, &to_displs), blocks(receive, &from, &from_displs));
        state.client.alltoallv(GROUP, rank, &send, &receive).expect("called")
    }

    fn check_alltoallv(&self, rank: u32, turn: u32) {
        let state = &self.ranks[rank as usize];
        let expected: Vec<u8> =
            (0..self.shape.ranks()).flat_map(|other| content(other, rank, turn, count(other, rank))).collect();
        let mut found = vec![0; expected.len()];
        state.client.region(state.receive).read(0, &mut found).expect("there");
        assert!(found == expected, "rank {rank}, turn {turn}: {:?}", self.shape);
    }

    fn call_allgatherv(&mut self, rank: u32, turn: u32) -> ContextId {
        let counts: Vec<u64> = (0..self.shape.ranks()).map(block).collect();
        let (displs, _) = places(&counts);
        let (send, receive) = (self.key(rank, |rank| rank.send), self.key(rank, |rank| rank.receive));
        let state = &mut self.ranks[rank as usize];
        state.client.region(state.send).write(0, &content(rank, 99, turn, block(rank))).expect("room");
        state.client.region(state.receive).fill(0xA5);
        let send = Region { bytes: block(rank), ..send };
        state.client.allgatherv(GROUP, rank, Some(send), &blocks(receive, &counts, &displs)).expect("called")
    }

    fn check_allgatherv(&self, rank: u32, turn: u32) {
        let state = &self.ranks[rank as usize];
        let expected: Vec<u8> =
            (0..self.shape.ranks()).flat_map(|other| content(other, 99, turn, block(other))).collect();
        let mut found = vec![0; expected.len()];
        state.client.region(state.receive).read(0, &mut found).expect("there");
        assert!(found == expected, "rank {rank}, turn {turn}: {:?}", self.shape);
    }

    /// Waits until all have ended well.
    fn end_all(&mut self, what: &str, contexts: &[ContextId]) {
        let contexts = contexts.to_vec();
        self.drive(what, |world| {
            (0..)
                .zip(&mut world.ranks)
                .zip(&contexts)
                .all(|((rank, state), context)| state.client.end(*context, rank).expect("no failure"))
        });
    }

    fn counts(&self) -> (u64, u64, u64, u64) {
        self.agents.iter().map(Agent::counts).fold((0, 0, 0, 0), |sum, counts| {
            assert_eq!(counts.wrong, 0);
            (sum.0 + counts.process_messages, sum.1 + counts.reads, sum.2 + counts.read_bytes, sum.3 + counts.flags)
        })
    }
}

const SHAPES: [Shape; 4] = [
    Shape { hosts: 2, ranks_per_host: 1, processes_per_host: 1 },
    Shape { hosts: 2, ranks_per_host: 3, processes_per_host: 2 },
    Shape { hosts: 3, ranks_per_host: 2, processes_per_host: 1 },
    Shape { hosts: 1, ranks_per_host: 3, processes_per_host: 1 },
];

#[test]
fn alltoallv_goes_from_host_memory_to_host_memory() {
    for shape in SHAPES {
        let mut world = World::new(shape, Limits::default());
        let ranks = shape.ranks();
        let before = world.counts();
        for turn in 0..3 {
            // Ranks call in another order each time, some long after others.
            let mut contexts = vec![None; ranks as usize];
            for at in 0..ranks {
                let rank = (at * 5 + turn) % ranks;
                let rank = if contexts[rank as usize].is_none() { rank } else { at };
                let rank = (0..ranks).map(|step| (rank + step) % ranks).find(|rank| contexts[*rank as usize].is_none());
                let rank = rank.expect("one has not called");
                contexts[rank as usize] = Some(world.call_alltoallv(rank, turn));
                (0..turn * 200).for_each(|_| {
                    _ = world.turn() || {
                        world.machine.provider.relax().relax();
                        false
                    }
                });
            }
            let contexts: Vec<ContextId> = contexts.into_iter().flatten().collect();
            world.end_all("an Alltoallv", &contexts);
            (0..ranks).for_each(|rank| world.check_alltoallv(rank, turn));
        }
        let after = world.counts();
        let pairs = || (0..ranks).flat_map(|source| (0..ranks).map(move |target| (source, target)));
        let bytes: u64 = pairs().map(|(source, target)| count(source, target)).sum();
        let reads = pairs().filter(|(source, target)| count(*source, *target) > 0).count() as u64;
        assert_eq!((after.1 - before.1, after.2 - before.2), (3 * reads, 3 * bytes), "{shape:?}");
        assert_eq!(after.3 - before.3, 3 * u64::from(ranks), "a flag for each rank: {shape:?}");
    }
}

#[test]
fn allgatherv_crosses_to_each_host_once() {
    for shape in SHAPES {
        let mut world = World::new(shape, Limits::default());
        let ranks = shape.ranks();
        let before = world.counts();
        for turn in 0..3 {
            let contexts: Vec<ContextId> = (0..ranks)
                .map(|rank| {
                    let context = world.call_allgatherv(rank, turn);
                    (0..turn * 300).for_each(|_| {
                        _ = world.turn() || {
                            world.machine.provider.relax().relax();
                            false
                        }
                    });
                    context
                })
                .collect();
            world.end_all("an Allgatherv", &contexts);
            (0..ranks).for_each(|rank| world.check_allgatherv(rank, turn));
        }
        let after = world.counts();
        // Each block crosses to each other host once (MI-30), and each rank reads its own.
        let reads = u64::from(ranks * (shape.hosts - 1) + ranks);
        assert_eq!(after.1 - before.1, 3 * reads, "{shape:?}");
    }
}

#[test]
fn between_the_call_and_the_flag_the_host_does_nothing() {
    let mut world = World::new(Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 1 }, Limits::default());
    let contexts: Vec<ContextId> = (0..4).map(|rank| world.call_alltoallv(rank, 0)).collect();
    let calls: Vec<u64> = world.ranks.iter().map(|rank| rank.client.calls()).collect();
    let mut looks = 0;
    // The hosts compute: only the Arm cores go on.
    while !(0..)
        .zip(&world.ranks)
        .zip(&contexts)
        .all(|((rank, state), context)| state.client.is_flagged(*context, rank).expect("flags"))
    {
        looks += 1;
        assert!(looks < MOST_LOOKS, "no flag comes");
        world.agents.iter_mut().for_each(|agent| _ = agent.progress().expect("an agent goes on"));
        world.machine.provider.relax().relax();
    }
    (0..4).for_each(|rank| world.check_alltoallv(rank, 0));
    assert_eq!(calls, world.ranks.iter().map(|rank| rank.client.calls()).collect::<Vec<_>>());
}

#[test]
fn whoever_dies_is_named_to_all_others_and_other_groups_go_on() {
    let shape = Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 1 };
    let mut world = World::new(shape, Limits::default());
    let contexts: Vec<ContextId> = (0..3).map(|rank| world.call_alltoallv(rank, 0)).collect();
    // Rank 3 goes without a word before it has called.
    let (process, peer) = world.served[3];
    world.ranks[3].is_dead = true;
    world.agents[process].lose(peer);
    world.drive("all learn of it", |world| {
        (0..3u32).zip(&contexts).all(|(rank, context)| match world.ranks[rank as usize].client.end(*context, rank) {
            Ok(false) => false,
            Err(Error::Failed(failure)) => {
                assert_eq!(failure.culprit, flexcast_proto::service::Culprit::Rank(3), "rank {rank}");
                assert_eq!(failure.cause, Cause::Died);
                true
            }
            other => panic!("rank {rank}: {other:?}"),
        })
    });
    // The group is over; a new one of the ranks that are left would take another number.
    let refused = world.call_alltoallv(0, 1);
    world.drive("rank 0 learns", |world| world.ranks[0].client.end(refused, 0).is_err());
}

#[test]
fn ranks_leave_and_nothing_is_left() {
    let mut world = World::new(Shape { hosts: 2, ranks_per_host: 2, processes_per_host: 2 }, Limits::default());
    let contexts: Vec<ContextId> = (0..4).map(|rank| world.call_allgatherv(rank, 0)).collect();
    world.end_all("an Allgatherv", &contexts);
    for (rank, state) in (0..).zip(&mut world.ranks) {
        state.client.leave(GROUP, rank).expect("told");
    }
    world.drive("all are let go", |world| {
        (0..).zip(&world.ranks).all(|(rank, state)| state.client.has_left(GROUP, rank))
    });
    assert!(world.agents.iter().all(|agent| agent.groups() == 0));
}
