//! Messages of service processes as bytes, little-endian: between a rank and its service process, between service
//! processes, and those by which connections and groups begin and end.
//!
//! | Offset | Bytes | Field |
//! |---:|---:|---|
//! | 0 | 4 | `FXSP` |
//! | 4 | 1 | [`VERSION`] |
//! | 5 | 1 | kind |
//! | 6 | 2 | bytes of the message, this header included: [`HEADER_BYTES`] to [`MAX_BYTES`] |
//! | 8 | 4 | group, 0 in kinds 1 to 11 and 39 |
//! | 12 | 4 | collective, 0 in kinds 1 to 20 and 39 |
//! | 16 | | body |
//!
//! A *region* is 20 bytes: address 8, length 8, key 4. An *endpoint* is 18: IPv6 address 16, port 2. *Ends* are 8:
//! sending and receiving service process of the group, 4 each. `0` are bytes of zero. Numbers in a body are its fields
//! with their bytes, in order.
//!
//! | Kind | Message | From, to | Body |
//! |---:|---|---|---|
//! | 1 | HELLO | connecting → process | role 1 (1 rank, 2 process), 0 5, endpoint 18 (zeros of a rank), epoch 8, nonce 32 |
//! | 2 | CHALLENGE | process → connecting | nonce 32, tag 32 |
//! | 3 | PROOF | both | tag 32 |
//! | 4 | WELCOME | process → connecting | epoch 8, heartbeat in ms 4, groups 4, collectives 4, 0 4 |
//! | 5 | REJECTED | process → connecting, secret also back | reason 1 (1 secret, 2 connections, 3 stopping, 4 format, 5 crossing, 6 crowded), 0 3, limit 4 |
//! | 6 | HEARTBEAT | both | number 8, number seen 8 |
//! | 7 | GOODBYE | both | |
//! | 8 | KEY-EXPORT | rank → process | region 20, generation 4, rights 4 (bits of verbs), virtual HCA 2, form 1 (0 memory, 1 key of a pool, 2 such a key bound), 0 1, access key 32 |
//! | 9 | KEY-ANSWER | process → rank | key 4, generation 4, alias or value of the refusal 4, refusal 1 (0 none, 1 other card, 2 keys, 3 generation, 4 card, 5 not in the pool, 6 bound), 0 3 |
//! | 10 | KEY-REVOKE | rank → process | key 4, generation 4, is idle 1, 0 3 |
//! | 11 | KEY-REVOKED | process → rank | key 4, generation 4 |
//! | 12 | GROUP-CREATE | rank → process | communicator 8, rank 4, ranks 4, processes per host 4, part 2, 0 2; per rank: host 4, socket 4, core 4, endpoint of its process 18, 0 2 |
//! | 13 | GROUP-ACCEPTED | process → rank | rank 4, number of the process 4, staged data between processes 4 (0 messages, 1 multicast) |
//! | 14 | GROUP-REFUSED | process → rank | rank 4, refusal 32 |
//! | 15 | GROUP-LEAVE | rank → process | rank 4 |
//! | 16 | GROUP-LEFT | process → rank | rank 4 |
//! | 17 | FLAGS | rank → process | rank 4, region 20 |
//! | 18 | JOINED | process → process | ends 8, communicator 8, scatter bytes 8, region 20, segments 4, reader 1 (0 no staging, 1 of root, 2 first), 0 3, queue pair that multicasts 4, bytes of a chunk 4 (0 no multicast), queue pair 4 |
//! | 19 | JOIN-REFUSED | process → process | ends 8, communicator 8, refusal 32 |
//! | 20 | GROUP-FAILED | process → rank | rank 4, staged failure 8 |
//! | 21 | OP-START | rank → process | operation 1 (1 Alltoallv, 2 Allgatherv, 3 the same in place, 4 and 5 the same with copies by the card), 0 1, part 2, rank 4, ranks 4, receive buffer 28, send buffer 28; per block: count 8, displacement 8 |
//! | 22 | TASK | rank → process, process → process | collective 1 (1 Broadcast, 2 Allgather), delivery 1 (1 flat, 2 hierarchical, 3 direct), ranks 2, root 2, first rank 2, bytes 8; per rank: regions send, receive, flags, shared 80 |
//! | 23 | OP-REFUSED | process → rank | rank 4, refusal 32 |
//! | 24 | LOCAL-DATA | process → rank | rank 4, source 4, holder 4, region 20 |
//! | 25 | LOCAL-COPIED | rank → process | rank 4, source 4 |
//! | 26 | OP-DONE | process → rank | rank 4 |
//! | 27 | OP-FAILED | process → rank | rank 4, failure 32 |
//! | 28 | READY-TO-READ of Alltoallv | process → process | ends 8, source 4, target 4, region 20 |
//! | 29 | READY-TO-READ of Allgatherv | process → process | ends 8, source 4, forwards 4, region 20, copies inside the host 1 (1 by it, 2 by its card), 0 3 |
//! | 30 | LISTED | process → process | ends 8 |
//! | 31 | HAS-READ | process → process | ends 8, source 4, reader 4, its kind 1 (1 rank, 2 host), 0 3 |
//! | 32 | HELD | process → process | ends 8, source 4, holder 4, region 20, copies inside the host 1, 0 3 |
//! | 33 | COPIED | process → process | ends 8, source 4, holder 4, copied by 4 |
//! | 34 | UNREADABLE | process → process | ends 8, source 4, completion code 2, 0 2 |
//! | 35 | FAILED | process → process | ends 8, failure 32 |
//! | 36 | OFFER | process → process | ends 8, segment 4, tag 4 |
//! | 37 | TAKEN | process → process | ends 8, segment 4, tag 4 |
//! | 38 | STAGED-FAILED | process → process | ends 8, staged failure 8 |
//! | 39 | LINK | both | address of the port (GID) 16, its MAC 6, 0 2, queue pair 4, random bytes 16 |
//!
//! - A *buffer* of OP-START is address 8, size of an element 8, its extent 8, key 4. The send buffer of an Allgatherv
//!   has the length of the block in the place of the size and 0 as extent; in place it is all zeros.
//! - A *failure* is failed rank 1 (1 rank, 2 process), cause 1 (1 died, 2 Read, 3 bytes, 4 operation), completion code
//!   2, number of the failed rank 4, detecting rank 4, 0 4, found 8, expected 8; a *staged failure* the first 8 of
//!   these, with causes 1 died, 2 transfer, 3 disagrees.
//! - A *refusal* is code 1, name 1, 0 2, three numbers of 4, two of 8. Codes follow the variants in their order:
//!   [`Refusal`](super::Refusal) 1 to 10, [`StagedRefusal`](super::StagedRefusal) 11 to 15,
//!   [`CallError`](super::CallError) 16 to 20, [`TopologyError`](super::TopologyError) 21 to 24, [`GroupError`] 25 to
//!   30; 31 is staging exhausted (its first number is in two, low before high), 32 a group without staging, 33 a key
//!   that is not shared. Names are numbered in `refusal.rs`.
//! - The list of a group or of a call is cut into parts: all but the last have 126 ranks or 250 blocks, and each has
//!   the same beginning. An [`Assembler`] puts them together, one list at a time and in bounded memory. Messages of a
//!   task, of up to 50 ranks, stand for themselves.
//! - What goes on the list that the processes of a card share (`Put`, `Claim`, `Abandon`) is no message: it is in
//!   memory that they share. Forwards are messages of kind 29.
//!
//! Each message has one encoding only: what [`decode`] accepts is what [`encode`] makes of the result. Decoding
//! allocates nothing; lists stay in the bytes that came. Whether a rank or a process is one of the group, and can have
//! sent what came, is for the machines to say; here numbers are below [`MAX_RANKS`](crate::MAX_RANKS), and regions end
//! within the address space.

