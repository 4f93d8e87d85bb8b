//! The host's side of a service process: a program whose ranks have their collectives carried out by the card's Arm
//! cores.
//!
//! The program posts a call and computes. A flag in its own memory shows that the data is there: between the two it
//! need not call anything.

mod memory;
mod raw;
mod staged;
mod take_back;

use std::collections::{BTreeMap, VecDeque};

use flexcast_proto::service::wire::{self, Body, Flags, Group, OpStart, Packet, Refused};
use flexcast_proto::service::{Blocks, ContextId, FLAG_BYTES, Failure, LocalCopies, Region, has_passed};
use flexio::{Access, HostBuffer, MemoryRegion, ProtectionDomain};

use crate::error::{Error, Result};
use crate::links::{LinkEnd, LinkEvent, Links, PeerId};
use memory::{Memory, Named, Pool};
use staged::{StagedCalls, StagedMember};

pub use flexcast_proto::service::{DEFAULT_BOUND_KEYS, MemoryId};
pub use staged::StagedCall;

/// Flags of each rank of a group: more than collectives that may be under way.
const FLAGS: u64 = 64;

/// Messages that the card has at a time: those of as many calls as a group may have under way by default, eight, each
/// of an Alltoallv among 1,024 ranks. A call whose messages the card does not have would not go on while the host
/// computes.
const SENDS: u32 = 80;

/// What the program is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LocalCopy {
    /// For which collective.
    pub context: ContextId,
    /// Into whose receive buffer.
    pub rank: u32,
    /// Whose block.
    pub source: u32,
    /// Which rank of this host has it.
    pub holder: u32,
    /// Where it lies in that rank's program.
    pub from: Region,
}

#[derive(Debug)]
struct Membership {
    ranks: u32,
    flags: MemoryId,
    accepted: Option<std::result::Result<(), Refused>>,
    flags_sent: bool,
    next: u32,
    has_left: bool,
    staged: StagedMember,
}

/// A program's connection to its service process.
#[derive(Debug)]
pub struct Client {
    pd: ProtectionDomain,
    links: Links,
    process: PeerId,
    is_gone: bool,
    /// None of memory that has been taken back.
    memory: Vec<Option<Memory>>,
    pool: Option<Pool>,
    /// By group and rank.
    members: BTreeMap<(u32, u32), Membership>,
    ended: BTreeMap<(ContextId, u32), Result<(), Failure>>,
    refused: BTreeMap<(ContextId, u32), Refused>,
    copies: VecDeque<LocalCopy>,
    incoming: VecDeque<Vec<u8>>,
    calls: u64,
    staged: StagedCalls,
}

impl Client {
    /// One end of a connection, on the host's function of the card.
    ///
    /// # Errors
    /// The card refuses.
    pub fn open(pd: &ProtectionDomain) -> Result<(Self, LinkEnd)> {
        let mut links = Links::new(pd, 1, 0, SENDS)?;
        let (process, end) = links.open()?;
        let client = Self {
            pd: pd.clone(),
            links,
            process,
            is_gone: false,
            memory: Vec::new(),
            pool: None,
            members: BTreeMap::new(),
            ended: BTreeMap::new(),
            refused: BTreeMap::new(),
            copies: VecDeque::new(),
            incoming: VecDeque::new(),
            calls: 0,
            staged: StagedCalls::default(),
        };
        Ok((client, end))
    }

    /// Connects to the service process.
    ///
    /// # Errors
    /// The card refuses.
    pub fn connect(&mut self, far: LinkEnd) -> Result<()> {
        self.links.connect(self.process, far)
    }

    /// The service process is gone: all that it has not ended has failed.
    pub const fn lose(&mut self) {
        self.is_gone = true;
    }

    /// Whether the service process is gone, as far as is known here.
    #[must_use]
    pub const fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Calls of this object so far that say something to the service process.
    #[must_use]
    pub const fn calls(&self) -> u64 {
        self.calls
    }

    fn say(&mut self, context: ContextId, body: Body<'_>) -> Result<()> {
        if self.is_gone {
            return Err(Error::Gone);
        }
        let mut bytes = Vec::new();
        wire::encode(&Packet { context, body }, &mut bytes)?;
        self.calls += 1;
        // What the card has sent makes room, although nobody has asked for it since.
        self.collect()?;
        self.links.send(self.process, bytes)
    }

