//! The event trace, folded into one hash: two runs are the same if and only if (but for a 64-bit collision) it is.

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
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        for word in [at_ps, a, b] {
            for byte in word.to_le_bytes() {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
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
