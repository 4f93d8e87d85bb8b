//! Messages out of a stream of bytes, in bounded memory.

use std::io::{ErrorKind, Read};

use flexcast_proto::service::wire::{self, FormatError, HEADER_BYTES, MAX_BYTES};

/// What a stream has given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Filled {
    /// Some bytes.
    Some,
    /// None now.
    Nothing,
    /// The other side sends nothing more.
    Ended,
}

/// Bytes that have come of one stream: of at most one message.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
}

impl Frames {
    /// Reads once, no more than one message has.
    ///
    /// # Errors
    /// The stream is broken.
    pub(crate) fn fill(&mut self, from: &mut impl Read) -> std::io::Result<Filled> {
        let mut part = [0; MAX_BYTES];
        // Messages are taken out before the next call, so that there is room for another byte.
        let room = MAX_BYTES.saturating_sub(self.bytes.len()).max(1);
        match from.read(&mut part[..room]) {
            Ok(0) => Ok(Filled::Ended),
            Ok(read) => {
                self.bytes.extend_from_slice(&part[..read]);
                Ok(Filled::Some)
            }
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) =>
            {
                Ok(Filled::Nothing)
            }
            Err(error) => Err(error),
        }
    }

    /// The next message that is there whole.
    ///
    /// # Errors
    /// What has come is none.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, FormatError> {
        if self.bytes.len() < HEADER_BYTES {
            return Ok(None);
        }
        let length = wire::length_of(&self.bytes)?;
        if self.bytes.len() < length {
            return Ok(None);
        }
        let rest = self.bytes.split_off(length);
        Ok(Some(std::mem::replace(&mut self.bytes, rest)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::encoded;
    use flexcast_proto::service::wire::{Body, Heartbeat};

    /// A stream that gives a few bytes at a time.
    struct Slow<'b>(&'b [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            let most = to.len().min(self.1);
            self.0.read(&mut to[..most])
        }
    }

    #[test]
    fn messages_come_whole_in_whatever_parts() {
        let messages: Vec<Vec<u8>> =
            (1..9).map(|number| encoded(Body::Heartbeat(Heartbeat { number, seen: 0 })).expect("bytes")).collect();
        let stream = messages.concat();
        for step in [1, 3, 16, 33, 4096] {
            let (mut frames, mut from, mut found) = (Frames::default(), Slow(&stream, step), Vec::new());
            while frames.fill(&mut from).expect("bytes") == Filled::Some {
                while let Some(message) = frames.next().expect("messages") {
                    found.push(message);
                }
            }
            assert_eq!(found, messages, "{step} bytes at a time");
        }
    }

    #[test]
    fn what_is_no_message_is_refused_by_its_header() {
        let mut frames = Frames::default();
        frames.fill(&mut &b"GET / HTTP/1.1\r\nHost"[..]).expect("bytes");
        assert!(matches!(frames.next(), Err(FormatError::Magic { .. })));
    }
}
