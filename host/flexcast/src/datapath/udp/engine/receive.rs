//! The receiving side: datagrams, acknowledgements, and what is lost.

use flexcast_abi::Statistics;
use flexcast_proto::{PieceSet, ProgressWatch};

use super::operation::Running;
use super::{Algorithm, Engine};
use crate::datapath::udp::datagram::{Codec, Datagram, Kind, Refused};
use crate::datapath::udp::incoming::{Incoming, Taken};
use crate::datapath::udp::sockets::Sent;
use crate::datapath::udp::window;
use crate::error::Result;
use crate::plan::Plan;
use crate::protocol::driver::Notice;

/// Reads of a socket before others have their turn.
const MOST_READS: u32 = 4;
/// How long nothing comes before a chunk that others have overtaken counts as lost, wherever that is in the block.
const QUIET_PS: u64 = 500_000_000;

/// Counts a datagram that was not delivered.
fn refuse(statistics: &mut Statistics, refused: Refused) {
    match refused {
        Refused::Foreign => statistics.unexpected_opcode += 1,
        Refused::Forged => statistics.error_cqes += 1,
    }
}

impl Engine {
    /// Takes what has been multicast. Returns whether there was anything.
    pub(super) fn receive_data(&mut self) -> Result<bool> {
        let now_ps = self.interface.now_ps();
        let Self { sockets, codec, incoming, statistics, current, tap, .. } = self;
        let mut table = Vec::new();
        let mut running = current.as_mut().filter(|running| running.algorithm == Algorithm::Multicast);
        let plan: Option<Plan> = running.as_ref().map(|running| running.plan.clone());
        let space = match &plan {
            Some(plan) => Some(plan.space(Self::stream(), &mut table)?),
            None => None,
        };
        let mut deliver = |bytes: &[u8]| {
            let Some(space) = &space else {
                statistics.wrong_id += 1;
                return;
            };
            take(codec, bytes, incoming, statistics, |incoming, statistics, datagram| {
                let Some(running) = running.as_mut().filter(|running| running.operation == datagram.operation) else {
                    statistics.wrong_id += 1;
                    return Taken::Duplicate;
                };
                match datagram.kind {
                    Kind::Data { psn } => {
                        let Running { plan, pieces, receive, .. } = &mut **running;
                        incoming.take(plan, pieces, space, (psn, datagram.chunk), receive.bytes_mut())
                    }
                    Kind::End { chunks } => incoming.ended(&running.pieces, datagram.rank, chunks),
                    Kind::Acknowledgement { .. } => Taken::OutOfRange,
                }
            });
        };
        let mut any = false;
        for _ in 0..MOST_READS {
            let came = match tap {
                None => sockets.receive(&mut deliver)?,
                Some(tap) => sockets.receive(&mut |bytes| tap.take(bytes, &mut deliver))?,
            };
            if !came {
                break;
            }
            any = true;
        }
        if any {
            statistics.activations += 1;
        }
        self.acknowledge()?;
        if let Some(running) = self.current.as_mut()
            && let Some(watch) = running.watch.as_mut()
        {
            watch.poll(self.incoming.came(), now_ps);
        }
        Ok(any)
    }

    /// Tells roots how far their blocks have come.
    fn acknowledge(&mut self) -> Result<()> {
        let Some(running) = self.current.as_ref().filter(|running| running.algorithm == Algorithm::Multicast) else {
            return Ok(());
        };
        let Self { incoming, codec, sockets, peers, .. } = self;
        let mut failed = None;
        incoming.acknowledgements(window::step(running.window_chunks), |rank, chunks| {
            let mut bytes = [0; 64];
            let len = codec.encode(running.operation, Kind::Acknowledgement { chunks }, &[], &mut bytes);
            // One that is lost is made good by the next.
            match sockets.send_to(peers[rank as usize], &bytes[..len]) {
                Ok(Sent::All | Sent::Full | Sent::Single | Sent::Lost) => {}
                Err(error) => failed = Some(error),
            }
        });
        failed.map_or(Ok(()), Err)
    }

