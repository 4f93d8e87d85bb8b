//! Watch over the operation under way: what has come, what is lost, and how long nothing may come.

use flexcast_proto::{Algorithm, PieceSet, ProgressWatch, StallWindow};

use super::incoming::Incoming;
use super::operation::{Stream, stalled_ps};
use crate::engine::conversation::Conversation;
use crate::engine::event::Event;
use crate::engine::{Carrier, Operation, Operations};

/// Notifies the protocol of what has come and of what is lost. `quiet_ps`: how long nothing comes before a chunk that
/// others have overtaken counts as lost, wherever that is in the block. Returns whether that is news.
pub(crate) fn detect_losses<C, R>(ops: &mut Operations<C>, incoming: &mut Incoming, quiet_ps: u64, now_ps: u64) -> bool
where
    C: Carrier<Stream = Stream<R>, Protocol = Conversation>,
{
    let Operations { current: Some(operation), protocol: conversation, .. } = ops else { return false };
    if operation.algorithm != Algorithm::Multicast || !operation.state.is_active() {
        return false;
    }
    let has_passed = conversation.participant().ready_ps().is_some();
    if has_passed {
        let count = incoming.came();
        operation.stream.watch.get_or_insert_with(|| ProgressWatch::new(count, now_ps));
    }
    let phases = &mut operation.report.phases.0;
    if incoming.remaining() == 0 {
        if phases.received_ps.is_some() {
            return false;
        }
        phases.received_ps = Some(now_ps);
        conversation.handle(now_ps, Event::Received);
        return true;
    }
    let is_quiet = self::quiet_ps(operation, incoming, quiet_ps).is_some_and(|quiet_ps| now_ps >= quiet_ps);
    let stream = &mut operation.stream;
    let mut moved = false;
    if incoming.is_suspicious() && has_passed && !stream.given_up {
        let lost = incoming.take_lost(&operation.pieces, is_quiet);
        if !lost.is_empty() {
            let last = incoming.is_over() && !incoming.is_suspicious();
            stream.given_up |= last;
            conversation.handle(now_ps, Event::Lost { pieces: lost, last });
            stream.repairs = true;
            moved = true;
        }
    }
    // The right neighbour may wait for what is whole here, and the own end for what is not read.
    if has_passed && (stream.repairs || conversation.participant().owes()) {
        let pieces: PieceSet = incoming.take_whole();
        if !pieces.is_empty() {
            conversation.handle(now_ps, Event::Placed { pieces });
            moved = true;
        }
    }
    moved
}

/// When chunks that have been overtaken count as lost although few others have come since.
pub(crate) fn quiet_ps<C, R>(operation: &Operation<C>, incoming: &Incoming, quiet_ps: u64) -> Option<u64>
where
    C: Carrier<Stream = Stream<R>>,
{
    let watch = operation.stream.watch.filter(|_| operation.state.is_active() && incoming.is_suspicious())?;
    Some(watch.since_ps().saturating_add(quiet_ps))
}

/// When the multicast of an operation counts as stalled, if that waits for more.
pub(crate) fn stall_ps<C, R>(operation: &Operation<C>, incoming: &Incoming, window: StallWindow) -> Option<u64>
where
    C: Carrier<Stream = Stream<R>>,
{
    stalled_ps(operation, window).filter(|_| incoming.remaining() > 0 && operation.state.is_active())
}

