//! Service process: carries out what its state machine decides, over a card's function.
//!
//! It sends and receives messages ([`wire`]), and has the card read from host memory into host memory, by alias keys:
//! but for staged collectives no byte of the ranks' data is in its own memory. It has no thread, and no clock but that
//! of its card's provider, for chunks of multicasts that do not come: whoever has it calls [`Agent::progress`]. How
//! connections are made is its owner's business; a connection whose other end is gone is seen when something is sent to
//! it, or reported by [`Agent::lose`].

mod bound;
mod calls;
mod counts;
mod declined;
mod faults;
mod groups;
mod limits;
mod multicast;
mod offers;
mod program;
mod reach;
mod staged;
mod status;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flexcast_proto::service::wire::{
    self, Body, Endpoint, Flags, Group, JoinRefused, Joined, KeyForm, KeyName, OpStart, Packet, Refused,
};
use flexcast_proto::service::{
    Action, ContextId, Event, FailedParty, Message, Read, ReadError, Refusal, Region, ServiceProcess, SharedList,
    Topology, flag,
};
use flexio::ProtectionDomain;

use bound::BoundKeys;
use calls::Calls;
pub use counts::AgentCounts;
use declined::Declined;
use faults::Doubt;
pub use limits::AgentLimits;
use offers::{Offer, Offers};
use program::Program;
use reach::Reach;
use staged::StagedGroups;
pub use status::AgentStatus;

use crate::error::Result;
use crate::links::{Ends, Fault, Lane, LinkEnd, LinkEvent, Links, PeerId, Transfer};

/// Longest Read or Write: what one work request can carry (InfiniBand specification, volume 1, 9.7.8), in whole GiB.
const MOST_READ_BYTES: u64 = 1 << 30;

/// Messages on their way to each peer.
const SENDS: u32 = 8;

/// Who is at the other end of a connection.
#[derive(Debug)]
enum Role {
    /// The program of ranks.
    Program(Box<Program>),
    Process(Endpoint),
}

#[derive(Debug)]
struct Member {
    peer: PeerId,
    flags: Option<Flags>,
    /// It calls nothing more.
    leaves: bool,
}

#[derive(Debug)]
struct GroupState {
    given: Group,
    topology: Arc<Topology>,
    own: u32,
    endpoints: Vec<Endpoint>,
    /// By service process: the connection to it; none to itself, and once it is gone.
    peers: Vec<Option<PeerId>>,
    members: BTreeMap<u32, Member>,
    /// By service process: how its ranks' memory is reached.
    lanes: Vec<Lane>,
    /// Processes that take messages of the group.
    joined: BTreeSet<u32>,
}

impl GroupState {
    fn is_whole(&self) -> bool {
        self.joined.len() == self.endpoints.len()
    }
}

/// A Read in as many parts as it takes.
#[derive(Clone, Copy, Debug)]
struct Reading {
    context: ContextId,
    source: u32,
    /// In whose memory the block lies.
    holder: u32,
    target: u32,
    parts: u32,
    error: Option<ReadError>,
}

/// What has come.
#[derive(Debug)]
enum Incoming {
    Message(PeerId, Vec<u8>),
    Transferred(u64, Option<Fault>),
    Broken(PeerId),
}

/// A message that has come before its time, and the process that has sent it.
type Early = (u32, ContextId, Message);

/// What another process has said of a group: who it is and who this one is, and whether it takes part.
type Announced = (u32, u32, Result<Joined, JoinRefused>);

/// A service process.
#[derive(Debug)]
pub struct Agent {
    endpoint: Endpoint,
    pd: ProtectionDomain,
    limits: AgentLimits,
    links: Links,
    machine: ServiceProcess,
    list: Arc<Mutex<SharedList>>,
    peers: BTreeMap<PeerId, Role>,
    groups: BTreeMap<u32, GroupState>,
    /// What other processes have said of groups that no rank here has described yet.
    announced: BTreeMap<(PeerId, u32), Announced>,
    /// Groups that do not come about.
    declined: Declined,
    staged: StagedGroups,
    /// Calls of ranks that the machine takes after a completion.
    calls: Calls,
    /// Blocks that ranks are to copy.
    offers: Offers,
    /// Keys that programs bind to their memory.
    bound: BoundKeys,
    /// Reads of others that have failed on a lane whose fault is not known yet.
    unexplained: Vec<Doubt>,
    /// Messages that the machine takes after a completion.
    held: BTreeMap<(PeerId, u32), VecDeque<Early>>,
    reads: BTreeMap<u64, Reading>,
    /// Flags on their way: the collective and the rank that each of them is for.
    flags: BTreeMap<u64, (ContextId, u32)>,
    next_token: u64,
    events: VecDeque<Event>,
    actions: Vec<Action>,
    incoming: VecDeque<Incoming>,
    /// Connections that are made when groups need them; none if its owner makes them before.
    reach: Option<Reach>,
    counts: AgentCounts,
}

