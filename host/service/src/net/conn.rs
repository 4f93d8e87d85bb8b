//! One TCP connection of a service process.

use std::io::Write as _;
use std::net::{IpAddr, TcpStream};
use std::time::Instant;

use flexcast_proto::service::wire::{Body, Endpoint, Session};
use flexcast_proto::session::MessageTags;

use super::frames::Frames;
use super::greeting::{GreetingError, Incoming, Outgoing};
use super::life::Life;
use super::tagged;
use crate::links::PeerId;

#[derive(Debug)]
pub(super) enum Phase {
    /// The other side connects.
    In(Incoming),
    /// The system connects.
    Tcp,
    /// This side connects.
    Out(Outgoing),
    Live,
}

/// One TCP connection.
#[derive(Debug)]
pub(super) struct Conn {
    pub(super) stream: TcpStream,
    /// Address of the other side.
    pub(super) from: IpAddr,
    pub(super) frames: Frames,
    /// Tags of what is sent, once both sides have proven who they are.
    tags: Option<MessageTags>,
    pub(super) phase: Phase,
    pub(super) begun: Instant,
    /// Of its greeting.
    pub(super) deadline: Instant,
    /// Its queue pair, once opened.
    pub(super) peer: Option<PeerId>,
    /// The other process, if it is one and known.
    pub(super) endpoint: Option<Endpoint>,
    /// It has room among the peers.
    pub(super) admitted: bool,
    pub(super) life: Option<Life>,
    /// GOODBYE is to be sent once the card has taken what was said before.
    pub(super) leaves: bool,
    /// Both have said goodbye.
    pub(super) closes: bool,
    /// What it has just said is to be carried out before it is read again.
    pub(super) pauses: bool,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ended {
    /// Its greeting fails, or what it says cannot be.
    Refused(GreetingError),
    /// The other side is gone.
    Gone,
    /// It has said goodbye.
    Goodbye,
    Silent,
    Deadline,
    Crowded,
}

/// Whether a connection goes on.
pub(super) type Kept = Result<(), Ended>;

impl Conn {
    pub(super) fn new(stream: TcpStream, from: IpAddr, phase: Phase, now: Instant, deadline: Instant) -> Self {
        let (frames, peer, endpoint, life) = Default::default();
        Self {
            stream,
            from,
            frames,
            tags: None,
            phase,
            begun: now,
            deadline,
            peer,
            endpoint,
            admitted: false,
            life,
            leaves: false,
            closes: false,
            pauses: false,
        }
    }

    /// Sends a message at once. Messages here are few and short: a connection that does not take one is not read by the
    /// other side.
    pub(super) fn say(&mut self, body: Body<'_>) -> Kept {
        let Ok(bytes) = tagged(body, self.tags.as_mut()) else { return Ok(()) };
        match self.stream.write(&bytes) {
            Ok(written) if written == bytes.len() => Ok(()),
            _ => Err(Ended::Gone),
        }
    }

    /// Both sides have proven who they are: messages have tags from now on.
    pub(super) fn establish(&mut self, session: &Session) {
        self.tags = Some(MessageTags::new(&session.send));
        self.frames.expect(MessageTags::new(&session.receive));
    }

    pub(super) const fn is_live(&self) -> bool {
        matches!(self.phase, Phase::Live)
    }

    pub(super) const fn is_half_open(&self) -> bool {
        matches!(self.phase, Phase::In(_))
    }

    /// Half open, and the other side has not proven yet who it is.
    pub(super) const fn is_stranger(&self) -> bool {
        self.is_half_open() && !self.frames.has_tags()
    }
}
