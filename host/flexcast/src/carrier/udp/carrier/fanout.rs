//! Datagrams from the rings of a fan-out: those of the network, and those that other ranks of this computer have sent.

use super::receive::{Settling, refuse};
use super::{UdpCarrier, UdpOperations};
use crate::carrier::udp::datagram::HEADER_BYTES;
use crate::carrier::udp::fanout::Fanout;
use crate::carrier::udp::pump::pump;
use crate::error::Result;
use flexcast_proto::Algorithm;

/// Records of each ring before others have their turn.
const MOST_RECORDS: usize = 8;

impl UdpCarrier {
    /// Takes datagrams from the first socket to the fan-out, and from the fan-out to their places. Returns whether
    /// there were any.
    pub(super) fn receive_shared(&mut self, ops: &mut UdpOperations) -> Result<bool> {
        let Some(fanout) = self.fanout.clone() else { return Ok(false) };
        let mut any = self.pump(&fanout)?;
        if fanout.is_ready() {
            any |= self.take_records(ops, &fanout)?;
            // There is room now, for which some may have waited.
            any |= self.pump(&fanout)?;
            self.workers.resume();
        }
        if any { self.received(ops) } else { Ok(false) }
    }

    /// Takes datagrams from the first subgroup's socket for all ranks of this computer. The workers do so with the
    /// others.
    fn pump(&mut self, fanout: &Fanout) -> Result<bool> {
        let Self { sockets, codec, statistics, tap, .. } = self;
        let codec = tap.is_none().then_some(&*codec);
        let pumped = pump((fanout, 0), &mut sockets.lane, codec, |refused| {
            statistics.cqes += 1;
            refuse(statistics, refused);
        })?;
        Ok(pumped.any)
    }

    /// Takes the chunks of this rank from the memory that the ranks of this computer share.
    fn take_records(&mut self, ops: &mut UdpOperations, fanout: &Fanout) -> Result<bool> {
        let Self { codec, incoming, statistics, tap, run, reception, .. } = self;
        let late = &mut reception.lost;
        let operation = ops.current.as_mut().filter(|operation| operation.algorithm == Algorithm::Multicast);
        let mut settling = Settling { codec, incoming, statistics, operation, past: None, late };
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
                    Err(refused) => {
                        settling.statistics.cqes += 1;
                        refuse(settling.statistics, refused);
                    }
                }
            }
        });
        let past = settling.past;
        self.acknowledge_past(past)?;
        Ok(any)
    }
}
