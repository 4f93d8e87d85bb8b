//! Staged collectives of the ranks of a [`World`]: buffers, calls, ends, and what closed forms give for their
//! transfers.

use std::fmt;

use flexcast_proto::service::wire::{Group, TASK_PARTS};
use flexcast_proto::service::{
    Between, Collective, ContextId, Delivery, Descriptor, Region, Staging, TASK_HEADER_BYTES, TASK_RANK_BYTES,
    Thresholds, Topology, runs, targets,
};
use flexcast_service::{AgentCounts, AgentLimits, Client, MemoryId, StagedCall};
use flexio::{MemoryRegion, ProtectionDomain};
use serde::Serialize;

use super::ServiceError;
use super::world::{GROUP, Rank, ServiceOp, World, content, memory};

/// How staged collectives are carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StagedPlan {
    /// What each group may use.
    pub staging: Staging,
    /// Staging memory of each service process, in bytes; none: what [`AgentLimits`] gives.
    pub staging_bytes: Option<u64>,
    /// Flat or hierarchical; none: as the thresholds say.
    pub delivery: Option<Delivery>,
    /// These thresholds.
    pub thresholds: Thresholds,
    /// Root of Broadcasts.
    pub root: u32,
    /// Ranks go to the hosts in turn, so that those of a host do not follow one another.
    pub is_strided: bool,
    /// A service process that has half as much memory for each group: no group comes about.
    pub odd: Option<u32>,
    /// A service process that is not to multicast.
    pub without_multicast: Option<u32>,
}

impl StagedPlan {
    /// Limits of a service process, by its number.
    pub(super) fn limits(&self, process: u32, limits: AgentLimits) -> AgentLimits {
        let staging_bytes = self.staging_bytes.unwrap_or(limits.staging_bytes);
        let divisor = if self.odd == Some(process) { 2 } else { 1 };
        let multicast = self.staging.multicast.filter(|_| self.without_multicast != Some(process));
        let staging_bytes_each = self.staging.staging_bytes / divisor;
        let staging = Staging { staging_bytes: staging_bytes_each, multicast, ..self.staging };
        AgentLimits { staging: Some(staging), staging_bytes, ..limits }
    }
}

/// Memory of a rank for the staged collectives of a group.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    send: MemoryId,
    receive: MemoryId,
    /// Of the first rank of a host: what its ranks share.
    segment: Option<MemoryId>,
}

impl Buffers {
    pub(super) fn new(
        client: &mut Client,
        pd: &ProtectionDomain,
        group: u32,
        rank: u32,
        ranks: u32,
        bytes: u64,
    ) -> Result<Self, ServiceError> {
        let all = bytes * u64::from(ranks);
        let segment = if client.segment_owner(group, rank)? == rank {
            Some(client.share(memory(pd, client.segment_bytes(group, rank, all)?)?)?)
        } else {
            None
        };
        Ok(Self { send: client.share(memory(pd, bytes)?)?, receive: client.share(memory(pd, all)?)?, segment })
    }

    pub(super) fn memories(&self) -> impl Iterator<Item = MemoryId> + use<> {
        [self.send, self.receive].into_iter().chain(self.segment)
    }
}

/// A collective that a rank has called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    /// From host memory to host memory.
    Alias(ContextId),
    /// Through memory of the cards.
    Staged(StagedCall),
}

impl World {
    /// A further group of all ranks, with buffers of its own; its number among those of this world, from 1.
    ///
    /// # Errors
    /// A service process refuses it.
    pub fn open_group(&mut self) -> Result<usize, ServiceError> {
        let index = self.ranks.first().map_or(0, |rank| rank.staged.len());
        self.open_group_as(index, 0x77 + index as u64)
    }