mod connection;
mod error;
mod fields;
mod group;
mod hello;
mod key;
mod kind;
mod parts;
mod peer;
mod refusal;
mod start;
mod task;

use alloc::vec::Vec;

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::error::Failure;
use super::message::{ContextId, Message, Region};
use super::staged::message::{Between, StagedFailure, StagedMessage};
use fields::{Fixed, RawRegion, get, number, split, within};
use group::RawFlags;
use refusal::{RawFailure, RawRefused, RawStagedFailure};

pub use connection::{Challenge, Endpoint, Heartbeat, Hello, Link, Proof, Rejection, Role, TAG_BYTES, Welcome};
pub use error::FormatError;
pub use fields::{HEADER_BYTES, MAX_BYTES, VERSION, length_of};
pub use group::{Flags, Group, GroupError, GroupHead, MulticastEnd, NO_CORE, Place, PlaceEntry, StagingMemory};
pub use hello::{Accepted, Accepting, Confirming, Connecting, HelloError, KeyedHash, Secret, Session};
pub use key::{AccessKey, KeyExport, KeyForm, KeyName, KeyRefusal, Rights};
pub use parts::{Assembler, AssemblyError, Entry, Head, Part, Whole};
pub use peer::{JoinRefused, Joined};
pub use refusal::Refused;
pub use start::{BlockEntry, Buffer, Buffers, OpStart, StartHead};
pub use task::{PartEntry, TASK_PARTS, TaskPart, TaskParts};

