//! Sums of `f32` that the DPA adds as fixed-point numbers, where the communicator asks for it.

use crate::error::{Error, Result};
use crate::op::aggregation::Aggregation;
use crate::op::config::Config;
use flexcast_reduce::{DataType, Operator, Reduction};
use flexcast_sparse::FixedPoint;

/// The sum of two `f32` is that of a word.
const SUM: Reduction = Reduction::of(Operator::Sum, DataType::F32).expect("sums of numbers");
const SUM_OF_WORDS: Reduction = Reduction::of(Operator::Sum, DataType::I64).expect("sums of integers");

/// Checks the bound of a configuration.
///
/// # Errors
/// [`Error::Argument`]: it is none, or nobody adds fixed-point numbers.
pub(super) fn check(config: &Config) -> Result<()> {
    let Some(bound) = config.sparse_fixed_point else { return Ok(()) };
    let refused = |limit: &str| {
        let reason = format!("{bound} must be {limit}");
        Err(Error::Argument { operation: "sparse.fixed_point", reason })
    };
    if FixedPoint::new(1, bound).is_err() {
        let least = f32::MIN_POSITIVE;
        return refused(&format!("a finite number from {least:e} on, the greatest magnitude of a contribution"));
    }
    if !config.aggregators.is_empty() {
        return refused("left out with aggregators that are no ranks: they add f32 as it is");
    }
    if config.sparse_aggregation == Aggregation::Host {
        return refused("left out, or sparse.aggregation be dpa: processors add f32 as it is");
    }
    Ok(())
}

/// A sum of `f32` as one of words: its bytes, and what the words are; none of another operation.
pub(super) fn words(
    (bytes, reduction): (u64, Reduction),
    bound: f32,
    ranks: u32,
) -> Option<((u64, Reduction), FixedPoint)> {
    let format = FixedPoint::new(ranks, bound).ok().filter(|_| reduction == SUM)?;
    // The last of an odd number has a word, too.
    let bytes = bytes.next_multiple_of(u64::from(SUM_OF_WORDS.element_bytes()));
    Some(((bytes, SUM_OF_WORDS), format))
}
