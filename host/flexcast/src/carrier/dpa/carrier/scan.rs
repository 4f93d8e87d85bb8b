//! Scans the bitmaps of the receive contexts while an operation goes on: whether a quiet stream is over, and what a
//! flowing one has lost.

use flexcast_proto::{Cause, FailureCode, GapWatch, PieceSet, StallWindow};

use super::operation::{Operation, OwnBlock, Receiving, Scan};
use super::{DpaCarrier, DpaOperations, WORKER_PS};
use crate::engine::Protocol as _;
use crate::engine::event::Event;
use crate::error::Result;
use crate::op::stream::Transport;
use crate::plan::{Missing, Seen};

/// Repair concurrent with the data, in an operation that is expected to lose chunks.
#[derive(Debug)]
pub(super) struct Gaps {
    watch: GapWatch,
    /// Reports of the receive contexts that have been read.
    reports: u64,
    /// Since when nothing had come when the last chunks were found to be overdue.
    overdue_since_ps: u64,
    /// What the last scan has shown to be lost.
    pub(super) lost: Missing,
    /// What the last scan has shown to have come, until it is in its place.
    placing: Option<Placing>,
}

impl Gaps {
    /// Of an operation of which `remaining` chunks have not come, and on which the receive contexts have given so many
    /// reports, by themselves or not.
    const fn new(remaining: u64, (reports, reporting): (u64, bool)) -> Self {
        Self {
            watch: GapWatch::new(remaining, reporting),
            reports,
            overdue_since_ps: u64::MAX,
            lost: Missing::new(),
            placing: None,
        }
    }
}

/// Pieces of which all chunks have come.
#[derive(Debug)]
struct Placing {
    pieces: PieceSet,
    /// Completions that the receive contexts have consumed by then.
    consumed: Vec<u64>,
}

impl DpaCarrier {
    /// Whether the right neighbour's multicast is over, and with it this rank's. Where a root sends to each rank by
    /// itself it shows nothing.
    pub(super) fn is_over_for_neighbour(ops: &DpaOperations) -> bool {
        ops.core.config.transport != Transport::UcUnicast && ops.protocol.is_over_for_neighbour()
    }

    /// Scans the bitmaps where there is reason to. Returns whether that has shown anything.
    pub(super) fn poll_scan(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        let placed = self.poll_placing(ops, now_ps)? | self.poll_reports(ops, now_ps)?;
        let has_gaps = self.poll_gaps(ops)?;
        let over = Self::is_over_for_neighbour(ops);
        let Some(operation) = ops.current.as_mut() else { return Ok(placed) };
        let receive = &mut self.receive;
        // Where all chunks are there, and wait for their copies only, there is nothing to scan for.
        let is_quiet = operation.scan_ps(ops.stall, over, now_ps).is_some_and(|scan_ps| now_ps >= scan_ps)
            && receive.remaining()? > 0;
        match operation.stream.scan {
            Scan::Idle if (is_quiet || has_gaps) && receive.is_free()? => {
                receive.read_flags()?;
                operation.stream.scan = Scan::Asked { over, since_ps: now_ps };
                if let Some(watch) = &mut operation.stream.watch {
                    watch.note_scan(over);
                }
            }
            Scan::Asked { over, .. } if receive.has_answered()? => {
                return Ok(self.take_scan(ops, now_ps, over)? || placed);
            }
            Scan::Asked { since_ps, .. } if now_ps.saturating_sub(since_ps) > WORKER_PS => {
                operation.stream.scan = Scan::Final;
                ops.fail_here(now_ps, Cause::Device(FailureCode::WorkerSilent));
                return Ok(true);
            }
            Scan::Idle | Scan::Asked { .. } | Scan::Final => {}
        }
        Ok(placed)
    }

    /// Takes what the receive contexts have reported by themselves, when that is due. Returns whether there was
    /// anything.
    fn poll_reports(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        let receive = &self.receive;
        let Some(operation) = ops.current.as_mut().filter(|operation| operation.may_repair()) else { return Ok(false) };
        if !receive.is_reporting() {
            return Ok(false);
        }
        let overdue = operation.is_overdue(ops.stall, now_ps);
        let (reports, remaining) = (receive.reports()?, receive.remaining()?);
        let gaps = operation.stream.gaps.get_or_insert_with(|| Gaps::new(remaining, (reports, true)));
        let is_new = reports != gaps.reports && gaps.watch.is_due(remaining);
        let ends = overdue && remaining > 0 && GapWatch::is_near_end(remaining.saturating_sub(gaps.watch.lost()));
        // Once for each time that nothing comes.
        let since_ps = operation.stream.watch.map_or(0, |watch| watch.since_ps());
        if !is_new && (!ends || gaps.overdue_since_ps == since_ps) {
            return Ok(false);
        }
        (gaps.reports, gaps.overdue_since_ps) = (reports, if ends { since_ps } else { u64::MAX });
        self.take_scan(ops, now_ps, false)
    }

    /// Whether the bitmaps are to be scanned for gaps, although chunks come: the right neighbour waits for what has
    /// come, and the receive contexts do not report by themselves.
    fn poll_gaps(&mut self, ops: &mut DpaOperations) -> Result<bool> {
        let receive = &self.receive;
        let may_scan = !ops.stall.reorders() && !receive.is_reporting() && ops.protocol.is_on_host();
        let Some(operation) = ops.current.as_mut().filter(|operation| may_scan && operation.may_repair()) else {
            return Ok(false);
        };
        let asked = operation.stream.gaps.is_none() && ops.protocol.owes();
        if !asked && operation.stream.gaps.is_none() {
            return Ok(false);
        }
        let remaining = receive.remaining()?;
        let gaps = operation.stream.gaps.get_or_insert_with(|| Gaps::new(remaining, (0, false)));
        Ok(asked || gaps.watch.is_due(remaining))
    }

