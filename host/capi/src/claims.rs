//! Memory of the program that operations under way use.

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::{Mutex, MutexGuard, PoisonError};

use flexcast_rust::registration::Range;

use crate::fault::Fault;
use crate::status::flexcast_status::*;

/// Memory of an operation that is not over.
struct InUse {
    range: Range,
    written: bool,
}

#[derive(Default)]
struct Inner {
    in_use: BTreeMap<u64, InUse>,
    last: u64,
}

/// What operations of an endpoint use, so that none gets in another's way.
#[derive(Default)]
pub(crate) struct Claims(Mutex<Inner>);

impl Claims {
    fn inner(&self) -> MutexGuard<'_, Inner> {
        // Each change is one call of the map's.
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
        if let Some(other) =
            inner.in_use.values().find(|other| (other.written || written) && other.range.overlaps(range))
        {
            return wrong(format!(
                "the {what} buffer, {len} bytes at {:#x}, overlaps {} bytes at {:#x} that an operation {}: wait for \
                 it, or use other memory (FLEXCAST_IN_PLACE if it is this very operation)",
                range.address(),
                other.range.length(),
                other.range.address(),
                if other.written { "writes" } else { "reads" }
            ));
        }
        inner.last += 1;
        let number = inner.last;
        inner.in_use.insert(number, InUse { range, written });
        Ok(number)
    }

    /// The memory is the program's again.
    pub(crate) fn release(&self, claims: &[u64]) {
        let mut inner = self.inner();
        for claim in claims {
            inner.in_use.remove(claim);
        }
    }

    /// Whether an operation uses some of it.
    pub(crate) fn overlap(&self, range: Range) -> bool {
        self.inner().in_use.values().any(|used| used.range.overlaps(range))
    }
}