/// A message with what it is about. The group is 0 where the message is of a connection or a key, and the collective
/// where it is of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet<'a> {
    /// What it is about.
    pub context: ContextId,
    /// What it says.
    pub body: Body<'a>,
}

/// What a message says. Lists are borrowed from the bytes that came, or from who sends them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body<'a> {
    /// HELLO: first message of a connection.
    Hello(Hello),
    /// CHALLENGE: answer to it.
    Challenge(Challenge),
    /// PROOF: answer to that, and the answer of a process that takes the connection. Behind it messages have tags.
    Proof(Proof),
    /// WELCOME: the connection is there.
    Welcome(Welcome),
    /// REJECTED: it is not.
    Rejected(Rejection),
    /// HEARTBEAT.
    Heartbeat(Heartbeat),
    /// GOODBYE: the sender sends nothing more. A connection that ends before both sides have said so is a death.
    Goodbye,
    /// LINK: the queue pair that the sender has made for control messages of this connection.
    Link(Link),
    /// KEY-EXPORT: make an alias of a key.
    KeyExport(KeyExport),
    /// KEY-ANSWER: the alias, or why there is none. Before KEY-REVOKED of a bound key it says that another alias has
    /// taken the place of the first one, or that none has.
    KeyAnswer {
        /// Of which key.
        name: KeyName,
        /// Its alias, to be named in regions.
        answer: Result<u32, KeyRefusal>,
    },
    /// KEY-REVOKE: use a key no more.
    KeyRevoke {
        /// Which key.
        name: KeyName,
        /// All calls that name it have ended well, as flags and messages show: nobody reads or writes by it any more.
        /// Else whatever still does is to fail.
        is_idle: bool,
    },
    /// KEY-REVOKED: it is not used any more. The alias of a key of memory is gone; that of a bound key stands for
    /// nothing, and the host may bind it anew.
    KeyRevoked(KeyName),
    /// GROUP-CREATE, one part.
    GroupCreate(Part<'a, GroupHead>),
    /// GROUP-ACCEPTED: all service processes of the group have joined it; the rank may call collectives.
    GroupAccepted {
        /// The rank.
        rank: u32,
        /// Number of its service process in the group.
        process: u32,
        /// How staged data goes between the processes, which decides whose flags a rank waits for.
        between: Between,
    },
    /// GROUP-REFUSED: why there is no such group.
    GroupRefused {
        /// The rank.
        rank: u32,
        /// Why.
        refused: Refused,
    },
    /// GROUP-LEAVE: the rank calls no more collectives of the group.
    GroupLeave {
        /// The rank.
        rank: u32,
    },
    /// GROUP-LEFT: nothing of the service process goes to the rank's memory any more.
    GroupLeft {
        /// The rank.
        rank: u32,
    },
    /// FLAGS: where the rank polls for the end of collectives. Without it the rank is notified by OP-DONE.
    Flags {
        /// The rank.
        rank: u32,
        /// Its flags.
        flags: Flags,
    },
    /// JOINED or JOIN-REFUSED: a service process takes part in a group, or why it cannot.
    Joined {
        /// Who says it.
        from: u32,
        /// To whom.
        to: u32,
        /// What it says.
        joined: Result<Joined, JoinRefused>,
    },
    /// GROUP-FAILED: the staged collectives of the group have failed
    /// ([`StagedAction::Fail`](super::StagedAction::Fail)).
    GroupFailed {
        /// Who is notified.
        rank: u32,
        /// Why.
        failure: StagedFailure,
    },
    /// OP-START, one part ([`Event::Entered`](super::Event::Entered)).
    Start(Part<'a, StartHead>),
    /// TASK, some ranks ([`StagedEvent::Called`](super::StagedEvent::Called)). Each rank sends it to its own service
    /// process; that one sends to the others what its ranks have called.
    Task(TaskPart<'a>),
    /// OP-REFUSED: a call or a task is not taken.
    CallRefused {
        /// Whose call.
        rank: u32,
        /// Why; it may say that the same can be offered again.
        refused: Refused,
    },
    /// LOCAL-DATA ([`Action::Notify`](super::Action::Notify)): where to copy a block from.
    LocalData {
        /// Who is notified.
        rank: u32,
        /// Whose block.
        source: u32,
        /// Who has it.
        holder: u32,
        /// Where it lies.
        region: Region,
    },
    /// LOCAL-COPIED ([`Event::Copied`](super::Event::Copied)): the block is copied.
    LocalCopied {
        /// Who has copied it.
        rank: u32,
        /// Whose block.
        source: u32,
    },
    /// OP-DONE ([`Action::Complete`](super::Action::Complete)): the collective has ended well.
    Done {
        /// For whom.
        rank: u32,
    },
    /// OP-DONE with a failure ([`Action::Fail`](super::Action::Fail)).
    Failed {
        /// For whom.
        rank: u32,
        /// Why.
        failure: Failure,
    },
    /// A message of Alltoallv or Allgatherv between service processes ([`Action::Send`](super::Action::Send)).
    Process {
        /// Who sends it. The receiver checks that the connection is that of this process.
        from: u32,
        /// For whom it is.
        to: u32,
        /// What it says.
        message: Message,
    },
    /// A message of staged collectives between service processes ([`StagedAction::Send`](super::StagedAction::Send)).
    Staged {
        /// Who sends it.
        from: u32,
        /// For whom it is.
        to: u32,
        /// What it says.
        message: StagedMessage,
    },
}

/// A number of a rank and something else.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct OfRank<T> {
    rank: U32,
    what: T,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct RawLocalData {
    rank: U32,
    source: U32,
    holder: U32,
    region: RawRegion,
}

/// Appends a message to bytes.
///
/// # Errors
/// A number that no group has, a region beyond the address space, a name that no refusal has, or a group or collective
/// where the message is of none. The bytes are as before.
pub fn encode(packet: &Packet<'_>, to: &mut Vec<u8>) -> Result<(), FormatError> {
    let (fixed, entries) = fixed(packet)?;
    to.extend_from_slice(fixed.as_bytes());
    to.extend_from_slice(entries);
    Ok(())
}

/// Header and body of a message, and the entries of its list.
fn fixed<'a>(packet: &Packet<'a>) -> Result<(Fixed, &'a [u8]), FormatError> {
    let mut to = Fixed::new();
    let mut entries: &[u8] = &[];
    let rank = |rank| number("rank", rank);
    let kind = match &packet.body {
        Body::Hello(hello) => {
            hello.put(&mut to)?;
            kind::HELLO
        }
        Body::Challenge(challenge) => {
            to.put(challenge);
            kind::CHALLENGE
        }
        Body::Proof(proof) => {
            to.put(proof);
            kind::PROOF
        }
        Body::Welcome(welcome) => {
            welcome.put(&mut to)?;
            kind::WELCOME
        }
        Body::Rejected(rejection) => {
            rejection.put(&mut to);
            kind::REJECTED
        }
        Body::Heartbeat(Heartbeat { number, seen }) => {
            to.put(&[number, seen].map(|number| U64::new(*number)));
            kind::HEARTBEAT
        }
        Body::Goodbye => kind::GOODBYE,
        Body::Link(link) => {
            link.put(&mut to)?;
            kind::LINK
        }
        Body::KeyExport(export) => {
            export.put(&mut to)?;
            kind::KEY_EXPORT
        }
        Body::KeyAnswer { name, answer } => {
            name.put(*answer, &mut to);
            kind::KEY_ANSWER
        }
        Body::KeyRevoke { name, is_idle } => {
            name.put_revoke(*is_idle, &mut to);
            kind::KEY_REVOKE
        }
        Body::KeyRevoked(KeyName { key, generation }) => {
            to.put(&[key, generation].map(|number| U32::new(*number)));
            kind::KEY_REVOKED
        }
        Body::GroupCreate(part) => {
            part.put(&mut to)?;
            entries = part.entries().as_bytes();
            kind::GROUP_CREATE
        }
        Body::GroupAccepted { rank: accepted, process, between } => {
            let between = u32::from(*between == Between::Multicast);
            to.put(&[rank(*accepted)?, number("service process", *process)?, between.into()]);
            kind::GROUP_ACCEPTED
        }
        Body::GroupRefused { rank: whom, refused } => {
            to.put(&OfRank { rank: rank(*whom)?, what: RawRefused::new(*refused)? });
            kind::GROUP_REFUSED
        }
        Body::GroupLeave { rank: who } => {
            to.put(&rank(*who)?);
            kind::GROUP_LEAVE
        }
        Body::GroupLeft { rank: who } => {
            to.put(&rank(*who)?);
            kind::GROUP_LEFT
        }
        Body::Flags { rank, flags } => {
            to.put(&RawFlags::new(*rank, *flags)?);
            kind::FLAGS
        }
        Body::Joined { from, to: receiver, joined } => peer::put_joined((*from, *receiver), joined, &mut to)?,
        Body::GroupFailed { rank: whom, failure } => {
            to.put(&OfRank { rank: rank(*whom)?, what: RawStagedFailure::new(*failure)? });
            kind::GROUP_FAILED
        }
        Body::Start(part) => {
            part.put(&mut to)?;
            entries = part.entries().as_bytes();
            kind::OP_START
        }
        Body::Task(part) => {
            part.put(&mut to);
            entries = part.entries().as_bytes();
            kind::TASK
        }
        Body::CallRefused { rank: whose, refused } => {
            to.put(&OfRank { rank: rank(*whose)?, what: RawRefused::new(*refused)? });
            kind::OP_REFUSED
        }
        Body::LocalData { rank: whom, source, holder, region } => {
            let (rank, source, holder) = (rank(*whom)?, rank(*source)?, rank(*holder)?);
            to.put(&RawLocalData { rank, source, holder, region: RawRegion::new(*region)? });
            kind::LOCAL_DATA
        }
        Body::LocalCopied { rank: who, source } => {
            to.put(&[rank(*who)?, rank(*source)?]);
            kind::LOCAL_COPIED
        }
        Body::Done { rank: whose } => {
            to.put(&rank(*whose)?);
            kind::OP_DONE
        }
        Body::Failed { rank: whom, failure } => {
            to.put(&OfRank { rank: rank(*whom)?, what: RawFailure::new(*failure)? });
            kind::OP_FAILED
        }
        Body::Process { from, to: receiver, message } => peer::put((*from, *receiver), message, &mut to)?,
        Body::Staged { from, to: receiver, message } => peer::put_staged((*from, *receiver), message, &mut to)?,
    };
    let ContextId { group, collective } = packet.context;
    if (group != 0 && !kind::has_group(kind)) || (collective != 0 && !kind::has_collective(kind)) {
        return Err(FormatError::Context { kind, group, collective });
    }
    to.head(kind, packet.context, entries.len())?;
    Ok((to, entries))
}

/// The message that bytes stand for: all of them, no more. Nothing is allocated.
///
/// # Errors
/// They are not what [`encode`] makes of any message. The connection they came on is not to be trusted any more.
pub fn decode(bytes: &[u8]) -> Result<Packet<'_>, FormatError> {
    let (header, rest) = split(bytes)?;
    let expected = length_of(bytes)?;
    if bytes.len() != expected {
        return Err(FormatError::Length { found: bytes.len(), expected });
    }
    let body = body(header.kind, rest)?;
    let packet = Packet { context: header.context(), body };
    // Checks all numbers, and the bytes that say nothing.
    let (same, _) = fixed(&packet)?;
    let mut pairs = bytes.iter().zip(same.as_bytes()).enumerate();
    if let Some((offset, (&found, &expected))) = pairs.find(|(_, (found, expected))| found != expected) {
        return Err(FormatError::Stray { offset, found, expected });
    }
    Ok(packet)
}