/// Notifies the protocol of the time, and of a stall. From the barrier to the end of multicast it is not the time that
/// counts, but how long nothing has come. `stuck_ps`: how long a root may send nothing before the operation's bound
/// counts. Returns whether anything has happened.
pub(crate) fn poll_time<C, R>(ops: &mut Operations<C>, incoming: &mut Incoming, stuck_ps: u64, now_ps: u64) -> bool
where
    C: Carrier<Stream = Stream<R>, Protocol = Conversation>,
{
    let window = ops.stall;
    let Operations { current: Some(operation), protocol: conversation, .. } = ops else { return false };
    let mut moved = false;
    if stall_ps(operation, incoming, window).is_some_and(|stalled_ps| now_ps >= stalled_ps) {
        let lost = incoming.give_up(&operation.pieces);
        operation.stream.given_up = true;
        operation.report.phases.0.cut_off_ps = Some(now_ps);
        conversation.handle(now_ps, Event::CutOff { lost });
        moved = true;
    }
    // Neither a stream that comes nor one that goes is too slow as long as it moves.
    let comes = incoming.remaining() > 0 && stalled_ps(operation, window).is_some_and(|at_ps| now_ps < at_ps);
    let goes = operation.stream.sending.is_some_and(|sending| now_ps.saturating_sub(sending.moved_ps) < stuck_ps);
    let flows = comes || goes;
    let due = now_ps >= operation.deadline_ps;
    let notified_ps = if flows { now_ps.min(operation.deadline_ps.saturating_sub(1)) } else { now_ps };
    conversation.handle(notified_ps, Event::Time);
    if flows {
        // What is behind the stream has its full bound, however long the stream takes.
        conversation.handle(now_ps, Event::Progressed);
    }
    moved || (due && !flows)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flexcast_proto::wire::{Availability, Encoded};
    use flexcast_proto::{Action, Cause, RankInfo, WaitedFor};

    use super::*;
    use crate::carrier::cpu::operation::Sending;
    use crate::engine::scripted::With;
    use crate::engine::{Core, Operation, Posted, State};
    use crate::op::buffer::Buffer;
    use crate::op::config::{Config, ps};
    use crate::op::decision::Decision;
    use crate::plan::chains::{Order, order};
    use crate::plan::{Kind, Plan};

    const CHUNK_BYTES: u32 = 64;
    const CHUNKS: u32 = 300;
    const STUCK_PS: u64 = 5_000_000_000;

    fn config() -> Config {
        let config = Config::default().with_subgroups(1).chunk_bytes(CHUNK_BYTES).link_gbit_per_s(10);
        config.recovery_timeout(Duration::from_millis(1)).barrier_timeout(Duration::from_secs(1))
    }

    fn stall() -> StallWindow {
        StallWindow::new(ps(Duration::from_millis(2)))
    }

    /// One of two ranks in a Broadcast from rank 0, as a carrier on processors drives it, in virtual time.
    struct Side {
        ops: Operations<With<Conversation, Stream<()>>>,
        incoming: Incoming,
        bound_ps: u64,
        /// The first of the pieces that it has been asked to read.
        reads: Vec<u32>,
    }

    impl Side {
        fn new(rank: u32) -> Self {
            let bytes = u64::from(CHUNKS * CHUNK_BYTES);
            let plan = Plan::new(Kind::Broadcast { root: 0, bytes }, rank, 2, CHUNK_BYTES, 1);
            let place = RankInfo::new(rank, 2).unwrap();
            let mut conversation = Conversation::new(place, 1, 0);
            conversation.connect(7);
            let core = Core::new(place, 7, config());
            let mut ops = Operations::<With<Conversation, Stream<()>>>::new(core, conversation, stall());
            let Order { chains, turn, .. } = order(&plan, &ops.core.config, rank);
            let receive = Buffer::of_host(bytes as usize).unwrap();
            let posted = Posted { request: 0, plan, send: None, receive, posted_ps: 0 };
            let mut operation = Operation::new(posted, Decision::of(Algorithm::Multicast), (), Stream::default());
            (operation.number, operation.state) = (1, State::Active);
            let descriptor = ops.describe(&operation, &ops.core.config, chains);
            ops.protocol.start((descriptor, turn), Availability::default(), operation.plan.foreign_pieces());
            ops.protocol.handle(0, Event::Armed);
            ops.protocol.handle(0, Event::OwnBlock);
            let mut incoming = Incoming::new(16);
            incoming.restart(&operation.plan, &operation.pieces, CHUNK_BYTES).unwrap();
            ops.current = Some(operation);
            Self { ops, incoming, bound_ps: descriptor.bound_ps, reads: Vec::new() }
        }

        fn operation(&mut self) -> &mut Operation<With<Conversation, Stream<()>>> {
            self.ops.current.as_mut().unwrap()
        }

        fn state(&self) -> State {
            self.ops.current.as_ref().unwrap().state
        }

        /// Polls it once, and returns what it sends to the other.
        fn poll(&mut self, now_ps: u64) -> Vec<Encoded> {
            let Self { ops, incoming, reads, .. } = self;
            detect_losses(ops, incoming, u64::MAX, now_ps);
            poll_time(ops, incoming, STUCK_PS, now_ps);
            let Operations { protocol, current: Some(operation), .. } = ops else { return Vec::new() };
            let mut sent = Vec::new();
            while let Some(action) = protocol.next() {
                match action {
                    Action::Send { message, .. } => sent.push(protocol.encode(&message).0),
                    Action::Multicast => {
                        let (first_psn, chunks) = incoming.own_psns();
                        let sending = Sending { first_psn, chunks, sent: 0, moved_ps: now_ps, full_ps: None };
                        operation.stream.sending = Some(sending);
                    }
                    Action::Read { pieces, .. } => {
                        protocol.fetch(pieces, 1);
                        reads.extend(pieces.first());
                    }
                    Action::Release => _ = operation.state.release(),
                    Action::Fail(failure) => operation.fail(failure, 0, now_ps),
                }
            }
            operation.deadline_ps = protocol.participant().deadline_ps().unwrap_or(u64::MAX);
            sent
        }

        fn receive(&mut self, from: u32, messages: &[Encoded]) {
            messages.iter().for_each(|message| self.ops.protocol.receive(from, message.as_bytes()));
        }

        /// The root's system has taken all.
        fn has_sent(&mut self, now_ps: u64) {
            self.operation().stream.sending = None;
            self.ops.protocol.handle(now_ps, Event::Sent);
        }
    }

    /// Both have passed the barrier, and the root sends.
    fn begun() -> (Side, Side) {
        let (mut root, mut other) = (Side::new(0), Side::new(1));
        for at_ps in 0..4 {
            let messages = root.poll(at_ps);
            other.receive(0, &messages);
            let messages = other.poll(at_ps);
            root.receive(1, &messages);
        }
        assert!(root.operation().stream.sending.is_some() && other.operation().stream.watch.is_some());
        (root, other)
    }

    /// Everything is lost, and the other rank has begun to read all of it.
    fn reading() -> (Side, Side, u64) {
        let (mut root, mut other) = begun();
        root.has_sent(4);
        let mut now_ps = 4;
        while other.reads.is_empty() {
            now_ps += ps(Duration::from_micros(100));
            let messages = other.poll(now_ps);
            root.receive(1, &messages);
            let messages = root.poll(now_ps);
            other.receive(0, &messages);
            assert!(now_ps < ps(Duration::from_millis(10)), "a stall after two milliseconds");
        }
        (root, other, now_ps)
    }

    #[test]
    fn a_stream_may_take_many_times_the_bound_and_what_is_behind_it_has_all_of_it() {
        let (mut root, mut other) = begun();
        // As copies into memory whose pages are made meanwhile: much slower than the network.
        let gap_ps = root.bound_ps / 50;
        let mut now_ps = 10;
        for psn in 0..CHUNKS {
            now_ps += gap_ps;
            let sending = root.operation().stream.sending.as_mut().unwrap();
            (sending.sent, sending.moved_ps) = (psn + 1, now_ps);
            let Side { incoming, ops, .. } = &mut other;
            let Operation { pieces, receive, stream, .. } = ops.current.as_mut().unwrap();
            incoming.take_by(pieces, (psn, CHUNK_BYTES as usize), receive.bytes_mut(), |to| to.fill(1));
            stream.watch.as_mut().unwrap().poll(incoming.came(), now_ps);
            if psn + 1 < CHUNKS {
                assert!(root.poll(now_ps).is_empty() && other.poll(now_ps).is_empty());
            }
        }
        assert!(now_ps > 5 * root.bound_ps);
        root.has_sent(now_ps);
        let messages = root.poll(now_ps);
        assert!(root.state().is_active(), "it waits for the other");
        other.receive(0, &messages);
        let messages = other.poll(now_ps);
        assert_eq!(messages.len(), 1, "it has everything");
        // The other's last message is on its way for nearly the bound.
        now_ps += root.bound_ps - 10;
        assert!(root.poll(now_ps).is_empty());
        root.receive(1, &messages);
        let messages = root.poll(now_ps);
        other.receive(0, &messages);
        other.poll(now_ps);
        assert!(matches!((root.state(), other.state()), (State::Released, State::Released)));
    }

    #[test]
    fn reads_may_take_many_times_the_bound_as_long_as_bytes_come_and_go() {
        let (mut root, mut other, mut now_ps) = reading();
        for _ in 0..20 {
            now_ps += root.bound_ps / 2;
            // A part of what was asked for has gone, and has come.
            root.ops.protocol.moved();
            other.ops.protocol.moved();
            assert!(root.poll(now_ps).is_empty() && other.poll(now_ps).is_empty());
        }
        now_ps += root.bound_ps.min(other.bound_ps) - 10;
        let first = other.reads[0];
        other.ops.protocol.read(first);
        let messages = other.poll(now_ps);
        root.receive(1, &messages);
        let messages = root.poll(now_ps);
        other.receive(0, &messages);
        other.poll(now_ps);
        assert!(matches!((root.state(), other.state()), (State::Released, State::Released)));
    }

    #[test]
    fn a_read_of_which_nothing_comes_fails_a_bound_after_the_last_progress() {
        let (mut root, mut other, mut now_ps) = reading();
        for _ in 0..4 {
            now_ps += root.bound_ps / 2;
            root.ops.protocol.moved();
            other.ops.protocol.moved();
            root.poll(now_ps);
            other.poll(now_ps);
        }
        let bound_ps = other.bound_ps;
        other.poll(now_ps + bound_ps - 1);
        assert_eq!(other.ops.protocol.participant().deadline_ps(), Some(now_ps + bound_ps));
        // For a quarter of the bound others may contradict.
        for at_ps in [bound_ps, bound_ps + 1, bound_ps + bound_ps / 4 + 2] {
            other.poll(now_ps + at_ps);
        }
        let State::Failed(failure) = other.state() else { panic!("{:?}", other.state()) };
        assert_eq!(failure.cause, Cause::Silent(WaitedFor::Block));
    }
}
