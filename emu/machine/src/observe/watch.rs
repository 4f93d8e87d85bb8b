//! Memory with an observer: every access passes here when the machine has weak memory or detects races.
//!
//! A machine without either never comes here; see [`crate::bus::ThreadBus`].

use std::collections::BTreeMap;

use emu_nic::{Nic, Space};

use crate::config::{Config, MemoryModel};
use crate::dpa::memory::ProcessMemory;
use crate::dpa::process::Process;
use crate::host_memory::HostMemory;
use crate::observe::race::{Agent, Eyes, Race, RaceKind, Races, Range};
use crate::observe::sample::Sample;
use crate::time::cycles_to_ps;
use crate::weak::{Gathered, LINE, Pending, ThreadKey, UpTo, Weak};

/// The observers that the configuration asks for.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) weak: Option<Weak>,
    pub(crate) races: Option<Races>,
    /// What threads do, one of which does not end.
    pub(crate) sample: Option<Sample>,
}

/// What a store of a thread needs besides its bytes.
pub(crate) struct Place<'a> {
    pub(crate) card: usize,
    pub(crate) process: u32,
    pub(crate) thread: u32,
    pub(crate) memory: &'a mut ProcessMemory,
    pub(crate) host: &'a HostMemory,
    pub(crate) nic: &'a Nic,
}

impl Place<'_> {
    /// Card, process, thread.
    pub(crate) fn whose(&self) -> (usize, u32, u32) {
        (self.card, self.process, self.thread)
    }

    pub(crate) fn key(&self) -> ThreadKey {
        (self.card, self.thread)
    }

    fn agent(&self, pc: u64) -> Agent {
        Agent::Thread { process: self.process, thread: self.thread, pc, symbol: None }
    }
}

/// The line of host memory at a line address, if it is registered as a whole.
pub(crate) fn fetch_line(host: &HostMemory, line: u64) -> Option<[u8; LINE as usize]> {
    let mut bytes = [0; LINE as usize];
    host.read(line, &mut bytes).ok().map(|()| bytes)
}

/// The runs of bytes of a line whose bits are set.
fn runs(mask: u64) -> impl Iterator<Item = std::ops::Range<u64>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + u64::from(mask.checked_shr(at as u32).filter(|rest| *rest != 0)?.trailing_zeros());
        at = start + u64::from((mask >> start).trailing_ones());
        Some(start..at)
    })
}

impl Watch {
    /// The observers of a configuration; `None` where it asks for none.
    pub(crate) fn new(config: &Config) -> Option<Box<Self>> {
        let weak = match config.memory {
            MemoryModel::Strong => None,
            MemoryModel::Weak { seed, longest_delay_cycles } => Some(Weak::new(seed, longest_delay_cycles)),
        };
        let races = config.detect_races.then(Races::default);
        (weak.is_some() || races.is_some()).then(|| Box::new(Watch { weak, races, sample: None }))
    }

    /// Bytes as the runtime sees them on a thread's own execution unit: with the thread's stores.
    pub(crate) fn forward(&self, key: ThreadKey, addr: u64, bytes: &mut [u8]) {
        if let Some((_, order)) = self.weak.as_ref().and_then(|weak| weak.threads.get(&key)) {
            order.forward(addr, bytes);
        }
    }

    /// A write to the memory of a process, just before it becomes visible.
    pub(crate) fn will_write(
        &mut self,
        (card, process): (usize, u32),
        memory: &ProcessMemory,
        (addr, len): (u64, usize),
        agent: &Agent,
        at_ps: u64,
    ) {
        if let Some(weak) = &mut self.weak
            && let Some(old) = memory.bytes(addr, len)
        {
            let writer = match agent {
                Agent::Thread { thread, .. } => Some(*thread),
                _ => None,
            };
            weak.remember(card, process, writer, addr, old);
        }
        if let Some(races) = &mut self.races {
            races.written(Range { card, space: Space::Dpa(process), addr, len: len as u64 }, agent, at_ps);
        }
    }

    /// A write to the memory of a process has become visible: it may post entries.
    pub(crate) fn has_written(&mut self, place: &Place<'_>, addr: u64, len: u64, at_ps: u64) {
        let Some(races) = &mut self.races else { return };
        let (memory, host, process) = (&*place.memory, place.host, place.process);
        let read = |space: Space, addr: u64, out: &mut [u8]| match space {
            Space::Host => host.read(addr, out).is_ok(),
            // A thread writes what is posted on queues of its own process.
            Space::HostProcess(_) | Space::Arm => false,
            Space::Dpa(id) => id == process && memory.dma_read(addr, out).is_ok(),
        };
        let eyes = Eyes { card: place.card, nic: place.nic, read: &read, at_ps };
        races.refresh(&eyes);
        races.recorded(&eyes, &Range { card: place.card, space: Space::Dpa(process), addr, len });
    }

    /// A store of a thread through its window is about to reach host memory.
    pub(crate) fn will_write_host(&mut self, place: &Place<'_>, (addr, len): (u64, u64), pc: u64, at_ps: u64) {
        if let Some(races) = &mut self.races {
            let range = Range { card: place.card, space: Space::Host, addr, len };
            races.written(range, &place.agent(pc), at_ps);
            races.records.touch(range, at_ps);
        }
    }

