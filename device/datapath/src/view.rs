//! Receive contexts as the progress thread sees them once they are closed: what of their operation has not come, and
//! where it belongs.

use core::mem::offset_of;

use dpa::abi::{ClosedOperation, Operation, Placement, ReceiveView};
use dpa::proto::PieceSet;
use dpa::proto::missing::RootRun;
use dpa::{BitmapReader, HostLine, Table};

/// A closed receive context.
#[derive(Debug)]
pub struct ClosedContext<'v> {
    view: &'v ReceiveView,
    bitmap: BitmapReader,
    tails: BitmapReader,
}

/// Missing bytes of the receive buffer, without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Address of the first one.
    pub address: u64,
    /// How many there are.
    pub bytes: u32,
    /// PSN of the chunk behind them; none if nothing more of the piece is missing, in this receive context or another.
    pub next_psn: Option<u64>,
}

/// One root's run: its chunks, where the first of them goes, and the bytes of the last one.
struct Placed {
    run: RootRun,
    address: u64,
    last_bytes: u32,
}

impl<'v> ClosedContext<'v> {
    /// The receive context that has been closed in operation number `sequence` of the receive contexts. If it has
    /// another, it misses nothing.
    pub fn close(view: &'v mut ReceiveView, sequence: u64) -> Self {
        let operation = HostLine::attach(&view.operation);
        let placement = HostLine::attach(&view.placement);
        let is_current = operation.load_at::<{ offset_of!(Operation, sequence) }>() == sequence;
        let (chunks, chunk_bytes) = operation.pair_at::<{ offset_of!(Operation, chunks) }>();
        let (last_chunk_bytes, _) = operation.pair_at::<{ offset_of!(Operation, last_chunk_bytes) }>();
        let (run_chunks, roots) = placement.pair_at::<{ offset_of!(Placement, run_chunks) }>();
        let (first_root, piece_chunks) = placement.pair_at::<{ offset_of!(Placement, first_root) }>();
        view.closed = ClosedOperation {
            chunks: if is_current { chunks } else { 0 },
            chunk_bytes,
            last_chunk_bytes,
            run_chunks,
            first_root,
            roots,
            piece_chunks,
            reserved: 0,
            first_chunk: placement.load_at::<{ offset_of!(Placement, first_chunk) }>(),
            destination: operation.load_at::<{ offset_of!(Operation, destination) }>(),
            run_gap: placement.load_at::<{ offset_of!(Placement, run_gap) }>(),
            reserved_2: 0,
        };
        Self::attach(view)
    }

    /// The receive context as it has been closed.
    #[inline]
    #[must_use]
    pub fn attach(view: &'v ReceiveView) -> Self {
        let ClosedOperation { chunks, roots, .. } = view.closed;
        let (bitmap, tails) = (BitmapReader::attach(&view.bitmap, chunks), BitmapReader::attach(&view.tails, roots));
        Self { view, bitmap, tails }
    }

    /// Run number `number`.
    #[inline]
    fn run(&self, number: u32) -> Option<Placed> {
        let closed = &self.view.closed;
        if closed.chunks == 0 || number >= closed.roots {
            return None;
        }
        if closed.run_chunks == 0 {
            let row = Table::attach(&self.view.rows).get(number)?;
            let run = RootRun {
                first_psn: row.first_psn.into(),
                chunks: row.chunks.into(),
                first_chunk: row.first_chunk,
                piece_chunks: row.piece_chunks.into(),
                is_short: row.chunks != 0 && row.last_chunk_bytes != closed.chunk_bytes,
            };
            return Some(Placed { run, address: row.destination, last_bytes: row.last_chunk_bytes });
        }
        let first_psn = u64::from(number) * u64::from(closed.run_chunks);
        let run = RootRun {
            first_psn,
            chunks: closed.run_chunks.into(),
            first_chunk: closed.first_chunk,
            piece_chunks: closed.piece_chunks.into(),
            is_short: closed.last_chunk_bytes != closed.chunk_bytes,
        };
        let address = closed
            .destination
            .wrapping_add(first_psn.wrapping_mul(closed.chunk_bytes.into()))
            .wrapping_add(u64::from(number).wrapping_mul(closed.run_gap));
        Some(Placed { run, address, last_bytes: closed.last_chunk_bytes })
    }

    /// Whether no bit is clear that a run's chunks have, and no run lacks its last chunk. Quick, and false at times
    /// where nothing is missing.
    fn is_whole(&self) -> bool {
        let all = |bitmap: &BitmapReader, bits: u64| {
            (0..bits.div_ceil(64)).all(|index| {
                let beyond = (index * 64 + 64).saturating_sub(bits);
                !bitmap.word(index) << (beyond & 63) == 0
            })
        };
        let closed = &self.view.closed;
        let is_short = closed.run_chunks == 0 || closed.last_chunk_bytes != closed.chunk_bytes;
        all(&self.bitmap, closed.chunks.into()) && (!is_short || all(&self.tails, closed.roots.into()))
    }

