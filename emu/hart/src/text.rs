//! Code, decoded once and kept.

use flexcast_isa::Isa;

use crate::bus::{Bus, Fault};
use crate::decode::{self, Place};
use crate::op::Op;

/// Slots behind a range: a four-byte instruction in its last two bytes goes on one slot further than the end.
const END_SLOTS: usize = 2;

/// Pre-decoded instructions over one or more executable address ranges.
///
/// Each instruction is decoded when it is first executed. A hart's own stores into a range, and `fence.i`, make the
/// text decode again; stores by devices or by harts that run on another `Text` have to be reported with
/// [`Text::invalidate`]. Execution outside every range ends in an instruction access fault.
///
/// Costs four bytes of memory per byte of code.
#[derive(Clone, Debug, Default)]
pub struct Text {
    pub(crate) ranges: Vec<Range>,
    /// The smallest address interval that holds all ranges.
    pub(crate) hull: Hull,
    isa: Isa,
}

/// An address interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hull {
    pub(crate) base: u64,
    pub(crate) len: u64,
}

impl Hull {
    /// From where and over how many bytes an access of up to eight may begin and touch the interval.
    #[inline(always)]
    pub(crate) fn guard(self) -> (u64, u64) {
        (self.base.wrapping_sub(7), self.len.saturating_add(7))
    }
}

/// One executable address range.
#[derive(Clone, Debug)]
pub(crate) struct Range {
    pub(crate) base: u64,
    pub(crate) len: u64,
    /// One slot for each two bytes, and [`END_SLOTS`].
    pub(crate) slots: Vec<Op>,
}

impl Text {
    /// The text of the `len` bytes from `base`. See [`Text::add`].
    #[must_use]
    pub fn new(base: u64, len: u64) -> Self {
        let mut text = Text::default();
        text.add(base, len);
        text
    }

    /// What the hart executes; all else is illegal. Without it [`Isa::BLUEFIELD_3`]. To be called before anything is
    /// decoded.
    #[must_use]
    pub fn with_isa(mut self, isa: Isa) -> Self {
        self.isa = isa;
        self
    }

    /// Makes the `len` bytes from `base` executable too. Instructions start at even addresses: an odd start is moved up
    /// and an odd end down. A range that would pass the end of the address space is cut there. Of ranges that overlap,
    /// the one added first holds.
    pub fn add(&mut self, base: u64, len: u64) {
        let end = base.saturating_add(len) & !1;
        let base = base.saturating_add(base & 1);
        let len = end.saturating_sub(base);
        if len == 0 {
            return;
        }
        let instructions = usize::try_from(len / 2).expect("an executable range fits in the address space");
        let mut slots = vec![Op::UNDECODED; instructions + END_SLOTS];
        slots[instructions..].fill(Op::END);
        self.ranges.push(Range { base, len, slots });

        let low = self.ranges.iter().map(|r| r.base).min().unwrap_or(0);
        let high = self.ranges.iter().map(|r| r.base + (r.len - 1)).max().unwrap_or(0);
        self.hull = Hull { base: low, len: high - low + 1 };
    }

    /// Forgets what was decoded from the `len` bytes at `addr`, because something else has been written there.
    pub fn invalidate(&mut self, addr: u64, len: u64) {
        if len == 0 {
            return;
        }
        // The instruction that begins two bytes earlier may reach into the written bytes.
        let first = addr.saturating_sub(2);
        let last = addr.saturating_add(len - 1);
        for range in &mut self.ranges {
            let range_last = range.base + (range.len - 1);
            if first > range_last || last < range.base {
                continue;
            }
            let from = (first.max(range.base) - range.base) / 2;
            let to = (last.min(range_last) - range.base) / 2;
            range.slots[from as usize..=to as usize].fill(Op::UNDECODED);
        }
    }

    /// Forgets everything that was decoded, as `fence.i` does.
    pub fn invalidate_all(&mut self) {
        for range in &mut self.ranges {
            let instructions = range.slots.len() - END_SLOTS;
            range.slots[..instructions].fill(Op::UNDECODED);
        }
    }

    /// The range that holds `pc`.
    #[inline]
    pub(crate) fn find(&self, pc: u64) -> Option<usize> {
        self.ranges.iter().position(|r| pc.wrapping_sub(r.base) < r.len)
    }

    /// Decodes the instruction at an address of a range into its slot.
    ///
    /// Out of line: it is done once for each instruction, and its registers would cost the loop of a burst a third of
    /// its speed.
    #[inline(never)]
    pub(crate) fn decode<B: Bus>(&mut self, range: usize, pc: u64, bus: &mut B) -> Result<(), Fault> {
        let range = &mut self.ranges[range];
        let offset = pc - range.base;
        let place = Place { offset, len: range.len };
        let low = bus.fetch16(pc)?;
        let high = if low & 3 == 3 { bus.fetch16(pc.wrapping_add(2))? } else { 0 };
        let bits = u32::from(high) << 16 | u32::from(low);
        range.slots[(offset / 2) as usize] = decode::decode(bits, place, self.isa);
        Ok(())
    }
}