fn body(kind: u8, rest: &[u8]) -> Result<Body<'_>, FormatError> {
    let key = || {
        let [key, generation]: [U32; 2] = get(rest)?;
        Ok(KeyName { key: key.get(), generation: generation.get() })
    };
    let rank = || Ok(get::<U32>(rest)?.get());
    Ok(match kind {
        kind::HELLO => Body::Hello(Hello::get(get(rest)?)?),
        kind::CHALLENGE => Body::Challenge(get(rest)?),
        kind::PROOF => Body::Proof(get(rest)?),
        kind::WELCOME => Body::Welcome(Welcome::get(get(rest)?)),
        kind::REJECTED => Body::Rejected(Rejection::get(get(rest)?)?),
        kind::HEARTBEAT => {
            let [number, seen]: [U64; 2] = get(rest)?;
            Body::Heartbeat(Heartbeat { number: number.get(), seen: seen.get() })
        }
        kind::GOODBYE => get::<[u8; 0]>(rest).map(|_| Body::Goodbye)?,
        kind::KEY_EXPORT => Body::KeyExport(KeyExport::get(get(rest)?)?),
        kind::KEY_ANSWER => {
            let (name, answer) = KeyName::get(get(rest)?)?;
            Body::KeyAnswer { name, answer }
        }
        kind::KEY_REVOKE => {
            let (name, is_idle) = KeyName::get_revoke(get(rest)?)?;
            Body::KeyRevoke { name, is_idle }
        }
        kind::KEY_REVOKED => Body::KeyRevoked(key()?),
        kind::GROUP_CREATE => Body::GroupCreate(group::get(rest)?),
        kind::GROUP_ACCEPTED => {
            let [rank, process, between]: [U32; 3] = get(rest)?;
            within("between", between.get().into(), 0, 1)?;
            let between = if between.get() == 1 { Between::Multicast } else { Between::Messages };
            Body::GroupAccepted { rank: rank.get(), process: process.get(), between }
        }
        kind::GROUP_REFUSED => {
            let OfRank { rank, what } = get::<OfRank<RawRefused>>(rest)?;
            Body::GroupRefused { rank: rank.get(), refused: what.refused()? }
        }
        kind::GROUP_LEAVE => Body::GroupLeave { rank: rank()? },
        kind::GROUP_LEFT => Body::GroupLeft { rank: rank()? },
        kind::FLAGS => {
            let (rank, flags) = get::<RawFlags>(rest)?.flags()?;
            Body::Flags { rank, flags }
        }
        kind::JOINED => {
            let ((from, to), joined) = peer::read_joined(rest)?;
            Body::Joined { from, to, joined: Ok(joined) }
        }
        kind::JOIN_REFUSED => {
            let ((from, to), refused) = peer::read_join_refused(rest)?;
            Body::Joined { from, to, joined: Err(refused) }
        }
        kind::GROUP_FAILED => {
            let OfRank { rank, what } = get::<OfRank<RawStagedFailure>>(rest)?;
            Body::GroupFailed { rank: rank.get(), failure: what.failure()? }
        }
        kind::OP_START => Body::Start(start::get(rest)?),
        kind::TASK => Body::Task(task::get(rest)?),
        kind::OP_REFUSED => {
            let OfRank { rank, what } = get::<OfRank<RawRefused>>(rest)?;
            Body::CallRefused { rank: rank.get(), refused: what.refused()? }
        }
        kind::LOCAL_DATA => {
            let RawLocalData { rank, source, holder, region } = get(rest)?;
            let (rank, source, holder) = (rank.get(), source.get(), holder.get());
            Body::LocalData { rank, source, holder, region: region.region() }
        }
        kind::LOCAL_COPIED => {
            let [rank, source]: [U32; 2] = get(rest)?;
            Body::LocalCopied { rank: rank.get(), source: source.get() }
        }
        kind::OP_DONE => Body::Done { rank: rank()? },
        kind::OP_FAILED => {
            let OfRank { rank, what } = get::<OfRank<RawFailure>>(rest)?;
            Body::Failed { rank: rank.get(), failure: what.failure()? }
        }
        kind::READY..=kind::FAILED => {
            let ((from, to), message) = peer::read(kind, rest)?;
            Body::Process { from, to, message }
        }
        kind::OFFER..=kind::STAGED_FAILED => {
            let ((from, to), message) = peer::read_staged(kind, rest)?;
            Body::Staged { from, to, message }
        }
        kind::LINK => Body::Link(Link::get(get(rest)?)),
        found => return Err(FormatError::Code { field: "kind", found, last: kind::LINK }),
    })
}

impl Group {
    /// The messages that announce it to a service process.
    ///
    /// # Errors
    /// A rank that the group does not have.
    pub fn packets(&self) -> impl Iterator<Item = Result<Packet<'_>, FormatError>> {
        let packet = |part| Packet { context: self.context, body: Body::GroupCreate(part) };
        self.parts().map(move |part| part.map(packet))
    }
}

impl OpStart {
    /// The messages that announce it to a service process.
    ///
    /// # Errors
    /// More ranks than [`MAX_RANKS`](crate::MAX_RANKS).
    pub fn packets(&self) -> impl Iterator<Item = Result<Packet<'_>, FormatError>> {
        let packet = |part| Packet { context: self.context, body: Body::Start(part) };
        self.parts().map(move |part| part.map(packet))
    }
}
