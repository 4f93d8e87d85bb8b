//! Closed receive contexts as the progress thread sees them: whatever has come, all pieces together miss what has not,
//! byte for byte.

mod rng;

use datapath::ClosedContext;
use dpa::proto::{Chunking, PieceSet, Pieces, RankSet, Subgroup};
use flexcast_abi::{BitmapMemory, DeviceAddress, HostLine, Operation, Placement, ReceiveView, RunRow, TableMemory};
use rng::Rng;

const START: u64 = 0x7000_0000;
const SEQUENCE: u64 = 9;

/// One receive context and its memory.
struct Context {
    bitmap: Vec<u64>,
    tails: Vec<u64>,
    rows: Vec<RunRow>,
    operation: Box<Operation>,
    placement: Box<Placement>,
}

impl Context {
    fn view(&mut self) -> ReceiveView {
        let at = |address: *mut u64| DeviceAddress::new(address as u64);
        ReceiveView {
            bitmap: BitmapMemory::new(at(self.bitmap.as_mut_ptr()), self.bitmap.len() as u32),
            tails: BitmapMemory::new(at(self.tails.as_mut_ptr()), self.tails.len() as u32),
            rows: TableMemory::new(at(self.rows.as_mut_ptr().cast()), self.rows.len() as u32),
            operation: HostLine::new(at((&raw mut *self.operation).cast())),
            placement: HostLine::new(at((&raw mut *self.placement).cast())),
            ..Default::default()
        }
    }
}

/// Blocks of these bytes, one behind the other, in chunks over subgroups, of which every `loses`th chunk or so has not
/// come: receive contexts, and for each byte whether it is missing.
fn contexts(
    rng: &mut Rng,
    (bytes, by_rows): (&[u64], bool),
    (chunk_bytes, subgroups, each): (u32, u32, &Pieces),
    loses: u64,
) -> (Vec<Context>, Vec<bool>) {
    let mut missing = vec![false; bytes.iter().sum::<u64>() as usize];
    let mut all = Vec::new();
    for index in 0..subgroups {
        let mut rows = Vec::new();
        let (mut psn, mut bitmap, mut tails) = (0u64, vec![0; 64], vec![0; 2]);
        let (mut offset, mut last_share) = (0, None);
        for (root, &block) in (0..).zip(bytes) {
            let cut = Chunking::new(block, chunk_bytes).unwrap();
            let share = cut.block(Subgroup { index, count: subgroups }).unwrap();
            rows.push(RunRow {
                destination: START + offset + share.offset,
                first_psn: psn as u32,
                chunks: share.chunks as u32,
                last_chunk_bytes: share.last_chunk_bytes,
                piece_chunks: each.chunks(cut.chunks()) as u32,
                first_chunk: share.first_chunk,
            });
            for number in 0..share.chunks {
                let chunk = cut.chunk(share.first_chunk + number).unwrap();
                let lost = rng.below(loses) == 0;
                let is_short = number + 1 == share.chunks && chunk.bytes != chunk_bytes;
                if !lost || is_short {
                    bitmap[psn as usize / 64] |= 1u64 << (psn % 64);
                }
                if !lost && is_short {
                    tails[root as usize / 64] |= 1u64 << (root % 64);
                }
                let at = (offset + chunk.offset) as usize;
                missing[at..at + chunk.bytes as usize].fill(lost);
                psn += 1;
            }
            offset += block;
            last_share = Some(share);
        }
        let share = last_share.unwrap();
        let operation = Operation {
            sequence: SEQUENCE,
            destination: rows[0].destination,
            chunks: psn as u32,
            chunk_bytes,
            last_chunk_bytes: share.last_chunk_bytes.max(1),
            ..Default::default()
        };
        let mut placement = Placement { roots: bytes.len() as u32, ..Default::default() };
        if !by_rows {
            placement.run_chunks = share.chunks as u32;
            placement.run_gap = bytes[0].wrapping_sub(share.chunks * u64::from(chunk_bytes));
            (placement.piece_chunks, placement.first_chunk) = (rows[0].piece_chunks, share.first_chunk);
        }
        all.push(Context { bitmap, tails, rows, operation: Box::new(operation), placement: Box::new(placement) });
    }
    (all, missing)
}

fn check(rng: &mut Rng, bytes: &[u64], by_rows: bool, loses: u64) {
    let (chunk_bytes, subgroups) = ([64, 100, 256][rng.below(3) as usize], 1 + rng.below(4) as u32);
    let pieces = Pieces::new(RankSet::below(bytes.len() as u32), 1 + rng.below(9) as u32);
    let (each, most_bytes) = (pieces.each(), [1, 300, 1 << 20][rng.below(3) as usize]);
    let (mut contexts, expected) = contexts(rng, (bytes, by_rows), (chunk_bytes, subgroups, &pieces), loses);
    let mut views: Vec<ReceiveView> = contexts.iter_mut().map(Context::view).collect();
    let mut incomplete = PieceSet::EMPTY;
    for view in &mut views {
        ClosedContext::close(view, SEQUENCE).note_incomplete(each, &mut incomplete);
    }
    let mut found = vec![false; expected.len()];
    for piece in 0..bytes.len() as u32 * each {
        let mut any = false;
        for view in &views {
            let Some(place) = ClosedContext::place(view, each, piece) else { continue };
            let mut psn = 0;
            while let Some(span) = ClosedContext::attach(view).missing(place, psn, most_bytes) {
                assert!(span.bytes > 0 && (span.bytes <= most_bytes || span.bytes <= chunk_bytes));
                let at = (span.address - START) as usize;
                assert!(!found[at..at + span.bytes as usize].contains(&true), "twice");
                found[at..at + span.bytes as usize].fill(true);
                any = true;
                let Some(next) = span.next_psn else { break };
                psn = next;
            }
        }
        assert_eq!(any, incomplete.contains(piece), "piece {piece} of {bytes:?}");
    }
    assert!(
        found == expected,
        "{bytes:?}, rows {by_rows}, chunks of {chunk_bytes}, {subgroups} subgroups, {each} pieces"
    );
}

#[test]
fn pieces_miss_what_has_not_come_and_no_other_byte() {
    let mut rng = Rng(0x5EED);
    for _ in 0..if cfg!(miri) { 5 } else { 400 } {
        let loses = [1, 2, 9, 40][rng.below(4) as usize];
        let roots = 1 + rng.below(5) as usize;
        let block = 1 + rng.below(6000);
        check(&mut rng, &vec![block; roots], false, loses);
        let blocks: Vec<u64> = (0..roots).map(|_| [0, 1 + rng.below(5000)][rng.below(2) as usize]).collect();
        check(&mut rng, &blocks, true, loses);
    }
}

#[test]
fn a_context_of_another_operation_or_without_chunks_misses_nothing() {
    let mut rng = Rng(7);
    let pieces = Pieces::new(RankSet::below(2), 3);
    let (mut all, _) = contexts(&mut rng, (&[900, 900], false), (64, 1, &pieces), 1);
    for (sequence, chunks) in [(SEQUENCE + 1, None), (SEQUENCE, Some(0))] {
        if let Some(chunks) = chunks {
            all[0].operation.chunks = chunks;
        }
        let mut view = all[0].view();
        let mut incomplete = PieceSet::EMPTY;
        ClosedContext::close(&mut view, sequence).note_incomplete(pieces.each(), &mut incomplete);
        assert!(incomplete.is_empty() && ClosedContext::place(&view, pieces.each(), 0).is_none());
    }
}
