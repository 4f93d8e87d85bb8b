//! Faults of the network, made where datagrams come in.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use flexcast::{MakeTap, Tap};

use crate::harness::is_long;

/// Seeds of the test of faults: `FLEXCAST_FAULT_SEEDS` (`first..end`), or a few.
pub(crate) fn seeds() -> Range<u64> {
    if let Ok(range) = std::env::var("FLEXCAST_FAULT_SEEDS") {
        let (first, end) = range.split_once("..").expect("FLEXCAST_FAULT_SEEDS is first..end");
        return first.parse().expect("a number")..end.parse().expect("a number");
    }
    0..if is_long() { 60 } else { 12 }
}

/// Nothing that is sent to a group or a rank arrives.
pub(crate) fn nothing_comes() -> MakeTap {
    struct Nothing;
    impl Tap for Nothing {
        fn take(&mut self, _datagram: &[u8], _deliver: &mut dyn FnMut(&[u8])) {}
    }
    Arc::new(|_, _| Box::new(Nothing))
}

/// No acknowledgement arrives.
pub(crate) fn no_acknowledgements() -> MakeTap {
    struct Data;
    impl Tap for Data {
        fn take(&mut self, datagram: &[u8], deliver: &mut dyn FnMut(&[u8])) {
            // The kind of a datagram is its second byte.
            if datagram.get(1) != Some(&3) {
                deliver(datagram);
            }
        }
    }
    Arc::new(|_, _| Box::new(Data))
}

/// Drops, doubles, changes, delays and forges datagrams, as a seed says.
struct Faults {
    state: u64,
    /// Of 1000 datagrams each.
    dropped: u64,
    doubled: u64,
    changed: u64,
    delayed: u64,
    forged: u64,
    /// Datagrams that come later, after so many others.
    late: VecDeque<(u64, Vec<u8>)>,
}

impl Faults {
    fn draw(&mut self) -> u64 {
        // splitmix64.
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.state;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    fn happens(&mut self, of_1000: u64) -> bool {
        self.draw() % 1000 < of_1000
    }
}

impl Tap for Faults {
    fn take(&mut self, datagram: &[u8], deliver: &mut dyn FnMut(&[u8])) {
        for (left, _) in &mut self.late {
            *left = left.saturating_sub(1);
        }
        while self.late.front().is_some_and(|(left, _)| *left == 0) {
            let (_, late) = self.late.pop_front().unwrap();
            deliver(&late);
        }
        if self.happens(self.forged) {
            let mut forged = datagram.to_vec();
            // The header is right, all but the tag.
            let at = 24 + self.draw() as usize % forged.len().saturating_sub(24).max(1);
            if let Some(byte) = forged.get_mut(at) {
                *byte ^= 0x40;
            }
            deliver(&forged);
        }
        if self.happens(self.dropped) {
            return;
        }
        if self.happens(self.changed) {
            let mut changed = datagram.to_vec();
            let bit = self.draw() as usize % (8 * changed.len());
            changed[bit / 8] ^= 1 << (bit % 8);
            deliver(&changed);
            return;
        }
        if self.happens(self.delayed) {
            let behind = 1 + self.draw() % 200;
            self.late.push_back((behind, datagram.to_vec()));
            return;
        }
        deliver(datagram);
        if self.happens(self.doubled) {
            deliver(datagram);
        }
    }
}

/// The faults of a seed.
pub(crate) fn make(seed: u64) -> MakeTap {
    Arc::new(move |rank, _| {
        let mut faults = Faults {
            state: seed << 16 | u64::from(rank),
            dropped: 0,
            doubled: 0,
            changed: 0,
            delayed: 0,
            forged: 0,
            late: VecDeque::new(),
        };
        let rates = [0, 1, 10, 50, 300];
        let mut rate = || rates[faults.draw() as usize % rates.len()];
        let [dropped, doubled, changed, delayed, forged] = std::array::from_fn(|_| rate());
        Box::new(Faults { dropped, doubled, changed, delayed, forged, ..faults })
    })
}

/// Does something at the end of a scope, whatever ends it.
pub(crate) struct OnDrop<F: Fn()>(pub(crate) F);

impl<F: Fn()> Drop for OnDrop<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}
