//! Watch over the operation under way: what has come, what is lost, and how long nothing may come.

use flexcast_proto::{Algorithm, PieceSet, ProgressWatch, StallWindow};

use super::incoming::Incoming;
use super::operation::Running;
use crate::protocol::conversation::Conversation;
use crate::protocol::driver::Notice;

/// Notifies the protocol of what has come and of what is lost. `quiet_ps`: how long nothing comes before a chunk that others have overtaken counts as
/// lost, wherever that is in the block. Returns whether that is news.
pub(crate) fn look<R>(
    running: &mut Running<R>,
    incoming: &mut Incoming,
    conversation: &mut Conversation,
    quiet_ps: u64,
    now_ps: u64,
) -> bool {
    if running.algorithm != Algorithm::Multicast || !running.state.is_active() {
        return false;
    }
    if conversation.participant().ready_ps().is_some() {
        let count = incoming.came();
        running.watch.get_or_insert_with(|| ProgressWatch::new(count, now_ps));
    }
    let phases = &mut running.report.phases.0;
    if incoming.remaining() == 0 {
        if phases.received_ps.is_some() {
            return false;
        }
        phases.received_ps = Some(now_ps);
        conversation.notify(now_ps, Notice::Received);
        return true;
    }
    let is_quiet = self::quiet_ps(running, incoming, quiet_ps).is_some_and(|quiet_ps| now_ps >= quiet_ps);
    let mut moved = false;
    let has_passed = conversation.participant().ready_ps().is_some();
    if incoming.is_suspicious() && has_passed && !running.given_up {
        let lost = incoming.take_lost(&running.pieces, is_quiet);
        if !lost.is_empty() {
            let last = incoming.is_over() && !incoming.is_suspicious();
            running.given_up |= last;
            conversation.notify(now_ps, Notice::Lost { pieces: lost, last });
            running.repairs = true;
            moved = true;
        }
    }
    // The right neighbour may wait for what is whole here, and the own end for what is not read.
    if has_passed && (running.repairs || conversation.participant().owes()) {
        let pieces: PieceSet = incoming.take_whole();
        if !pieces.is_empty() {
            conversation.notify(now_ps, Notice::Placed { pieces });
            moved = true;
        }
    }
    moved
}

/// When chunks that have been overtaken count as lost although few others have come since.
pub(crate) fn quiet_ps<R>(running: &Running<R>, incoming: &Incoming, quiet_ps: u64) -> Option<u64> {
    let watch = running.watch.filter(|_| running.state.is_active() && incoming.is_suspicious())?;
    Some(watch.since_ps().saturating_add(quiet_ps))
}

/// Notifies the protocol of the time, and of a stall. From the barrier to the end of multicast it is not the time that counts, but how long nothing has
/// come. `stuck_ps`: how long a root may send nothing before the operation's bound counts. Returns whether anything has happened.
pub(crate) fn poll_time<R>(
    running: &mut Running<R>,
    incoming: &mut Incoming,
    conversation: &mut Conversation,
    (stall, stuck_ps): (StallWindow, u64),
    now_ps: u64,
) -> bool {
    let stalled_ps = running.stalled_ps(stall).filter(|_| incoming.remaining() > 0);
    let mut moved = false;
    if let Some(stalled_ps) = stalled_ps.filter(|_| running.state.is_active())
        && now_ps >= stalled_ps
    {
        let lost = incoming.give_up(&running.pieces);
        running.given_up = true;
        running.report.phases.0.cut_off_ps = Some(now_ps);
        conversation.notify(now_ps, Notice::CutOff { lost });
        moved = true;
    }
    // Neither a stream that comes nor one that goes is too slow as long as it moves.
    let comes = incoming.remaining() > 0 && running.stalled_ps(stall).is_some_and(|stalled_ps| now_ps < stalled_ps);
    let goes = running.sending.is_some_and(|sending| now_ps.saturating_sub(sending.moved_ps) < stuck_ps);
    let flows = comes || goes;
    let due = now_ps >= running.deadline_ps;
    let told_ps = if flows { now_ps.min(running.deadline_ps.saturating_sub(1)) } else { now_ps };
    conversation.notify(told_ps, Notice::Time);
    moved || (due && !flows)
}
