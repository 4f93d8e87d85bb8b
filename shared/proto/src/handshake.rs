//! The end of an operation. A rank that is complete notifies its left neighbour, which then knows that nobody will read
//! from it any more; the buffer is the user's again after the own completion and the right neighbour's word. One
//! message per rank and operation.

use thiserror::Error;

use crate::ranks::RankInfo;

/// One rank's final handshake in one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Handshake {
    place: RankInfo,
    complete: bool,
    sent: bool,
    received: bool,
}

/// A final message that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HandshakeError {
    /// Only the right neighbour says it.
    #[error("final message from rank {from}: it comes from the right neighbour, rank {right}")]
    NotRight {
        /// Who sent it.
        from: u32,
        /// Who should.
        right: u32,
    },
    /// A second time.
    #[error("a second final message from rank {from}")]
    Repeated {
        /// Who sent it.
        from: u32,
    },
}

impl Handshake {
    /// The handshake of the rank at `place`. A rank alone has nobody to notify.
    #[must_use]
    pub const fn new(place: RankInfo) -> Self {
        let alone = place.ranks() == 1;
        Self { place, complete: false, sent: alone, received: alone }
    }

    /// Everything is in the user buffer.
    pub fn complete(&mut self) {
        self.complete = true;
    }

    /// The right neighbour is complete. It may be so before this rank is.
    ///
    /// # Errors
    /// Somebody else says so, or it says so again.
    pub fn handle_final(&mut self, from: u32) -> Result<(), HandshakeError> {
        let right = self.place.right();
        if self.place.ranks() == 1 || from != right {
            return Err(HandshakeError::NotRight { from, right });
        }
        if self.received {
            return Err(HandshakeError::Repeated { from });
        }
        self.received = true;
        Ok(())
    }

    /// Whom to send the final message to, once.
    pub fn poll(&mut self) -> Option<u32> {
        if !self.complete || self.sent {
            return None;
        }
        self.sent = true;
        Some(self.place.left())
    }

    /// Whether the right neighbour is complete.
    #[must_use]
    pub const fn has_received(&self) -> bool {
        self.received
    }

    /// Whether the buffers are the user's again.
    #[must_use]
    pub const fn is_released(&self) -> bool {
        self.complete && self.sent && self.received
    }

    /// Who is being waited for, once the own part is done.
    #[must_use]
    pub const fn waiting_for(&self) -> Option<u32> {
        if self.complete && !self.received { Some(self.place.right()) } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_after_both_in_either_order() {
        for early in [true, false] {
            let mut rank = Handshake::new(RankInfo::new(1, 3).unwrap());
            if early {
                rank.handle_final(2).unwrap();
            }
            assert!(!rank.is_released());
            assert_eq!(rank.poll(), None);
            rank.complete();
            assert_eq!((rank.poll(), rank.poll()), (Some(0), None));
            assert_eq!(rank.is_released(), early);
            assert_eq!(rank.waiting_for(), (!early).then_some(2));
            if !early {
                rank.handle_final(2).unwrap();
            }
            assert!(rank.is_released());
            assert_eq!(rank.handle_final(2), Err(HandshakeError::Repeated { from: 2 }));
            assert_eq!(rank.handle_final(0), Err(HandshakeError::NotRight { from: 0, right: 2 }));
        }
    }

    #[test]
    fn a_rank_alone_needs_nobody() {
        let mut rank = Handshake::new(RankInfo::new(0, 1).unwrap());
        assert!(!rank.is_released());
        rank.complete();
        assert_eq!(rank.poll(), None);
        assert!(rank.is_released());
        assert!(rank.handle_final(0).is_err());
    }
}
