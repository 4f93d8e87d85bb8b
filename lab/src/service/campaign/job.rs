//! A job: programs with ranks in several communicators, and how each of their calls ends.

use std::collections::BTreeMap;

use flexcast_proto::service::wire::{Group, NO_CORE, Place, Refused};
use flexcast_proto::service::{
    Blocks, Cause, ContextId, Datatype, Delivery, FailedParty, Failure, LocalCopies, Locality, Region, StagedCause,
    StagedFailure, Topology,
};
use flexcast_service::{Client, Error, LocalCopy, MemoryId, PeerId, StagedCall};
use flexio::{MemoryRegion, ProtectionDomain};

use super::super::ServiceError;
use super::super::world::{await_keys, memory};
use super::case::{Case, CaseCall, CaseGroup, CaseOp, Otherwise, Trouble};
use super::field::{Field, endpoint};

/// Room in buffers for what a rank calls that disagrees.
const SLACK_BYTES: u64 = 64;

/// How a call has ended for a rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Outcome {
    /// With every byte.
    Right,
    /// With others.
    Wrong,
    /// It has failed, as reported.
    Failed(Failure),
    /// All staged collectives of its communicator have.
    StagedFailed(StagedFailure),
    /// Its service process does not take it.
    Refused,
    /// Its service process is gone, or has cut it off.
    Gone,
}

impl Outcome {
    /// The failed rank and the kind of a failure.
    pub(super) const fn failure(&self) -> Option<(FailedParty, &'static str)> {
        Some(match self {
            Self::Failed(Failure { failed_rank, cause }) => {
                let kind = match cause {
                    Cause::Died => "died",
                    Cause::Read(_) => "memory that could not be read",
                    Cause::Bytes { .. } => "other lengths",
                    Cause::Operation { .. } => "another collective",
                };
                (*failed_rank, kind)
            }
            Self::StagedFailed(StagedFailure { failed_rank, cause }) => {
                let kind = match cause {
                    StagedCause::Died => "died",
                    StagedCause::Transfer(_) => "transfer failed",
                    StagedCause::Disagrees => "another call",
                };
                (*failed_rank, kind)
            }
            _ => return None,
        })
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub(super) send: MemoryId,
    pub(super) receive: MemoryId,
    segment: Option<MemoryId>,
}

impl Buffers {
    pub(super) fn memories(&self) -> impl Iterator<Item = MemoryId> + use<> {
        [self.send, self.receive].into_iter().chain(self.segment)
    }
}

#[derive(Clone, Copy, Debug)]
enum Posted {
    Alias(ContextId),
    Staged(StagedCall),
}

/// A rank of a communicator.
#[derive(Debug)]
pub(super) struct Member {
    pub(super) program: u32,
    pub(super) process: usize,
    pub(super) buffers: Vec<Buffers>,
    posted: Vec<Option<Posted>>,
    pub(super) outcomes: Vec<Option<Outcome>>,
    /// When it calls the next.
    pub(super) due_ps: u64,
    has_joined: bool,
    /// Its service process refuses the communicator.
    pub(super) refused: Option<Refused>,
    /// What it sees in place of the segment of a program that is dead.
    zeros: MemoryRegion,
}

/// A communicator.
#[derive(Debug)]
pub(super) struct Communicator {
    pub(super) plan: CaseGroup,
    number: u32,
    pub(super) topology: Topology,
    pub(super) members: Vec<Member>,
}

/// A program with one rank in each of its communicators.
#[derive(Debug)]
pub(super) struct Program {
    pub(super) is_dead: bool,
    /// Until when it does nothing.
    pub(super) stalled_ps: u64,
    pub(super) clients: BTreeMap<usize, Client>,
    pub(super) peers: BTreeMap<usize, PeerId>,
}

/// Programs and communicators.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) programs: Vec<Program>,
    pub(super) groups: Vec<Communicator>,
    /// Who calls something else: communicator, rank, call.
    pub(super) otherwise: Option<(usize, u32, usize, Otherwise)>,
    seed: u64,
}

