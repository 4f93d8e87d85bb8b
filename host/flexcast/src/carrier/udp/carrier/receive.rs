//! The receiving side: datagrams, acknowledgements, and what is lost.

use super::delivery::Lost;
use super::operation::Operation;
use super::{Algorithm, UdpCarrier, UdpOperations};
use crate::carrier::cpu::incoming::{Incoming, count};
use crate::carrier::cpu::window;
use crate::carrier::udp::datagram::{Codec, Datagram, HEADER_BYTES, Kind, Refused};
use crate::carrier::udp::sockets::{LANDING_CHUNKS, Landing, RUN_BYTES, RUNS, most_of_run};
use crate::error::Result;
use flexcast_abi::Statistics;

/// Reads of a socket before others have their turn.
const MOST_READS: u32 = 4;
/// How long nothing comes before a chunk that others have overtaken counts as lost, wherever that is in the block.
pub(super) const QUIET_PS: u64 = 500_000_000;

/// Datagrams of the operation under way for which there was no room.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Overflows {
    /// The system's counter when it began.
    before: u32,
    /// As many as have been reported to roots.
    reported: u32,
}

impl Overflows {
    /// Of an operation that begins when the system has counted so many.
    pub(super) const fn since(before: u32) -> Self {
        Self { before, reported: 0 }
    }

    /// So many, by the system's counter.
    const fn count(&self, now: u32) -> u32 {
        now.wrapping_sub(self.before)
    }
}

/// Counts a datagram that was not delivered.
pub(super) fn refuse(statistics: &mut Statistics, refused: Refused) {
    match refused {
        Refused::Foreign => statistics.unexpected_opcode += 1,
        Refused::Forged => statistics.error_cqes += 1,
    }
}

/// Whether an operation by multicast is under way.
fn is_receiving(ops: &UdpOperations) -> bool {
    ops.current.as_ref().is_some_and(|operation| operation.algorithm == Algorithm::Multicast)
}

impl UdpCarrier {
    /// Takes what has been multicast. Returns whether there was anything.
    pub(super) fn receive_data(&mut self, ops: &mut UdpOperations) -> Result<bool> {
        let mut any = false;
        for _ in 0..MOST_READS {
            let came = if self.landing.is_worth_it() && is_receiving(ops) {
                self.receive_in_place(ops)?
            } else {
                self.receive_runs(ops)?
            };
            if !came {
                break;
            }
            any = true;
        }
        if any { self.received(ops) } else { Ok(false) }
    }

    /// Something has come: acknowledges to roots how far their blocks are. Returns true.
    pub(super) fn received(&mut self, ops: &mut UdpOperations) -> Result<bool> {
        let now_ps = self.interface.now_ps();
        self.statistics.activations += 1;
        self.acknowledge(ops)?;
        if let Some(operation) = ops.current.as_mut()
            && let Some(watch) = operation.stream.watch.as_mut()
        {
            watch.poll(self.incoming.came(), now_ps);
        }
        Ok(true)
    }

    /// Takes runs of datagrams into the own room, and their chunks from there to their places. Returns whether there
    /// were any.
    fn receive_runs(&mut self, ops: &mut UdpOperations) -> Result<bool> {
        let Self { sockets, codec, incoming, statistics, tap, landing, reception, .. } = self;
        let late = &mut reception.lost;
        let operation = ops.current.as_mut().filter(|operation| operation.algorithm == Algorithm::Multicast);
        let mut settling = Settling { codec, incoming, statistics, operation, past: None, late };
        let mut deliver = |bytes: &[u8]| settling.take(bytes);
        let mut datagrams = 0;
        let came = match tap {
            None => sockets.receive(&mut |bytes| {
                datagrams += 1;
                deliver(bytes);
            })?,
            Some(tap) => sockets.receive(&mut |bytes| tap.take(bytes, &mut deliver))?,
        };
        landing.came(datagrams);
        let past = settling.past;
        self.acknowledge_past(past)?;
        Ok(came)
    }

