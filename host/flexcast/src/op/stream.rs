//! Streams that the data is cut into: each is received by one context and sent by another.

use std::fmt;

use flexcast_proto::RankInfo;

use crate::error::{Error, Result};

/// Most streams to and from a rank whose data is unicast; a queue pair each way and a receive context each.
pub const MAX_STREAMS: u32 = 1024;

/// What carries the data. Whatever it is, losses are recovered over the ring, and results are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Datagrams to a multicast group, staged in DPA memory and copied to the user's buffer by the card. What cards can
    /// do.
    #[default]
    Ud,
    /// RDMA Writes on an unreliable connection to each rank in each subgroup, straight into the user's buffer. What
    /// cards can do; a root sends its block once to every other rank. Each operation registers the receive buffer once
    /// more, for a key of its own.
    UcUnicast,
    /// RDMA Writes on unreliable connections to a multicast group, straight into the user's buffer. A group key, the
    /// same for all ranks and another one for each operation, stands for each rank's buffer.
    // For simulation and evaluation only: no card does this, only emulated ones with `uc_multicast`.
    #[doc(hidden)]
    UcMulticast,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Transport {
    /// All, those for simulation included.
    #[doc(hidden)]
    pub const ALL: [Self; 3] = [Self::Ud, Self::UcMulticast, Self::UcUnicast];

    /// Its name in options and reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ud => "ud",
            Self::UcUnicast => "uc-unicast",
            Self::UcMulticast => "uc",
        }
    }

    /// Whether data reaches the user's buffer without a copy on the card.
    #[must_use]
    pub const fn is_zero_copy(self) -> bool {
        !matches!(self, Self::Ud)
    }

    /// What the firmware calls it: how chunks arrive.
    pub(crate) const fn of_firmware(self) -> flexcast_abi::Transport {
        if self.is_zero_copy() { flexcast_abi::Transport::Uc } else { flexcast_abi::Transport::Ud }
    }

    /// Ranks with each of which a rank has streams of their own; none if its streams are those of groups. A lone rank
    /// counts as its own peer: what it is served by is like that of others.
    pub(crate) const fn peers(self, ranks: u32) -> Option<u32> {
        match self {
            Self::Ud | Self::UcMulticast => None,
            Self::UcUnicast if ranks > 1 => Some(ranks - 1),
            Self::UcUnicast => Some(1),
        }
    }

    /// Streams that a rank receives, and as many that it sends.
    ///
    /// # Errors
    /// [`Error::Config`]: more than [`MAX_STREAMS`].
    pub(crate) fn streams(self, subgroups: u32, ranks: u32) -> Result<u32> {
        let Some(peers) = self.peers(ranks) else { return Ok(subgroups) };
        let streams = u64::from(peers) * u64::from(subgroups);
        match u32::try_from(streams) {
            Ok(streams) if streams <= MAX_STREAMS => Ok(streams),
            _ => Err(Error::Config {
                what: "subgroups x other ranks",
                value: streams,
                limit: format!(
                    "at most {MAX_STREAMS} with UC unicast, whose every stream takes a context and two queue pairs: \
                     lower subgroups, or let data be multicast (Transport::Ud)"
                ),
            }),
        }
    }
}

/// What one receive context receives, or sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    pub(crate) subgroup: u32,
    /// The rank at the other end; none for a group.
    pub(crate) peer: Option<u32>,
}

/// The streams of a rank in the order of their numbers: subgroup by subgroup. `peer` gives the rank at so many places
/// away.
fn all(
    transport: Transport,
    subgroups: u32,
    place: RankInfo,
    peer: impl Fn(u32) -> u32 + Copy,
) -> impl Iterator<Item = Stream> {
    let peers = transport.peers(place.ranks());
    (0..subgroups).flat_map(move |subgroup| {
        (1..=peers.unwrap_or(1)).map(move |distance| Stream { subgroup, peer: peers.is_some().then(|| peer(distance)) })
    })
}

/// Those that a rank receives: of the rank behind it first.
pub(crate) fn received(transport: Transport, subgroups: u32, place: RankInfo) -> impl Iterator<Item = Stream> {
    all(transport, subgroups, place, move |distance| place.behind(distance))
}

/// Those that a rank sends: to the rank ahead of it first, so that roots that send at the same time send to different
/// ranks.
pub(crate) fn sent(transport: Transport, subgroups: u32, place: RankInfo) -> impl Iterator<Item = Stream> {
    all(transport, subgroups, place, move |distance| place.ahead(distance))
}

/// Which of `threads` threads serves stream `index` of `streams`: contiguous runs.
pub(crate) fn thread_of(index: u32, streams: u32, threads: u32) -> u32 {
    (u64::from(index) * u64::from(threads) / u64::from(streams)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_is_sent_is_received() {
        for ranks in 1..8 {
            let places: Vec<RankInfo> = (0..ranks).map(|rank| RankInfo::new(rank, ranks).unwrap()).collect();
            for transport in Transport::ALL {
                let streams = transport.streams(3, ranks).unwrap();
                let mut expected: Vec<(u32, u32, u32)> = Vec::new();
                let mut got = expected.clone();
                for place in &places {
                    let own = place.rank();
                    let received = received(transport, 3, *place).collect::<Vec<_>>();
                    assert_eq!(received.len() as u32, streams);
                    got.extend(received.iter().filter_map(|s| Some((s.subgroup, s.peer?, own))));
                    expected.extend(sent(transport, 3, *place).filter_map(|s| Some((s.subgroup, own, s.peer?))));
                }
                got.sort_unstable();
                expected.sort_unstable();
                assert_eq!(got, expected);
                assert_eq!(got.is_empty(), transport.peers(ranks).is_none());
            }
        }
    }

    #[test]
    fn too_many_streams_are_refused_with_the_limit() {
        assert_eq!(Transport::Ud.streams(64, 1024).unwrap(), 64);
        assert_eq!(Transport::UcUnicast.streams(16, 65).unwrap(), 1024);
        let text = Transport::UcUnicast.streams(16, 66).unwrap_err().to_string();
        assert!(text.contains("1040") && text.contains("at most 1024") && text.contains("lower subgroups"), "{text}");
    }
}