fn content(seed: u64, call: usize, source: u32, target: u32, bytes: u64) -> impl Iterator<Item = u8> {
    let start = seed + call as u64 * 101 + u64::from(source) * 31 + u64::from(target) * 17;
    (0..bytes).map(move |at| (at * 7 + start) as u8)
}

/// Displacements of blocks that lie one behind the other.
fn places(counts: &[u64]) -> Vec<u64> {
    let mut end = 0;
    let next = |count: &u64| {
        end += count;
        end - count
    };
    counts.iter().map(next).collect()
}

impl CaseCall {
    /// Bytes that a rank sends to each, and gets from each; the target of contents.
    fn lengths(&self, rank: u32, ranks: u32) -> (Vec<u64>, Vec<u64>) {
        let to = match self.op {
            CaseOp::Alltoallv => (0..ranks).map(|target| self.between(rank, target)).collect(),
            _ => vec![self.between(rank, rank)],
        };
        let from = match self.op {
            CaseOp::Broadcast { root, .. } => vec![self.between(root, rank)],
            _ => (0..ranks).map(|source| self.between(source, rank)).collect(),
        };
        (to, from)
    }

    const fn is_alias(&self) -> bool {
        matches!(self.op, CaseOp::Alltoallv | CaseOp::Allgatherv { .. })
    }

    /// What a rank calls that does something else.
    const fn otherwise(mut self, how: Otherwise) -> Self {
        match (how, self.op) {
            (Otherwise::Longer, CaseOp::Alltoallv | CaseOp::Allgatherv { .. }) => {}
            (Otherwise::Longer, _) => self.bytes += 1,
            (_, CaseOp::Alltoallv) => self.op = CaseOp::Allgatherv { copies: LocalCopies::Card },
            (_, CaseOp::Allgatherv { copies: LocalCopies::Host }) => self.op = CaseOp::Alltoallv,
            (_, CaseOp::Allgatherv { copies: LocalCopies::Card }) => {
                self.op = CaseOp::Allgatherv { copies: LocalCopies::Host };
            }
            (_, CaseOp::Broadcast { delivery, .. }) => self.op = CaseOp::Allgather { delivery },
            (_, CaseOp::Allgather { delivery }) => self.op = CaseOp::Broadcast { root: 0, delivery },
        }
        self
    }
}

impl Job {
    /// Starts programs, and announces their communicators, numbered from `first`.
    pub(super) fn new(
        field: &mut Field,
        case: &Case,
        plans: &[CaseGroup],
        (job, first): (u64, u32),
    ) -> Result<Self, ServiceError> {
        let shape = case.shape;
        let program = |_| Program { is_dead: false, stalled_ps: 0, clients: BTreeMap::new(), peers: BTreeMap::new() };
        let programs = (0..shape.ranks()).map(program).collect();
        let otherwise = match case.trouble {
            Trouble::Disagrees { group, rank, call, how } if plans[group].members.len() > 1 => {
                Some((group, rank, call, how))
            }
            _ => None,
        };
        // Groups of the next job have the same numbers, and are other communicators.
        let communicators = case.seed << 16 | job << 8;
        let mut job = Self { programs, groups: Vec::new(), otherwise, seed: case.seed };
        for (number, plan) in (first..).zip(plans) {
            let host_of = |program: u32| program / shape.ranks_per_host;
            let mut hosts: Vec<u32> = plan.members.iter().map(|program| host_of(*program)).collect();
            hosts.sort_unstable();
            hosts.dedup();
            let locality = |program: &u32| {
                let host = hosts.iter().position(|host| *host == host_of(*program)).unwrap_or(0) as u32;
                Locality { host, socket: 0 }
            };
            let localities: Vec<Locality> = plan.members.iter().map(locality).collect();
            let topology = Topology::new(&localities, shape.processes_per_host)?;
            let process_of = |rank: u32| {
                let (process, host) = (topology.process_of(rank).unwrap_or(0), topology.host_of(rank).unwrap_or(0));
                let on_host = process - topology.processes_of(host).start;
                (hosts[host as usize] * shape.processes_per_host + on_host) as usize
            };
            let place = |(rank, locality): (u32, &Locality)| Place {
                locality: *locality,
                core: NO_CORE,
                process: endpoint(process_of(rank)),
            };
            let map: Vec<Place> = (0..).zip(&localities).map(place).collect();
            let mut members = Vec::new();
            for (rank, program) in (0..).zip(&plan.members) {
                let (program, process) = (*program, process_of(rank));
                let pd = job.connect(field, case, program, process)?;
                let communicator = communicators | u64::from(number);
                let group = Group::new(number, communicator, rank, shape.processes_per_host, &map)?;
                let Some(client) = job.programs[program as usize].clients.get_mut(&process) else { continue };
                client.join(&group)?;
                let mut buffers = Vec::new();
                for call in &plan.calls {
                    buffers.push(Self::buffers(client, &pd, (number, rank), plan.members.len() as u32, call)?);
                }
                let (posted, outcomes) = (vec![None; plan.calls.len()], vec![None; plan.calls.len()]);
                let (due_ps, has_joined, refused, zeros) = (0, false, None, memory(&pd, 4096)?);
                members.push(Member {
                    program,
                    process,
                    buffers,
                    posted,
                    outcomes,
                    due_ps,
                    has_joined,
                    refused,
                    zeros,
                });
            }
            job.groups.push(Communicator { plan: plan.clone(), number, topology, members });
        }
        Ok(job)
    }

