//! Windows: stores gathered in lines, and copies of lines that were read.

use rand::Rng;

use super::{LINE, Order, mask};

/// A line that was written back arrives at the host within this time: a crossing of PCIe.
const CROSSING_CYCLES: u64 = 2000;

/// A window line with stores that the host does not see.
#[derive(Clone, Debug)]
pub(crate) struct Gathered {
    /// Host address of the line.
    pub(crate) line: u64,
    pub(crate) bytes: [u8; LINE as usize],
    /// Bytes stored by the thread.
    pub(crate) mask: u64,
    /// The line as it was at the first store; `None` if it is not registered as a whole.
    pub(crate) fetched: Option<[u8; LINE as usize]>,
    /// Stores up to this place in program order must be visible before the line is.
    pub(crate) after: u64,
    /// Cycle at which it arrives at the host: known once it has been written back, or if it leaves the cache by itself.
    pub(crate) arrives_cycles: Option<u64>,
    /// Place of its writeback in program order.
    pub(crate) sequence: Option<u64>,
    pub(crate) pc: u64,
    pub(crate) since_cycles: u64,
}

impl Order {
    /// A store through a window. `fetch` reads a line of host memory, if it is registered as a whole.
    pub(crate) fn store_window(
        &mut self,
        host: u64,
        data: &[u8],
        now_cycles: u64,
        pc: u64,
        fetch: impl FnOnce(u64) -> Option<[u8; LINE as usize]>,
    ) {
        let line = host / LINE * LINE;
        let open = |gathered: &Gathered| gathered.line == line && gathered.sequence.is_none();
        let index = self.gathered.iter().position(open).unwrap_or_else(|| {
            // A copy of it on its way is what the line will be.
            let on_its_way = self.gathered.iter().rfind(|gathered| gathered.line == line && gathered.fetched.is_some());
            let fetched = on_its_way.map(|gathered| gathered.bytes).or_else(|| fetch(line));
            let leaves = self.rng.next_u32().is_multiple_of(4);
            let delay_cycles = self.rng.next_u64() % (self.longest_delay_cycles + 1);
            let earlier =
                self.gathered.iter().filter(|line| line.sequence.is_some()).filter_map(|line| line.arrives_cycles);
            let leaves_cycles = (now_cycles + delay_cycles).max(earlier.max().unwrap_or(0));
            self.gathered.push(Gathered {
                line,
                bytes: fetched.unwrap_or([0; LINE as usize]),
                mask: 0,
                fetched,
                after: 0,
                arrives_cycles: leaves.then_some(leaves_cycles),
                sequence: None,
                pc,
                since_cycles: now_cycles,
            });
            self.gathered.len() - 1
        });
        let gathered = &mut self.gathered[index];
        let first = (host - line) as usize;
        gathered.bytes[first..first + data.len()].copy_from_slice(data);
        gathered.mask |= mask(first, data.len());
        gathered.after = gathered.after.max(self.before_device.stores);
    }

    /// A load through a window, of bytes that do not leave their line.
    pub(crate) fn load_window(
        &mut self,
        host: u64,
        out: &mut [u8],
        fetch: impl FnOnce(u64) -> Option<[u8; LINE as usize]>,
    ) -> bool {
        let line = host / LINE * LINE;
        let first = (host - line) as usize;
        let copy = match self.window_copies.get(&line) {
            Some(copy) => copy,
            None => match fetch(line) {
                Some(bytes) => self.window_copies.entry(line).or_insert(bytes),
                None => return false,
            },
        };
        out.copy_from_slice(&copy[first..first + out.len()]);
        self.forward_window(host, out);
        true
    }

    /// Puts the thread's own window stores over the bytes at a host address.
    pub(crate) fn forward_window(&self, host: u64, out: &mut [u8]) {
        for gathered in &self.gathered {
            for (addr, byte) in (host..).zip(out.iter_mut()) {
                let at = addr.wrapping_sub(gathered.line);
                if at < LINE && gathered.mask >> at & 1 == 1 {
                    *byte = gathered.bytes[at as usize];
                }
            }
        }
    }

    /// Gathered lines set out for the host.
    pub(super) fn write_back(&mut self, now_cycles: u64) {
        // Earlier writebacks arrive first, and so does what was fenced before the stores.
        let earlier =
            self.gathered.iter().filter(|line| line.sequence.is_some()).filter_map(|line| line.arrives_cycles);
        let earlier = earlier.max().unwrap_or(0);
        for index in 0..self.gathered.len() {
            if self.gathered[index].sequence.is_some() {
                continue;
            }
            let after = self.gathered[index].after;
            let stores = self.stores.iter().filter(|store| store.sequence <= after).map(|store| store.due_cycles).max();
            let crossing = self.rng.next_u64() % (CROSSING_CYCLES + 1);
            let arrives = (now_cycles + crossing).max(earlier).max(stores.unwrap_or(0));
            self.sequence += 1;
            let line = &mut self.gathered[index];
            line.arrives_cycles = Some(arrives);
            line.sequence = Some(self.sequence);
        }
    }

    /// Takes the lines that arrive by `now_cycles`.
    pub(crate) fn take_arrived(&mut self, now_cycles: u64) -> Vec<Gathered> {
        let arrived = |line: &mut Gathered| line.arrives_cycles.is_some_and(|at| at <= now_cycles);
        let mut lines: Vec<Gathered> = self.gathered.extract_if(.., arrived).collect();
        // Of one moment: in program order, as they are.
        lines.sort_by_key(|line| line.arrives_cycles);
        lines
    }

    /// Takes the lines written back up to a place in program order.
    pub(crate) fn take_lines_up_to(&mut self, sequence: u64) -> Vec<Gathered> {
        self.gathered.extract_if(.., |line| line.sequence.is_some_and(|place| place <= sequence)).collect()
    }
}
