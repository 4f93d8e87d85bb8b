//! Accesses executed before the cycles of their issue.
//!
//! Only those that cost the same whenever they are issued: they hit, wait for no path, and nobody else has the line at
//! hand.

use super::Memory;
use crate::cache::line_of;
use crate::unit::of_cycles;

impl Memory {
    /// Whether the last access was to a line that another thread may have at hand, so that what that has executed ahead
    /// of its time ([`Memory::load_ahead`]) matters. Of a line that its thread's L1 held already, others do not execute
    /// accesses ahead.
    #[inline]
    pub fn take_met(&mut self) -> bool {
        std::mem::take(&mut self.met)
    }

    /// Whether a thread may have the line of an address at hand.
    #[must_use]
    #[inline]
    pub fn may_be_in_l1(&self, addr: u64) -> bool {
        self.snoop_filter.at(line_of(addr)) > 0
    }

    /// A load of DPA memory ahead of its time. True if it hits L1 and no other L1 holds the line: it takes
    /// `Model::l1_cycles` whenever it is issued, and is counted. Otherwise nothing has happened.
    #[inline]
    pub fn load_ahead(&mut self, thread: usize, addr: u64) -> bool {
        let line = line_of(addr);
        if self.snoop_filter.at(line) != 1 || !self.threads[thread].l1.touch_held(line) {
            return false;
        }
        self.count(addr, |counts| counts.l1 += 1);
        true
    }

    /// The same of a store, after cycle `at`; it takes `Model::store_hit_cycles`. It must be in L2 as well, L2
    /// without limit, and no store of the thread on its way by then.
    #[inline]
    pub fn store_ahead(&mut self, thread: usize, addr: u64, at: u64) -> bool {
        let line = line_of(addr);
        let Memory { model, threads, snoop_filter, l2, l3, .. } = self;
        let own = &mut threads[thread];
        let may = model.service.l2 == 0 && snoop_filter.at(line) == 1;
        let on_its_way = own.stores.lines.back().is_some_and(|(_, taken_at)| *taken_at > of_cycles(at));
        if !may || on_its_way || !own.l1.holds(line) || !l2.touch_held(line) {
            return false;
        }
        l3.touch(line);
        own.l1.touch_held(line);
        self.count(addr, |counts| counts.store_hits += 1);
        true
    }

    /// Whether a thread of a core finds the code at an address in the core's code cache ahead of its time.
    #[inline]
    pub fn fetch_ahead(&mut self, core: usize, addr: u64) -> bool {
        self.code[core].touch_held(line_of(addr))
    }

    /// A load executed ahead of its time will not be issued.
    pub fn uncount_load(&mut self, addr: u64) {
        self.count(addr, |counts| counts.l1 -= 1);
    }

    /// The same of a store.
    pub fn uncount_store(&mut self, addr: u64) {
        self.count(addr, |counts| counts.store_hits -= 1);
    }
}