    /// Connects a program to a service process of its host, if it is not yet.
    fn connect(
        &mut self,
        field: &mut Field,
        case: &Case,
        program: u32,
        process: usize,
    ) -> Result<ProtectionDomain, ServiceError> {
        let state = &mut self.programs[program as usize];
        if let Some(client) = state.clients.get(&process) {
            return Ok(client.pd().clone());
        }
        let host = program / case.shape.ranks_per_host;
        let pd = ProtectionDomain::new(&field.machine.provider.open(&format!("mlx5_{host}"))?)?;
        if let Some(agent) = &mut field.agents[process] {
            let (mut client, end) = Client::open(&pd)?;
            let (peer, far) = agent.open_program()?;
            agent.connect(peer, end)?;
            client.connect(far)?;
            client.offer_keys(case.bound_keys)?;
            if case.awaits_keys {
                await_keys(&field.machine, agent, &mut client)?;
            }
            state.clients.insert(process, client);
            state.peers.insert(process, peer);
        }
        Ok(pd)
    }

    fn buffers(
        client: &mut Client,
        pd: &ProtectionDomain,
        (group, rank): (u32, u32),
        ranks: u32,
        call: &CaseCall,
    ) -> Result<Buffers, ServiceError> {
        let most = (call.bytes * 3 + SLACK_BYTES) * u64::from(ranks);
        let (send, receive) = (client.share(memory(pd, most)?)?, client.share(memory(pd, most)?)?);
        let owns = call.op.delivery() == Some(Delivery::Hierarchical) && client.segment_owner(group, rank)? == rank;
        let segment = if owns {
            let bytes = client.segment_bytes(group, rank, most)?;
            Some(client.share(memory(pd, bytes)?)?)
        } else {
            None
        };
        Ok(Buffers { send, receive, segment })
    }

    /// Whether all ranks have joined, or are refused.
    pub(super) fn has_joined(&mut self) -> Result<bool, ServiceError> {
        let mut all = true;
        for group in &mut self.groups {
            for (rank, member) in (0..).zip(&mut group.members) {
                let Some(client) = self.programs[member.program as usize].clients.get_mut(&member.process) else {
                    continue;
                };
                match client.has_joined(group.number, rank) {
                    Ok(joined) => member.has_joined = joined,
                    Err(Error::Refused(refused)) => member.refused = Some(refused),
                    Err(error) => return Err(error.into()),
                }
                all &= member.has_joined || member.refused.is_some();
                for Buffers { send, receive, segment } in &member.buffers {
                    for memory in [*send, *receive].into_iter().chain(*segment) {
                        all &= client.key(memory)?.is_some();
                    }
                }
            }
        }
        Ok(all)
    }

