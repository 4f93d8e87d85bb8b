//! Service process: the collectives of several groups at once, as a state machine without IO.
//!
//! A Read that fails is reported first to the process of the rank whose memory is at fault. That process knows whether
//! the collective had failed before; then the Read is a consequence and not the cause.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

use super::allgatherv::Allgatherv;
use super::alltoallv::Alltoallv;
use super::error::{Cause, FailedParty, Failure, Ignored, Refusal};
use super::message::{Action, Call, ContextId, Event, LocalCopies, Message, Operation, Read, ReadError, Reader};
use super::reads::Reads;
use super::scope::Scope;
use super::topology::Topology;

/// Bounds of a service process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Reads under way at once, over all groups, at least 1.
    pub active_reads: u32,
    /// Groups, at least 1.
    pub groups: u32,
    /// Collectives of one group that may be under way at once, at least 1.
    pub collectives: u32,
    /// Announcements that wait for a rank or for a Read, over all groups. A group is admitted with the most that it can
    /// have: its ranks times the ranks that this process serves times `collectives`. So nothing has to be refused
    /// later.
    pub announcements: u64,
}

impl Default for Limits {
    /// 4 Reads as in the paper's application runs; 64 groups, 8 collectives each, 2^20 announcements.
    fn default() -> Self {
        Self { active_reads: 4, groups: 64, collectives: 8, announcements: 1 << 20 }
    }
}

