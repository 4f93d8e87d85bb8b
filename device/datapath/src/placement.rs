//! Placement of the chunks of a receive context, and the chunks that the fast path leaves out.

use dpa::abi::{
    ContextFault, OPERATION_CLOSED, OPERATION_REPORTS, Operation, Placement, ReceiveContext, RunRow, TableMemory,
    Transport,
};
use dpa::{BitmapView, Table};

use crate::hot::{place, reciprocal};
use crate::prepare::check_operation;

/// A chunk of the armed operation.
pub(crate) struct Place {
    /// Number of its run.
    pub(crate) run: u64,
    /// Its bytes.
    pub(crate) bytes: u32,
    /// Where it goes.
    pub(crate) address: u64,
}

/// The chunk with a PSN below `chunks`. With a table its row becomes the current one.
pub(crate) fn locate(context: &mut ReceiveContext, psn: u64) -> Place {
    let armed = &context.state.armed;
    let op = &mut context.op;
    let chunk_bytes = u64::from(armed.chunk_bytes);
    let run_chunks = u64::from(op.placed.run_chunks);
    if let Some(run) = psn.checked_div(run_chunks) {
        let is_last = psn - run * run_chunks == run_chunks - 1;
        let address = armed
            .destination
            .wrapping_add(psn.wrapping_mul(chunk_bytes))
            .wrapping_add(run.wrapping_mul(op.placed.run_gap));
        return Place { run, bytes: if is_last { armed.last_chunk_bytes } else { armed.chunk_bytes }, address };
    }
    let rows = table(&context.rows, &op.placed);
    let (row, index) = find_row(&rows, op.row, psn);
    op.row = index;
    op.row_first = row.first_psn;
    op.row_chunks = row.chunks;
    op.row_base = row.destination.wrapping_sub(u64::from(row.first_psn).wrapping_mul(chunk_bytes));
    let is_last = psn + 1 == u64::from(row.first_psn) + u64::from(row.chunks);
    Place {
        run: u64::from(index),
        bytes: if is_last { row.last_chunk_bytes } else { armed.chunk_bytes },
        address: op.row_base.wrapping_add(psn.wrapping_mul(chunk_bytes)),
    }
}

/// The row of a PSN: the current one, the next, or whichever a binary search finds. It has chunks: of several that
/// begin at one PSN the last has.
fn find_row(rows: &Table<RunRow>, current: u32, psn: u64) -> (RunRow, u32) {
    for guess in [current, current + 1] {
        if let Some(row) = rows.get(guess)
            && psn.wrapping_sub(u64::from(row.first_psn)) < u64::from(row.chunks)
        {
            return (row, guess);
        }
    }
    let (mut low, mut high) = (0, rows.len());
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if rows.get(middle).is_some_and(|row| u64::from(row.first_psn) <= psn) { low = middle } else { high = middle }
    }
    // `check_rows` has found a row for every PSN.
    (rows.get(low).unwrap_or(NO_ROW), low)
}

const NO_ROW: RunRow =
    RunRow { destination: 0, first_psn: 0, chunks: 0, last_chunk_bytes: 0, piece_chunks: 0, first_chunk: 0 };

/// Short chunks of the armed operation of a receive context, a bit per run.
pub(crate) fn tails(context: &ReceiveContext) -> BitmapView {
    BitmapView::attach(&context.tails, context.op.placed.roots)
}

fn table(rows: &TableMemory<RunRow>, placement: &Placement) -> Table<RunRow> {
    Table::attach(rows).first(placement.roots)
}

/// Whether operation and placement fit the context and one another.
pub(crate) fn check_placement(
    context: &ReceiveContext,
    operation: &Operation,
    placement: &Placement,
    transport: Transport,
) -> Result<(), ContextFault> {
    if operation.flags & !(OPERATION_CLOSED | OPERATION_REPORTS) != 0 {
        return Err(ContextFault::Flags);
    }
    let by_rows = placement.run_chunks == 0;
    let last_chunk_bytes = if by_rows { operation.chunk_bytes } else { operation.last_chunk_bytes };
    check_operation(context, operation, last_chunk_bytes, transport)?;
    let (chunks, roots) = (u64::from(operation.chunks), u64::from(placement.roots));
    if u64::from(placement.own_first) + u64::from(placement.own_chunks) > chunks {
        return Err(ContextFault::OwnChunks);
    }
    if roots > u64::from(context.tails.count()) * 64 {
        return Err(ContextFault::Runs);
    }
    if by_rows { check_rows(context, operation, placement) } else { check_runs(chunks, roots, placement) }
}

fn check_runs(chunks: u64, roots: u64, placement: &Placement) -> Result<(), ContextFault> {
    if roots * u64::from(placement.run_chunks) == chunks { Ok(()) } else { Err(ContextFault::Runs) }
}

fn check_rows(context: &ReceiveContext, operation: &Operation, placement: &Placement) -> Result<(), ContextFault> {
    let rows = table(&context.rows, placement);
    if rows.len() != placement.roots {
        return Err(ContextFault::Rows);
    }
    let mut next = 0u64;
    for row in (0..rows.len()).filter_map(|index| rows.get(index)) {
        if u64::from(row.first_psn) != next {
            return Err(ContextFault::Rows);
        }
        if row.chunks != 0 && !(1..=operation.chunk_bytes).contains(&row.last_chunk_bytes) {
            return Err(ContextFault::ChunkBytes);
        }
        next += u64::from(row.chunks);
    }
    if next == u64::from(operation.chunks) { Ok(()) } else { Err(ContextFault::Rows) }
}

/// Prepares the hot loop for the armed operation: how addresses are computed, and the bits of positions that it must
/// leave alone.
#[inline(always)]
pub(crate) fn set_out(context: &mut ReceiveContext) {
    let bitmap = BitmapView::attach(&context.bitmap, context.state.armed.chunks);
    let tails = tails(context);
    bitmap.clear();
    tails.clear();
    let armed = &context.state.armed;
    let op = &mut context.op;
    let placed = op.placed;
    op.stride = u64::from(armed.chunk_bytes);
    op.row = 0;
    op.row_first = 0;
    op.row_chunks = 0;
    op.mode = u32::from(match placed.run_chunks {
        0 => place::ROWS,
        1 => {
            op.stride = op.stride.wrapping_add(placed.run_gap);
            place::LINEAR
        }
        _ if placed.roots == 1 || placed.run_gap == 0 => place::LINEAR,
        run_chunks => {
            op.reciprocal = reciprocal(run_chunks);
            place::RUNS
        }
    });
    let own = u64::from(placed.own_first)..u64::from(placed.own_first) + u64::from(placed.own_chunks);
    bitmap.fill(own.start, own.end - own.start);
    let short = |run: u32, last: u64| {
        bitmap.fill(last, 1);
        if own.contains(&last) {
            tails.fill(u64::from(run), 1);
        }
    };
    if placed.run_chunks == 0 {
        let rows = table(&context.rows, &placed);
        for run in 0..rows.len() {
            let Some(row) = rows.get(run) else { break };
            if row.chunks != 0 && row.last_chunk_bytes != armed.chunk_bytes {
                short(run, u64::from(row.first_psn) + u64::from(row.chunks) - 1);
            }
        }
    } else if armed.last_chunk_bytes != armed.chunk_bytes {
        for run in 0..placed.roots {
            short(run, (u64::from(run) + 1) * u64::from(placed.run_chunks) - 1);
        }
    }
}