    /// Lets programs handle their messages, and copy blocks between ranks of a host; whether there was anything.
    pub(super) fn programs_go_on(&mut self, now_ps: u64) -> Result<bool, ServiceError> {
        let mut any = false;
        for program in 0..self.programs.len() {
            let state = &mut self.programs[program];
            if state.stalled_ps > now_ps {
                continue;
            }
            let mut copies = Vec::new();
            for (process, client) in &mut state.clients {
                any |= client.progress()?;
                while let Some(copy) = client.next_copy() {
                    copies.push((*process, copy));
                }
            }
            any |= !copies.is_empty();
            copies.into_iter().try_for_each(|(process, copy)| self.copy(program, process, &copy))?;
        }
        Ok(any)
    }

    fn copy(&mut self, program: usize, process: usize, copy: &LocalCopy) -> Result<(), ServiceError> {
        let elsewhere = ServiceError::Elsewhere { holder: copy.holder, address: copy.from.address };
        let Some(group) = self.groups.iter().find(|group| group.number == copy.context.group) else {
            return Err(elsewhere);
        };
        let mut calls = group.plan.calls.iter().enumerate().filter(|(_, call)| call.is_alias());
        let Some((number, call)) = calls.nth(copy.context.collective as usize) else { return Err(elsewhere) };
        let holder = &group.members[copy.holder as usize];
        // Who is dead has no memory any more: the copy fails, and nothing is said.
        let Some(theirs) = self.programs[holder.program as usize].clients.get(&holder.process) else { return Ok(()) };
        let Buffers { send, receive, .. } = holder.buffers[number];
        let has = |region: &&MemoryRegion| {
            let start = region.addr().get();
            (start..start + region.len() as u64).contains(&copy.from.address)
        };
        let region = [send, receive].map(|memory| theirs.region(memory)).into_iter().find(has).ok_or(elsewhere)?;
        let mut bytes = vec![0; copy.from.bytes as usize];
        region.read((copy.from.address - region.addr().get()) as usize, &mut bytes)?;
        let (_, from) = call.lengths(copy.rank, group.members.len() as u32);
        let at = places(&from)[copy.source as usize] as usize;
        let into = group.members[copy.rank as usize].buffers[number].receive;
        let Some(own) = self.programs[program].clients.get_mut(&process) else { return Ok(()) };
        own.region(into).write(at, &bytes)?;
        match own.copied(copy) {
            Err(Error::Gone) => Ok(()),
            sent => Ok(sent?),
        }
    }

