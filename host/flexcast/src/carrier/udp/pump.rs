//! Datagrams from a subgroup's socket to its ring in a fan-out, their tags checked.

use super::datagram::{Codec, Refused};
use super::fanout::Fanout;
use super::sockets::{Lane, ROOM_BYTES, RUNS};
use crate::error::Result;

/// Reads of the socket before others have their turn.
const MOST_READS: u32 = 4;

/// What has become of a try.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Pumped {
    /// Datagrams have been taken from the socket.
    pub(super) any: bool,
    /// Some may be left there, for which the ring has no room.
    pub(super) is_full: bool,
}

/// Whether a subgroup's ring has room for what one read of its socket brings.
pub(super) fn has_room(fanout: &Fanout, subgroup: usize) -> bool {
    fanout.has_network_room(subgroup, RUNS, RUNS * ROOM_BYTES)
}

/// Takes datagrams from a subgroup's socket to its ring, if there may be some and nobody else does. Those that `codec`
/// refuses are reported to `refuse` instead; without one all are taken.
pub(super) fn pump(
    (fanout, subgroup): (&Fanout, usize),
    lane: &mut Lane,
    codec: Option<&Codec>,
    mut refuse: impl FnMut(Refused),
) -> Result<Pumped> {
    let mut pumped = Pumped::default();
    let mut reads = 0;
    while let Some(pump) = fanout.pump(subgroup) {
        let mut is_left = false;
        loop {
            pumped.is_full = !has_room(fanout, subgroup);
            if reads == MOST_READS || pumped.is_full {
                pump.is_not_done();
                is_left = true;
                break;
            }
            reads += 1;
            let came = lane.receive_runs(&mut |run, datagram_bytes| {
                let is_right = |datagram: &[u8]| {
                    let refused = codec.and_then(|codec| codec.decode(datagram).err());
                    refused.map(&mut refuse).is_none()
                };
                // What has no room is repaired.
                right_parts(run, datagram_bytes, is_right, |part| _ = pump.write(part, datagram_bytes));
            })?;
            if !came {
                break;
            }
            pumped.any = true;
        }
        drop(pump);
        if is_left && (reads == MOST_READS || !has_room(fanout, subgroup)) {
            break;
        }
    }
    Ok(pumped)
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