    /// A store of a thread becomes visible.
    pub(crate) fn publish(&mut self, place: &mut Place<'_>, store: &Pending, at_ps: u64) {
        let len = usize::from(store.width);
        let whose = (place.card, place.process);
        let agent = place.agent(store.pc);
        self.will_write(whose, place.memory, (store.addr, len), &agent, at_ps);
        if let Some(bytes) = place.memory.bytes_mut(store.addr, len) {
            bytes.copy_from_slice(&store.value.to_le_bytes()[..len]);
        }
        self.has_written(place, store.addr, u64::from(store.width), at_ps);
        if let Some(weak) = &mut self.weak {
            weak.trace.record(at_ps, "visible", u64::from(place.thread), store.addr);
        }
    }

    /// What a thread has done up to places in program order becomes visible.
    pub(crate) fn publish_up_to(&mut self, place: &mut Place<'_>, up_to: UpTo, at_ps: u64) {
        let Some(weak) = &mut self.weak else { return };
        let order = weak.order(place.key(), place.process);
        let (stores, lines) = (order.take_up_to(up_to.stores), order.take_lines_up_to(up_to.lines));
        for store in stores {
            self.publish(place, &store, at_ps);
        }
        if !lines.is_empty() {
            self.arrive(place, lines, at_ps);
        }
    }

    /// Lines arrive at the host, whole.
    pub(crate) fn arrive(&mut self, place: &mut Place<'_>, lines: Vec<Gathered>, at_ps: u64) {
        for line in lines {
            self.publish_up_to(place, UpTo::stores(line.after), at_ps);
            if let Some(weak) = &mut self.weak {
                weak.trace.record(at_ps, "line", u64::from(place.thread), line.mask);
            }
            self.check_owners(place, &line, at_ps);
            // Of a whole line the thread means what it has stored; the rest is the owners' affair.
            for run in runs(line.mask) {
                self.will_write_host(place, (line.line + run.start, run.end - run.start), line.pc, at_ps);
            }
            // What has been unregistered since takes nothing any more: the card's fault, not the thread's, and not seen
            // by it.
            if line.fetched.is_some() {
                let _ = place.host.write_by(place.card, line.line, &line.bytes);
                continue;
            }
            for at in 0..LINE {
                if line.mask >> at & 1 == 1 {
                    let _ = place.host.write_by(place.card, line.line + at, &line.bytes[at as usize..][..1]);
                }
            }
        }
    }

    /// Bytes of a gathered line that somebody else has changed since it was fetched.
    fn check_owners(&mut self, place: &Place<'_>, line: &Gathered, at_ps: u64) {
        let Some(races) = &mut self.races else { return };
        let (Some(fetched), Some(now)) = (line.fetched, fetch_line(place.host, line.line)) else { return };
        let differs = |at: &usize| fetched[*at] != now[*at];
        if let (Some(first), Some(last)) = ((0..64).find(differs), (0..64).rfind(differs)) {
            let range = Range { card: place.card, space: Space::Host, addr: line.line, len: LINE };
            let changed = Range { addr: line.line + first as u64, len: (last + 1 - first) as u64, ..range };
            races.report(Race {
                kind: RaceKind::TwoOwners,
                first: changed.access(Agent::Unknown, "wrote part of a line", cycles_to_ps(line.since_cycles)),
                second: range.access(place.agent(line.pc), "had gathered the line and wrote it back", at_ps),
            });
        }
    }
}

/// Makes everything of one card visible that is due by `now_cycles`.
pub(crate) fn publish_due(
    watch: &mut Watch,
    card: usize,
    processes: &mut BTreeMap<u32, Process>,
    host: &HostMemory,
    nic: &Nic,
    now_cycles: u64,
) {
    let Some(weak) = &mut watch.weak else { return };
    let mut due: Vec<(u32, u32, Pending)> = Vec::new();
    let mut lines: Vec<(u32, u32, Gathered)> = Vec::new();
    for (&(_, thread), (process, order)) in weak.threads.range_mut((card, 0)..=(card, u32::MAX)) {
        due.extend(order.take_due(now_cycles).into_iter().map(|store| (*process, thread, store)));
        lines.extend(order.take_arrived(now_cycles).into_iter().map(|line| (*process, thread, line)));
    }
    due.sort_by_key(|&(_, thread, store)| (store.due_cycles, thread, store.sequence));
    for (process, thread, store) in due {
        let Some(Process { memory, .. }) = processes.get_mut(&process) else { continue };
        let mut place = Place { card, process, thread, memory, host, nic };
        watch.publish(&mut place, &store, cycles_to_ps(store.due_cycles));
    }
    lines.sort_by_key(|(_, thread, line)| (line.arrives_cycles, *thread));
    for (process, thread, line) in lines {
        let Some(Process { memory, .. }) = processes.get_mut(&process) else { continue };
        let at_ps = cycles_to_ps(line.arrives_cycles.unwrap_or(now_cycles));
        let mut place = Place { card, process, thread, memory, host, nic };
        watch.arrive(&mut place, vec![line], at_ps);
    }
}