    /// Describes a group, as one of its ranks; [`Client::has_joined`] says when it can be used. A group that comes
    /// after another one with its number has another communicator, such as a random one: by that a process
    /// distinguishes what is late of the former group from what is of this one.
    ///
    /// # Errors
    /// The card refuses memory for flags; [`Error::Format`], [`Error::Gone`].
    pub fn join(&mut self, group: &Group) -> Result<()> {
        let staged = StagedMember::new(group);
        // Behind the flags of the rank's own process those of all processes, for staged collectives.
        let flags = HostBuffer::zeroed((FLAGS * FLAG_BYTES + staged.flag_bytes()) as usize)?;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        // It stays as long as the group: a key of the pool has better uses.
        let flags = self.share_by_own_key(MemoryRegion::register(&self.pd, flags, access)?)?;
        let head = *group.head();
        let (accepted, flags_sent, next, has_left) = (None, false, 0, false);
        let membership = Membership { ranks: head.ranks, flags, accepted, flags_sent, next, has_left, staged };
        self.members.insert((group.context().group, head.rank), membership);
        for part in group.parts() {
            self.say(group.context(), Body::GroupCreate(part?))?;
        }
        Ok(())
    }

    /// Whether all service processes of a group take part in it.
    ///
    /// # Errors
    /// [`Error::Refused`]; [`Error::Key`], of the memory for flags; [`Error::Gone`].
    pub fn has_joined(&mut self, group: u32, rank: u32) -> Result<bool> {
        let Some(membership) = self.members.get(&(group, rank)) else { return Ok(false) };
        if self.is_gone {
            return Err(Error::Gone);
        }
        let Some(accepted) = membership.accepted else { return Ok(false) };
        accepted.map_err(Error::Refused)?;
        if membership.flags_sent {
            return Ok(true);
        }
        let Some(region) = self.key(membership.flags)? else { return Ok(false) };
        let region = Region { bytes: FLAGS * FLAG_BYTES, ..region };
        self.say(ContextId { group, collective: 0 }, Body::Flags { rank, flags: Flags::new(region)? })?;
        if let Some(membership) = self.members.get_mut(&(group, rank)) {
            membership.flags_sent = true;
        }
        Ok(true)
    }

    /// The next collective of a rank.
    fn begin(&self, group: u32, rank: u32) -> Result<(ContextId, u32)> {
        let membership = self.members.get(&(group, rank)).filter(|membership| membership.flags_sent);
        let order =
            Error::Order { what: "a collective of a group that has not been joined", next: "wait for `has_joined`" };
        let membership = membership.ok_or(order)?;
        Ok((ContextId { group, collective: membership.next }, membership.ranks))
    }

    /// A call that can be is counted; one that cannot must leave no gap, or the rank would wait for ever with its next
    /// one.
    fn post(&mut self, start: &OpStart) -> Result<ContextId> {
        let (context, rank) = (start.context(), start.head().rank);
        if let Some(membership) = self.members.get_mut(&(context.group, rank)) {
            membership.next = context.collective.wrapping_add(1);
        }
        for part in start.parts() {
            self.say(context, Body::Start(part?))?;
        }
        Ok(context)
    }

    /// Calls a non-blocking Alltoallv. The buffers are the service process's until [`Client::end`] reports the end.
    ///
    /// # Errors
    /// [`Error::Call`], [`Error::Format`], [`Error::Order`], [`Error::Gone`].
    pub fn alltoallv(&mut self, group: u32, rank: u32, send: &Blocks<'_>, receive: &Blocks<'_>) -> Result<ContextId> {
        let (context, ranks) = self.begin(group, rank)?;
        let start = OpStart::alltoallv(context, (rank, ranks), send, receive)?;
        self.is_named(&[send.key, receive.key], Named::Alias(context, rank));
        self.post(&start)
    }

    /// Calls a non-blocking Allgatherv; `send` is none in place. `copies` says who copies blocks inside a host, alike
    /// on all ranks: with [`LocalCopies::Host`] this program, as [`Client::next_copy`] says; with
    /// [`LocalCopies::Card`] nobody has to call anything until the flag.
    ///
    /// # Errors
    /// As [`Client::alltoallv`].
    pub fn allgatherv(
        &mut self,
        group: u32,
        rank: u32,
        send: Option<Region>,
        receive: &Blocks<'_>,
        copies: LocalCopies,
    ) -> Result<ContextId> {
        let (context, ranks) = self.begin(group, rank)?;
        let start = OpStart::allgatherv(context, (rank, ranks), send, receive, copies)?;
        let keys = [receive.key, send.map_or(receive.key, |send| send.key)];
        self.is_named(&keys, Named::Alias(context, rank));
        self.post(&start)
    }

    /// Whether a collective has ended well, by its flag in this program's memory alone: no queue is polled. So it
    /// has where a later one has taken the place of its flag, unless it has failed, which [`Client::end`] knows.
    ///
    /// # Errors
    /// [`Error::Card`]: there is no such memory.
    pub fn is_flagged(&self, context: ContextId, rank: u32) -> Result<bool> {
        let Some(membership) = self.members.get(&(context.group, rank)) else { return Ok(false) };
        let place = u64::from(context.collective) % FLAGS * FLAG_BYTES;
        let seen = self.region(membership.flags).read_u64(place as usize)?;
        Ok(has_passed(seen, context.collective))
    }

