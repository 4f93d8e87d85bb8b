//! The barrier before an operation: no root sends before every rank can receive. Dissemination (Hensgen, Finkel,
//! Manber): in round k each rank signals the rank 2^k ahead and waits for the one 2^k behind. Any number of ranks,
//! ⌈log2 P⌉ rounds.

use thiserror::Error;

use crate::ranks::RankInfo;

/// A barrier signal to send, on a reliable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Signal {
    /// To whom.
    pub to: u32,
    /// Number of the operation.
    pub operation: u32,
    /// Round, from 0.
    pub round: u8,
}

/// One rank's barriers, one after another. Operations are numbered modulo 2^32.
///
/// A peer may be one operation ahead of this rank once that has entered: what it signals then is kept. It cannot be
/// further ahead, since it would have needed this rank's signals for the one between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Barrier {
    place: RankInfo,
    operation: u32,
    entered: bool,
    /// Rounds signalled.
    sent: u8,
    /// Bit k: the signal of round k has come; of the current operation, and of the next one.
    arrived: [u16; 2],
}

/// A signal that cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum BarrierError {
    /// Neither of this operation nor of the next, or of the next before this rank has entered this one.
    #[error("barrier signal from rank {from} for operation {operation}, but this rank is at {current}")]
    Operation {
        /// Who sent it.
        from: u32,
        /// What it is for.
        operation: u32,
        /// What is current.
        current: u32,
    },
    /// From somebody whose round this is not.
    #[error("barrier signal of round {round} from rank {from}: that is not its round, or there is none such")]
    Sender {
        /// Who sent it.
        from: u32,
        /// Its round.
        round: u8,
    },
    /// A second time.
    #[error("barrier signal of round {round} from rank {from} came twice")]
    Repeated {
        /// Who sent it.
        from: u32,
        /// Its round.
        round: u8,
    },
}

impl Barrier {
    /// A rank's barrier, before operation number `operation`.
    #[must_use]
    pub const fn new(place: RankInfo, operation: u32) -> Self {
        Self { place, operation, entered: false, sent: 0, arrived: [0; 2] }
    }

    /// Rounds: ⌈log2 P⌉.
    #[must_use]
    pub const fn rounds(&self) -> u8 {
        (u32::BITS - (self.place.ranks() - 1).leading_zeros()) as u8
    }

    /// The operation that it is before.
    #[must_use]
    pub const fn operation(&self) -> u32 {
        self.operation
    }

    /// This rank can receive.
    pub fn enter(&mut self) {
        self.entered = true;
    }

    /// The latest operation of which a signal, or another message, can be taken.
    #[must_use]
    pub const fn latest(&self) -> u32 {
        self.operation.wrapping_add(self.entered as u32)
    }

    /// A signal has come.
    ///
    /// # Errors
    /// It is not one that can be due.
    pub fn handle(&mut self, from: u32, operation: u32, round: u8) -> Result<(), BarrierError> {
        let ahead = operation.wrapping_sub(self.operation);
        if ahead > u32::from(self.entered) {
            return Err(BarrierError::Operation { from, operation, current: self.operation });
        }
        if round >= self.rounds() || from != self.place.behind(1 << round) {
            return Err(BarrierError::Sender { from, round });
        }
        let arrived = &mut self.arrived[ahead as usize];
        if *arrived >> round & 1 == 1 {
            return Err(BarrierError::Repeated { from, round });
        }
        *arrived |= 1 << round;
        Ok(())
    }

    /// The next signal to send, if its time has come: a round is signalled when all before it have arrived.
    pub fn poll(&mut self) -> Option<Signal> {
        let before = (1u16 << self.sent) - 1;
        if !self.entered || self.sent == self.rounds() || self.arrived[0] & before != before {
            return None;
        }
        let round = self.sent;
        self.sent += 1;
        Some(Signal { to: self.place.ahead(1 << round), operation: self.operation, round })
    }

    /// Whether every rank has entered, as far as this one knows: and it knows only if all have.
    #[must_use]
    pub fn is_passed(&self) -> bool {
        self.entered && self.sent == self.rounds() && self.arrived[0] == (1 << self.rounds()) - 1
    }

    /// The rank whose signal is missing, of the earliest round; none when the barrier is passed or not entered.
    #[must_use]
    pub fn waiting_for(&self) -> Option<u32> {
        let round = self.arrived[0].trailing_ones();
        (self.entered && round < u32::from(self.rounds())).then(|| self.place.behind(1 << round))
    }

    /// The operation has no barrier on this rank: the next is that of the operation behind it. A peer that has
    /// signalled this one has called something else, which the caller finds by its summary.
    pub fn skip(&mut self) {
        let [_, early] = self.arrived;
        *self = Self { arrived: [early, 0], ..Self::new(self.place, self.operation.wrapping_add(1)) };
    }