    /// Takes one run of datagrams, chunks where the first of them says that they belong: mostly they do, and need not
    /// be copied. Returns whether there was one.
    fn receive_in_place(&mut self, ops: &mut UdpOperations) -> Result<bool> {
        let Self { sockets, codec, incoming, statistics, tap, landing, run: spare, .. } = self;
        let late = &mut self.reception.lost;
        let chunk_bytes = ops.core.config.chunk_bytes as usize;
        let Some(operation) = ops.current.as_mut() else { return Ok(false) };
        let datagram_bytes = HEADER_BYTES + chunk_bytes;
        let most = landing.headers.len().min(most_of_run(datagram_bytes));
        let mut first = [0; HEADER_BYTES];
        if !sockets.lane.peek(&mut first)? {
            return Ok(false);
        }
        // Unchecked: what it says decides where the run lands, and there is nothing to be lost.
        let next = codec.peek(&first).filter(|(number, _)| *number == operation.number);
        let Some(first_psn) = next.map(|(_, psn)| psn) else { return self.receive_runs(ops) };
        let Some(place) = incoming.landing(&operation.pieces, first_psn, most as u32) else {
            return self.receive_runs(ops);
        };
        let Some(chunks) = operation.receive.bytes_mut().get_mut(place.clone()) else { return self.receive_runs(ops) };
        let headers = &mut landing.headers[..place.len().div_ceil(chunk_bytes)];
        let mut there = Landing { headers, chunks, chunk_bytes, spare };
        let Some(run) = sockets.lane.receive_run(&mut there)? else { return Ok(false) };
        let Landing { headers, chunks, spare, .. } = there;
        let ends = run.bytes.div_ceil(run.datagram_bytes);
        landing.is_single = ends == 1 && run.bytes == datagram_bytes;
        // One datagram may be shorter, and so may the last of several.
        let fits = run.datagram_bytes == datagram_bytes || (ends == 1 && run.bytes <= datagram_bytes);
        let last_bytes = run.bytes - ends.saturating_sub(1) * run.datagram_bytes;
        let is_expected = fits
            && tap.is_none()
            && ends <= headers.len()
            && last_bytes >= HEADER_BYTES
            && headers[..ends]
                .iter()
                .zip(first_psn..)
                .all(|(header, psn)| codec.peek(header) == Some((operation.number, psn)));
        if is_expected {
            let lens = (0..ends).map(|at| (run.bytes - at * datagram_bytes).min(datagram_bytes) - HEADER_BYTES);
            for (((header, chunk), psn), len) in
                headers.iter().zip(chunks.chunks(chunk_bytes)).zip(first_psn..).zip(lens)
            {
                statistics.cqes += 1;
                // Behind the end of a block its last chunk has the wrong length.
                match codec.decode_parts(header, chunk.get(..len).unwrap_or(chunk)) {
                    Ok(_) => count(statistics, true, incoming.placed(&operation.pieces, psn, len)),
                    Err(refused) => refuse(statistics, refused),
                }
            }
            return Ok(true);
        }
        // Something else than was expected lies there, in pieces: it goes to its places by way of a copy of all.
        let copy = &mut landing.copy;
        copy.clear();
        let parts = headers.iter().zip(chunks.chunks(chunk_bytes)).flat_map(|(header, chunk)| [&header[..], chunk]);
        for part in parts.chain([&spare[..]]) {
            let left = run.bytes - copy.len();
            copy.extend_from_slice(&part[..part.len().min(left)]);
        }
        let mut settling = Settling { codec, incoming, statistics, operation: Some(operation), past: None, late };
        let mut deliver = |bytes: &[u8]| settling.take(bytes);
        for bytes in copy.chunks(run.datagram_bytes) {
            match tap {
                None => deliver(bytes),
                Some(tap) => tap.take(bytes, &mut deliver),
            }
        }
        let past = settling.past;
        self.acknowledge_past(past)?;
        Ok(true)
    }

    /// Multicast has been given up here, and what is missing is read: roots need not wait for this rank.
    pub(super) fn relieve_roots(&mut self, ops: &UdpOperations) -> Result<()> {
        let Some(operation) = ops.current.as_ref() else { return Ok(()) };
        let (operation, roots) = (operation.number, operation.plan.roots());
        let own = ops.core.place.rank();
        for root in roots.iter().filter(|root| *root != own) {
            self.acknowledge_past(Some((root, operation)))?;
        }
        Ok(())
    }