    /// Takes what a scan has shown. `over`: the right neighbour's multicast was over when it was asked for. Returns
    /// whether that is news.
    fn take_scan(&mut self, ops: &mut DpaOperations, now_ps: u64, over: bool) -> Result<bool> {
        let Some(operation) = ops.current.as_mut() else { return Ok(false) };
        let receive = &mut self.receive;
        let mut seen = receive.seen(&operation.plan, &operation.pieces, &self.derived, false)?;
        let nothing_came = operation.stream.watch.is_some_and(|watch| watch.has_scanned());
        let overdue = receive.is_reporting() && operation.is_overdue(ops.stall, now_ps);
        let overdue = overdue && GapWatch::is_near_end(seen.ahead) && !seen.awaits_root;
        if seen.ahead > 0 && ((over && nothing_came) || overdue) {
            seen = receive.seen(&operation.plan, &operation.pieces, &self.derived, true)?;
        }
        let is_final = seen.is_final();
        let was_asked = matches!(operation.stream.scan, Scan::Asked { .. });
        operation.stream.scan = match operation.stream.scan {
            _ if is_final => Scan::Final,
            // It is under way still.
            Scan::Asked { .. } if !receive.has_answered()? => operation.stream.scan,
            _ => Scan::Idle,
        };
        let has_stalled = operation.stalled_ps(ops.stall).is_some_and(|stalled_ps| now_ps >= stalled_ps);
        if was_asked
            && has_stalled
            && let Some(watch) = operation.stream.watch.as_mut().filter(|_| !is_final)
        {
            // The answer took so long that chunks had no time to come.
            watch.restart(now_ps);
        }
        if ops.protocol.is_on_host() && (is_final || operation.stream.gaps.is_some()) {
            let consumed = receive.consumed()?;
            self.note_gaps(ops, now_ps, seen, consumed);
        }
        Ok(true)
    }

    /// Notifies the protocol of what has been lost so far, and takes note of what has come.
    fn note_gaps(&mut self, ops: &mut DpaOperations, now_ps: u64, seen: Seen, consumed: Vec<u64>) {
        let Some(operation) = ops.current.as_mut() else { return };
        let gaps = operation.stream.gaps.get_or_insert_with(|| Gaps::new(0, (0, false)));
        if !gaps.lost.is_within(&seen.lost) {
            // What had been overtaken has come: it was asked for in vain.
            ops.stall.came_late();
        }
        gaps.watch.scanned(seen.lost.len() as u64, seen.ahead);
        let incomplete = seen.lost.pieces(&operation.plan, &operation.pieces);
        let pieces = operation.plan.foreign_pieces().without(&incomplete).without(&seen.ahead_in);
        gaps.placing = Some(Placing { pieces, consumed });
        operation.report.recovered_chunks = seen.lost.len() as u64;
        operation.report.recovered_bytes = seen.lost.bytes();
        // All that is missing of a piece is to be read at once.
        let (pieces, last) = (incomplete.without(&seen.ahead_in), seen.is_final());
        gaps.lost = seen.lost;
        if !pieces.is_empty() {
            ops.protocol.handle(now_ps, Event::Lost { pieces, last });
        }
    }

    /// Notifies the protocol of the pieces that had come by the last scan, once they are in their place. Returns
    /// whether they are.
    fn poll_placing(&mut self, ops: &mut DpaOperations, now_ps: u64) -> Result<bool> {
        let Some(gaps) = ops.current.as_mut().and_then(|operation| operation.stream.gaps.as_mut()) else {
            return Ok(false);
        };
        let Some(Placing { pieces, consumed }) = &gaps.placing else { return Ok(false) };
        if !self.receive.are_placed(consumed)? {
            return Ok(false);
        }
        let pieces = *pieces;
        gaps.placing = None;
        ops.protocol.handle(now_ps, Event::Placed { pieces });
        Ok(true)
    }

    /// Everything is there, some of it read from a peer: the receive contexts, which wait for that, are closed.
    pub(super) fn close_repaired(ops: &mut DpaOperations, now_ps: u64) {
        let Some(operation) = ops.current.as_mut().filter(|operation| operation.has_repaired()) else { return };
        if let Some(sides) = operation.stream.sides.as_mut() {
            sides.receiving = Receiving::Closing;
            operation.report.phases.0.cut_off_ps = Some(now_ps);
        }
    }
}

impl Operation {
    /// Whether the next chunk is overdue.
    fn is_overdue(&self, window: StallWindow, now_ps: u64) -> bool {
        let overdue_ps = self.stream.watch.filter(|_| !self.is_held(now_ps)).and_then(|watch| watch.overdue_ps(window));
        overdue_ps.is_some_and(|overdue_ps| now_ps >= overdue_ps)
    }

    /// Whether what has come is on its way to its place.
    pub(super) fn is_placing(&self) -> bool {
        self.stream.gaps.as_ref().is_some_and(|gaps| gaps.placing.is_some())
    }

    /// Whether a scan for gaps may begin: chunks come, or may come.
    fn may_repair(&self) -> bool {
        let stream = &self.stream;
        stream.watch.is_some()
            && stream.scan != Scan::Final
            && stream.is_armed()
            && !self.state.is_failed()
            && stream.own_block != OwnBlock::Copying
    }

    /// Whether the protocol has everything, and multicast has lost some of it.
    fn has_repaired(&self) -> bool {
        self.stream.is_armed()
            && self.report.phases.0.complete_ps.is_some()
            && self.stream.gaps.as_ref().is_some_and(|gaps| gaps.watch.lost() > 0)
    }
}
