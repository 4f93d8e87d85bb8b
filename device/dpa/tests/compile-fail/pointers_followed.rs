//! Pointers out of memory that anybody may have written.
use dpa::abi::calibration::KernelContext;
use dpa::microbench::Lines;

pub fn follow(context: &KernelContext) -> u64 {
    Lines::attach(&context.memory).follow(0, 9) //~ E0133
}