    /// A root sends although this rank needs nothing more of it by multicast: it need not wait for this rank.
    pub(super) fn acknowledge_past(&mut self, past: Option<(u32, u32)>) -> Result<()> {
        let Some((root, operation)) = past else { return Ok(()) };
        let Some(address) = self.peers.get(root as usize) else { return Ok(()) };
        let mut bytes = [0; 64];
        let len = self.codec.encode(
            operation,
            Kind::Acknowledgement { chunks: u32::MAX, overflowed: false },
            &[],
            &mut bytes,
        );
        self.sockets.send_to(*address, &bytes[..len]).map(drop)
    }

    /// Acknowledges to roots how far their blocks have come.
    fn acknowledge(&mut self, ops: &UdpOperations) -> Result<()> {
        let is_multicast = |operation: &&Operation| operation.algorithm == Algorithm::Multicast;
        let Some(operation) = ops.current.as_ref().filter(is_multicast) else { return Ok(()) };
        let Self { incoming, codec, sockets, peers, overflows, .. } = self;
        // Without holes nothing has overflowed, and the system need not be asked.
        let has_holes = operation.stream.repairs || incoming.is_suspicious();
        let mut failed = None;
        let mut count = None;
        incoming.acknowledgements(
            window::step(operation.stream.window_chunks),
            |_| false,
            |rank, chunks| {
                let mut bytes = [0; 64];
                let count = match has_holes {
                    true => *count.get_or_insert_with(|| overflows.count(sockets.overflowed())),
                    false => 0,
                };
                overflows.reported = overflows.reported.max(count);
                let kind = Kind::Acknowledgement { chunks, overflowed: count > 0 };
                let len = codec.encode(operation.number, kind, &[], &mut bytes);
                // One that is lost is made good by the next.
                if let Err(error) = sockets.send_to(peers[rank as usize], &bytes[..len]) {
                    failed = Some(error);
                }
            },
        );
        failed.map_or(Ok(()), Err)
    }

    /// At the end of an operation: counts the datagrams for which there was no room, and reports to the
    /// roots those that have not been reported yet.
    pub(super) fn report_overflows(&mut self, own: u32, operation: &Operation) -> Result<u64> {
        if !operation.stream.repairs && !operation.stream.given_up {
            return Ok(0);
        }
        let count = self.overflows.count(self.sockets.overflowed());
        if count > self.overflows.reported {
            let mut bytes = [0; 64];
            // This rank has everything.
            let kind = Kind::Acknowledgement { chunks: u32::MAX, overflowed: true };
            let len = self.codec.encode(operation.number, kind, &[], &mut bytes);
            for root in operation.plan.root_ranks().filter(|root| *root != own) {
                self.sockets.send_to(self.peers[root as usize], &bytes[..len])?;
            }
        }
        Ok(count.into())
    }

    /// Takes acknowledgements. Returns whether there were any.
    pub(super) fn receive_acknowledgements(&mut self, ops: &UdpOperations) -> Result<bool> {
        let now_ps = self.interface.now_ps();
        let Self { sockets, codec, window, pace, statistics, tap, .. } = self;
        let current = ops.current.as_ref();
        let operation = current.map(|operation| operation.number);
        let since_ps = current.and_then(|operation| operation.report.phases.0.sending_ps);
        let chunk_bytes = u64::from(ops.core.config.chunk_bytes);
        let mut deliver = |bytes: &[u8]| match codec.decode(bytes) {
            Ok(Datagram { rank, operation: of, kind: Kind::Acknowledgement { chunks, overflowed }, .. })
                if Some(of) == operation =>
            {
                window.acknowledge(rank, chunks);
                if let Some((since_ps, seen)) = since_ps.filter(|_| overflowed).zip(window.seen_by_all()) {
                    pace.overflowed(u64::from(seen) * chunk_bytes, now_ps.saturating_sub(since_ps), now_ps);
                }
            }
            // The receiver has ended it after this rank.
            Ok(Datagram { operation: of, kind: Kind::Acknowledgement { overflowed: true, .. }, .. }) => {
                statistics.wrong_id += u64::from(!pace.overflowed_before(of, now_ps));
            }
            Ok(_) => statistics.wrong_id += 1,
            Err(refused) => refuse(statistics, refused),
        };
        match tap {
            None => sockets.receive_own(&mut deliver),
            Some(tap) => sockets.receive_own(&mut |bytes| tap.take(bytes, &mut deliver)),
        }
    }
}