/// A daemon on a card's Arm cores that carries out non-blocking collectives for ranks of its host. It moves no payload
/// itself: its card reads from host memory into host memory.
///
/// Events go in by [`ServiceProcess::handle`]; what it wants done comes out, and is done in order before the next
/// event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ServiceProcess {
    limits: Limits,
    groups: BTreeMap<u32, Group>,
    reads: Reads,
    ignored: Ignored,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Group {
    topology: Arc<Topology>,
    /// This process's number in the group.
    own: u32,
    /// The oldest collective that is not over.
    oldest: u32,
    /// Later ones that are.
    over: BTreeSet<u32>,
    contexts: BTreeMap<u32, Context>,
    /// The first death. Nothing follows it.
    broken: Option<Failure>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Context {
    state: Option<State>,
    failure: Option<Failure>,
    /// Served ranks that have called it.
    entered: BTreeSet<u32>,
    /// Served ranks that have been notified that it is over.
    over: BTreeSet<u32>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum State {
    Alltoallv(Alltoallv),
    Allgatherv(Allgatherv),
}

impl State {
    fn new(operation: Operation) -> Self {
        match operation {
            Operation::Alltoallv => Self::Alltoallv(Alltoallv::default()),
            Operation::Allgatherv(copies) => Self::Allgatherv(Allgatherv::new(copies)),
        }
    }

    const fn operation(&self) -> Operation {
        match self {
            Self::Alltoallv(_) => Operation::Alltoallv,
            Self::Allgatherv(state) => Operation::Allgatherv(state.copies()),
        }
    }
}

/// Where a collective of a group stands here.
enum Standing {
    Over,
    UnderWay,
}

impl Group {
    fn standing(&self, id: ContextId, limit: u32) -> Result<Standing, Refusal> {
        let ahead = id.collective.wrapping_sub(self.oldest);
        if ahead as i32 <= -1 || self.over.contains(&id.collective) {
            return Ok(Standing::Over);
        }
        if ahead >= limit {
            let (ContextId { group, collective }, oldest) = (id, self.oldest);
            return Err(Refusal::Collectives { group, collective, oldest, limit });
        }
        Ok(Standing::UnderWay)
    }

    fn served(&self) -> usize {
        self.topology.served_by(self.own).count()
    }

    /// Whether a message can have come from there, and is for this process.
    fn is_plausible(&self, from: u32, message: &Message) -> bool {
        let topology = &self.topology;
        let home = topology.host_of_process(self.own);
        let serves = |process: u32, rank: u32| topology.process_of(rank) == Some(process);
        let is_neighbour = topology.host_of_process(from) == home && from != self.own;
        match *message {
            Message::Ready { source, target, .. } => {
                source != target && serves(from, source) && serves(self.own, target)
            }
            Message::Block { announcement, forwards, .. } => {
                let local = home.map_or(0..0, |host| topology.processes_of(host));
                let remote = topology.host_of(announcement.source).is_some_and(|host| Some(host) != home);
                remote
                    && if forwards == 0 {
                        serves(from, announcement.source)
                            && home.and_then(|host| topology.entry_of(announcement.source, host)) == Some(self.own)
                    } else {
                        is_neighbour && topology.next_local(from) == self.own && forwards < local.len() as u32
                    }
            }
            Message::Listed => is_neighbour,
            Message::Unreadable { source, .. } => serves(self.own, source) && topology.host_of_process(from).is_some(),
            Message::HasRead { source, reader } => {
                let has_come_from = match reader {
                    Reader::Rank(rank) => serves(from, rank),
                    Reader::Host(host) => topology.host_of_process(from) == Some(host),
                };
                serves(self.own, source) && has_come_from
            }
            Message::Held { source, holder, .. } => {
                // A block of the host itself is in the memory of its own rank.
                let is_it = source == holder || topology.host_of(source).is_some_and(|host| Some(host) != home);
                is_neighbour && serves(from, holder) && is_it
            }
            Message::Copied { source, holder, by } => {
                is_neighbour && serves(from, by) && serves(self.own, holder) && topology.locality(source).is_some()
            }
            Message::Failed(_) => topology.host_of_process(from).is_some() && from != self.own,
        }
    }
}

impl ServiceProcess {
    /// A process without groups.
    ///
    /// # Errors
    /// A limit of zero.
    pub const fn new(limits: Limits) -> Result<Self, Refusal> {
        let Limits { active_reads, groups, collectives, .. } = limits;
        let (name, value) = match (active_reads, groups, collectives) {
            (0, ..) => ("active_reads", active_reads),
            (_, 0, _) => ("groups", groups),
            (_, _, 0) => ("collectives", collectives),
            _ => {
                let ignored = Ignored { duplicates: 0, stale: 0, foreign: 0 };
                return Ok(Self { limits, groups: BTreeMap::new(), reads: Reads::new(active_reads), ignored });
            }
        };
        Err(Refusal::Limit { name, value })
    }

    /// Takes part in a group, as its process number `own`. Collectives of the group are counted from 0.
    ///
    /// # Errors
    /// The group is there already (or a Read of one that was removed is under way), there is no room for it, or it has
    /// no such process.
    pub fn add_group(&mut self, group: u32, topology: Arc<Topology>, own: u32) -> Result<(), Refusal> {
        if self.groups.contains_key(&group) || self.reads.is_active(|context| context.group == group) {
            return Err(Refusal::GroupTwice { group });
        }
        if self.groups.len() as u64 >= u64::from(self.limits.groups) {
            return Err(Refusal::Groups { groups: self.groups.len() as u32 + 1, limit: self.limits.groups });
        }
        if own >= topology.processes() {
            return Err(Refusal::Process { process: own, processes: topology.processes() });
        }
        let (contexts, over) = (BTreeMap::new(), BTreeSet::new());
        let new = Group { topology, own, oldest: 0, over, contexts, broken: None };
        let announcements = self.groups.values().chain([&new]).map(|group| self.most_announcements(group)).sum();
        if announcements > self.limits.announcements {
            return Err(Refusal::Announcements { announcements, limit: self.limits.announcements });
        }
        self.groups.insert(group, new);
        Ok(())
    }

    fn most_announcements(&self, group: &Group) -> u64 {
        u64::from(group.topology.ranks()) * group.served() as u64 * u64::from(self.limits.collectives)
    }

    /// Forgets a group and what has not begun of it. Reads that are under way still bring [`Event::ReadDone`]. False if
    /// it is not there.
    pub fn remove_group(&mut self, group: u32) -> bool {
        self.reads.cancel(|context| context.group == group);
        self.groups.remove(&group).is_some()
    }

    /// Takes an event, and adds what is to be done to `actions`.
    ///
    /// # Errors
    /// An event that cannot be, or cannot be yet; nothing has changed. Messages that cannot be are counted instead
    /// ([`ServiceProcess::ignored`]). A message that comes too early ([`Refusal::Collectives`]) is offered again after
    /// a completion. It holds back later ones of its group from the same process, and must not hold back those of other
    /// groups: groups would wait for each other. Within a group nobody waits for ever. Who is ahead by so much is
    /// through with the oldest collective here, and has sent all that it owes for it.
    pub fn handle(&mut self, event: Event, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        match event {
            Event::Entered { context, rank, call } => self.enter(context, rank, call, actions),
            Event::Arrived { from, context, message } => self.arrive(from, context, message, actions),
            Event::ReadDone { context, source, target, error } => {
                match self.reads.finish(context, source, target, actions) {
                    Some(read) => self.finish_read(context, read, error, actions),
                    None => self.ignored.foreign += 1,
                }
                Ok(())
            }
            Event::Claimed { context, announcement } => {
                if let Some(announcement) = announcement {
                    self.within(context, actions, |state, scope| match state {
                        State::Allgatherv(state) => state.claimed(announcement, scope),
                        State::Alltoallv(_) => Ok(()),
                    });
                }
                Ok(())
            }
            Event::Copied { context, rank, source } => {
                let serves = |group: &Group| group.topology.process_of(rank) == Some(group.own);
                if !self.groups.get(&context.group).is_some_and(serves) {
                    self.ignored.foreign += 1;
                    return Ok(());
                }
                self.within(context, actions, |state, scope| {
                    match state {
                        State::Allgatherv(state) if state.copies() == LocalCopies::Host => {
                            state.copied(rank, source, scope);
                        }
                        // Nothing has instructed the rank to copy.
                        _ => scope.ignored.foreign += 1,
                    }
                    Ok(())
                });
                Ok(())
            }
            Event::RankDied { group, rank } => self.die(group, FailedParty::Rank(rank), true, actions),
            Event::ProcessDied { group, process } => self.die(group, FailedParty::Process(process), true, actions),
        }
    }

    fn enter(&mut self, id: ContextId, rank: u32, call: Call, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let ContextId { group, collective } = id;
        let state = self.groups.get_mut(&group).ok_or(Refusal::NoGroup { group })?;
        let ranks = state.topology.ranks();
        if state.topology.process_of(rank) != Some(state.own) {
            return Err(Refusal::NotServed { rank, process: state.own });
        }
        let (Call::Alltoallv { receive, .. } | Call::Allgatherv { receive, .. }) = &call;
        for found in [receive.len(), if let Call::Alltoallv { send, .. } = &call { send.len() } else { receive.len() }]
        {
            if found != ranks as usize {
                return Err(Refusal::Blocks { found, ranks });
            }
        }
        if let (Some(failure), false) = (state.broken, state.contexts.contains_key(&collective)) {
            actions.push(Action::Fail { rank, context: id, failure });
            return Ok(());
        }
        let twice = Refusal::CalledTwice { rank, group, collective };
        if let Standing::Over = state.standing(id, self.limits.collectives)? {
            return Err(twice);
        }
        let context = state.contexts.entry(collective).or_default();
        if !context.entered.insert(rank) {
            return Err(twice);
        }
        let found = call.operation();
        if context.failure.is_none() {
            let expected = context.state.get_or_insert_with(|| State::new(found)).operation();
            if expected != found {
                self.fail(id, mixed_up(rank, found, expected), true, actions);
                return Ok(());
            }
        }
        self.within(id, actions, |state, scope| match (state, call) {
            (State::Alltoallv(state), Call::Alltoallv { send, receive }) => state.enter(rank, &send, receive, scope),
            (State::Allgatherv(state), Call::Allgatherv { send, receive, .. }) => {
                state.enter(rank, send, receive, scope)
            }
            _ => Ok(()),
        });
        self.settle(id, actions);
        Ok(())
    }

    fn arrive(&mut self, from: u32, id: ContextId, message: Message, actions: &mut Vec<Action>) -> Result<(), Refusal> {
        let Some(group) = self.groups.get_mut(&id.group).filter(|group| group.is_plausible(from, &message)) else {
            self.ignored.foreign += 1;
            return Ok(());
        };
        if let Message::Failed(Failure { failed_rank, cause: Cause::Died }) = message {
            // Every process that detects a death notifies all others: the message comes several times.
            return self.die(id.group, failed_rank, false, actions);
        }
        if group.broken.is_some() {
            self.ignored.stale += 1;
            return Ok(());
        }
        if let Standing::Over = group.standing(id, self.limits.collectives)? {
            self.ignored.stale += 1;
            return Ok(());
        }
        if let Message::Failed(failure) = message {
            group.contexts.entry(id.collective).or_default();
            self.fail(id, failure, false, actions);
            return Ok(());
        }
        // Announcements come before any served rank has called; what follows does not.
        let begins = match message {
            Message::Ready { source, .. } => Some((source, Operation::Alltoallv)),
            Message::Block { announcement, copies, .. } => Some((announcement.source, Operation::Allgatherv(copies))),
            Message::Held { holder, copies, .. } => Some((holder, Operation::Allgatherv(copies))),
            Message::Listed
            | Message::HasRead { .. }
            | Message::Copied { .. }
            | Message::Unreadable { .. }
            | Message::Failed(_) => None,
        };
        if let Some((rank, found)) = begins {
            let context = group.contexts.entry(id.collective).or_default();
            if context.failure.is_some() {
                self.ignored.stale += 1;
                return Ok(());
            }
            let expected = context.state.get_or_insert_with(|| State::new(found)).operation();
            if expected != found {
                self.fail(id, mixed_up(rank, found, expected), true, actions);
                return Ok(());
            }
        }
        self.within(id, actions, |state, scope| {
            match (state, message) {
                (_, Message::Unreadable { source, code }) => {
                    return Err(Failure { failed_rank: FailedParty::Rank(source), cause: Cause::Read(code) });
                }
                (State::Alltoallv(state), Message::Ready { source, target, region }) => {
                    return state.ready(source, target, region, scope);
                }
                (State::Alltoallv(state), Message::HasRead { source, reader: Reader::Rank(rank) }) => {
                    state.has_read(source, rank, scope);
                }
                (State::Allgatherv(state), Message::Block { announcement, forwards, .. }) => {
                    return state.block(announcement, forwards, scope);
                }
                (State::Allgatherv(state), Message::Held { source, holder, region, .. }) => {
                    return state.held_elsewhere(source, holder, region, scope);
                }
                (State::Allgatherv(state), Message::HasRead { source, reader: Reader::Host(host) }) => {
                    state.has_read(source, host, scope);
                }
                (State::Allgatherv(state), Message::Copied { source, holder, by }) => {
                    state.credit(source, holder, by, scope);
                }
                (State::Allgatherv(state), Message::Listed) => state.listed(scope),
                _ => scope.ignored.foreign += 1,
            }
            Ok(())
        });
        Ok(())
    }

    fn finish_read(&mut self, id: ContextId, read: Read, error: Option<ReadError>, actions: &mut Vec<Action>) {
        let Read { source, target, .. } = read;
        if let Some(ReadError { code, rank }) = error {
            self.within(id, actions, |_, scope| {
                scope.send_to_server(rank, Message::Unreadable { source: rank, code });
                Ok(())
            });
        } else {
            self.within(id, actions, |state, scope| match state {
                State::Alltoallv(state) => {
                    state.received(source, target, scope);
                    Ok(())
                }
                State::Allgatherv(state) => state.read(read, scope),
            });
        }
        self.settle(id, actions);
    }

    /// Lets a collective that has not failed do something; it fails if that finds a reason.
    fn within(
        &mut self,
        id: ContextId,
        actions: &mut Vec<Action>,
        act: impl FnOnce(&mut State, &mut Scope<'_>) -> Result<(), Failure>,
    ) {
        let Some(group) = self.groups.get_mut(&id.group) else { return };
        let Some(context) = group.contexts.get_mut(&id.collective) else {
            self.ignored.stale += 1;
            return;
        };
        let Context { state: Some(state), over, .. } = context else { return };
        let mut scope = Scope {
            topology: &group.topology,
            own: group.own,
            id,
            reads: &mut self.reads,
            ignored: &mut self.ignored,
            over,
            actions,
        };
        match act(state, &mut scope) {
            Ok(()) => self.settle(id, actions),
            Err(failure) => self.fail(id, failure, true, actions),
        }
    }

    /// A collective has failed; `announces`: found here, so that the other processes have to learn of it.
    fn fail(&mut self, id: ContextId, failure: Failure, announces: bool, actions: &mut Vec<Action>) {
        let Some(group) = self.groups.get_mut(&id.group) else { return };
        let Some(context) = group.contexts.get_mut(&id.collective).filter(|context| context.failure.is_none()) else {
            return;
        };
        (context.failure, context.state) = (Some(failure), None);
        self.reads.cancel(|other| other == id);
        actions.push(Action::Abandon { context: id });
        if announces {
            let message = Message::Failed(failure);
            let others = (0..group.topology.processes()).filter(|to| *to != group.own);
            actions.extend(others.map(|to| Action::Send { to, context: id, message }));
        }
        self.settle(id, actions);
    }

    /// A rank or a process of a group is gone.
    fn die(
        &mut self,
        number: u32,
        failed_rank: FailedParty,
        announces: bool,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refusal> {
        let group = self.groups.get_mut(&number).ok_or(Refusal::NoGroup { group: number })?;
        let exists = match failed_rank {
            FailedParty::Rank(rank) => rank < group.topology.ranks(),
            FailedParty::Process(process) => process < group.topology.processes() && process != group.own,
        };
        if !exists {
            self.ignored.foreign += 1;
            return Ok(());
        }
        if group.broken.is_some() {
            self.ignored.duplicates += 1;
            return Ok(());
        }
        let failure = Failure { failed_rank, cause: Cause::Died };
        group.broken = Some(failure);
        if announces {
            let context = ContextId { group: number, collective: group.oldest };
            let dead = if let FailedParty::Process(process) = failed_rank { Some(process) } else { None };
            let others = (0..group.topology.processes()).filter(|to| *to != group.own && Some(*to) != dead);
            actions.extend(others.map(|to| Action::Send { to, context, message: Message::Failed(failure) }));
        }
        let under_way: Vec<u32> = group.contexts.keys().copied().collect();
        for collective in under_way {
            self.fail(ContextId { group: number, collective }, failure, false, actions);
        }
        Ok(())
    }

    /// Notifies ranks of a failure once no Read goes into their buffers, and forgets a collective that is over for all
    /// served ranks.
    fn settle(&mut self, id: ContextId, actions: &mut Vec<Action>) {
        let Some(group) = self.groups.get_mut(&id.group) else { return };
        let Some(context) = group.contexts.get_mut(&id.collective) else { return };
        if self.reads.is_active(|other| other == id) {
            return;
        }
        if let Some(failure) = context.failure {
            for &rank in context.entered.difference(&context.over) {
                if failure != (Failure { failed_rank: FailedParty::Rank(rank), cause: Cause::Died }) {
                    actions.push(Action::Fail { rank, context: id, failure });
                }
            }
            context.over.extend(&context.entered);
        }
        if context.over.len() < group.topology.served_by(group.own).count() {
            return;
        }
        group.contexts.remove(&id.collective);
        group.over.insert(id.collective);
        while group.over.remove(&group.oldest) {
            group.oldest = group.oldest.wrapping_add(1);
        }
    }

    /// The process that serves a rank of a group; none if there is no such group or rank.
    #[must_use]
    pub fn process_of(&self, group: u32, rank: u32) -> Option<u32> {
        self.groups.get(&group)?.topology.process_of(rank)
    }

    /// Reads under way: at most [`Limits::active_reads`].
    #[must_use]
    pub fn active_reads(&self) -> u32 {
        self.reads.active()
    }

    /// Announcements that wait for a rank or for a Read, own blocks included: at most [`Limits::announcements`].
    #[must_use]
    pub fn waiting(&self) -> usize {
        let held = self.groups.values().flat_map(|group| group.contexts.values()).map(|context| match &context.state {
            Some(State::Alltoallv(state)) => state.held(),
            _ => 0,
        });
        self.reads.waiting() + held.sum::<usize>()
    }

    /// Collectives of a group that this process knows and that are not over; none for a group that is not there.
    #[must_use]
    pub fn under_way(&self, group: u32) -> Option<usize> {
        Some(self.groups.get(&group)?.contexts.len())
    }

    /// Blocks of an Allgatherv that a rank was given to read; none unless it has called it and it is under way.
    #[must_use]
    pub fn load(&self, context: ContextId, rank: u32) -> Option<u32> {
        match &self.groups.get(&context.group)?.contexts.get(&context.collective)?.state {
            Some(State::Allgatherv(state)) => state.load(rank),
            _ => None,
        }
    }

    /// What was ignored so far.
    #[must_use]
    pub const fn ignored(&self) -> Ignored {
        self.ignored
    }

    /// What was ignored since the last call.
    pub fn take_ignored(&mut self) -> Ignored {
        core::mem::take(&mut self.ignored)
    }
}

fn mixed_up(rank: u32, found: Operation, expected: Operation) -> Failure {
    Failure { failed_rank: FailedParty::Rank(rank), cause: Cause::Operation { found, expected } }
}
