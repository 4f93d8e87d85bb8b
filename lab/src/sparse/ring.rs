//! Ring AllReduce of dense arrays on the same ports: reduce-scatter, then allgather.

use serde::{Deserialize, Serialize};

use super::device::Devices;
use super::params::{ArraysIn, Machine};
use super::ports::{Lines, Ports};
use crate::flow::{Queue, time_ps};

crate::options::named!(RingKind);

/// How a ring goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum RingKind {
    /// In segments: a segment is added by one of several threads and goes on while others come, as NCCL does.
    Pipelined,
    /// Step by step: a whole piece comes, one thread adds it, and it goes on, as blocking steps of an MPI library do.
    Stepwise,
}

/// Bytes of a segment.
const SEGMENT_BYTES: u64 = 64 << 10;
/// Threads that add segments.
const THREADS: usize = 8;

/// What a ring has taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RingReport {
    /// Virtual time in picoseconds.
    pub time_ps: u64,
    /// Bytes over links, with headers.
    pub wire_bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Segment {
    /// The node that sends it, or whom it comes to.
    node: u32,
    step: u32,
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Send(Segment),
    Head(Segment),
    Whole(Segment),
}

/// An AllReduce of `bytes` bytes among so many servers. Arrays that are not in host memory are added by the devices of
/// the servers, in one kernel for all segments; servers without devices have them in host memory.
#[must_use]
pub fn ring(kind: RingKind, machine: &Machine, arrays: ArraysIn, (workers, bytes): (u32, u64)) -> RingReport {
    let nodes = vec![machine.host; workers as usize];
    let (mut ports, mut memories) = (Ports::new(machine.network, nodes.len()), Lines::memories(&nodes));
    let mut devices = Devices::new(arrays, machine.device, workers);
    let begin_ps = devices.as_ref().map_or(0, |devices| devices.kernel_ps(0));
    let threads = if kind == RingKind::Pipelined { THREADS } else { 1 };
    let mut free_ps = vec![vec![0_u64; threads]; nodes.len()];
    let mut queue = Queue::new();
    let steps = 2 * workers.saturating_sub(1);
    let piece = bytes.div_ceil(u64::from(workers.max(1)));
    let longest = if kind == RingKind::Pipelined { SEGMENT_BYTES } else { piece.max(1) };
    if steps > 0 {
        for node in 0..workers {
            for first in (0..piece).step_by(longest as usize) {
                queue.plan(begin_ps, Event::Send(Segment { node, step: 0, bytes: longest.min(piece - first) }));
            }
        }
    }
    let mut end_ps = 0;
    while let Some((now_ps, event)) = queue.next() {
        match event {
            Event::Send(segment) => {
                let mut posted_ps = now_ps + machine.host.post_ps;
                if let Some(devices) = &mut devices {
                    posted_ps = devices.gather(segment.node, segment.bytes, posted_ps);
                    if !devices.is_direct() {
                        // Into a buffer, and out of it.
                        posted_ps = posted_ps.max(memories.serve(segment.node, 2 * segment.bytes, now_ps));
                    }
                }
                let head_ps = ports.leave(segment.node, segment.bytes, posted_ps);
                queue.plan(head_ps, Event::Head(Segment { node: (segment.node + 1) % workers, ..segment }));
            }
            Event::Head(segment) => {
                let mut whole_ps = ports.arrive(segment.node, segment.bytes, now_ps);
                if let Some(devices) = &mut devices {
                    if !devices.is_direct() {
                        whole_ps = whole_ps.max(memories.serve(segment.node, 2 * segment.bytes, now_ps));
                    }
                    whole_ps = devices.scatter(segment.node, segment.bytes, whole_ps);
                }
                queue.plan(whole_ps, Event::Whole(segment));
            }
            Event::Whole(segment) => {
                let mut ready_ps = now_ps + machine.host.message_ps;
                // The first half of the steps adds; it reads both and writes one.
                if segment.step < steps / 2 {
                    let all = &mut free_ps[segment.node as usize];
                    let Some(thread) = all.iter_mut().min() else { continue };
                    let start_ps = ready_ps.max(*thread);
                    ready_ps = if let Some(devices) = &mut devices {
                        devices.serve(segment.node, 3 * segment.bytes, start_ps)
                    } else {
                        let added_ps = start_ps + time_ps(segment.bytes, machine.host.core_add_memory_bytes_per_s);
                        added_ps.max(memories.serve(segment.node, 3 * segment.bytes, now_ps))
                    };
                    *thread = ready_ps;
                }
                if segment.step + 1 < steps {
                    queue.plan(ready_ps, Event::Send(Segment { step: segment.step + 1, ..segment }));
                }
                end_ps = end_ps.max(ready_ps);
            }
        }
    }
    RingReport { time_ps: end_ps, wire_bytes: ports.wire_bytes() }
}
