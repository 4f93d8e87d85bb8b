//! The memory of a process, piece by piece, for dumps and debuggers.

use crate::dpa::layout::{
    CONTEXT_BYTES, CONTEXT_OFFSET, EXIT_GATE, HEAP, STACK_BYTES, STACK_OFFSET, THREAD_BLOCK, THREADS,
};
use crate::dpa::process::Process;
use crate::dpa::thread::{Thread, ThreadKind, ThreadState};

/// Gaps of unused heap up to this length do not end a region.
const HEAP_GAP_BYTES: u64 = 64 << 10;

/// What a region of memory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegionKind {
    /// A segment of the image.
    Image,
    /// The stack of the thread on this execution unit.
    Stack(u32),
    /// The page of its thread context.
    Context(u32),
    /// Heap in use; gaps between allocations may be included.
    Heap,
}

/// Memory that a process can load from.
#[derive(Clone, Copy, Debug)]
pub struct Region<'a> {
    /// What it is.
    pub kind: RegionKind,
    /// Device address of the first byte.
    pub addr: u64,
    /// The bytes.
    pub bytes: &'a [u8],
    /// Whether stores are possible.
    pub writable: bool,
    /// Whether it can be executed.
    pub executable: bool,
}

impl Process {
    /// Program counter and registers of a thread, as a debugger is to see them. An event handler that does not run has
    /// none that mean anything: it is shown where its next activation starts.
    #[must_use]
    pub fn registers(&self, thread: &Thread) -> (u64, [u64; 32]) {
        let waits = matches!(thread.state, ThreadState::Created | ThreadState::Waiting);
        if thread.kind != ThreadKind::EventHandler || !waits {
            return (thread.hart.pc, thread.hart.x);
        }
        let block = THREADS + u64::from(thread.port.eu) * THREAD_BLOCK;
        let mut x = [0; 32];
        // ra, sp, gp, tp, a0.
        x[1] = EXIT_GATE;
        x[2] = block + STACK_OFFSET + STACK_BYTES;
        x[3] = self.global_pointer;
        x[4] = block + CONTEXT_OFFSET;
        x[10] = thread.arg;
        (thread.entry, x)
    }

    /// Everything a process can load from but for windows and device registers: segments, stacks and contexts of its
    /// threads, heap in use. By ascending address.
    #[must_use]
    pub fn regions(&self) -> Vec<Region<'_>> {
        let mut regions: Vec<Region<'_>> = self
            .memory
            .segments()
            .iter()
            .map(|segment| Region {
                kind: RegionKind::Image,
                addr: segment.base,
                bytes: &segment.bytes,
                writable: segment.writable,
                executable: segment.executable,
            })
            .collect();
        let mut data = |kind, addr: u64, len: u64| {
            if let Some(bytes) = self.memory.bytes(addr, len as usize) {
                regions.push(Region { kind, addr, bytes, writable: true, executable: false });
            }
        };
        for thread in self.threads.values() {
            let eu = thread.port.eu;
            let block = THREADS + u64::from(eu) * THREAD_BLOCK;
            data(RegionKind::Stack(eu), block + STACK_OFFSET, STACK_BYTES);
            data(RegionKind::Context(eu), block + CONTEXT_OFFSET, CONTEXT_BYTES);
        }
        let mut run: Option<(u64, u64)> = None;
        for (start, len) in self.heap.live() {
            match &mut run {
                Some((_, end)) if start - *end <= HEAP_GAP_BYTES => *end = start + len,
                _ => {
                    if let Some((from, end)) = run.replace((start, start + len)) {
                        data(RegionKind::Heap, from, end - from);
                    }
                }
            }
        }
        if let Some((from, end)) = run {
            data(RegionKind::Heap, from, end - from);
        }
        debug_assert!(regions.iter().all(|region| region.kind != RegionKind::Heap || region.addr >= HEAP));
        regions.sort_by_key(|region| region.addr);
        regions
    }
}