impl Agent {
    /// A service process that others know by `endpoint`, on the function of the card that `pd` is of. `list` is shared
    /// by the processes of the card.
    ///
    /// # Errors
    /// The card refuses.
    pub fn new(
        pd: &ProtectionDomain,
        endpoint: Endpoint,
        list: Arc<Mutex<SharedList>>,
        limits: AgentLimits,
    ) -> Result<Self> {
        Ok(Self {
            endpoint,
            pd: pd.clone(),
            limits,
            links: Links::new(pd, limits.peers, limits.lanes, SENDS)?,
            machine: ServiceProcess::new(limits.machine)?,
            list,
            peers: BTreeMap::new(),
            groups: BTreeMap::new(),
            announced: BTreeMap::new(),
            declined: Declined::default(),
            staged: StagedGroups::default(),
            calls: Calls::default(),
            offers: Offers::default(),
            bound: BoundKeys::default(),
            unexplained: Vec::new(),
            held: BTreeMap::new(),
            reads: BTreeMap::new(),
            flags: BTreeMap::new(),
            next_token: 0,
            events: VecDeque::new(),
            actions: Vec::new(),
            incoming: VecDeque::new(),
            reach: None,
            counts: AgentCounts::default(),
        })
    }

    /// One end of a connection to a program of ranks.
    ///
    /// # Errors
    /// The card refuses.
    pub fn open_program(&mut self) -> Result<(PeerId, LinkEnd)> {
        self.open(Role::Program(Box::new(Program::new())))
    }

    /// One end of a connection to the service process at `endpoint`.
    ///
    /// # Errors
    /// The card refuses.
    pub fn open_process(&mut self, endpoint: Endpoint) -> Result<(PeerId, LinkEnd)> {
        self.open(Role::Process(endpoint))
    }

    fn open(&mut self, role: Role) -> Result<(PeerId, LinkEnd)> {
        if self.peers.len() >= self.limits.peers as usize {
            return Err(crate::Error::Order {
                what: "one more connection than the limit of peers",
                next: "end one, or raise `peers`",
            });
        }
        let (peer, end) = self.links.open()?;
        self.peers.insert(peer, role);
        Ok((peer, end))
    }

    /// Connects to the other end.
    ///
    /// # Errors
    /// The card refuses.
    pub fn connect(&mut self, peer: PeerId, far: LinkEnd) -> Result<()> {
        self.links.connect(peer, far)
    }

    /// The other end of a connection is gone: what it takes part in fails, and nothing else.
    pub fn lose(&mut self, peer: PeerId) {
        self.incoming.push_back(Incoming::Broken(peer));
    }

    /// What it has done so far.
    #[must_use]
    pub const fn counts(&self) -> AgentCounts {
        self.counts
    }

    /// Reads under way; never more than `Limits::active_reads`.
    #[must_use]
    pub fn active_reads(&self) -> u32 {
        self.machine.active_reads()
    }

