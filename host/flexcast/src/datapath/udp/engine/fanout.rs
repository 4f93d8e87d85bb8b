//! Fan-out among the ranks of this computer: datagrams of the network for all of them, and those that they have sent themselves.

use super::receive::{Settling, refuse};
use super::{Engine, MOST_READS};
use crate::datapath::udp::datagram::HEADER_BYTES;
use crate::datapath::udp::fanout::Fanout;
use crate::datapath::udp::sockets::{ROOM_BYTES, RUNS};
use crate::error::Result;
use flexcast_proto::Algorithm;

/// Records of each ring before others have their turn.
const MOST_RECORDS: usize = 8;

impl Engine {
    /// Takes datagrams from the socket for all ranks of this computer, and from the memory that they share for this one. Returns whether there were any.
    pub(super) fn receive_shared(&mut self) -> Result<bool> {
        let Some(fanout) = self.fanout.clone() else { return Ok(false) };
        let mut any = self.pump(&fanout)?;
        if fanout.is_ready() {
            any |= self.take_records(&fanout)?;
            // There is room now, for which some may have waited.
            any |= self.pump(&fanout)?;
        }
        if any { self.received() } else { Ok(false) }
    }

    /// Takes datagrams from the socket for all ranks of this computer.
    fn pump(&mut self, fanout: &Fanout) -> Result<bool> {
        let Self { sockets, codec, statistics, tap, .. } = self;
        let is_checked = tap.is_none();
        let has_room = || fanout.has_network_room(RUNS, RUNS * ROOM_BYTES);
        let mut any = false;
        let mut reads = 0;
        while let Some(pump) = fanout.pump() {
            let mut stays = false;
            loop {
                if reads == MOST_READS || !has_room() {
                    pump.is_not_done();
                    stays = true;
                    break;
                }
                reads += 1;
                let came = sockets.receive_runs(&mut |run, datagram_bytes| {
                    let mut is_right = |datagram: &[u8]| {
                        let refused = codec.decode(datagram).err().filter(|_| is_checked);
                        refused.inspect(|refused| refuse(statistics, *refused)).is_none()
                    };
                    // What has no room is repaired.
                    if run.chunks(datagram_bytes).all(&mut is_right) {
                        pump.write(run, datagram_bytes);
                        return;
                    }
                    for datagram in run.chunks(datagram_bytes).filter(|datagram| is_right(datagram)) {
                        pump.write(datagram, datagram.len());
                    }
                })?;
                if !came {
                    break;
                }
                any = true;
            }
            drop(pump);
            if stays && (reads == MOST_READS || !has_room()) {
                break;
            }
        }
        Ok(any)
    }

    /// Takes the chunks of this rank from the memory that the ranks of this computer share.
    fn take_records(&mut self, fanout: &Fanout) -> Result<bool> {
        let Self { codec, incoming, statistics, current, tap, run, .. } = self;
        let running = current.as_mut().filter(|running| running.algorithm == Algorithm::Multicast);
        let mut settling = Settling { codec, incoming, statistics, running, past: None };
        let any = fanout.read(MOST_RECORDS, |fanout, record| {
            for (at, len) in record.datagrams() {
                if let Some(tap) = tap {
                    let Some(datagram) = run.get_mut(..len) else { continue };
                    fanout.copy(record, at, datagram);
                    tap.take(datagram, &mut |bytes| settling.take(bytes));
                    continue;
                }
                let mut header = [0; HEADER_BYTES];
                let Some(chunk_bytes) = len.checked_sub(HEADER_BYTES) else { continue };
                fanout.copy(record, at, &mut header);
                // Whoever wrote this has checked its tag, or is a rank of this computer.
                match settling.codec.decode_head(&header, chunk_bytes) {
                    Ok(head) => settling.settle((head.rank, head.operation, head.kind), chunk_bytes, |to| {
                        fanout.copy(record, at + HEADER_BYTES as u64, to);
                    }),
                    Err(refused) => refuse(settling.statistics, refused),
                }
            }
        });
        let past = settling.past;
        self.tell_past(past)?;
        Ok(any)
    }
}
