//! Repair of what multicast has lost: pieces that the left neighbour has are read from there.
//!
//! Each missing run is found in the bitmaps of the closed receive contexts when there is room for its read: there is no
//! list that could grow. Reads complete in the order in which they are posted, so that a piece is whole when the last
//! of its reads is over.
//!
//! They go over a connection of their own, whose timeout is short: what was lost together with the negative
//! acknowledgement that would have reported it is asked for again soon. If that connection breaks, because the network
//! was away for longer than its tries took, the one for control messages takes its place. It has the timeouts that
//! detect a dead peer.

use datapath::{ClosedContext, Span};
use dpa::abi::ProgressPeer;
use dpa::abi::progress::{LOSSY, NOBODY, READS, REPORT_READING};
use dpa::hw::wqe::{FLAG_SIGNALLED, WriteWqe};
use dpa::hw::{ControlSegment, WqeOpcode};
use dpa::proto::PieceSet;
use dpa::{ContextArray, SendQueue};

use super::ProgressEngine;
use super::messages::{MESSAGE_ENTRIES, hand_over};

/// Longest read: as many as may be under way are in flight for longer than a round trip on any link there is.
const READ_BYTES: u32 = 256 << 10;

/// A read that is not posted yet: what follows without a gap joins it.
struct Read {
    address: u64,
    bytes: u32,
    /// The piece of its last bytes.
    piece: u32,
    /// Pieces that end with it, as [`dpa::abi::ProgressReads::ends`] has them.
    ends: u32,
}

impl Read {
    const fn new(span: &Span, piece: u32) -> Self {
        Self { address: span.address, bytes: span.bytes, piece, ends: 0 }
    }

    /// Takes more bytes of the same piece or of the next one, if they follow and are not too many.
    fn extend(&mut self, span: &Span, piece: u32) -> bool {
        let follows =
            self.address.wrapping_add(self.bytes.into()) == span.address && piece.wrapping_sub(self.piece) <= 1;
        let fits = self.bytes <= READ_BYTES && span.bytes <= READ_BYTES - self.bytes;
        if follows && fits {
            self.bytes += span.bytes;
            self.piece = piece;
        }
        follows && fits
    }
}

/// Adds a piece to those that end with a read: the next one of those that do.
const fn add_end(ends: &mut u32, piece: u32) {
    *ends = if *ends == 0 { 1 << 16 | piece } else { *ends + (1 << 16) };
}

/// Whether a peer's send queue has room for a read, and for messages as well.
pub(super) const fn has_room(peer: &ProgressPeer) -> bool {
    peer.produced - peer.completed < (1 << (peer.send_queue.log_depth() & 63)) - 2 * MESSAGE_ENTRIES
}

