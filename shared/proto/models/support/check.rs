//! A model, checked whole.

use std::fmt::Debug;
use std::hash::Hash;

use stateright::{Checker as _, Model};

/// Checks all states of a model; what they were is printed.
pub(crate) fn check<M>(name: &str, model: M)
where
    M: Model<State: Clone + Debug + Hash + PartialEq + Send + Sync, Action: Clone + Debug + PartialEq + Send + Sync>
        + Send
        + Sync
        + 'static,
{
    let begin = std::time::Instant::now();
    let checker = model.checker().threads(2).spawn_dfs().join();
    checker.assert_properties();
    println!("{name}: {} states in {:.1} s", checker.unique_state_count(), begin.elapsed().as_secs_f64());
}