    /// How a collective has ended, if it has: reads the flag, and what has been reported.
    ///
    /// # Errors
    /// [`Error::Failed`], [`Error::Refused`], [`Error::Gone`].
    pub fn end(&mut self, context: ContextId, rank: u32) -> Result<bool> {
        if let Some(refused) = self.refused.get(&(context, rank)) {
            return Err(Error::Refused(*refused));
        }
        if let Some(ended) = self.ended.get(&(context, rank)) {
            return ended.map(|()| true).map_err(Error::Failed);
        }
        match self.is_flagged(context, rank)? {
            false if self.is_gone => Err(Error::Gone),
            is_flagged => Ok(is_flagged),
        }
    }

    /// The rank calls nothing more; [`Client::has_left`] says when nothing goes to its memory any more.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn leave(&mut self, group: u32, rank: u32) -> Result<()> {
        self.say(ContextId { group, collective: 0 }, Body::GroupLeave { rank })
    }

    /// Whether the service process has let a rank go.
    #[must_use]
    pub fn has_left(&self, group: u32, rank: u32) -> bool {
        self.members.get(&(group, rank)).is_none_or(|membership| membership.has_left)
    }

    /// The function of the card that memory must be of.
    #[must_use]
    pub const fn pd(&self) -> &ProtectionDomain {
        &self.pd
    }

    /// Ends the connection once everything that was said has been taken.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn goodbye(&mut self) -> Result<()> {
        self.say(ContextId { group: 0, collective: 0 }, Body::Goodbye)
    }

    /// A block that this program is to copy from another rank of its host, into the receive buffer of one of its own;
    /// then it calls [`Client::copied`].
    pub fn next_copy(&mut self) -> Option<LocalCopy> {
        self.copies.pop_front()
    }

    /// The block is copied.
    ///
    /// # Errors
    /// [`Error::Gone`].
    pub fn copied(&mut self, copy: &LocalCopy) -> Result<()> {
        self.say(copy.context, Body::LocalCopied { rank: copy.rank, source: copy.source })
    }

    /// Takes what the service process has said; returns whether there was anything. Never blocks.
    ///
    /// # Errors
    /// The card has failed, or the service process says what cannot be.
    pub fn progress(&mut self) -> Result<bool> {
        let mut any = self.collect()?;
        any |= !self.incoming.is_empty();
        while let Some(bytes) = self.incoming.pop_front() {
            let Packet { context, body } = wire::decode(&bytes)?;
            self.receive(context, body);
        }
        Ok(any)
    }

    /// Takes what has come, to be handled later.
    fn collect(&mut self) -> Result<bool> {
        let Self { links, incoming, is_gone, .. } = self;
        links.poll(|_, event| {
            match event {
                LinkEvent::Message { bytes, .. } => incoming.push_back(bytes.to_vec()),
                LinkEvent::Broken { .. } => *is_gone = true,
                LinkEvent::Transferred { .. } => {}
            }
            Ok(())
        })
    }

    fn receive(&mut self, context: ContextId, body: Body<'_>) {
        let member = |members: &mut BTreeMap<_, Membership>, rank: u32, then: &dyn Fn(&mut Membership)| {
            members.get_mut(&(context.group, rank)).map(then);
        };
        match body {
            Body::KeyAnswer { name, answer } => self.is_answered(name, answer),
            Body::KeyRevoked(name) => self.is_revoked(name),
            Body::GroupAccepted { rank, between, .. } => {
                member(&mut self.members, rank, &|membership| {
                    membership.accepted = Some(Ok(()));
                    membership.staged.accept(between);
                });
            }
            Body::GroupRefused { rank, refused } => {
                member(&mut self.members, rank, &|membership| membership.accepted = Some(Err(refused)));
            }
            Body::GroupLeft { rank } => {
                member(&mut self.members, rank, &|membership| membership.has_left = true);
            }
            Body::CallRefused { rank, refused: Refused::Staged(refusal) } => self.staged.refuse(context, rank, refusal),
            Body::CallRefused { rank, refused } => _ = self.refused.insert((context, rank), refused),
            Body::GroupFailed { rank, failure } => {
                member(&mut self.members, rank, &|membership| membership.staged.fail(failure));
            }
            Body::LocalData { rank, source, holder, region } => {
                self.copies.push_back(LocalCopy { context, rank, source, holder, from: region });
            }
            Body::Done { rank } => _ = self.ended.insert((context, rank), Ok(())),
            Body::Failed { rank, failure } => _ = self.ended.insert((context, rank), Err(failure)),
            _ => tracing::debug!(?context, "the service process says something that concerns nobody here"),
        }
    }
}
