//! Two exclusive borrows of one kept value.
use dpa::Kept;
use dpa::abi::ProgressThread;

pub fn twice(thread: &mut ProgressThread) {
    let one = Kept::<u64>::attach(&mut thread.machine).and_then(Kept::get);
    let other = Kept::<u64>::attach(&mut thread.machine).and_then(Kept::get); //~ E0499
    if let (Some(one), Some(other)) = (one, other) {
        core::mem::swap(one, other);
    }
}