    /// Takes acknowledgements. Returns whether there were any.
    pub(super) fn receive_acknowledgements(&mut self) -> Result<bool> {
        let Self { sockets, codec, window, statistics, current, tap, .. } = self;
        let operation = current.as_ref().map(|running| running.operation);
        let mut deliver = |bytes: &[u8]| match codec.decode(bytes) {
            Ok(Datagram { rank, operation: of, kind: Kind::Acknowledgement { chunks }, .. })
                if Some(of) == operation =>
            {
                window.acknowledge(rank, chunks);
            }
            Ok(_) => statistics.wrong_id += 1,
            Err(refused) => refuse(statistics, refused),
        };
        match tap {
            None => sockets.receive_own(&mut deliver),
            Some(tap) => sockets.receive_own(&mut |bytes| tap.take(bytes, &mut deliver)),
        }
    }

    /// Notifies the protocol of what has come and of what is lost. Returns whether that is news.
    pub(super) fn look(&mut self, now_ps: u64) -> Result<bool> {
        let Some(running) = self.current.as_mut() else { return Ok(false) };
        if running.algorithm != Algorithm::Multicast || !running.state.is_active() {
            return Ok(false);
        }
        if self.conversation.participant().ready_ps().is_some() {
            let count = self.incoming.came();
            running.watch.get_or_insert_with(|| ProgressWatch::new(count, now_ps));
        }
        let phases = &mut running.report.phases.0;
        if self.incoming.remaining() == 0 {
            if phases.received_ps.is_some() {
                return Ok(false);
            }
            phases.received_ps = Some(now_ps);
            self.conversation.notify(now_ps, Notice::Received);
            return Ok(true);
        }
        let is_quiet = quiet_ps(running, &self.incoming).is_some_and(|quiet_ps| now_ps >= quiet_ps);
        let mut moved = false;
        let has_passed = self.conversation.participant().ready_ps().is_some();
        if self.incoming.is_suspicious() && has_passed && !running.given_up {
            let lost = self.incoming.take_lost(&running.pieces, is_quiet);
            if !lost.is_empty() {
                let last = self.incoming.is_over() && !self.incoming.is_suspicious();
                running.given_up |= last;
                self.conversation.notify(now_ps, Notice::Lost { pieces: lost, last });
                running.repairs = true;
                moved = true;
            }
        }
        // The right neighbour may wait for what is whole here, and the own end for what is not read.
        if has_passed && (running.repairs || self.conversation.participant().owes()) {
            let pieces: PieceSet = self.incoming.take_whole();
            if !pieces.is_empty() {
                self.conversation.notify(now_ps, Notice::Placed { pieces });
                moved = true;
            }
        }
        Ok(moved)
    }
}

/// When chunks that have been overtaken count as lost although few others have come since.
pub(super) fn quiet_ps(running: &Running, incoming: &Incoming) -> Option<u64> {
    let watch = running.watch.filter(|_| running.state.is_active() && incoming.is_suspicious())?;
    Some(watch.since_ps().saturating_add(QUIET_PS))
}

/// Takes a datagram, by `place` if it is one, and counts it.
fn take(
    codec: &Codec,
    bytes: &[u8],
    incoming: &mut Incoming,
    statistics: &mut Statistics,
    place: impl FnOnce(&mut Incoming, &mut Statistics, Datagram<'_>) -> Taken,
) {
    if codec.is_own(bytes) {
        return;
    }
    statistics.cqes += 1;
    let datagram = match codec.decode(bytes) {
        Ok(datagram) => datagram,
        Err(refused) => return refuse(statistics, refused),
    };
    let is_data = matches!(datagram.kind, Kind::Data { .. });
    match place(incoming, statistics, datagram) {
        Taken::New if is_data => statistics.accepted += 1,
        Taken::New => {}
        Taken::Duplicate => statistics.duplicates += u32::from(is_data) as u64,
        Taken::OutOfRange => statistics.out_of_range += 1,
        Taken::WrongLength => statistics.wrong_length += 1,
    }
}
