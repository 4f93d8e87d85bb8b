//! Messages out of a stream of bytes, in bounded memory.

use std::io::{ErrorKind, Read};

use flexcast_proto::service::wire::{self, HEADER_BYTES, MAX_BYTES, TAG_BYTES};
use flexcast_proto::session::MessageTags;

use super::greeting::GreetingError;
use super::keyed_hash;

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

/// Bytes that have come of one stream: of at most one message with its tag.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    bytes: Vec<u8>,
    tags: Option<MessageTags>,
}

impl Frames {
    /// From here on each message has a tag behind it.
    pub(crate) fn expect(&mut self, tags: MessageTags) {
        self.tags = Some(tags);
    }

    /// Whether messages have tags behind them.
    pub(crate) const fn has_tags(&self) -> bool {
        self.tags.is_some()
    }

    /// Reads once, no more than one message with its tag has.
    ///
    /// # Errors
    /// The stream is broken.
    pub(crate) fn fill(&mut self, from: &mut impl Read) -> std::io::Result<Filled> {
        let mut part = [0; MAX_BYTES + TAG_BYTES];
        // Messages are taken out before the next call, so that there is room for another byte.
        let room = part.len().saturating_sub(self.bytes.len()).max(1);
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
    /// What has come is none, or the other side has not sent it here.
    pub(crate) fn next(&mut self) -> Result<Option<Vec<u8>>, GreetingError> {
        if self.bytes.len() < HEADER_BYTES {
            return Ok(None);
        }
        let length = wire::length_of(&self.bytes).map_err(GreetingError::Format)?;
        let whole = length + if self.has_tags() { TAG_BYTES } else { 0 };
        if self.bytes.len() < whole {
            return Ok(None);
        }
        let rest = self.bytes.split_off(whole);
        let mut message = std::mem::replace(&mut self.bytes, rest);
        if let Some(tags) = &mut self.tags {
            let tag = message.split_off(length).try_into().unwrap_or([0; TAG_BYTES]);
            tags.check(&message, &tag, &keyed_hash).map_err(|_| GreetingError::Forged)?;
        }
        Ok(Some(message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::encoded;
    use flexcast_proto::service::wire::{Body, FormatError, Heartbeat};

    /// A stream that gives a few bytes at a time.
    struct Slow<'b>(&'b [u8], usize);

    impl Read for Slow<'_> {
        fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
            let most = to.len().min(self.1);
            self.0.read(&mut to[..most])
        }
    }

    /// Messages, with tags behind them if they are to have some.
    fn messages(tagged: bool) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        let mut tags = MessageTags::new(&[7; 32]);
        let all = (1..9).map(|number| encoded(Body::Heartbeat(Heartbeat { number, seen: 0 })).expect("bytes"));
        all.map(|message| {
            let tag = if tagged { tags.next(&message, &keyed_hash).to_vec() } else { Vec::new() };
            (message.clone(), [message, tag].concat())
        })
        .unzip()
    }

    /// What is received of a stream, and how it ends if not well.
    fn received(stream: &[u8], step: usize, tagged: bool) -> (Vec<Vec<u8>>, Option<GreetingError>) {
        let (mut frames, mut from, mut found) = (Frames::default(), Slow(stream, step), Vec::new());
        if tagged {
            frames.expect(MessageTags::new(&[7; 32]));
        }
        while frames.fill(&mut from).expect("bytes") == Filled::Some {
            loop {
                match frames.next() {
                    Ok(Some(message)) => found.push(message),
                    Ok(None) => break,
                    Err(error) => return (found, Some(error)),
                }
            }
        }
        (found, None)
    }

    #[test]
    fn messages_come_whole_in_whatever_parts() {
        for (step, tagged) in [1, 3, 16, 33, 4096].into_iter().zip([false, true].into_iter().cycle()) {
            let (messages, sent) = messages(tagged);
            assert_eq!(received(&sent.concat(), step, tagged), (messages, None), "{step} bytes at a time");
        }
    }

    #[test]
    fn what_was_changed_repeated_left_out_or_put_in_is_received_up_to_there() {
        let (messages, sent) = messages(true);
        let flipped = |at: usize| {
            let mut sent = sent.clone();
            sent[2][at] ^= 1;
            sent.concat()
        };
        let cases = [
            ("a number", flipped(HEADER_BYTES)),
            ("the kind", flipped(5)),
            ("a tag", flipped(messages[0].len())),
            ("one twice", [&sent[..2], &sent[1..]].concat().concat()),
            ("one left out", [&sent[..2], &sent[3..]].concat().concat()),
            ("one without a tag", [&sent[..2], &messages[2..3], &sent[2..]].concat().concat()),
        ];
        for (what, stream) in cases {
            assert_eq!(received(&stream, 4096, true), (messages[..2].to_vec(), Some(GreetingError::Forged)), "{what}");
        }
    }

    #[test]
    fn what_is_no_message_is_refused_by_its_header() {
        let mut frames = Frames::default();
        frames.fill(&mut &b"GET / HTTP/1.1\r\nHost"[..]).expect("bytes");
        assert!(matches!(frames.next(), Err(GreetingError::Format(FormatError::Magic { .. }))));
    }
}