    /// The barrier before the next operation. To be called once this one is passed.
    pub fn advance(&mut self) {
        debug_assert!(self.is_passed(), "a barrier is left when it is passed");
        self.skip();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use std::vec::Vec;

    fn next(state: &mut u64) -> usize {
        *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (*state >> 33) as usize
    }

    /// Runs barriers of all ranks; `choose` picks who does something next.
    fn run(ranks: u32, operations: u32, mut choose: impl FnMut(usize) -> usize) {
        let first = u32::MAX - 1;
        let mut all: Vec<Barrier> =
            (0..ranks).map(|rank| Barrier::new(RankInfo::new(rank, ranks).unwrap(), first)).collect();
        let mut passed = std::vec![0u32; ranks as usize];
        let mut entered = std::vec![0u32; ranks as usize];
        let mut signals: Vec<VecDeque<Signal>> = (0..ranks).map(|_| VecDeque::new()).collect();
        let mut sent = 0;
        while passed.iter().any(|&count| count < operations) {
            let rank = choose(ranks as usize);
            let barrier = &mut all[rank];
            if !barrier.entered && passed[rank] < operations {
                barrier.enter();
                entered[rank] += 1;
            }
            while let Some(signal) = barrier.poll() {
                signals[rank].push_back(signal);
                sent += 1;
            }
            // Connections keep their order; different ones do not know of each other.
            let from = choose(ranks as usize);
            if let Some(signal) = signals[from].pop_front() {
                all[signal.to as usize].handle(from as u32, signal.operation, signal.round).unwrap();
            }
            for rank in 0..ranks as usize {
                if all[rank].is_passed() && all[rank].entered && passed[rank] < operations {
                    passed[rank] += 1;
                    assert!(entered.iter().all(|&count| count >= passed[rank]), "left before all had entered");
                    all[rank].advance();
                }
            }
        }
        assert_eq!(sent, ranks * operations * u32::from(all[0].rounds()));
    }

    #[test]
    fn rounds_are_the_rounded_logarithm() {
        for (ranks, rounds) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (188, 8), (256, 8), (257, 9), (1024, 10)] {
            assert_eq!(Barrier::new(RankInfo::new(0, ranks).unwrap(), 0).rounds(), rounds, "{ranks} ranks");
        }
    }

    #[test]
    fn every_number_of_ranks_up_to_257() {
        for ranks in 1..=if cfg!(miri) { 5 } else { 257 } {
            let mut state = u64::from(ranks);
            run(ranks, 2, |count| next(&mut state) % count);
        }
    }

    #[test]
    fn signals_that_cannot_be_are_refused() {
        let mut barrier = Barrier::new(RankInfo::new(0, 5).unwrap(), 7);
        assert_eq!(barrier.handle(4, 9, 0), Err(BarrierError::Operation { from: 4, operation: 9, current: 7 }));
        assert_eq!(barrier.handle(4, 6, 0), Err(BarrierError::Operation { from: 4, operation: 6, current: 7 }));
        assert_eq!(barrier.handle(3, 7, 0), Err(BarrierError::Sender { from: 3, round: 0 }));
        assert_eq!(barrier.handle(4, 7, 3), Err(BarrierError::Sender { from: 4, round: 3 }));
        assert_eq!(barrier.handle(4, 7, 200), Err(BarrierError::Sender { from: 4, round: 200 }));
        barrier.handle(4, 7, 0).unwrap();
        assert_eq!(barrier.handle(4, 8, 0), Err(BarrierError::Operation { from: 4, operation: 8, current: 7 }));
        assert_eq!(barrier.handle(4, 7, 0), Err(BarrierError::Repeated { from: 4, round: 0 }));
        assert_eq!((barrier.poll(), barrier.waiting_for()), (None, None), "not entered yet");
        barrier.enter();
        barrier.handle(4, 8, 0).unwrap();
        assert_eq!(barrier.handle(4, 9, 0), Err(BarrierError::Operation { from: 4, operation: 9, current: 7 }));
        assert_eq!(barrier.handle(4, 8, 0), Err(BarrierError::Repeated { from: 4, round: 0 }));
        assert_eq!(barrier.waiting_for(), Some(3));
    }

    proptest! {
        #[test]
        fn any_interleaving_of_any_number_of_ranks(
            ranks in 1u32..if cfg!(miri) { 6 } else { 40 }, operations in 1u32..4, seed: u64,
        ) {
            let mut state = seed;
            run(ranks, operations, |count| next(&mut state) % count);
        }
    }
}