/// Takes datagrams to their places, and counts them.
pub(super) struct Settling<'e> {
    pub(super) codec: &'e Codec,
    pub(super) incoming: &'e mut Incoming,
    pub(super) statistics: &'e mut Statistics,
    /// The operation under way, if its blocks are multicast.
    pub(super) operation: Option<&'e mut Operation>,
    /// A root that sends although this rank needs nothing more of it, and its operation.
    pub(super) past: Option<(u32, u32)>,
    /// What the last operation lacked.
    pub(super) late: &'e mut Lost,
}

impl Settling<'_> {
    /// Takes a datagram that the network has brought.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        if self.codec.is_own(bytes) {
            return;
        }
        match self.codec.decode(bytes) {
            Ok(Datagram { rank, operation, kind, chunk }) => {
                self.settle((rank, operation, kind), chunk.len(), |to| to.copy_from_slice(chunk));
            }
            Err(refused) => {
                self.statistics.cqes += 1;
                refuse(self.statistics, refused);
            }
        }
    }

    /// Takes a datagram with a chunk of `len` bytes that `copy` copies to its place. The own ones come to nothing.
    pub(super) fn settle(&mut self, head: (u32, u32, Kind), len: usize, copy: impl FnOnce(&mut [u8])) {
        let Self { codec, incoming, statistics, operation, past, late } = self;
        let (rank, number, kind) = head;
        if codec.rank() == rank {
            return;
        }
        statistics.cqes += 1;
        let Some(operation) = operation.as_mut().filter(|operation| operation.number == number) else {
            statistics.wrong_id += 1;
            if matches!(kind, Kind::Data { .. }) {
                *past = Some((rank, number));
                late.came(rank, number);
            }
            return;
        };
        let Operation { pieces, receive, stream, .. } = &mut **operation;
        match kind {
            Kind::Data { psn } => {
                if stream.given_up {
                    *past = Some((rank, number));
                }
                count(statistics, true, incoming.take_by(pieces, (psn, len), receive.bytes_mut(), copy));
            }
            Kind::End { subgroup, chunks } => {
                count(statistics, false, incoming.ended(pieces, rank, (subgroup.into(), chunks)));
            }
            Kind::Acknowledgement { .. } | Kind::Path(_) => statistics.unexpected_opcode += 1,
        }
    }
}

/// Room for runs that are received in place.
pub(super) struct Landings {
    headers: Vec<[u8; HEADER_BYTES]>,
    copy: Vec<u8>,
    /// The last run was one datagram.
    is_single: bool,
    /// Receives left before the next try to receive in place.
    singles: u32,
}

/// Datagrams that come one by one are taken many at a time, for so many receives before the next try in place.
const SINGLE_RECEIVES: u32 = 64;

impl Landings {
    pub(super) fn new() -> Self {
        Self {
            headers: vec![[0; HEADER_BYTES]; LANDING_CHUNKS],
            copy: Vec::with_capacity(RUN_BYTES),
            is_single: false,
            singles: 0,
        }
    }

    /// Whether runs come.
    fn is_worth_it(&mut self) -> bool {
        if self.is_single {
            (self.is_single, self.singles) = (false, SINGLE_RECEIVES);
        }
        self.singles == 0
    }

    /// A receive that was not in place has brought so many datagrams.
    fn came(&mut self, datagrams: usize) {
        // More than there are runs in a receive.
        self.singles = if datagrams > RUNS { 0 } else { self.singles.saturating_sub(1) };
    }
}
