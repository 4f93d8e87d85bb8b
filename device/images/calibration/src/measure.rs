//! Loads and stores: Chen et al.'s pointer chases and strided copies, and the chain of loads by which Schimmelpfennig
//! et al. explain their store's throughput.
// Following pointers that were loaded: no check fits between two loads of a chase.
#![allow(unsafe_code)]

use dpa::abi::calibration::{Kernel, KernelContext, next_line};
use dpa::microbench::{Barrier, Lines};
use dpa::{Next, error, fatal};

use crate::slot::{Begin, Slot, Span};

/// Dependent loads from DPA memory of one operation of the chain.
const MEMORY_LOADS: u64 = 10;
/// Spreads one number over the host's lines twice, differently (the golden ratio in 64 bits).
const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

/// One measurement.
pub(crate) fn run(context: &mut KernelContext) -> Next {
    let Ok(kernel) = Kernel::from_raw(context.kernel) else { fatal(error::BAD_ARGUMENT) };
    let slot = Slot::take(context);
    let memory = Lines::attach(&context.memory);
    let host = Lines::through(slot.window, context.host, context.host_bytes);
    let host = host.unwrap_or_else(|_| fatal(error::NO_RESOURCE));
    let (span, found) = match kernel {
        Kernel::ChaseMemory => chase(context, &memory),
        Kernel::ChaseHost => chase(context, &host),
        Kernel::ReadMemory => (passes(context, || memory.read()), 0),
        Kernel::ReadHost => (passes(context, || host.read()), 0),
        Kernel::WriteMemory => (passes(context, || memory.write()), 0),
        Kernel::WriteHost => (passes(context, || host.write()), 0),
        Kernel::Chain => chain(context, &memory, &host),
    };
    slot.report(context, &span, 0, found);
    Next::Finish
}

/// Once round to warm up, then `count` loads.
#[inline(always)]
fn chase(context: &KernelContext, lines: &Lines) -> (Span, u64) {
    let count = lines.count();
    for line in 0..count {
        lines.link(line, if line + 1 == count { 0 } else { line + 1 });
    }
    Barrier::attach(&context.barrier).pass(context.threads);
    // SAFETY: all lines are linked above; they are this thread's alone, and it writes no others meanwhile.
    let warm = unsafe { lines.follow(0, count) };
    let begin = Begin::now();
    // SAFETY: as above.
    let at = unsafe { lines.go_on(warm, context.count) };
    (begin.end(), at)
}

/// Once to warm up, then `count` times.
#[inline(always)]
fn passes(context: &KernelContext, pass: impl Fn()) -> Span {
    Barrier::attach(&context.barrier).pass(context.threads);
    pass();
    let begin = Begin::now();
    for _ in 0..context.count {
        pass();
    }
    begin.end()
}

/// `count` operations of ten dependent loads from DPA memory and two from the host that depend on them.
#[inline(always)]
fn chain(context: &KernelContext, memory: &Lines, host: &Lines) -> (Span, u64) {
    if !memory.count().is_power_of_two() || !host.count().is_power_of_two() {
        fatal(error::BAD_ARGUMENT);
    }
    let (mask, host_mask) = (memory.count() - 1, host.count() - 1);
    for own in 0..context.own_lines {
        let line = (context.first_line + own) & mask;
        memory.link(line, next_line(line, memory.count()));
    }
    Barrier::attach(&context.barrier).pass(context.threads);
    // SAFETY: the threads at the barrier have each linked their lines, all of them together, and in this run nobody
    // writes them any more.
    let mut at = unsafe { memory.follow(context.start_line & mask, 1) };
    let mut found = 0u64;
    let begin = Begin::now();
    for _ in 0..context.count {
        // SAFETY: as above.
        at = unsafe { memory.go_on(at, MEMORY_LOADS) };
        // The host's memory holds zeros: what is found changes no address, but each address waits for it.
        found = host.load((at / 64).wrapping_add(found) & host_mask);
        found = host.load((at / 64).wrapping_mul(SPREAD).wrapping_add(found) >> 32 & host_mask);
        at = at.wrapping_add(found);
    }
    (begin.end(), at)
}