impl ProgressEngine<'_> {
    /// The receive contexts are closed: what their bitmaps have is whole in the receive buffer, and multicast brings
    /// nothing more.
    #[cold]
    #[inline(never)]
    pub(super) fn close(&mut self, now_ps: u64) {
        let mut incomplete = PieceSet::EMPTY;
        for view in ContextArray::attach(self.views).iter_mut() {
            let context = ClosedContext::close(view, self.state.receive_sequence);
            context.note_incomplete(self.state.pieces, &mut incomplete);
        }
        if !incomplete.is_empty() {
            self.state.follows |= LOSSY;
        }
        self.participant.delivered_all_but(&incomplete);
        self.participant.cut_off(now_ps);
    }

    /// The left neighbour has pieces, of which what is missing here is to be read.
    #[cold]
    #[inline(never)]
    pub(super) fn read(&mut self, from: u32, pieces: &PieceSet) {
        let reads = &mut self.state.reads;
        for ((wanted, unread), word) in reads.wanted.iter_mut().zip(&mut reads.unread).zip(pieces.words()) {
            *wanted |= word;
            *unread |= word;
        }
        (reads.from, reads.waits) = (from, 1);
        self.repair();
    }

    /// Posts reads as far as there is room.
    #[cold]
    #[inline(never)]
    pub(super) fn repair(&mut self) {
        let number = self.reader().filter(|_| self.participant.is_running());
        let Some(number) = number else { return self.stop_reading() };
        let mut pending: Option<Read> = None;
        while let Some(piece) = self.piece_to_read() {
            let Some(span) = self.missing(piece) else {
                self.end_piece(piece, pending.as_mut());
                continue;
            };
            if !pending.as_mut().is_some_and(|read| read.extend(&span, piece)) {
                if let Some(read) = pending.take() {
                    self.post_read(number, &read);
                }
                if !self.has_room_to_read(number) {
                    break;
                }
                pending = Some(Read::new(&span, piece));
            }
            let reads = &mut self.state.reads;
            reads.begun = 1;
            match span.next_psn {
                Some(psn) => reads.psn = psn,
                None => self.end_piece(piece, pending.as_mut()),
            }
        }
        if let Some(read) = pending {
            self.post_read(number, &read);
        }
    }

    /// Over which connection reads go.
    fn reader(&mut self) -> Option<usize> {
        let from = self.state.reads.from;
        let own = self.peers.len().wrapping_sub(1);
        if self.peers.get(own).is_some_and(|peer| peer.rank == NOBODY && peer.broken == 0) {
            return Some(own);
        }
        self.peers.iter_mut().position(|peer| peer.rank == from && peer.broken == 0)
    }

    /// Nothing more is read of this operation.
    pub(super) const fn stop_reading(&mut self) {
        let reads = &mut self.state.reads;
        (reads.unread, reads.wanted) = ([0; 16], [0; 16]);
        (reads.piece, reads.waits) = (0, 0);
    }

    /// A piece is whole.
    fn is_read(&mut self, piece: u32) {
        if let Some(word) = self.state.reads.unread.get_mut(piece as usize / 64) {
            *word &= !(1 << (piece % 64));
        }
        let now_ps = self.now_ps();
        self.participant.progressed(now_ps);
        self.participant.read(piece);
    }

    /// The piece whose reads are being posted, or the next one.
    fn piece_to_read(&mut self) -> Option<u32> {
        let reads = &mut self.state.reads;
        if let Some(piece) = reads.piece.checked_sub(1) {
            return Some(piece);
        }
        for (word, first) in reads.wanted.iter_mut().zip((0..).step_by(64)) {
            if *word != 0 {
                let piece = first + word.trailing_zeros();
                *word &= *word - 1;
                (reads.piece, reads.context, reads.psn, reads.begun) = (piece + 1, 0, 0, 0);
                return Some(piece);
            }
        }
        reads.waits = 0;
        None
    }

    /// The next missing bytes of the piece whose reads are being posted.
    fn missing(&mut self, piece: u32) -> Option<Span> {
        let each = self.state.pieces;
        let reads = &mut self.state.reads;
        let mut views = ContextArray::attach(self.views);
        while let Some(view) = views.get(reads.context as usize) {
            if let Some(place) = ClosedContext::place(view, each, piece) {
                let span = ClosedContext::attach(view).missing(place, reads.psn, READ_BYTES);
                if span.is_some() {
                    return span;
                }
            }
            reads.context += 1;
            reads.psn = 0;
        }
        None
    }

    /// Nothing more of a piece is to be read: it is whole once the last of its reads is over.
    fn end_piece(&mut self, piece: u32, pending: Option<&mut Read>) {
        let reads = &mut self.state.reads;
        reads.piece = 0;
        if reads.begun == 0 || (pending.is_none() && reads.over == reads.posted) {
            return self.is_read(piece);
        }
        let last = reads.posted.wrapping_sub(1) as usize % READS;
        if let Some(ends) = pending.map(|read| &mut read.ends).or(reads.ends.get_mut(last)) {
            add_end(ends, piece);
        }
    }

    fn has_room_to_read(&mut self, number: usize) -> bool {
        let reads = &self.state.reads;
        let under_way = reads.posted.wrapping_sub(reads.over);
        under_way < READS as u32 && self.peers.get(number).is_some_and(|peer| has_room(peer))
    }

    /// Posts a read.
    fn post_read(&mut self, number: usize, read: &Read) {
        let Some(peer) = self.peers.get(number) else { return };
        let reads = &mut self.state.reads;
        let queue = SendQueue::attach(&peer.send_queue);
        let index = peer.produced;
        peer.produced += 1;
        // The buffers of all ranks are laid out alike.
        let remote = reads.address.wrapping_add(read.address.wrapping_sub(self.state.address));
        let words = [
            ControlSegment::head(index as u16, WqeOpcode::Read, queue.number(), WriteWqe::SEGMENTS),
            ControlSegment::tail(FLAG_SIGNALLED, 0),
            remote,
            u64::from(reads.rkey) << 32,
            u64::from(read.bytes) << 32 | u64::from(self.state.lkey),
            read.address,
        ];
        queue.write_words(index, words);
        hand_over(&queue, &self.outbox, peer.produced);
        let slot = reads.posted as usize % READS;
        if let (Some(entry), Some(ends)) = (reads.entries.get_mut(slot), reads.ends.get_mut(slot)) {
            (*entry, *ends) = (index as u32, read.ends);
        }
        reads.posted = reads.posted.wrapping_add(1);
        reads.over_peer = number as u32;
        self.state.report.reads = self.state.report.reads.wrapping_add(1);
    }

    /// Of the connection to the rank that is read from all entries before this number are complete.
    #[cold]
    #[inline(never)]
    pub(super) fn reads_completed(&mut self, completed: u64) {
        loop {
            let reads = &mut self.state.reads;
            let slot = reads.over as usize % READS;
            let (Some(entry), Some(ends)) = (reads.entries.get(slot), reads.ends.get(slot)) else { break };
            if reads.over == reads.posted || (completed as u32).wrapping_sub(*entry) as i32 <= 0 {
                break;
            }
            reads.over = reads.over.wrapping_add(1);
            let (first, count) = (*ends & 0xFFFF, *ends >> 16);
            for piece in first..first + count {
                self.is_read(piece);
            }
        }
        self.report_end_of_reads();
    }

    /// The connection to a peer is broken. No read over it writes to the receive buffer any more; what was to be read
    /// goes over another one, if there is one.
    pub(super) fn reader_broken(&mut self, index: usize) {
        if self.reads_over(index) {
            let reads = &mut self.state.reads;
            (reads.over, reads.wanted) = (reads.posted, reads.unread);
            (reads.piece, reads.waits) = (0, 1);
            self.report_end_of_reads();
        }
    }

    /// Whether a peer is the one whose completions are those of the reads under way.
    #[cold]
    #[inline(never)]
    pub(super) fn reads_over(&self, index: usize) -> bool {
        self.is_reading() && self.state.reads.over_peer as usize == index
    }

    /// Whether reads are under way. Where nothing is lost the memory that knows more is not touched.
    pub(super) const fn is_reading(&self) -> bool {
        self.state.follows & LOSSY != 0 && self.state.reads.over != self.state.reads.posted
    }

    fn report_end_of_reads(&mut self) {
        if !self.is_reading() && self.state.report.flags & REPORT_READING != 0 {
            self.state.unreported = 1;
        }
    }
}