    /// Adds to a set the pieces of which chunks are missing, of blocks of `each` pieces.
    pub fn note_incomplete(&self, each: u32, incomplete: &mut PieceSet) {
        if self.is_whole() {
            return;
        }
        if self.view.closed.run_chunks != 0 && self.view.closed.last_chunk_bytes == self.view.closed.chunk_bytes {
            return self.note_equal(each, incomplete);
        }
        let ClosedOperation { roots, first_root, .. } = self.view.closed;
        for number in 0..roots {
            let Some(Placed { run, .. }) = self.run(number) else { break };
            let has_last = !run.is_short || self.tails.is_set(number.into());
            let first_piece = first_root.wrapping_add(number).wrapping_mul(each);
            let mut psns = run.all();
            while let Some(missing) = run.missing(psns.clone(), |word| self.bitmap.word(word), has_last) {
                let piece = run.piece(missing.first);
                // What else is missing of it adds nothing.
                psns.start = run.psns(piece).end.max(missing.first.saturating_add(1)).min(psns.end);
                incomplete.insert(first_piece.wrapping_add(piece as u32));
            }
        }
    }

    /// [`ClosedContext::note_incomplete`] of runs of one length without short chunks, word by word of the bitmap: what
    /// is there is passed at once.
    fn note_equal(&self, each: u32, incomplete: &mut PieceSet) {
        let ClosedOperation { chunks, run_chunks, first_root, piece_chunks, first_chunk, .. } = self.view.closed;
        let piece_chunks = piece_chunks.max(1);
        let mut noted = None;
        for index in 0..chunks.div_ceil(64) {
            let mut clear = !self.bitmap.word(index.into());
            while clear != 0 {
                let psn = index * 64 + clear.trailing_zeros();
                clear &= clear - 1;
                let (Some(run), Some(within)) = (psn.checked_div(run_chunks), psn.checked_rem(run_chunks)) else {
                    return;
                };
                if psn >= chunks {
                    return;
                }
                let piece = (first_chunk + u64::from(within)) / u64::from(piece_chunks);
                let piece = first_root.wrapping_add(run).wrapping_mul(each).wrapping_add(piece as u32);
                if noted != Some(piece) {
                    incomplete.insert(piece);
                    noted = Some(piece);
                }
            }
        }
    }

    /// The number of the run to which a piece of the operation belongs, whose blocks have `each`, and its number within
    /// its block; none if it has surely no chunk in a receive context.
    #[inline]
    #[must_use]
    pub fn place(view: &ReceiveView, each: u32, piece: u32) -> Option<(u32, u32)> {
        let closed = &view.closed;
        let position = piece.checked_div(each)?;
        let (number, piece) =
            (position.checked_sub(closed.first_root)?, piece.wrapping_sub(position.wrapping_mul(each)));
        let first = u64::from(piece) * u64::from(closed.piece_chunks);
        let is_outside = first >= closed.first_chunk + u64::from(closed.run_chunks)
            || first + u64::from(closed.piece_chunks) <= closed.first_chunk;
        let outside = closed.run_chunks != 0 && is_outside;
        (!outside && number < closed.roots && closed.chunks != 0).then_some((number, piece))
    }

    /// The first missing bytes of the piece with this [`ClosedContext::place`], from the chunk with a PSN on: of so
    /// many bytes at most, unless a chunk has more.
    #[must_use]
    #[inline]
    pub fn missing(&self, (number, piece): (u32, u32), psn: u64, most_bytes: u32) -> Option<Span> {
        let closed = &self.view.closed;
        let Placed { run, address, last_bytes } = self.run(number)?;
        let mut psns = run.psns(piece.into());
        let end = psns.end;
        let is_all_here = end - psns.start == u64::from(closed.piece_chunks);
        psns.start = psns.start.max(psn);
        if psns.start >= psns.end {
            return None;
        }
        let has_last = !run.is_short || self.tails.is_set(number.into());
        let missing = run.missing(psns, |word| self.bitmap.word(word), has_last)?;
        let chunk_bytes = closed.chunk_bytes;
        let mut count = missing.count;
        let mut bytes = count.saturating_mul(chunk_bytes.into());
        if bytes > most_bytes.into() {
            count = u64::from(most_bytes.checked_div(chunk_bytes)?.max(1)).min(count);
            bytes = count.wrapping_mul(chunk_bytes.into());
        }
        let next_psn = missing.first.saturating_add(count);
        if next_psn == run.all().end {
            bytes = bytes.wrapping_sub(u64::from(chunk_bytes.wrapping_sub(last_bytes)));
        }
        let before = missing.first.wrapping_sub(run.first_psn).wrapping_mul(chunk_bytes.into());
        let is_last = is_all_here && next_psn == end && closed.run_chunks != 0;
        let next_psn = if is_last { None } else { Some(next_psn) };
        Some(Span { address: address.wrapping_add(before), bytes: bytes as u32, next_psn })
    }
}
