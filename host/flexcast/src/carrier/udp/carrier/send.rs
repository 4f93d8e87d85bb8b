//! The sending side: the own block as runs of datagrams, as far as the window allows.

use super::{UdpCarrier, UdpOperations};
use crate::carrier::cpu::operation::Sending;
use crate::carrier::udp::datagram::{Codec, HEADER_BYTES, Kind};
use crate::carrier::udp::fanout::Fanout;
use crate::carrier::udp::pace::Block;
use crate::carrier::udp::sockets::{Sent, Sockets, most_of_run};
use crate::carrier::udp::workers::Workers;
use crate::engine::Operations;
use crate::engine::event::Event;
use crate::error::Result;

/// Most chunks of a root that are under way: what is taken from the cache, not from memory.
pub(super) const MOST_WINDOW_CHUNKS: u32 = 2048;
/// Runs that are sent before what has come is taken.
const MOST_RUNS: u32 = 4;
/// How long a full send buffer is left alone.
pub(super) const FULL_PS: u64 = 500_000_000;
/// How long a root may send nothing before the operation's bound counts: longer than any wait for an acknowledgement.
pub(super) const STUCK_PS: u64 = 200_000_000_000;
/// How often the end of a block is sent: a lost one costs the wait for a stall.
const ENDS: usize = 2;

/// Where this rank's datagrams go: to the ranks of this computer through memory, if they share it, and to others over
/// the network.
struct Outward<'e> {
    sockets: &'e mut Sockets,
    workers: &'e mut Workers,
    codec: &'e Codec,
    /// Has room for the longest run.
    run: &'e mut [u8],
    fanout: Option<&'e Fanout>,
    /// Ranks of this computer see datagrams with tags, too.
    is_tapped: bool,
}

/// A run of datagrams.
#[derive(Clone, Copy)]
struct Head {
    operation: u32,
    subgroup: u32,
    /// Bytes of each datagram; the last may be shorter.
    datagram_bytes: usize,
    /// It ends a block.
    is_end: bool,
}

impl Outward<'_> {
    /// Datagrams of so many bytes that go in one run.
    fn run_of(&self, datagram_bytes: usize) -> usize {
        match self.fanout {
            Some(fanout) if fanout.has_all() => most_of_run(datagram_bytes),
            _ => self.sockets.lane.run_of(datagram_bytes),
        }
    }

    /// Sends a run of datagrams to a subgroup: what has become of it, and its bytes.
    fn send<'c>(
        &mut self,
        head: Head,
        chunks: impl Iterator<Item = (Kind, &'c [u8])> + Clone,
    ) -> Result<(Sent, usize)> {
        let Self { sockets, workers, codec, run, fanout, is_tapped } = self;
        let Head { operation, subgroup, datagram_bytes, is_end } = head;
        let len = chunks.clone().map(|(_, chunk)| HEADER_BYTES + chunk.len()).sum();
        let near = fanout.filter(|fanout| fanout.has_others());
        let is_home = near.is_some_and(Fanout::has_all);
        if let Some(fanout) = near.filter(|_| is_home && !*is_tapped) {
            let is_written = fanout.write(len, datagram_bytes, |ring| {
                for (kind, chunk) in chunks {
                    ring.put(&codec.untagged(operation, kind));
                    ring.put(chunk);
                }
            });
            return Ok((if is_written { Sent::All } else { Sent::Full }, len));
        }
        if near.is_some_and(|fanout| !fanout.has_room(len)) {
            return Ok((Sent::Full, len));
        }
        let to_near = |run: &[u8]| {
            near.map(|fanout| fanout.write(len, datagram_bytes, |ring| ring.put(run)));
        };
        if subgroup > 0 {
            let sent = workers.send(subgroup as usize, (datagram_bytes, is_end), |run| {
                for (kind, chunk) in chunks {
                    run.extend_from_slice(&codec.untagged(operation, kind));
                    run.extend_from_slice(chunk);
                }
                if *is_tapped {
                    run.chunks_mut(datagram_bytes).for_each(|datagram| codec.seal(datagram));
                }
                to_near(run);
            })?;
            return Ok((sent, len));
        }
        let mut at = 0;
        for (kind, chunk) in chunks {
            at += codec.encode(operation, kind, chunk, &mut run[at..]);
        }
        let run = &run[..len];
        let sent = if is_home { Sent::All } else { sockets.lane.multicast(run, datagram_bytes)? };
        if matches!(sent, Sent::All | Sent::Lost) {
            to_near(run);
        }
        Ok((sent, len))
    }
}

