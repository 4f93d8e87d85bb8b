//! The published micro-benchmarks, as loops of accesses on the model: what went in has to come out (within 10 % for
//! latencies, 20 % for bandwidths). This checks the arithmetic, not the truth.

use emu_timing::cache::LINE_BYTES;
use emu_timing::core::THREADS;
use emu_timing::unit::UNITS_PER_NS;
use emu_timing::{Core, Memory, Model, Parameters, Space};

/// What a loop's accesses do.
#[derive(Clone, Copy)]
enum Access {
    Load,
    Store,
}

/// `threads` run loops of accesses and two ordinary instructions, at a stride of `stride` bytes over `set` bytes each,
/// `passes` times. A loop has one load, or eight stores: the costs of stores are derived from whole lines written,
/// those of loads from loops of three. Returns the cycles that the loops after the first pass over `set` took.
fn loops(
    all: &Parameters,
    space: Space,
    access: Access,
    threads: usize,
    stride: u64,
    set: u64,
    passes: u64,
) -> (u64, u64) {
    let model = Model::new(all).unwrap();
    let mut cores: Vec<Core> =
        (0..16).map(|_| Core::new(1, model.gap_millicycles, model.l1_cycles, model.store_hit_cycles)).collect();
    let mut memory = Memory::new(model);
    let mut state = vec![(0u64, 0u64); threads];
    let per_pass = set / stride;
    for thread in 0..threads {
        memory.begin(thread);
        cores[thread / THREADS].schedule(thread % THREADS, 0, 0, 0);
    }
    let (mut began, mut ended) = (u64::MAX, 0);
    while let Some((at, core)) = (0..16).filter_map(|core| Some((cores[core].advance(u64::MAX)?.at, core))).min() {
        let issue = cores[core].take().unwrap();
        let thread = core * THREADS + issue.thread;
        let (step, done) = &mut state[thread];
        let in_loop = match access {
            Access::Load => 1,
            Access::Store => 8,
        };
        let cycles = if *step >= in_loop {
            cores[core].gap(issue.thread)
        } else {
            if *done == per_pass {
                began = began.min(at);
            }
            let addr = ((thread as u64) << 32) + *done % per_pass * stride;
            *done += 1;
            match access {
                Access::Load => memory.load(thread, space, addr, at),
                Access::Store => memory.store(thread, space, addr, at),
            }
        };
        *step = (*step + 1) % (in_loop + 2);
        if *done == passes * per_pass && *step == 0 {
            ended = ended.max(at + cycles);
            cores[core].leave(issue.thread);
        } else {
            cores[core].schedule(issue.thread, at + cycles, 0, 0);
        }
    }
    (ended - began, (passes - 1) * per_pass * threads as u64)
}

fn within(percent: u64, value: f64, published: f64) -> bool {
    (value / published - 1.0).abs() * 100.0 <= percent as f64
}

#[test]
fn a_chase_takes_what_its_working_set_takes() {
    for (space, set, ns) in [
        (Space::Dpa, 1 << 10, 12.8),
        (Space::Dpa, 1 << 20, 39.5),
        (Space::Dpa, 2_900_000 / 64 * 64, 70.0),
        (Space::Dpa, 16 << 20, 400.0),
        (Space::Arm, 8 << 20, 230.0),
        (Space::Host, 4 << 20, 719.0),
    ] {
        let (cycles, loads) = loops(&Parameters::m2(), space, Access::Load, 1, LINE_BYTES, set, 2);
        let took_ns = cycles as f64 / loads as f64 / 1.8;
        // Points of the plots were read within 3 %. The one at 3 MiB, where the working set begins to leave L3, is the
        // farthest off.
        assert!(within(10 + 3, took_ns, ns), "{space:?} {set}: {took_ns:.1} ns, published {ns}");
    }
}

