//! Loss at random, the same every time.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::fault::FaultError;
use crate::link::{Delivery, Link, LinkError};
use crate::{Frame, PortCounters};

/// One million: certain loss.
const CERTAIN_PPM: u32 = 1_000_000;

/// Loses frames of any kind with a fixed probability. The frame still takes its time on the wire.
///
/// Each receiving port draws from a stream of its own, so that what one direction loses does not depend on the other's
/// traffic.
#[derive(Clone, Debug)]
pub struct SeededDrop<L> {
    inner: L,
    loss_ppm: u32,
    seed: u64,
    streams: Vec<ChaCha8Rng>,
    lost: Vec<PortCounters>,
}

impl<L> SeededDrop<L> {
    /// Wraps a link.
    ///
    /// # Errors
    /// More than one million parts per million.
    pub fn new(inner: L, loss_ppm: u32, seed: u64) -> Result<Self, FaultError> {
        if loss_ppm > CERTAIN_PPM {
            return Err(FaultError::Probability { ppm: loss_ppm });
        }
        Ok(Self { inner, loss_ppm, seed, streams: Vec::new(), lost: Vec::new() })
    }

    /// The link inside.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    fn loses(&mut self, port: usize) -> bool {
        while self.streams.len() <= port {
            let mut stream = ChaCha8Rng::seed_from_u64(self.seed);
            stream.set_stream(self.streams.len() as u64);
            self.streams.push(stream);
            self.lost.push(PortCounters::default());
        }
        let draw = (u64::from(self.streams[port].next_u32()) * u64::from(CERTAIN_PPM)) >> 32;
        draw < u64::from(self.loss_ppm)
    }
}

impl<F: Frame, L: Link<F>> Link<F> for SeededDrop<L> {
    fn transmit(
        &mut self,
        now_ps: u64,
        from_port: usize,
        frame: F,
        out: &mut Vec<Delivery<F>>,
    ) -> Result<(), LinkError> {
        let before = out.len();
        self.inner.transmit(now_ps, from_port, frame, out)?;
        let mut at = before;
        while at < out.len() {
            let port = out[at].port;
            if self.loses(port) {
                let delivery = out.remove(at);
                self.lost[port].lost_frames += 1;
                self.lost[port].rx_bytes += delivery.frame.wire_bytes();
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    fn ports(&self) -> usize {
        self.inner.ports()
    }

    fn counters(&self, port: usize) -> PortCounters {
        let mut counters = self.inner.counters(port);
        if let Some(lost) = self.lost.get(port) {
            counters.rx_frames -= lost.lost_frames;
            counters.rx_bytes -= lost.rx_bytes;
            counters.lost_frames += lost.lost_frames;
            counters.drops.random += lost.lost_frames;
        }
        counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::{BackToBack, LinkConfig};

    #[derive(Debug, PartialEq)]
    struct Numbered(u32);
    impl Frame for Numbered {
        fn wire_bytes(&self) -> u64 {
            100
        }
    }

    fn survivors(ppm: u32, seed: u64, other_direction: bool) -> Vec<u32> {
        let mut link = SeededDrop::new(BackToBack::new(LinkConfig::default()), ppm, seed).unwrap();
        let mut out = Vec::new();
        for n in 0..10_000 {
            link.transmit(0, 0, Numbered(n), &mut out).unwrap();
            if other_direction {
                link.transmit(0, 1, Numbered(n), &mut out).unwrap();
            }
        }
        out.into_iter().filter(|d| d.port == 1).map(|d| d.frame.0).collect()
    }

    #[test]
    fn the_seed_decides_and_directions_are_independent() {
        assert_eq!(survivors(10_000, 7, false), survivors(10_000, 7, true));
        assert_ne!(survivors(10_000, 7, false), survivors(10_000, 8, false));
    }

    #[test]
    fn the_rate_is_about_right_and_the_ends_are_exact() {
        let lost = 10_000 - survivors(10_000, 3, false).len();
        assert!((70..130).contains(&lost), "1 % of 10000 frames, but {lost} were lost");
        assert_eq!(survivors(0, 3, false).len(), 10_000);
        assert_eq!(survivors(1_000_000, 3, false).len(), 0);
    }

    #[test]
    fn lost_frames_left_but_never_arrived() {
        let mut link = SeededDrop::new(BackToBack::new(LinkConfig::default()), 1_000_000, 0).unwrap();
        link.transmit(0, 0, Numbered(0), &mut Vec::new()).unwrap();
        let (sender, receiver) = (Link::<Numbered>::counters(&link, 0), Link::<Numbered>::counters(&link, 1));
        assert_eq!((sender.tx_frames, sender.tx_bytes), (1, 100));
        assert_eq!((receiver.rx_frames, receiver.rx_bytes, receiver.lost_frames), (0, 0, 1));
    }

    #[test]
    fn more_than_everything_is_refused() {
        let error = SeededDrop::new(BackToBack::new(LinkConfig::default()), 1_000_001, 0).unwrap_err();
        assert_eq!(error, FaultError::Probability { ppm: 1_000_001 });
    }
}