    /// Groups that it serves.
    #[must_use]
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Whether everything that it has said has been taken.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.links.is_drained()
    }

    /// Does what can be done now; returns whether anything has happened. Never blocks.
    ///
    /// # Errors
    /// The card has failed. What peers do wrong is no error here: they are cut off.
    pub fn progress(&mut self) -> Result<bool> {
        let Self { links, incoming, .. } = self;
        links.poll(|_, event| {
            incoming.push_back(match event {
                LinkEvent::Message { from, bytes } => Incoming::Message(from, bytes.to_vec()),
                LinkEvent::Transferred { token, error } => Incoming::Transferred(token, error),
                LinkEvent::Broken { peer } => Incoming::Broken(peer),
            });
            Ok(())
        })?;
        let mut any = self.poll_multicast()?;
        if any {
            self.carry_out()?;
        }
        while let Some(what) = self.incoming.pop_front() {
            any = true;
            match what {
                Incoming::Message(from, bytes) => self.receive(from, &bytes)?,
                Incoming::Transferred(token, error) => {
                    if error.is_some() {
                        self.check_lanes();
                    }
                    self.transferred(token, error)?;
                    self.explain_all()?;
                }
                Incoming::Broken(peer) => self.part_with(peer),
            }
            self.carry_out()?;
            self.settle_bound_keys()?;
        }
        Ok(any)
    }

    fn list(&self) -> MutexGuard<'_, SharedList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&mut self, to: PeerId, context: ContextId, body: Body<'_>) -> Result<()> {
        let mut bytes = Vec::new();
        wire::encode(&Packet { context, body }, &mut bytes)?;
        match self.peers.get(&to) {
            Some(Role::Program(_)) => self.counts.rank_messages += 1,
            Some(Role::Process(_)) => self.counts.process_messages += 1,
            None => return Ok(()),
        }
        self.links.send(to, bytes)
    }

    /// Says something to a rank, if it is still there.
    fn say_to_rank(&mut self, rank: u32, context: ContextId, body: Body<'_>) -> Result<()> {
        let Some(peer) = self.peer_of(context.group, rank) else { return Ok(()) };
        self.say(peer, context, body)
    }

    /// The connection to the program of a rank.
    fn peer_of(&self, group: u32, rank: u32) -> Option<PeerId> {
        Some(self.groups.get(&group)?.members.get(&rank)?.peer)
    }

    /// Sends a program the blocks to copy that it has room for.
    fn send_offers(&mut self, to: PeerId) -> Result<()> {
        while let Some(Offer { context, rank, source, holder, region }) = self.offers.next(to) {
            self.say(to, context, Body::LocalData { rank, source, holder, region })?;
        }
        Ok(())
    }

    /// The connection to another process of a group.
    fn process_peer(&self, group: u32, process: u32) -> Option<PeerId> {
        *self.groups.get(&group)?.peers.get(process as usize)?
    }

    fn peer_at(&self, endpoint: &Endpoint) -> Option<PeerId> {
        if let Some(reach) = &self.reach {
            return reach.there(endpoint);
        }
        let is_it = |role: &Role| matches!(role, Role::Process(other) if other == endpoint);
        self.peers.iter().find(|(_, role)| is_it(role)).map(|(peer, _)| *peer)
    }

    /// A peer has broken the rules: it is cut off, and what it takes part in fails.
    fn cut_off(&mut self, peer: PeerId, why: &dyn std::fmt::Display) {
        tracing::warn!(?peer, %why, "a peer is cut off");
        self.counts.wrong += 1;
        self.part_with(peer);
    }

    fn receive(&mut self, from: PeerId, bytes: &[u8]) -> Result<()> {
        let packet = match wire::decode(bytes) {
            Ok(packet) => packet,
            Err(error) => {
                self.cut_off(from, &error);
                return Ok(());
            }
        };
        let context = packet.context;
        if matches!(packet.body, Body::Task(_)) {
            self.counts.task_bytes += bytes.len() as u64;
        }
        match self.peers.get(&from) {
            Some(Role::Program(_)) => self.receive_from_program(from, context, packet.body),
            Some(Role::Process(_)) => self.receive_from_process(from, context, packet.body),
            None => Ok(()),
        }
    }

    fn receive_from_program(&mut self, from: PeerId, context: ContextId, body: Body<'_>) -> Result<()> {
        let Some(Role::Program(program)) = self.peers.get_mut(&from) else { return Ok(()) };
        match body {
            Body::KeyExport(export) if export.form != KeyForm::Memory => self.take_bound_key(from, context, &export),
            Body::KeyExport(export) => {
                let name = KeyName { key: export.region.key, generation: export.generation };
                let answer = program.take_key(&self.pd, &export, self.limits.keys)?;
                self.say(from, context, Body::KeyAnswer { name, answer })
            }
            Body::KeyRevoke { name, is_idle } => {
                program.drop_key(name);
                if self.revoke_bound_key(from, context, name, is_idle)? {
                    return Ok(());
                }
                self.say(from, context, Body::KeyRevoked(name))
            }
            Body::GroupCreate(part) => match program.groups.add(context, part) {
                Ok(Some(group)) => {
                    // It may describe a group of that number again, once it was refused or has left.
                    program.forget_groups();
                    self.create_group(from, group)
                }
                Ok(None) => Ok(()),
                Err(error) => {
                    self.cut_off(from, &error);
                    Ok(())
                }
            },
            Body::Start(part) => match program.calls.add(context, part) {
                Ok(Some(start)) => self.start(from, &start),
                Ok(None) => Ok(()),
                Err(error) => {
                    self.cut_off(from, &error);
                    Ok(())
                }
            },
            Body::Task(task) => match self.not_shared(from, &task) {
                Some((rank, refusal)) => {
                    self.say(from, context, Body::CallRefused { rank, refused: Refused::Staged(refusal) })
                }
                None => self.take_task(from, context, &task),
            },
            Body::Flags { rank, flags } => {
                if let Some(member) = self.member(from, context.group, rank) {
                    member.flags = Some(flags);
                }
                Ok(())
            }
            Body::LocalCopied { rank, source } => {
                if self.member(from, context.group, rank).is_some() {
                    self.events.push_back(Event::Copied { context, rank, source });
                }
                self.offers.answered(from, context, rank, source);
                self.send_offers(from)
            }
            Body::GroupLeave { rank } => {
                if let Some(member) = self.member(from, context.group, rank) {
                    member.leaves = true;
                }
                Ok(())
            }
            Body::Goodbye => {
                self.part_with(from);
                Ok(())
            }
            Body::Heartbeat(_) => Ok(()),
            _ => {
                self.cut_off(from, &"a rank does not say that");
                Ok(())
            }
        }
    }

    /// A rank of a group, if it is at this connection.
    fn member(&mut self, peer: PeerId, group: u32, rank: u32) -> Option<&mut Member> {
        self.groups.get_mut(&group)?.members.get_mut(&rank).filter(|member| member.peer == peer)
    }

    /// A rank calls a collective.
    fn start(&mut self, from: PeerId, start: &OpStart) -> Result<()> {
        let (context, rank) = (start.context(), start.head().rank);
        if self.member(from, context.group, rank).is_none_or(|member| member.leaves) {
            let refused = Refused::Process(Refusal::NoGroup { group: context.group });
            return self.say(from, context, Body::CallRefused { rank, refused });
        }
        match start.call() {
            Ok(mut call) => match self.hold_call(from, context, rank, &mut call) {
                Ok(()) => self.enter(from, context, rank, call),
                Err(refused) => self.say(from, context, Body::CallRefused { rank, refused }),
            },
            Err(error) => self.say(from, context, Body::CallRefused { rank, refused: Refused::Call(error) }),
        }
    }

    fn receive_from_process(&mut self, from: PeerId, context: ContextId, body: Body<'_>) -> Result<()> {
        match body {
            Body::Joined { from: process, to, joined: Ok(joined) } => self.join(from, context, (process, to), joined),
            Body::Joined { from: process, to, joined: Err(refused) } => {
                match self.groups.get(&context.group) {
                    Some(group) if group.given.head().communicator == refused.communicator => {
                        if self.process_peer(context.group, process) == Some(from) {
                            self.refuse_group(context.group, refused.refused)?;
                        }
                    }
                    // One that has ended here.
                    Some(_) => {}
                    None => self.announce(from, context.group, (process, to, Err(refused))),
                }
                Ok(())
            }
            Body::Task(task) => self.receive_task(from, context, &task),
            Body::Staged { from: process, to, message } => self.receive_staged(from, context, (process, to), message),
            Body::Process { from: process, to, message } => {
                let group = self.groups.get(&context.group);
                let is_it = self.process_peer(context.group, process) == Some(from);
                if let Some(group) = group
                    && (!is_it || group.own != to)
                {
                    self.cut_off(from, &"it speaks for another service process");
                    return Ok(());
                }
                // Of a group that had the number before: of this one a process says first that it takes part.
                if group.is_some_and(|group| !group.joined.contains(&process)) {
                    return Ok(());
                }
                if let Message::Unreadable { source, code } = message
                    && group.is_some()
                {
                    return self.explain(Doubt { from, process, context, source, code });
                }
                let key = (from, context.group);
                // Later messages of a group do not overtake one that has to wait.
                let most = self.limits.machine.announcements;
                match self.held.get_mut(&key) {
                    // More than a process can owe.
                    Some(held) if held.len() as u64 >= most => {
                        self.cut_off(from, &"it sends more than there is room for")
                    }
                    Some(held) => held.push_back((process, context, message)),
                    None => self.arrive(key, (process, context, message)),
                }
                Ok(())
            }
            Body::Goodbye => {
                self.part_with(from);
                Ok(())
            }
            Body::Heartbeat(_) => Ok(()),
            _ => {
                self.cut_off(from, &"a service process does not say that");
                Ok(())
            }
        }
    }

    fn arrive(&mut self, key: (PeerId, u32), early: Early) {
        let (from, context, message) = early;
        let arrived = self.machine.handle(Event::Arrived { from, context, message }, &mut self.actions);
        if let Err(refusal) = arrived {
            match refusal {
                Refusal::Collectives { .. } => self.held.entry(key).or_default().push_front(early),
                other => self.cut_off(key.0, &other),
            }
        }
    }

    /// Offers what has had to wait again.
    fn release_held(&mut self) {
        let keys: Vec<(PeerId, u32)> = self.held.keys().copied().collect();
        for key in keys {
            let mut queue = self.held.remove(&key).unwrap_or_default();
            while let Some(early) = queue.pop_front() {
                self.arrive(key, early);
                if let Some(held) = self.held.get_mut(&key) {
                    held.append(&mut queue);
                }
            }
        }
    }

    fn transferred(&mut self, token: u64, error: Option<Fault>) -> Result<()> {
        if self.transferred_staged(token, error) {
            return Ok(());
        }
        if let Some((context, rank)) = self.flags.remove(&token) {
            // Where no flag can be written, a message reports the end.
            return if error.is_some() { self.say_to_rank(rank, context, Body::Done { rank }) } else { Ok(()) };
        }
        let Some(reading) = self.reads.get_mut(&token) else { return Ok(()) };
        reading.parts -= 1;
        let holder = reading.holder;
        reading.error = reading.error.or(error.map(|fault| faults::read_error(fault, holder)));
        if reading.parts > 0 {
            return Ok(());
        }
        let Reading { context, source, target, error, .. } = *reading;
        self.reads.remove(&token);
        self.events.push_back(Event::ReadDone { context, source, target, error });
        Ok(())
    }

    /// Does what the machine wants, until it wants nothing more.
    fn carry_out(&mut self) -> Result<()> {
        loop {
            self.carry_out_staged()?;
            for action in std::mem::take(&mut self.actions) {
                self.act(action)?;
            }
            if let Some(event) = self.events.pop_front() {
                if let Err(refusal) = self.machine.handle(event, &mut self.actions) {
                    tracing::warn!(%refusal, "an event of this process is not taken");
                }
            } else if (!self.held.is_empty() && self.has_released()) || self.has_entered()? {
                continue;
            } else if self.actions.is_empty() && !self.staged.has_events() {
                break;
            }
        }
        let leaves = |group: &GroupState| group.members.values().any(|member| member.leaves);
        let leaving: Vec<u32> =
            self.groups.iter().filter(|(_, group)| leaves(group)).map(|(number, _)| *number).collect();
        leaving.into_iter().try_for_each(|group| self.let_go(group))
    }

    /// Offers what waits; whether any of it was taken.
    fn has_released(&mut self) -> bool {
        let count = |held: &BTreeMap<_, VecDeque<Early>>| held.values().map(VecDeque::len).sum::<usize>();
        let before = count(&self.held);
        self.release_held();
        count(&self.held) < before
    }

    fn act(&mut self, action: Action) -> Result<()> {
        match action {
            Action::Send { to, context, message } => {
                let Some(group) = self.groups.get(&context.group) else { return Ok(()) };
                let from = group.own;
                if to == from {
                    self.events.push_back(Event::Arrived { from, context, message });
                    return Ok(());
                }
                let Some(peer) = self.process_peer(context.group, to) else { return Ok(()) };
                let message = self.message_at_host(context, message);
                self.say(peer, context, Body::Process { from, to, message })
            }
            Action::Read { context, read } => {
                let Read { source, holder, target, .. } = read;
                let way = self.groups.get(&context.group).and_then(|group| {
                    // The keys of the holder's memory are of the function of its process.
                    let process = group.topology.process_of(holder)?;
                    let crosses = group.topology.host_of(holder) != group.topology.host_of(target);
                    Some((*group.lanes.get(process as usize)?, crosses))
                });
                let Some((lane, crosses)) = way else { return Ok(()) };
                let token = self.token();
                let parts = read.from.bytes.div_ceil(MOST_READ_BYTES).max(1) as u32;
                self.reads.insert(token, Reading { context, source, holder, target, parts, error: None });
                self.counts.reads += 1;
                self.counts.crossings += u64::from(crosses);
                self.counts.local_reads += u64::from(!crosses && holder != target);
                self.counts.read_bytes += read.from.bytes;
                for part in 0..u64::from(parts) {
                    let offset = part * MOST_READ_BYTES;
                    let bytes = (read.from.bytes - offset).min(MOST_READ_BYTES) as u32;
                    let (from, to) = (read.from.address + offset, read.to.address + offset);
                    let (rkey, lkey) = (read.from.key, read.to.key);
                    let ends = Ends { near: FailedParty::Rank(target), far: FailedParty::Rank(holder) };
                    self.transfer(lane, token, ends, Transfer::Read { to, lkey, from, rkey, bytes })?;
                }
                Ok(())
            }
            Action::Put { context, announcement } => {
                let own = self.endpoint;
                Ok(self.list().put(context, announcement, own)?)
            }
            Action::Claim { context } => {
                let announcement = self.list().claim(context);
                self.events.push_back(Event::Claimed { context, announcement });
                Ok(())
            }
            Action::Abandon { context } => {
                self.list().remove(context);
                Ok(())
            }
            Action::Notify { rank, context, source, holder, region } => {
                let region = self.at_host(context, holder, region);
                let Some(peer) = self.peer_of(context.group, rank) else { return Ok(()) };
                self.offers.add(peer, Offer { context, rank, source, holder, region });
                self.send_offers(peer)
            }
            Action::Complete { rank, context } => {
                self.end_call(context, rank, true);
                self.complete(rank, context)
            }
            Action::Fail { rank, context, failure } => {
                self.end_call(context, rank, false);
                self.say_to_rank(rank, context, Body::Failed { rank, failure })?;
                // Its answers may never come.
                let Some(peer) = self.peer_of(context.group, rank) else { return Ok(()) };
                self.offers.end(peer, context, rank);
                self.send_offers(peer)
            }
        }
    }

    const fn token(&mut self) -> u64 {
        self.next_token += 1;
        self.next_token
    }

    /// A rank learns of the end of its collective: by a flag in its memory if it has any, behind the data.
    fn complete(&mut self, rank: u32, context: ContextId) -> Result<()> {
        let group = self.groups.get(&context.group);
        let flags = group.and_then(|group| Some((group.own, &group.lanes, group.members.get(&rank)?.flags?)));
        let Some((own, lanes, flags)) = flags else { return self.say_to_rank(rank, context, Body::Done { rank }) };
        let Region { address, key, .. } = flags.place(context.collective);
        let lane = lanes[own as usize];
        let token = self.token();
        self.flags.insert(token, (context, rank));
        self.counts.flags += 1;
        let value = flag(context.collective);
        let ends = Ends { near: FailedParty::Process(own), far: FailedParty::Rank(rank) };
        self.transfer(lane, token, ends, Transfer::Flag { value, to: address, rkey: key })
    }

    /// Begins a transfer, which holds the bindings that it uses.
    fn transfer(&mut self, lane: Lane, token: u64, ends: Ends, transfer: Transfer) -> Result<()> {
        let held = self.held(&transfer);
        self.links.transfer(lane, token, ends, transfer, held)
    }

    /// A connection is over: the ranks of its program, or its process, have died for all groups that they are in.
    fn part_with(&mut self, peer: PeerId) {
        let Some(role) = self.peers.remove(&peer) else { return };
        self.links.close(peer);
        self.announced.retain(|(of, _), _| *of != peer);
        self.held.retain(|(of, _), _| *of != peer);
        self.calls.part_with(peer);
        self.offers.part_with(peer);
        self.unexplained.retain(|doubt| doubt.from != peer);
        self.staged.part_with(peer);
        self.bound.part_with(peer);
        self.forget(peer, &role);
        match role {
            Role::Program(_) => {
                for (number, group) in &mut self.groups {
                    let ranks: Vec<u32> =
                        group.members.iter().filter(|(_, member)| member.peer == peer).map(|(rank, _)| *rank).collect();
                    for rank in ranks {
                        self.events.push_back(Event::RankDied { group: *number, rank });
                        self.staged.died(*number, FailedParty::Rank(rank));
                        if let Some(member) = group.members.get_mut(&rank) {
                            member.leaves = true;
                        }
                    }
                }
            }
            Role::Process(endpoint) => {
                self.list().remove_of(endpoint);
                for (number, group) in &mut self.groups {
                    if let Some(process) = group.peers.iter().position(|other| *other == Some(peer)) {
                        group.peers[process] = None;
                        let process = process as u32;
                        self.events.push_back(Event::ProcessDied { group: *number, process });
                        self.staged.died(*number, FailedParty::Process(process));
                    }
                }
            }
        }
    }
}