impl UdpCarrier {
    /// It is this rank's turn.
    pub(super) fn begin_to_send(&mut self, ops: &mut UdpOperations, now_ps: u64) {
        let Some(operation) = ops.current.as_mut() else { return };
        let (first_psn, chunks) = self.incoming.own_psns();
        debug_assert!(chunks == 0 || operation.plan.block(ops.core.place.rank()).bytes > 0);
        operation.stream.sending = Some(Sending { first_psn, chunks, sent: 0, moved_ps: now_ps, full_ps: None });
        operation.report.phases.0.sending_ps = Some(now_ps);
    }

    /// Sends what has room. Returns whether anything was sent.
    pub(super) fn send_some(&mut self, ops: &mut UdpOperations, now_ps: u64) -> Result<bool> {
        let Self { sockets, workers, codec, window, pace, run, .. } = self;
        let Self { sent: report, fanout, stripes, tap, reception, .. } = self;
        let Operations { current, protocol: conversation, core, .. } = ops;
        let (own, config) = (core.place.rank(), &core.config);
        let (fanout, is_tapped) = (fanout.as_deref(), tap.is_some());
        let mut outward = Outward { sockets, workers, codec, run, fanout, is_tapped };
        let Some(operation) = current.as_mut() else { return Ok(false) };
        let Some(sending) = operation.stream.sending.as_mut() else { return Ok(false) };
        let block = operation.plan.block(own);
        let start = block.offset as usize;
        let bytes = operation.receive.bytes().get(start..start + block.bytes as usize).unwrap_or_default();
        let chunk_bytes = config.chunk_bytes as usize;
        let datagram_bytes = HEADER_BYTES + chunk_bytes;
        let mut moved = false;
        sending.full_ps = None;
        if window.is_left() {
            // Nobody takes what would still be multicast.
            reception.withheld |= window.is_withheld(sending.sent, sending.chunks);
            sending.sent = sending.chunks;
        }
        for _ in 0..MOST_RUNS {
            let room = window.room(sending.sent).min(sending.chunks - sending.sent);
            if room == 0 || !pace.may_send(now_ps) {
                break;
            }
            let most = u32::try_from(pace.run_bytes() / datagram_bytes as u64).unwrap_or(u32::MAX).max(1);
            let of_stripe = stripes.end(sending.sent) - sending.sent;
            let count = room.min(outward.run_of(datagram_bytes) as u32).min(most).min(of_stripe);
            let chunks = (sending.sent..sending.sent + count).map(|at| {
                let from = at as usize * chunk_bytes;
                let chunk = &bytes[from..bytes.len().min(from + chunk_bytes)];
                (Kind::Data { psn: sending.first_psn + at }, chunk)
            });
            let (number, subgroup) = (operation.number, stripes.subgroup(own, sending.sent));
            let (sent, len) =
                outward.send(Head { operation: number, subgroup, datagram_bytes, is_end: false }, chunks)?;
            match sent {
                Sent::All | Sent::Lost => {
                    pace.sent(len as u64, now_ps);
                    sending.sent += count;
                    sending.moved_ps = now_ps;
                    report.posted += u64::from(count);
                    moved = true;
                }
                Sent::Single => moved = true,
                Sent::Full => {
                    sending.full_ps = Some(now_ps);
                    break;
                }
            }
        }
        if sending.sent < sending.chunks {
            if window.room(sending.sent) == 0 {
                window.wait(sending.sent, now_ps);
            }
            return Ok(moved);
        }
        let chunks = sending.chunks;
        operation.stream.sending = None;
        operation.report.phases.0.sent_ps = Some(now_ps);
        let took_ps = now_ps.saturating_sub(operation.report.phases.0.sending_ps.unwrap_or(now_ps));
        pace.ended(Block { operation: operation.number, bytes: block.bytes, took_ps });
        operation.report.pace_mbit_per_s = pace.mbit_per_s().filter(|_| chunks > 0);
        if chunks > 0 {
            for subgroup in (0..stripes.subgroups()).flat_map(|subgroup| [subgroup; ENDS]) {
                let end = std::iter::once((Kind::End { subgroup: subgroup as u8, chunks }, &[][..]));
                let head = Head { operation: operation.number, subgroup, datagram_bytes, is_end: true };
                outward.send(head, end)?;
            }
        }
        conversation.handle(now_ps, Event::Sent);
        Ok(true)
    }
}
