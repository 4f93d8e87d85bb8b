//! Completions of a queue, taken in one call that ends.

use flexio::{Completion, CompletionQueue};

/// Completions handled in one call, so that it ends: in batches.
const MAX_BATCHES: u32 = 64;
/// Most completions that one poll takes.
const BATCH: usize = 32;

/// Gives completions to `handle` until there are none, or so many that others are to have their turn. Returns whether
/// there were any.
///
/// # Errors
/// The queue's; the first of `handle`, which is not called again then.
pub fn collect<E: From<flexio::Error>>(
    completions: &CompletionQueue,
    mut handle: impl FnMut(&Completion) -> Result<(), E>,
) -> Result<bool, E> {
    let mut seen = false;
    for _ in 0..MAX_BATCHES {
        let mut result = Ok(());
        let count = completions.poll_each(|completion| {
            if result.is_ok() {
                result = handle(&completion);
            }
        })?;
        result?;
        seen |= count > 0;
        if count < BATCH {
            break;
        }
    }
    Ok(seen)
}
