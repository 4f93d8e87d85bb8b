//! The event trace, folded into one hash: two runs are the same if and only if (but for a 64-bit collision) it is.

/// What FNV-1a multiplies by for each byte.
const PRIME: u64 = 0x100_0000_01b3;

/// Its powers: what so many bytes of zero do to a hash.
const POWERS: [u64; 9] = {
    let mut powers = [1_u64; 9];
    let mut at = 1;
    while at < powers.len() {
        powers[at] = powers[at - 1].wrapping_mul(PRIME);
        at += 1;
    }
    powers
};

/// FNV-1a over what happened, when, and to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    hash: u64,
    events: u64,
}

impl Default for Trace {
    fn default() -> Self {
        Trace { hash: 0xcbf2_9ce4_8422_2325, events: 0 }
    }
}

impl Trace {
    /// Folds one event in.
    pub(crate) fn record(&mut self, at_ps: u64, kind: &'static str, a: u64, b: u64) {
        self.events += 1;
        let mut hash = self.hash;
        for byte in kind.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(PRIME);
        }
        for word in [at_ps, a, b] {
            // The upper bytes are nearly always zero, and are folded in at once.
            let mut rest = word;
            let mut zeros = 8;
            while rest != 0 {
                hash = (hash ^ (rest & 0xFF)).wrapping_mul(PRIME);
                rest >>= 8;
                zeros -= 1;
            }
            hash = hash.wrapping_mul(POWERS[zeros]);
        }
        self.hash = hash;
    }

    /// The hash so far.
    #[must_use]
    pub(crate) fn hash(&self) -> u64 {
        self.hash
    }

    /// Events so far.
    #[must_use]
    pub(crate) fn events(&self) -> u64 {
        self.events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_counts_as_fnv_1a_has_it() {
        let words = [0, 1, 0xFF00, 0x0100_0000_0000_0000, u64::MAX, 239_126_665_555, 0x0000_FF00_00FF_0000];
        let mut trace = Trace::default();
        let mut expected = trace.hash();
        for (number, word) in words.into_iter().enumerate() {
            let (at_ps, a, b) = (word, words[(number + 3) % words.len()], number as u64);
            trace.record(at_ps, "tx", a, b);
            let bytes = [at_ps, a, b].into_iter().flat_map(u64::to_le_bytes);
            for byte in b"tx".iter().copied().chain(bytes) {
                expected = (expected ^ u64::from(byte)).wrapping_mul(PRIME);
            }
            assert_eq!((trace.hash(), trace.events()), (expected, number as u64 + 1), "{word:#x}");
        }
    }
}
