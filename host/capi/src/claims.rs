//! Memory of the program that operations under way use.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flexcast_rust::registration::Range;

use crate::fault::Fault;
use crate::status::flexcast_status::*;

/// Memory of an operation that is not over.
#[derive(Clone, Copy)]
struct InUse {
    range: Range,
    written: bool,
}

impl InUse {
    fn end(&self) -> u64 {
        self.range.address() + self.range.length()
    }
}

/// Memory in use by its address. What is written overlaps nothing else; what is read may be read by others, too.
#[derive(Default)]
struct Inner {
    written: BTreeMap<u64, InUse>,
    read: BTreeMap<(u64, u64), InUse>,
    /// At least as many bytes as any that is read has: none that begins further below reaches an address.
    longest_read_bytes: u64,
    in_use: BTreeMap<u64, InUse>,
    last: u64,
}

impl Inner {
    /// One that overlaps a range, of those that are written, and if asked for of those that are read.
    fn overlapping(&self, range: Range, reads: bool) -> Option<InUse> {
        let new = InUse { range, written: false };
        let written = self.written.range(..new.end()).next_back().map(|(_, used)| *used);
        let from = range.address().saturating_sub(self.longest_read_bytes);
        let read = || self.read.range((from, 0)..(new.end(), 0)).map(|(_, used)| *used);
        written
            .filter(|used| used.range.overlaps(range))
            .or_else(|| if reads { read().find(|used| used.range.overlaps(range)) } else { None })
    }

    fn insert(&mut self, used: InUse) -> u64 {
        self.last += 1;
        let (number, start) = (self.last, used.range.address());
        if used.written {
            self.written.insert(start, used);
        } else {
            self.longest_read_bytes = self.longest_read_bytes.max(used.range.length());
            self.read.insert((start, number), used);
        }
        self.in_use.insert(number, used);
        number
    }

    fn remove(&mut self, number: u64) {
        let Some(used) = self.in_use.remove(&number) else { return };
        if used.written {
            self.written.remove(&used.range.address());
        } else {
            self.read.remove(&(used.range.address(), number));
        }
        if self.read.is_empty() {
            self.longest_read_bytes = 0;
        }
    }
}

/// What operations of an endpoint use, so that none gets in another's way.
#[derive(Default)]
pub(crate) struct Claims(Mutex<Inner>);

impl Claims {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Each change is of numbers alone, and none of it panics.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes that an operation uses memory, unless another one does so that they would be in each other's way. Gives
    /// its number; 0 for no bytes.
    pub(crate) fn claim(&self, start: *const c_void, len: usize, written: bool, what: &str) -> Result<u64, Fault> {
        let wrong = |text: String| Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
        if len == 0 {
            return Ok(0);
        }
        if start.is_null() {
            return Err(Fault::null(&format!("the {what} buffer, of {len} bytes,")));
        }
        let range = match Range::new(start.addr() as u64, len as u64) {
            Ok(range) => range,
            Err(error) => return wrong(format!("the {what} buffer: {error}")),
        };
        let mut inner = self.inner();
        if let Some(other) = inner.overlapping(range, written) {
            return wrong(format!(
                "the {what} buffer, {len} bytes at {:#x}, overlaps {} bytes at {:#x} that an operation {}: wait for \
                 it, or use other memory (FLEXCAST_IN_PLACE if it is this very operation)",
                range.address(),
                other.range.length(),
                other.range.address(),
                if other.written { "writes" } else { "reads" }
            ));
        }
        Ok(inner.insert(InUse { range, written }))
    }

    /// The memory is the program's again.
    pub(crate) fn release(&self, claims: &[u64]) {
        let mut inner = self.inner();
        for claim in claims {
            inner.remove(*claim);
        }
    }

    /// Whether an operation uses some of it.
    pub(crate) fn overlap(&self, range: Range) -> bool {
        self.inner().overlapping(range, true).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: u64) -> *const c_void {
        std::ptr::without_provenance(address as usize)
    }

    /// Against the definition, for many ranges of a small memory.
    #[test]
    fn what_overlaps_is_refused_and_nothing_else() {
        let claims = Claims::default();
        let (mut state, mut held) = (1_u64, Vec::<(u64, u64, u64, bool)>::new());
        let mut below = |most: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % most
        };
        let (mut taken, mut refused) = (0, 0);
        for _ in 0..20_000 {
            let (start, len, written) = (4096 + below(256), 1 + below(24), below(3) == 0);
            let overlaps = |other: &(u64, u64, u64, bool)| start < other.1 + other.2 && other.1 < start + len;
            let expected = held.iter().any(|other| overlaps(other) && (written || other.3));
            assert_eq!(claims.overlap(Range::new(start, len).unwrap()), held.iter().any(overlaps));
            match claims.claim(at(start), len as usize, written, "send") {
                Ok(number) => {
                    assert!(!expected, "{len} bytes at {start} overlap");
                    held.push((number, start, len, written));
                    taken += 1;
                }
                Err(fault) => {
                    assert!(expected, "{}", fault.text);
                    refused += 1;
                }
            }
            if held.len() > 12 {
                let number = held.remove(below(held.len() as u64) as usize).0;
                claims.release(&[number]);
            }
        }
        assert!(taken > 1000 && refused > 1000, "{taken} {refused}");
    }
}
