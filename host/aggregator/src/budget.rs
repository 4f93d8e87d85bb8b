//! Budget of a cache: how many workers fit.

use flexcast_proto::sparse::{CacheBudget, Parameters};
use serde_json::json;

use crate::AggregatorError;
use crate::options::BudgetArgs;

/// Prints how many workers fit, and what the given ones take.
///
/// # Errors
/// Parameters are out of their ranges.
pub fn print(args: &BudgetArgs) -> Result<(), AggregatorError> {
    let refused = |error: flexcast_proto::sparse::ParameterError| AggregatorError::Budget(error.to_string());
    let BudgetArgs { workers, memory, block_bytes, blocks_per_message, shards, json } = *args;
    let parameters = Parameters::new(workers, block_bytes, blocks_per_message, 4).map_err(refused)?;
    if shards == 0 {
        return Err(AggregatorError::Budget("0 shards: give at least 1".to_owned()));
    }
    let budget = CacheBudget { cache_bytes: memory.0, instances: shards };
    let (bytes, most) = (parameters.aggregator_bytes() * u64::from(shards), budget.most_workers(parameters));
    let checked = budget.check(parameters);
    if json {
        let object = json!({
            "memory_bytes": memory.0, "shards": shards, "block_bytes": block_bytes, "blocks_per_message": blocks_per_message,
            "workers": workers, "bytes": bytes, "fits": checked.is_ok(), "most_workers": most,
        });
        println!("{object}");
        return Ok(());
    }
    println!(
        "{shards} shards of {workers} workers, with {blocks_per_message} blocks of {block_bytes} bytes in a message, \
         take {bytes} bytes (computed)"
    );
    println!("at most {most} workers fit {} bytes", memory.0);
    if let Err(error) = checked {
        println!("{error}");
    }
    Ok(())
}