#[test]
fn bandwidths_are_near_the_published_ones() {
    // The published reads went to DRAM: the far ends of the ranges of these latencies.
    let mut dram = Parameters::m2();
    for (name, cycles) in [("dpa_memory_cycles", 837), ("arm_window_cycles", 574), ("host_window_cycles", 1638)] {
        dram = dram.with("loads", name, cycles).unwrap();
    }
    // GB/s: one thread, all threads (190).
    for (space, access, one, all) in [
        (Space::Dpa, Access::Load, 0.10, 9.8),
        (Space::Arm, Access::Load, 0.15, 20.0),
        (Space::Host, Access::Load, 0.068, 7.2),
        (Space::Dpa, Access::Store, 0.42, 25.0),
        (Space::Arm, Access::Store, 0.44, 14.0),
        (Space::Host, Access::Store, 0.44, 14.0),
    ] {
        let mut rates = Vec::new();
        for (threads, set) in [(1, 5 << 20), (190, 32 << 10)] {
            let (cycles, accesses) = loops(&dram, space, access, threads, 8, set, 2);
            rates.push(accesses as f64 * 8.0 / (cycles as f64 / 1.8));
        }
        println!("{space:?}: {rates:.3?} GB/s, published {one} and {all}");
        assert!(within(20, rates[0], one), "{space:?}: {rates:.3?}, published {one}, {all}");
        assert!(within(20, rates[1], all), "{space:?}: {rates:.3?}, published {one}, {all}");
    }
    assert_eq!(UNITS_PER_NS, 12_600);
}

#[test]
fn what_the_card_writes_is_gone_from_the_l1s_and_in_l2() {
    let model = Model::new(&Parameters::m2()).unwrap();
    let (l1, l2) = (model.l1_cycles, model.l2_cycles);
    let mut memory = Memory::new(model);
    for thread in [3, 200] {
        memory.begin(thread);
        memory.load(thread, Space::Dpa, 0x1000, 0);
        assert_eq!(memory.load(thread, Space::Dpa, 0x1008, 900), l1);
    }
    memory.written_by_card(0x0ff0, 64);
    for (thread, at) in [(3, 2000), (200, 3000)] {
        assert_eq!(memory.load(thread, Space::Dpa, 0x1000, at), l2);
        assert_eq!(memory.load(thread, Space::Dpa, 0x1000, at + 100), l1);
        memory.end(thread);
        memory.begin(thread);
        assert_eq!(memory.load(thread, Space::Dpa, 0x1000, at + 200), l2, "a new activation begins with an empty L1");
    }
    // Payload that no thread reads.
    memory.written_by_card(0x10_0000, 4096);
    assert_eq!(memory.load(3, Space::Dpa, 0x10_0fc0, 4000), l2);
}

/// Where host memory lies differs from run to run: it must not decide which lines of the DPA are one thread's alone.
#[test]
fn lines_behind_windows_are_not_those_of_the_dpa() {
    let model = Model::new(&Parameters::m2()).unwrap();
    let (l1, l2) = (model.l1_cycles, model.l2_cycles);
    let mut memory = Memory::new(model);
    (0..3).for_each(|thread| memory.begin(thread));
    for addr in (0x1000..0x1400).step_by(64) {
        memory.load(0, Space::Host, addr, 0);
        memory.store(1, Space::Host, addr, 0);
        assert!(memory.load(2, Space::Dpa, addr, 1000) > l1 && !memory.take_met(), "{addr:#x}");
        assert!(memory.load_ahead(2, addr) && memory.store_ahead(2, addr, 2000), "{addr:#x}");
        // Another thread has the line at hand, too.
        assert_eq!(memory.load(1, Space::Dpa, addr, 3000), l2);
        assert!(memory.take_met() && !memory.load_ahead(2, addr) && !memory.store_ahead(2, addr, 4000), "{addr:#x}");
    }
}

#[test]
fn fences_wait_for_what_they_order() {
    const R_R: u8 = 2;
    const W_W: u8 = 1;
    const OW_OW: u8 = 5;
    let model = Model::new(&Parameters::m2()).unwrap();
    let (fence, writeback) = (model.fence_cycles, model.window_writeback_cycles);
    let mut memory = Memory::new(model);
    memory.begin(0);
    assert_eq!([R_R, W_W, OW_OW].map(|before| memory.fence(0, before, 0)), [fence; 3], "nothing has been stored");
    // Lines to host memory leave one after another: 219 M/s is one in 8.2 cycles.
    for line in 0..4 {
        memory.store(0, Space::Host, line * 64, 100);
    }
    assert_eq!(memory.fence(0, R_R, 100), fence, "loads have returned");
    assert_eq!(
        memory.fence(0, OW_OW, 100),
        25 + writeback,
        "the last of four lines begins 24.7 cycles after the first"
    );
    assert_eq!(memory.fence(0, OW_OW, 100), fence, "that was all");
    memory.store(0, Space::Dpa, 0, 5000);
    assert_eq!(memory.fence(0, OW_OW, 5000), fence);
}
