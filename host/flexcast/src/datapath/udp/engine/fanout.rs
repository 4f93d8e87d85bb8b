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
                    let is_right = |datagram: &[u8]| {
                        let refused = codec.decode(datagram).err().filter(|_| is_checked);
                        if let Some(refused) = refused {
                            statistics.cqes += 1;
                            refuse(statistics, refused);
                        }
                        refused.is_none()
                    };
                    // What has no room is repaired.
                    right_parts(run, datagram_bytes, is_right, |part| _ = pump.write(part, datagram_bytes));
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
                    Err(refused) => {
                        settling.statistics.cqes += 1;
                        refuse(settling.statistics, refused);
                    }
                }
            }
        });
        let past = settling.past;
        self.tell_past(past)?;
        Ok(any)
    }
}

/// Gives the parts of a run between its datagrams that are not right; each datagram is asked for once.
fn right_parts(
    run: &[u8],
    datagram_bytes: usize,
    mut is_right: impl FnMut(&[u8]) -> bool,
    mut give: impl FnMut(&[u8]),
) {
    let mut begin = 0;
    for (number, datagram) in run.chunks(datagram_bytes).enumerate() {
        if is_right(datagram) {
            continue;
        }
        let at = number * datagram_bytes;
        if begin < at {
            give(&run[begin..at]);
        }
        begin = at + datagram.len();
    }
    if begin < run.len() {
        give(&run[begin..]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_right_goes_on_in_one_piece_and_the_rest_is_seen_once() {
        for (run, parts) in [
            (&b"aaabbbc"[..], &["aaabbbc"][..]),
            (b"aaaxxxbbbcc", &["aaa", "bbbcc"]),
            (b"xxxxxxaaa", &["aaa"]),
            (b"aaabbbx", &["aaabbb"]),
            (b"xxx", &[]),
        ] {
            let (mut found, mut seen) = (Vec::new(), 0);
            let is_right = |datagram: &[u8]| {
                seen += 1;
                datagram[0] != b'x'
            };
            right_parts(run, 3, is_right, |part| found.push(String::from_utf8(part.to_vec()).unwrap()));
            assert_eq!(
                (&found[..], seen),
                (&parts.iter().map(|part| (*part).to_owned()).collect::<Vec<_>>()[..], run.len().div_ceil(3))
            );
        }
    }
}
