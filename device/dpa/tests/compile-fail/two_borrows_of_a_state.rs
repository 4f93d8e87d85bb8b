//! Two exclusive borrows of one state.
use dpa::State;
use dpa::abi::ProgressThread;

pub fn twice(thread: &mut ProgressThread) {
    let one = State::<u64>::attach(&mut thread.machine).and_then(State::get);
    let other = State::<u64>::attach(&mut thread.machine).and_then(State::get); //~ E0499
    if let (Some(one), Some(other)) = (one, other) {
        core::mem::swap(one, other);
    }
}
