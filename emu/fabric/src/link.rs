//! A cable between two ports.

use crate::{Frame, PortCounters};

/// How fast a link is: an exact ratio, so that no time is ever rounded twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    gigabits_per_second: u64,
}

impl Rate {
    /// 200 Gbit/s: 40 ps a byte.
    pub const GBPS_200: Self = Self { gigabits_per_second: 200 };

    /// 56 Gbit/s: 1 000/7 ps a byte.
    pub const GBPS_56: Self = Self { gigabits_per_second: 56 };

    /// A rate in whole Gbit/s.
    ///
    /// # Errors
    /// A rate of zero.
    pub const fn from_gbps(gigabits_per_second: u64) -> Result<Self, LinkError> {
        if gigabits_per_second == 0 {
            return Err(LinkError::ZeroRate);
        }
        Ok(Self { gigabits_per_second })
    }

    /// The rate in Gbit/s.
    #[must_use]
    pub const fn gbit_per_s(self) -> u64 {
        self.gigabits_per_second
    }

    /// Time to send `bytes`, rounded up to a picosecond.
    #[must_use]
    pub const fn serialisation_ps(self, bytes: u64) -> u64 {
        (bytes * 8_000).div_ceil(self.gigabits_per_second)
    }
}

/// What a link is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Rate of each direction.
    pub rate: Rate,
    /// From the last bit's departure to its arrival, in picoseconds: cable and both ports' electronics.
    pub latency_ps: u64,
}

impl Default for LinkConfig {
    /// 200 Gbit/s and 300 ns: an assumption for a short cable and two ports, without a published figure.
    fn default() -> Self {
        Self { rate: Rate::GBPS_200, latency_ps: 300_000 }
    }
}

/// A frame arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery<F> {
    /// When its last bit does, in picoseconds.
    pub at_ps: u64,
    /// Where.
    pub port: usize,
    /// The frame.
    pub frame: F,
}

/// Wrong use of a link.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A rate of nothing.
    #[error("a link of 0 Gbit/s delivers nothing: give a rate of at least 1")]
    ZeroRate,
    /// No such port.
    #[error("there is no port {port}: the link has ports 0 to {last}")]
    NoPort {
        /// The port.
        port: usize,
        /// The last port there is.
        last: usize,
    },
}

/// Something that carries frames between ports; faults are wrappers that are links themselves.
pub trait Link<F: Frame> {
    /// Takes a frame whose first bit is ready at `now_ps` at `from_port`, and appends what arrives to `out`.
    ///
    /// Frames of one port leave in the order of the calls.
    ///
    /// # Errors
    /// No such port.
    fn transmit(
        &mut self,
        now_ps: u64,
        from_port: usize,
        frame: F,
        out: &mut Vec<Delivery<F>>,
    ) -> Result<(), LinkError>;

    /// Ports, numbered from 0.
    fn ports(&self) -> usize;

    /// Counters of a port; all zero for a port that is not there.
    fn counters(&self, port: usize) -> PortCounters;
}

/// Two ports and a full-duplex cable.
#[derive(Clone, Debug)]
pub struct BackToBack {
    config: LinkConfig,
    /// When each port has sent everything it was given.
    busy_until_ps: [u64; 2],
    counters: [PortCounters; 2],
}

impl BackToBack {
    /// A cable.
    #[must_use]
    pub fn new(config: LinkConfig) -> Self {
        Self { config, busy_until_ps: [0; 2], counters: [PortCounters::default(); 2] }
    }

    /// When the port has sent everything it was given so far.
    #[must_use]
    pub fn busy_until_ps(&self, port: usize) -> u64 {
        self.busy_until_ps.get(port).copied().unwrap_or(0)
    }
}

impl<F: Frame> Link<F> for BackToBack {
    fn transmit(
        &mut self,
        now_ps: u64,
        from_port: usize,
        frame: F,
        out: &mut Vec<Delivery<F>>,
    ) -> Result<(), LinkError> {
        let Some(busy) = self.busy_until_ps.get_mut(from_port) else {
            return Err(LinkError::NoPort { port: from_port, last: 1 });
        };
        let bytes = frame.wire_bytes();
        *busy = now_ps.max(*busy) + self.config.rate.serialisation_ps(bytes);
        let at_ps = *busy + self.config.latency_ps;
        let port = 1 - from_port;
        self.counters[from_port].tx_frames += 1;
        self.counters[from_port].tx_bytes += bytes;
        self.counters[port].rx_frames += 1;
        self.counters[port].rx_bytes += bytes;
        out.push(Delivery { at_ps, port, frame });
        Ok(())
    }

    fn ports(&self) -> usize {
        2
    }

    fn counters(&self, port: usize) -> PortCounters {
        self.counters.get(port).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Bytes(u64);
    impl Frame for Bytes {
        fn wire_bytes(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn a_byte_takes_forty_picoseconds_and_frames_queue() {
        let mut link = BackToBack::new(LinkConfig { rate: Rate::GBPS_200, latency_ps: 1_000 });
        let mut out = Vec::new();
        link.transmit(100, 0, Bytes(4_198), &mut out).unwrap();
        link.transmit(100, 0, Bytes(10), &mut out).unwrap();
        link.transmit(100, 1, Bytes(10), &mut out).unwrap();
        let seen: Vec<_> = out.iter().map(|d| (d.at_ps, d.port)).collect();
        let first = 100 + 4_198 * 40 + 1_000;
        assert_eq!(seen, [(first, 1), (first + 400, 1), (1_500, 0)], "directions must not share the wire");
        let counters = Link::<Bytes>::counters(&link, 0);
        assert_eq!((counters.tx_frames, counters.tx_bytes, counters.rx_frames, counters.rx_bytes), (2, 4_208, 1, 10));
    }

    #[test]
    fn an_idle_link_starts_at_once() {
        let mut link = BackToBack::new(LinkConfig { rate: Rate::GBPS_200, latency_ps: 0 });
        let mut out = Vec::new();
        link.transmit(0, 0, Bytes(1), &mut out).unwrap();
        link.transmit(1_000_000, 0, Bytes(1), &mut out).unwrap();
        assert_eq!((out[0].at_ps, out[1].at_ps), (40, 1_000_040));
    }

    #[test]
    fn odd_rates_round_up_once() {
        assert_eq!(Rate::from_gbps(56).unwrap().serialisation_ps(7), 1_000);
        assert_eq!(Rate::from_gbps(56).unwrap().serialisation_ps(1), 143);
        assert_eq!(Rate::from_gbps(0), Err(LinkError::ZeroRate));
    }

    #[test]
    fn a_port_that_is_not_there_is_an_error() {
        let mut link = BackToBack::new(LinkConfig::default());
        let error = link.transmit(0, 2, Bytes(1), &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "there is no port 2: the link has ports 0 to 1");
    }
}
