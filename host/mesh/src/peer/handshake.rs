//! Beginning of a connection: its handshake, and the tags that frames have from then on.

use std::time::Instant;

use flexcast_proto::session::Session;
use zerocopy::FromBytes as _;

use super::Peer;
use crate::dial::{Dial, Progress};
use crate::events::Address;
use crate::frame::{FRAME_BYTES, Frame};
use crate::stream::Stream;
use crate::tags::Pair;

impl Peer {
    /// On a connection that this rank makes. `tagged`: frames over TCP are to have tags.
    pub(crate) fn dialled(rank: u32, stream: Stream, dial: Dial, tagged: bool) -> Self {
        let address = dial.address();
        Self { address, dial: Some(Box::new(dial)), tagged, made: false, ..Self::new(rank, stream) }
    }

    /// On a connection that the peer has made.
    pub fn accepted(rank: u32, stream: Stream, address: Address, session: &Session, tagged: bool) -> Self {
        let mut peer = Self { address, tagged, ..Self::new(rank, stream) };
        peer.establish(session);
        peer
    }

    /// The connection is made: frames that have waited for that get their tags.
    fn establish(&mut self, session: &Session) {
        (self.dial, self.made) = (None, true);
        // Nobody else can write to shared memory: see `shared`.
        if !self.tagged || self.stream.shared().is_some() {
            return;
        }
        let mut pair = Pair::new(session);
        let mut rest = &mut self.outbox[..];
        while let Ok((frame, _)) = Frame::read_from_prefix(rest) {
            let (whole, behind) = rest.split_at_mut((FRAME_BYTES + frame.len.get() as usize).min(rest.len()));
            Frame::seal(whole, &mut pair.send);
            rest = behind;
        }
        self.tags = Some(Box::new(pair));
    }

    /// Goes on with the handshake, if it is not over. Returns whether anything moved.
    pub(crate) fn shake_hands(&mut self) -> bool {
        let Some(dial) = &mut self.dial else { return false };
        match dial.advance(&mut self.stream) {
            Progress::Waits(moved) => moved,
            Progress::Again => {
                self.renewed = true;
                self.address = dial.address();
                true
            }
            Progress::Taken(session) => {
                self.establish(&session);
                true
            }
            Progress::Failed(code, why) => {
                self.fault = Some(why);
                self.close(code);
                true
            }
        }
    }

    /// Whether the connection is not made yet.
    pub(crate) const fn is_dialling(&self) -> bool {
        self.dial.is_some()
    }

    /// When its handshake has something to do although nothing comes.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.dial.as_ref()?.deadline()
    }

    /// Whether no frame has gone or come.
    pub(crate) fn is_unused(&self) -> bool {
        self.tags.as_ref().is_some_and(|pair| pair.send.next() == 0 && pair.receive.next() == 0)
    }

    /// Where the other end is.
    pub const fn address(&self) -> Address {
        self.address
    }

    /// What is wrong with the connection, beyond a code of the system.
    pub fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    /// Whether another stream has taken the place of the one before, and whether the connection is made, since this was
    /// last asked.
    pub(crate) const fn take_renewed(&mut self) -> bool {
        std::mem::replace(&mut self.renewed, false)
    }

    pub(crate) const fn take_made(&mut self) -> bool {
        std::mem::replace(&mut self.made, false)
    }
}