    /// The same as a communicator of this number, with the number of another group that has ended.
    ///
    /// # Errors
    /// As [`World::open_group`].
    pub fn open_group_as(&mut self, index: usize, communicator: u64) -> Result<usize, ServiceError> {
        let (number, ranks, bytes) = (GROUP + index as u32, self.shape.ranks(), self.load.bytes);
        for (rank, state) in (0..).zip(&mut self.ranks) {
            let Rank { client, staged, send, .. } = state;
            let pd = client.region(*send).pd().clone();
            client.join(&Group::new(number, communicator, rank, self.shape.processes_per_host, &self.places)?)?;
            let buffers = Buffers::new(client, &pd, number, rank, ranks, bytes)?;
            match staged.get_mut(index) {
                Some(place) => *place = buffers,
                None => staged.push(buffers),
            }
        }
        self.drive("all ranks join", |world| {
            let mut all = true;
            for (rank, state) in (0..).zip(&mut world.ranks) {
                // Each is asked, so that each that is refused is seen.
                all &= state.client.has_joined(number, rank)?;
                for memory in state.staged[index].memories() {
                    all &= state.client.key(memory)?.is_some();
                }
            }
            Ok(all)
        })?;
        Ok(index)
    }

    /// Whether a service process has refused a group to each of the ranks.
    ///
    /// # Errors
    /// The service processes have failed.
    pub fn is_refused_to_all(&mut self, index: usize) -> Result<bool, ServiceError> {
        let number = GROUP + index as u32;
        let mut all = true;
        for (rank, state) in (0..).zip(&mut self.ranks) {
            all &= matches!(state.client.has_joined(number, rank), Err(flexcast_service::Error::Refused(_)));
        }
        Ok(all)
    }

    /// How data reaches ranks.
    ///
    /// # Errors
    /// The world has no staged collectives.
    pub fn delivery(&self) -> Result<Delivery, ServiceError> {
        let plan = self.plan()?;
        Ok(plan.delivery.unwrap_or_else(|| plan.thresholds.delivery(&self.topology, self.load.bytes)))
    }

    fn plan(&self) -> Result<StagedPlan, ServiceError> {
        let reason = "is not there: make the world with one".to_owned();
        self.plan.ok_or(ServiceError::Option { what: "a plan of staged collectives", reason })
    }

    /// Writes what a rank sends in a turn, and calls.
    ///
    /// # Errors
    /// Its service process is gone.
    pub fn post(&mut self, op: ServiceOp, rank: u32, turn: u32) -> Result<Call, ServiceError> {
        if op.is_staged() {
            Ok(Call::Staged(self.post_in(0, op, rank, turn)?))
        } else {
            Ok(Call::Alias(self.call(op, rank, turn)?))
        }
    }

    /// The same of a group.
    ///
    /// # Errors
    /// As [`World::post`].
    pub fn post_in(&mut self, index: usize, op: ServiceOp, rank: u32, turn: u32) -> Result<StagedCall, ServiceError> {
        let (plan, delivery, bytes) = (self.plan()?, self.delivery()?, self.load.bytes);
        self.post_as(index, op, rank, turn, (plan.root, delivery, bytes))
    }

    /// The same with a root, a delivery and a length of its own.
    ///
    /// # Errors
    /// As [`World::post`].
    pub fn post_as(
        &mut self,
        index: usize,
        op: ServiceOp,
        rank: u32,
        turn: u32,
        (root, delivery, bytes): (u32, Delivery, u64),
    ) -> Result<StagedCall, ServiceError> {
        let (group, ranks) = (GROUP + index as u32, u64::from(self.shape.ranks()));
        let Rank { client, staged, .. } = &mut self.ranks[rank as usize];
        let Buffers { send, receive, segment } = staged[index];
        let order = flexcast_service::Error::Order {
            what: "a call with memory that is not shared yet",
            next: "wait for `key`",
        };
        let (Some(from), Some(to)) = (client.key(send)?, client.key(receive)?) else { return Err(order.into()) };
        client.region(receive).fill(0xA5);
        let data: Vec<u8> = content(rank, index as u32, turn, bytes).collect();
        client.region(send).write(0, &data)?;
        let place = (group, rank);
        Ok(match op {
            ServiceOp::Broadcast => {
                let buffer = Region { bytes, ..if rank == root { from } else { to } };
                client.broadcast(place, root, delivery, buffer, segment)?
            }
            _ => {
                let (send, receive) = (Region { bytes, ..from }, Region { bytes: bytes * ranks, ..to });
                client.allgather(place, delivery, send, receive, segment)?
            }
        })
    }

