//! Reads of the operation under way, in addition to what all carriers on processors keep.

use std::collections::VecDeque;

use flexcast_mesh::Source;
use flexcast_proto::p2p::Part;

use super::{Read, UdpCarrier};
use crate::carrier::cpu::operation::Stream;
use crate::engine;

/// What has been asked of a peer, in this order; whether it is the last of its group.
pub(super) type Reads = VecDeque<(u32, Read, bool)>;

/// The multicast of an operation.
pub(super) type UdpStream = Stream<Reads>;

/// The operation of blocks under way.
pub(super) type Operation = engine::Operation<UdpCarrier>;

/// How far the reads of a group of pieces are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reading {
    Under,
    /// That of the group whose first piece this is, is over.
    Over {
        first: u32,
    },
}

impl Operation {
    /// Takes bytes that were read of a peer; none if they were not asked for.
    pub(super) fn take_read(&mut self, from: u32, tag: u32, offset: u64, bytes: &[u8]) -> Option<Reading> {
        let (peer, read, last) = self.stream.reads.front_mut()?;
        let len = bytes.len() as u64;
        if (*peer, read.tag, read.offset) != (from, tag, offset) || len == 0 || len > read.bytes {
            return None;
        }
        let start = offset as usize;
        self.receive.bytes_mut().get_mut(start..start + bytes.len())?.copy_from_slice(bytes);
        read.offset += len;
        read.bytes -= len;
        if read.bytes > 0 {
            return Some(Reading::Under);
        }
        let over = *last;
        self.stream.reads.pop_front();
        Some(if over { Reading::Over { first: tag } } else { Reading::Under })
    }
}

impl Source for Operation {
    fn buffer(&self) -> &[u8] {
        self.receive.bytes()
    }

    fn part(&self, _: Part, _: u64) -> &[u8] {
        &[]
    }
}