    /// A rank calls if it is time; whether it has. `pause_ps` is until its next call.
    pub(super) fn call_next(&mut self, at: (usize, usize), now_ps: u64, pause_ps: u64) -> Result<bool, ServiceError> {
        let group = &mut self.groups[at.0];
        let (plan, number) = (&group.plan, group.number);
        let member = &mut group.members[at.1];
        let program = &mut self.programs[member.program as usize];
        let open = |number: usize| member.posted[number].is_some() && member.outcomes[number].is_none();
        let under_way = (0..plan.calls.len()).filter(|number| open(*number)).count();
        let Some(next) = (0..plan.calls.len()).find(|next| member.outcomes[*next].is_none() && !open(*next)) else {
            return Ok(false);
        };
        if under_way >= plan.window || now_ps < member.due_ps || program.stalled_ps > now_ps || program.is_dead {
            return Ok(false);
        }
        let call = plan.calls[next];
        let is_hierarchical = |call: &CaseCall| call.op.delivery() == Some(Delivery::Hierarchical);
        if is_hierarchical(&call) && (0..next).any(|earlier| open(earlier) && is_hierarchical(&plan.calls[earlier])) {
            return Ok(false);
        }
        // After a failure there are no staged collectives in this communicator.
        let failed =
            member.outcomes.iter().flatten().find(|outcome| matches!(outcome, Outcome::StagedFailed(_))).copied();
        if let (Some(failed), false) = (failed, call.is_alias()) {
            member.outcomes[next] = Some(failed);
            return Ok(true);
        }
        member.due_ps = now_ps + pause_ps;
        let Some(client) = program.clients.get_mut(&member.process) else { return Ok(false) };
        let rank = at.1 as u32;
        let other = self.otherwise.filter(|(group, of, number, _)| (*group, *of, *number) == (at.0, rank, next));
        let how = other.map(|(.., how)| how);
        let ranks = plan.members.len() as u32;
        let posted = post(client, (number, rank), ranks, (next, call), how, member.buffers[next], self.seed);
        match posted {
            Ok(posted) => member.posted[next] = Some(posted),
            Err(ServiceError::Service(Error::Gone)) => member.outcomes[next] = Some(Outcome::Gone),
            // A call that cannot be has not been called: then it calls as the others do.
            Err(ServiceError::Service(Error::Call(_) | Error::Refused(_) | Error::Format(_))) if how.is_some() => {
                self.otherwise = None;
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Polls whether a rank's calls have ended; whether any has now.
    pub(super) fn poll(&mut self, at: (usize, usize), now_ps: u64) -> Result<bool, ServiceError> {
        let rank = at.1 as u32;
        for number in 0..self.groups[at.0].plan.calls.len() {
            let group = &self.groups[at.0];
            let member = &group.members[at.1];
            let (program, process) = (member.program as usize, member.process);
            if member.outcomes[number].is_some() || self.programs[program].stalled_ps > now_ps {
                continue;
            }
            let Some(posted) = member.posted[number] else { continue };
            let ended = match posted {
                Posted::Alias(context) => {
                    self.programs[program].clients.get_mut(&process).map(|client| client.end(context, rank))
                }
                Posted::Staged(call) => {
                    let Some(client) = self.programs[program].clients.get(&process) else { continue };
                    let owner = client.segment_owner(group.number, rank)? as usize;
                    let other = &group.members[owner];
                    // Taken out so that the segment of another program can be read as well.
                    let Some(mut client) = self.programs[program].clients.remove(&process) else { continue };
                    let segment = if owner == at.1 {
                        None
                    } else {
                        let there = self.programs[other.program as usize].clients.get(&other.process);
                        let theirs = there.zip(other.buffers[number].segment);
                        Some(theirs.map_or(&member.zeros, |(there, segment)| there.region(segment)))
                    };
                    let ended = client.end_staged(call, segment);
                    self.programs[program].clients.insert(process, client);
                    Some(ended)
                }
            };
            let outcome = match ended {
                None | Some(Ok(false)) => continue,
                Some(Ok(true)) => None,
                Some(Err(Error::Failed(failure))) => Some(Outcome::Failed(failure)),
                Some(Err(Error::StagedFailed(failure))) => Some(Outcome::StagedFailed(failure)),
                Some(Err(Error::Gone)) => Some(Outcome::Gone),
                Some(Err(Error::Refused(_))) => Some(Outcome::Refused),
                Some(Err(error)) => return Err(error.into()),
            };
            let outcome = match outcome {
                Some(outcome) => outcome,
                None if self.is_right(at, number)? => Outcome::Right,
                None => Outcome::Wrong,
            };
            self.groups[at.0].members[at.1].outcomes[number] = Some(outcome);
            return Ok(true);
        }
        Ok(false)
    }

    fn is_right(&self, at: (usize, usize), number: usize) -> Result<bool, ServiceError> {
        let group = &self.groups[at.0];
        let (rank, ranks) = (at.1 as u32, group.members.len() as u32);
        if self.otherwise.is_some_and(|(group, of, of_call, _)| (group, of, of_call) == (at.0, rank, number)) {
            return Ok(true);
        }
        let call = group.plan.calls[number];
        let (_, from) = call.lengths(rank, ranks);
        let target = if call.op == CaseOp::Alltoallv { rank } else { 0 };
        let first = if let CaseOp::Broadcast { root, .. } = call.op { root } else { 0 };
        let sources = (first..).zip(&from);
        let expected: Vec<u8> =
            sources.flat_map(|(source, bytes)| content(self.seed, number, source, target, *bytes)).collect();
        let member = &group.members[at.1];
        let Some(client) = self.programs[member.program as usize].clients.get(&member.process) else { return Ok(true) };
        let Buffers { send, receive, .. } = member.buffers[number];
        let is_root = matches!(call.op, CaseOp::Broadcast { root, .. } if root == rank);
        let mut found = vec![0; expected.len()];
        client.region(if is_root { send } else { receive }).read(0, &mut found)?;
        Ok(found == expected)
    }

    /// Whether all live ranks have ended all calls.
    pub(super) fn is_over(&self) -> bool {
        let is_over = |member: &Member| {
            let program = &self.programs[member.program as usize];
            program.is_dead || member.refused.is_some() || member.outcomes.iter().all(Option::is_some)
        };
        self.groups.iter().flat_map(|group| &group.members).all(is_over)
    }

    /// The number of a communicator in messages.
    pub(super) fn number(&self, group: usize) -> u32 {
        self.groups[group].number
    }
}

fn post(
    client: &mut Client,
    (group, rank): (u32, u32),
    ranks: u32,
    (number, planned): (usize, CaseCall),
    how: Option<Otherwise>,
    Buffers { send, receive, segment }: Buffers,
    seed: u64,
) -> Result<Posted, ServiceError> {
    let call = how.map_or(planned, |how| planned.otherwise(how));
    let (mut to, mut from) = call.lengths(rank, ranks);
    client.region(receive).fill(0xA5);
    let everybody = call.op == CaseOp::Alltoallv;
    let data: Vec<u8> = (0..)
        .zip(&to)
        .flat_map(|(target, bytes)| content(seed, number, rank, if everybody { target } else { 0 }, *bytes))
        .collect();
    client.region(send).write(0, &data)?;
    if how == Some(Otherwise::Longer) && call.is_alias() {
        let longer = if everybody { (rank + 1) % ranks } else { 0 };
        to[longer as usize] += 1;
        if !everybody || longer == rank {
            from[rank as usize] += 1;
        }
    }
    let order = Error::Order { what: "a call with memory that is not shared yet", next: "wait for `key`" };
    let (Some(sends), Some(receives)) = (client.key(send)?, client.key(receive)?) else { return Err(order.into()) };
    let (to_displs, from_displs) = (places(&to), places(&from));
    let datatype = Datatype { size_bytes: 1, extent_bytes: 1 };
    let blocks = |region: Region| (region.address, region.key);
    let (address, key) = blocks(receives);
    let into = Blocks { address, key, datatype, counts: &from, displs: &from_displs };
    Ok(match call.op {
        CaseOp::Alltoallv => {
            let (address, key) = blocks(sends);
            let out = Blocks { address, key, datatype, counts: &to, displs: &to_displs };
            Posted::Alias(client.alltoallv(group, rank, &out, &into)?)
        }
        CaseOp::Allgatherv { copies } => {
            let own = Region { bytes: to[0], ..sends };
            Posted::Alias(client.allgatherv(group, rank, Some(own), &into, copies)?)
        }
        CaseOp::Broadcast { root, delivery } => {
            let buffer = Region { bytes: call.bytes, ..if rank == root { sends } else { receives } };
            Posted::Staged(client.broadcast((group, rank), root, delivery, buffer, segment)?)
        }
        CaseOp::Allgather { delivery } => {
            let own = Region { bytes: call.bytes, ..sends };
            let all = Region { bytes: call.bytes * u64::from(ranks), ..receives };
            Posted::Staged(client.allgather((group, rank), delivery, own, all, segment)?)
        }
    })
}