    /// A rank calls an Allgather with keys of its own function, as it should not.
    ///
    /// # Errors
    /// Its service process is gone.
    pub fn post_with_host_keys(&mut self, rank: u32, turn: u32) -> Result<StagedCall, ServiceError> {
        let (bytes, ranks) = (self.load.bytes, u64::from(self.shape.ranks()));
        let Rank { client, staged, .. } = &mut self.ranks[rank as usize];
        let Buffers { send, receive, .. } = staged[0];
        client.region(receive).fill(0xA5);
        client.region(send).write(0, &content(rank, 0, turn, bytes).collect::<Vec<_>>())?;
        let of = |memory: MemoryId, bytes: u64| {
            let region = client.region(memory);
            Region { address: region.addr().get(), key: region.rkey(), bytes }
        };
        let (from, to) = (of(send, bytes), of(receive, bytes * ranks));
        Ok(client.allgather((GROUP, rank), Delivery::Flat, from, to, None)?)
    }

    /// Whether the receive buffer of a rank is as it was when it called.
    ///
    /// # Errors
    /// Its memory cannot be read.
    pub fn is_untouched(&self, rank: u32) -> Result<bool, ServiceError> {
        let state = &self.ranks[rank as usize];
        let region = state.client.region(state.staged[0].receive);
        let mut found = vec![0; region.len()];
        region.read(0, &mut found)?;
        Ok(found.iter().all(|byte| *byte == 0xA5))
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn load_bytes(&self) -> u64 {
        self.load.bytes
    }

    /// All ranks that live leave a group.
    ///
    /// # Errors
    /// A service process is not there.
    pub fn leave_group(&mut self, index: usize) -> Result<(), ServiceError> {
        let group = GROUP + index as u32;
        let mut leaving = Vec::new();
        for (rank, state) in (0..).zip(&mut self.ranks).filter(|(_, state)| !state.is_dead) {
            match state.client.leave(group, rank) {
                Ok(()) => leaving.push(rank),
                Err(flexcast_service::Error::Gone) => {}
                Err(error) => return Err(error.into()),
            }
        }
        self.drive("all ranks leave", |world| {
            let has_left = |rank: &u32| world.ranks[*rank as usize].client.has_left(group, *rank);
            Ok(leaving.iter().all(has_left))
        })
    }

    /// Whether a rank has got every byte of a turn in a group.
    ///
    /// # Errors
    /// Its memory cannot be read.
    pub fn is_right_in(&self, index: usize, op: ServiceOp, rank: u32, turn: u32) -> Result<bool, ServiceError> {
        let root = self.plan()?.root;
        let sources = if op == ServiceOp::Broadcast { root..root + 1 } else { 0..self.shape.ranks() };
        let expected: Vec<u8> =
            sources.flat_map(|source| content(source, index as u32, turn, self.load.bytes)).collect();
        let state = &self.ranks[rank as usize];
        let Buffers { send, receive, .. } = state.staged[index];
        let region = state.client.region(if op == ServiceOp::Broadcast && rank == root { send } else { receive });
        let mut found = vec![0; expected.len()];
        region.read(0, &mut found)?;
        Ok(found == expected)
    }

    /// A rank's program, and the segment of its host as it sees it.
    fn with_segment(&mut self, call: StagedCall) -> Result<(&mut Client, Option<&MemoryRegion>), ServiceError> {
        let group = call.context.group;
        let index = (group - GROUP) as usize;
        let rank = call.rank as usize;
        let owner = self.ranks[rank].client.segment_owner(group, call.rank)? as usize;
        if owner == rank {
            return Ok((&mut self.ranks[rank].client, None));
        }
        let (before, behind) = self.ranks.split_at_mut(rank.max(owner));
        let (own, other) =
            if owner < rank { (&mut behind[0], &before[owner]) } else { (&mut before[rank], &behind[0]) };
        let segment = other.staged[index].segment.map(|segment| other.client.region(segment));
        Ok((&mut own.client, segment))
    }

    /// How a rank's call has ended, if it has.
    ///
    /// # Errors
    /// It has failed.
    pub fn end(&mut self, rank: u32, call: Call) -> Result<bool, ServiceError> {
        match call {
            Call::Alias(context) => Ok(self.ranks[rank as usize].client.end(context, rank)?),
            Call::Staged(call) => {
                let (client, segment) = self.with_segment(call)?;
                Ok(client.end_staged(call, segment)?)
            }
        }
    }

    /// Whether the calls of all ranks have ended well.
    ///
    /// # Errors
    /// One of them has failed.
    pub fn have_ended(&mut self, calls: &[Call]) -> Result<bool, ServiceError> {
        for (rank, call) in (0..).zip(calls) {
            if !self.end(rank, *call)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Waits until all ranks have ended a collective well.
    ///
    /// # Errors
    /// It has failed.
    pub fn end_calls(&mut self, calls: &[Call]) -> Result<(), ServiceError> {
        self.drive("a collective", |world| world.have_ended(calls))
    }

    /// Whether all flags are there: read in the ranks' memory, without a call that does anything.
    ///
    /// # Errors
    /// There is no such memory.
    pub fn are_all_flagged(&mut self, calls: &[Call]) -> Result<bool, ServiceError> {
        for (rank, call) in (0..).zip(calls) {
            let is_flagged = match *call {
                Call::Alias(context) => self.ranks[rank as usize].client.is_flagged(context, rank)?,
                Call::Staged(call) => {
                    let (client, segment) = self.with_segment(call)?;
                    client.is_staged_flagged(call, segment)?
                }
            };
            if !is_flagged {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Copies by ranks from what their host shares, and their bytes.
    #[must_use]
    pub fn host_copies(&self) -> (u64, u64) {
        let copies = self.ranks.iter().map(|rank| rank.client.host_copies());
        copies.fold((0, 0), |(copies, bytes), (more, others)| (copies + more, bytes + others))
    }

    /// Most service processes whose last staged collective began with a Write to the same rank.
    #[must_use]
    pub fn incast_at_start(&self, index: usize) -> u32 {
        let group = GROUP + index as u32;
        let mut of_ranks = vec![0; self.ranks.len()];
        let firsts = self.agents.iter().flatten().filter_map(|agent| agent.first_target(group));
        firsts.for_each(|rank| of_ranks[rank as usize] += 1);
        of_ranks.into_iter().max().unwrap_or(0)
    }

    /// What closed forms give for one staged collective.
    ///
    /// # Errors
    /// The world has no staged collectives.
    pub fn expected(&self, op: ServiceOp) -> Result<Expected, ServiceError> {
        let (plan, delivery) = (self.plan()?, self.delivery()?);
        let collective = match op {
            ServiceOp::Broadcast => Collective::Broadcast { root: plan.root },
            _ => Collective::Allgather,
        };
        let descriptor = Descriptor { collective, delivery, bytes: self.load.bytes };
        Ok(Expected::new(&self.topology, descriptor, plan.staging, self.between()))
    }

    /// How data goes between the service processes of the first group, as all of them have agreed.
    #[must_use]
    pub fn between(&self) -> Between {
        let agents = self.agents.iter().flatten();
        let all = agents.map(|agent| agent.between(GROUP)).all(|between| between == Between::Multicast);
        if all { Between::Multicast } else { Between::Messages }
    }
}

/// Transfers of one staged collective, of all service processes together, by closed forms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Expected {
    /// Reads of host memory into staging memory: of each process its ranks, or one of the root, for each segment.
    pub gathers: u64,
    /// Reads from host memory to host memory: where nothing goes through staging memory, one of each rank for each
    /// source.
    pub copies: u64,
    /// Reads between processes, where they go down a binomial tree: one for each process but the first, for each
    /// segment. By multicast none, if nothing is lost.
    pub fetches: Option<u64>,
    /// Bytes that processes multicast: what each has gathered, once.
    pub multicast_bytes: u64,
    /// Writes: of each process one for each rank or host, times runs of ranks, for each segment.
    pub writes: u64,
    /// Flags: as many as a process has targets.
    pub flags: u64,
    /// TASK messages that processes receive, in bytes: 80 for each rank, at each process, and 32 for each message.
    pub task_bytes: u64,
}

impl Expected {
    fn new(topology: &Topology, descriptor: Descriptor, staging: Staging, between: Between) -> Self {
        let Descriptor { collective, delivery, bytes } = descriptor;
        let slot_bytes = staging.staging_bytes / u64::from(staging.segments);
        let segments = |share: u64| bytes.div_ceil((slot_bytes / share).clamp(1, bytes.max(1)));
        let (ranks, hosts) = (u64::from(topology.ranks()), u64::from(topology.hosts()));
        let processes = topology.processes();
        let message_bytes =
            |ranks: u64| TASK_HEADER_BYTES * ranks.div_ceil(TASK_PARTS as u64) + TASK_RANK_BYTES * ranks;
        let received = |process: u32| -> u64 {
            let own = topology.served_by(process).count() as u64 * (TASK_HEADER_BYTES + TASK_RANK_BYTES);
            let run = |run: std::ops::Range<u32>| message_bytes(u64::from(run.end - run.start));
            own + u64::from(processes - 1) * runs(topology, process).into_iter().map(run).sum::<u64>()
        };
        let task_bytes = (0..processes).map(received).sum();
        if delivery == Delivery::Direct {
            // Each process notifies its own ranks, and those from whom they have read.
            let (copies, flags) = match collective {
                Collective::Broadcast { .. } => (ranks - 1, ranks + u64::from(processes) - 1),
                Collective::Allgather => (ranks * ranks, ranks * u64::from(processes)),
            };
            let copies = if bytes == 0 { 0 } else { copies };
            return Self { gathers: 0, copies, fetches: Some(0), multicast_bytes: 0, writes: 0, flags, task_bytes };
        }
        let is_multicast = between == Between::Multicast;
        if let Collective::Broadcast { .. } = collective {
            let count = segments(1);
            let is_binomial = slot_bytes.min(bytes) < staging.scatter_bytes;
            let (writes, flags) = if delivery == Delivery::Flat { (ranks - 1, ranks) } else { (hosts, hosts) };
            let fetches = if is_multicast { Some(0) } else { is_binomial.then_some(count * u64::from(processes - 1)) };
            let multicast_bytes = if is_multicast { bytes } else { 0 };
            return Self {
                gathers: count,
                copies: 0,
                fetches,
                multicast_bytes,
                writes: count * writes,
                flags,
                task_bytes,
            };
        }
        if is_multicast {
            // Each target is written to by one process, from each source.
            let (count, flags) = (segments(ranks), if delivery == Delivery::Flat { ranks } else { hosts });
            let pieces = |process: u32| match count {
                1 => runs(topology, process).len() as u64,
                _ => topology.served_by(process).count() as u64,
            };
            let writes = flags * count * (0..processes).map(pieces).sum::<u64>();
            let multicast_bytes = ranks * bytes;
            return Self {
                gathers: count * ranks,
                copies: 0,
                fetches: Some(0),
                multicast_bytes,
                writes,
                flags,
                task_bytes,
            };
        }
        let (mut gathers, mut writes, mut flags) = (0, 0, 0);
        for process in 0..processes {
            let served = topology.served_by(process).count() as u64;
            let (count, aims) = (segments(served), targets(topology, process, delivery).len() as u64);
            let pieces = if count == 1 { runs(topology, process).len() as u64 } else { served };
            gathers += count * served;
            writes += count * pieces * aims;
            flags += aims;
        }
        Self { gathers, copies: 0, fetches: Some(0), multicast_bytes: 0, writes, flags, task_bytes }
    }
}

/// What staged collectives have given, of one operation.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct StagedReport {
    /// Where data goes: flat, hierarchical or direct.
    pub delivery: &'static str,
    /// How data goes between service processes: messages or multicast.
    pub between: &'static str,
    /// Bytes that processes multicast.
    pub multicast_bytes: f64,
    /// Payload that cards have sent into the network, in bytes, of all frames: control messages, too.
    pub wire_bytes: f64,
    /// Reads of host memory into staging memory.
    pub gathers: f64,
    /// Their bytes.
    pub gathered_bytes: f64,
    /// Reads between staging memories.
    pub fetches: f64,
    /// Their bytes.
    pub fetched_bytes: f64,
    /// Writes from staging memory, without flags.
    pub writes: f64,
    /// Their bytes.
    pub written_bytes: f64,
    /// Flags.
    pub flags: f64,
    /// TASK messages that all processes receive, in bytes.
    pub task_bytes: f64,
    /// What closed forms give for these.
    pub expected: Expected,
    /// Bytes of the task object, of all ranks, in one message: 32 and 80 for each rank.
    pub task_object_bytes: u64,
    /// Most processes that begin with a Write to the same rank.
    pub incast_at_start: u32,
    /// Staging memory of a process for the group.
    pub staging_bytes: u64,
    /// Copies by ranks from the segments of their hosts.
    pub host_copies: f64,
    /// Their bytes.
    pub host_copied_bytes: f64,
}

impl StagedReport {
    /// Its lines of a table.
    pub(super) fn write(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { gathers, gathered_bytes, fetches, fetched_bytes, writes, written_bytes, flags, expected, .. } = self;
        let Self {
            delivery,
            between,
            multicast_bytes,
            wire_bytes,
            task_bytes,
            task_object_bytes,
            incast_at_start,
            staging_bytes,
            ..
        } = self;
        writeln!(
            f,
            "{delivery}, between processes by {between}; Reads of host memory: {gathers:.0} ({} by the closed form), \
             Writes: {writes:.0} ({}), flags: {flags:.0} ({})",
            expected.gathers, expected.writes, expected.flags
        )?;
        writeln!(
            f,
            "through {staging_bytes} bytes of staging memory a process: {gathered_bytes:.0} bytes in, \
             {written_bytes:.0} out; Reads between processes: {fetches:.0} of {fetched_bytes:.0} bytes"
        )?;
        writeln!(
            f,
            "task object: {task_object_bytes} bytes, as processes receive it {task_bytes:.0} ({}); at most \
             {incast_at_start} processes begin with the same rank",
            expected.task_bytes
        )?;
        writeln!(
            f,
            "multicast: {multicast_bytes:.0} bytes ({}); frames into the network, of all cards: {wire_bytes:.0} bytes",
            expected.multicast_bytes
        )?;
        writeln!(f, "copies by ranks: {:.0} of {:.0} bytes", self.host_copies, self.host_copied_bytes)
    }

    /// Of so many operations, from what was counted before and after them.
    ///
    /// # Errors
    /// The world has no staged collectives.
    pub(super) fn new(
        world: &World,
        op: ServiceOp,
        (before, copies_before, sent_before): (AgentCounts, (u64, u64), u64),
        (after, copies, sent): (AgentCounts, (u64, u64), u64),
        iterations: u32,
    ) -> Result<Self, ServiceError> {
        let each = |total: u64| total as f64 / f64::from(iterations.max(1));
        Ok(Self {
            delivery: match world.delivery()? {
                Delivery::Flat => "flat",
                Delivery::Hierarchical => "hierarchical",
                Delivery::Direct => "direct",
            },
            between: match world.between() {
                Between::Messages => "messages",
                Between::Multicast => "multicast",
            },
            multicast_bytes: each(after.multicast_bytes - before.multicast_bytes),
            wire_bytes: each(sent - sent_before),
            gathers: each(after.gathers - before.gathers),
            gathered_bytes: each(after.gathered_bytes - before.gathered_bytes),
            fetches: each(after.fetches - before.fetches),
            fetched_bytes: each(after.fetched_bytes - before.fetched_bytes),
            writes: each(after.writes - before.writes),
            written_bytes: each(after.written_bytes - before.written_bytes),
            flags: each(after.flags - before.flags),
            task_bytes: each(after.task_bytes - before.task_bytes),
            expected: world.expected(op)?,
            task_object_bytes: TASK_HEADER_BYTES + TASK_RANK_BYTES * u64::from(world.shape.ranks()),
            incast_at_start: world.incast_at_start(0),
            staging_bytes: world.plan()?.staging.staging_bytes,
            host_copies: each(copies.0 - copies_before.0),
            host_copied_bytes: each(copies.1 - copies_before.1),
        })
    }
}
