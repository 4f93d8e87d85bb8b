//! Races of the card, the firmware and the host for memory: an observer that changes nothing.
//!
//! The rules are those of verbs: from its post to its completion a work queue entry and the memory it names belong to
//! the card. Posted is a send by its doorbell (or by the send word of the doorbell record, which the card may read at
//! any time), a receive by the receive word of the record, whoever writes the record: a thread, the host, a card;
//! complete is what a completion entry reports, and all entries before it.
//!
//! Of DPA threads among themselves the rules are those of the memory model: see module `order`.
//!
//! A program's own stores to a record in host memory cannot be seen. Such records are read when a packet arrives,
//! and when the card reads them.

mod order;
mod posted;
mod queues;
mod reach;
mod records;

use std::collections::BTreeMap;
use std::fmt;

use emu_nic::{MkeyAttr, Nic, Space, Transport};
use flexcast_image::Image;

use order::{Deed, Order};
pub(crate) use queues::Eyes;
use queues::Queue;
use reach::{QueueId, Reach};
use records::Records;

use crate::dpa::crash::ANNOUNCED;

/// Most races kept; further ones are counted only.
const MAX_RACES: usize = 64;

/// What two accesses did to one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum RaceKind {
    /// A packet was stored over memory that a posted send still reads: a slot was given back too early.
    OverwrittenSource,
    /// The firmware or the host changed an entry, or memory that it names, which belongs to the card.
    OwnedByCard,
    /// A receive was posted into memory that a posted send still reads: the next packet may overwrite it.
    ReceiveOverSource,
    /// A doorbell was rung for more entries than the send word of the doorbell record says. The card may read the
    /// record at any time, and does after errors. Reported for records that the firmware keeps at all.
    RecordBehindDoorbell,
    /// Memory was written after its owner had given it back.
    ReleasedMemory,
    /// A packet asked for memory by a key that had been destroyed. The card refuses it, but by another key the memory
    /// might be somebody else's by then. Where an operation has failed, keys are destroyed for that: peers that do not
    /// know yet are refused.
    RevokedKey,
    /// Two agents wrote one 64-byte line of host memory, and a writeback of the whole line undid one of them.
    TwoOwners,
    /// Two DPA threads accessed the same bytes, one of them storing, and nothing orders the two: no atomic, no fences
    /// around a flag, no doorbell or activation.
    Unordered,
}

/// Who accesses memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Agent {
    /// A DPA thread.
    Thread {
        /// Process id.
        process: u32,
        /// Thread id.
        thread: u32,
        /// Program counter of the instruction.
        pc: u64,
        /// Symbol that holds it, with the offset in it.
        symbol: Option<(String, u64)>,
    },
    /// A card's engines, working for a queue pair where that is known.
    Card {
        /// Queue pair number.
        qpn: Option<u32>,
        /// Index of the entry, modulo 2^16.
        entry: Option<u16>,
    },
    /// The host, through a control call.
    Host,
    /// Another writer that the machine cannot name: the host's own stores, or another thread or card.
    Unknown,
}

/// One side of a race.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Access {
    /// Who.
    pub agent: Agent,
    /// What it did, as a verb with its object.
    pub action: &'static str,
    /// The card it happened on.
    pub card: usize,
    /// The memory.
    pub space: Space,
    /// First byte.
    pub addr: u64,
    /// Bytes.
    pub len: u64,
    /// Virtual time in picoseconds.
    pub at_ps: u64,
}

/// Two accesses that must not have happened in this order, or not without something between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Race {
    /// What is wrong.
    pub kind: RaceKind,
    /// The access that was there first.
    pub first: Access,
    /// The one that broke the rule.
    pub second: Access,
}

/// Races for memory, where the machine detects them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RaceSnapshot {
    /// How many there have been, repetitions included.
    pub count: u64,
    /// The first that are unlike one another and have not been taken ([`World::take_races`](crate::World::take_races)),
    /// each with both accesses.
    pub reports: Vec<Race>,
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Agent::Thread { process, thread, pc, symbol } => {
                write!(f, "thread {thread} of process {process} at pc {pc:#x}")?;
                symbol.as_ref().map_or(Ok(()), |(name, offset)| write!(f, " ({name}+{offset:#x})"))
            }
            Agent::Card { qpn: Some(qpn), entry: Some(entry) } => write!(f, "queue pair {qpn:#x}, entry {entry}"),
            Agent::Card { qpn: Some(qpn), entry: None } => write!(f, "queue pair {qpn:#x}"),
            Agent::Card { .. } => f.write_str("the card"),
            Agent::Host => f.write_str("the host"),
            Agent::Unknown => f.write_str("another writer"),
        }
    }
}

impl fmt::Display for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Access { agent, action, card, space, addr, len, at_ps } = self;
        let memory = match space {
            Space::Host => "host memory".to_owned(),
            Space::HostProcess(number) => format!("memory of process {number} of the host"),
            Space::Arm => format!("memory of the Arm cores of card {card}"),
            Space::Dpa(process) => format!("memory of process {process} on card {card}"),
        };
        write!(f, "{agent} {action}: {len} bytes at {addr:#x} of {memory}, at {at_ps} ps")
    }
}

impl fmt::Display for RaceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            RaceKind::OverwrittenSource => "memory that a posted send still reads was overwritten",
            RaceKind::ReceiveOverSource => "a receive was posted into memory that a posted send still reads",
            RaceKind::RecordBehindDoorbell => "a doorbell was rung before its record was visible",
            RaceKind::OwnedByCard => "memory that belongs to the card was changed",
            RaceKind::ReleasedMemory => "memory was written after its release",
            RaceKind::RevokedKey => "memory was asked for by a key that is gone",
            RaceKind::TwoOwners => "two owners wrote one line",
            RaceKind::Unordered => "two threads accessed memory that nothing orders",
        })
    }
}

impl fmt::Display for Race {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n  first   {}\n  second  {}", self.kind, self.first, self.second)
    }
}

/// A range of memory. Host memory is one, whatever card accesses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Range {
    pub(crate) card: usize,
    pub(crate) space: Space,
    pub(crate) addr: u64,
    pub(crate) len: u64,
}

impl Range {
    pub(crate) fn overlaps(&self, other: &Range) -> bool {
        self.space == other.space
            && (self.space == Space::Host || self.card == other.card)
            && self.addr < other.addr.saturating_add(other.len)
            && other.addr < self.addr.saturating_add(self.len)
    }

    pub(crate) fn access(self, agent: Agent, action: &'static str, at_ps: u64) -> Access {
        let Range { card, space, addr, len } = self;
        Access { agent, action, card, space, addr, len, at_ps }
    }
}

/// Everything the observer knows.
#[derive(Debug, Default)]
pub(crate) struct Races {
    found: Vec<Race>,
    suppressed: u64,
    /// All there have ever been, and how many of them the fault_sink knows; of `found` it knows so many.
    total: u64,
    reported_total: u64,
    reported: usize,
    /// A report still lacks a symbol.
    pub(crate) unnamed: bool,
    queues: BTreeMap<QueueId, Queue>,
    /// Where they have posted.
    reach: Reach,
    /// Their doorbell records.
    pub(crate) records: Records,
    /// Per card: queue pairs are searched for from this number on, and when there was something to learn last.
    next_qpn: BTreeMap<usize, u32>,
    changes: BTreeMap<usize, u64>,
    released: BTreeMap<(usize, u32, u64), (u64, u64)>,
    keys: BTreeMap<(usize, u32), MkeyAttr>,
    /// The accesses of threads to memory that they share.
    order: Order,
}

impl Races {
    /// Takes the reports; further ones like them are reported again.
    pub(crate) fn take(&mut self) -> Vec<Race> {
        (self.suppressed, self.reported) = (0, 0);
        std::mem::take(&mut self.found)
    }

    /// Whether there are races of which [`Races::take_unreported`] has not given yet.
    pub(crate) fn is_unreported(&self) -> bool {
        self.total != self.reported_total
    }

    /// The reports that have come since the last call, and the number of all races.
    pub(crate) fn take_unreported(&mut self) -> (Vec<Race>, u64) {
        self.reported_total = self.total;
        let new = self.found[self.reported..].to_vec();
        self.reported = self.found.len();
        (new, self.total)
    }

    pub(crate) fn snapshot(&self) -> RaceSnapshot {
        RaceSnapshot { count: self.total, reports: self.found.clone() }
    }

    /// Races seen since they were last taken, repetitions included.
    pub(crate) fn count(&self) -> u64 {
        self.found.len() as u64 + self.suppressed
    }

    pub(crate) fn report(&mut self, race: Race) {
        self.total += 1;
        let same = |other: &Race| {
            other.kind == race.kind
                && alike(&other.first.agent, &race.first.agent)
                && alike(&other.second.agent, &race.second.agent)
        };
        if self.found.len() >= MAX_RACES || self.found.iter().any(same) {
            self.suppressed += 1;
            return;
        }
        tracing::warn!(target: ANNOUNCED, "race: {race}");
        self.unnamed = true;
        self.found.push(race);
    }

    /// Completes reports with the names of what lies at their program counters.
    pub(crate) fn name(&mut self, card: usize, of: u32, image: &Image) {
        for race in &mut self.found {
            for access in [&mut race.first, &mut race.second] {
                if let Agent::Thread { process, pc, symbol, .. } = &mut access.agent
                    && (access.card, *process) == (card, of)
                    && symbol.is_none()
                {
                    *symbol = image.symbolize(*pc);
                }
            }
        }
    }

    /// An allocation has been given back.
    pub(crate) fn release(&mut self, card: usize, process: u32, addr: u64, len: u64, at_ps: u64) {
        self.released.insert((card, process, addr), (len, at_ps));
    }

    /// A range belongs to somebody again.
    pub(crate) fn allocate(&mut self, card: usize, process: u32, addr: u64, len: u64) {
        let end = addr + len;
        let over: Vec<_> = self
            .released
            .range((card, process, 0)..(card, process, end))
            .filter(|&(&(.., start), &(bytes, _))| start + bytes > addr)
            .map(|(&key, &value)| (key, value))
            .collect();
        for ((card, process, start), (bytes, at_ps)) in over {
            self.released.remove(&(card, process, start));
            if start < addr {
                self.released.insert((card, process, start), (addr - start, at_ps));
            }
            if start + bytes > end {
                self.released.insert((card, process, end), (start + bytes - end, at_ps));
            }
        }
    }

    /// A process has gone, and its memory with it.
    pub(crate) fn forget(&mut self, card: usize, process: u32) {
        self.released.retain(|&(on, of, _), _| (on, of) != (card, process));
        self.order.forget(card, process);
        let uses = |&(&(on, _), queue): &(&QueueId, &Queue)| on == card && queue.uses(Space::Dpa(process));
        let gone: Vec<QueueId> = self.queues.iter().filter(uses).map(|(&id, _)| id).collect();
        self.forget_queues(&gone);
    }

    /// A write becomes visible now.
    pub(crate) fn written(&mut self, range: Range, agent: &Agent, at_ps: u64) {
        if let Space::Dpa(process) = range.space {
            let end = range.addr.saturating_add(range.len);
            let last = self.released.range((range.card, process, 0)..(range.card, process, end)).next_back();
            if let Some((&(.., start), &(bytes, freed_ps))) = last
                && start + bytes > range.addr
            {
                let freed = Range { addr: start, len: bytes, ..range };
                self.report(Race {
                    kind: RaceKind::ReleasedMemory,
                    first: freed.access(Agent::Host, "gave back", freed_ps),
                    second: range.access(agent.clone(), "wrote", at_ps),
                });
            }
        }
        if let (Space::Dpa(process), false) = (range.space, matches!(agent, Agent::Thread { .. })) {
            self.order.write_from_outside((range.card, process), range.addr, range.len);
        }
        let by_card = matches!(agent, Agent::Card { .. });
        let mut hits = Vec::new();
        for id in self.reach.of(&range) {
            if let Some(queue) = self.queues.get(&id) {
                queue.conflicts(id.1, &range, by_card, &mut hits);
            }
        }
        if hits.is_empty() {
            return;
        }
        let agent = if by_card { self.receiver(&range).unwrap_or_else(|| agent.clone()) } else { agent.clone() };
        for (kind, first) in hits {
            self.report(Race { kind, first, second: range.access(agent.clone(), "wrote", at_ps) });
        }
    }

    /// A thread (card, process, thread) loads or stores at most 8 bytes of the memory of its process.
    pub(crate) fn accessed(&mut self, whose: (usize, u32, u32), stores: bool, at: (u64, u64), by: (u64, u64)) {
        self.order_access(whose, if stores { Deed::Store } else { Deed::Load }, at, by);
    }

    /// The same by an atomic. `acquire` and `release` are its bits; it `stores` or does not.
    pub(crate) fn accessed_atomically(
        &mut self,
        whose: (usize, u32, u32),
        (acquire, release, stores): (bool, bool, bool),
        at: (u64, u64),
        by: (u64, u64),
    ) {
        self.order_access(whose, Deed::Atomic { acquire, release, stores }, at, by);
    }

    fn order_access(&mut self, whose: (usize, u32, u32), deed: Deed, at: (u64, u64), by: (u64, u64)) {
        if let Some((known, new)) = self.order.access(whose, deed, at, by) {
            // Threads run in slices: the one that ran first may have got further.
            let (first, second) = if known.at_ps <= new.at_ps { (known, new) } else { (new, known) };
            self.report(Race { kind: RaceKind::Unordered, first, second });
        }
    }

    /// A fence of a thread.
    pub(crate) fn fenced(&mut self, whose: (usize, u32, u32), predecessor: u8, successor: u8) {
        self.order.fence(whose, predecessor, successor);
    }

    /// An activation or a call of a thread begins.
    pub(crate) fn begun(&mut self, whose: (usize, u32, u32)) {
        self.order.begin(whose);
    }

    /// A thread gives something outside: a doorbell, a store through a window, the activation of another thread, the
    /// result of a call.
    pub(crate) fn gave(&mut self, whose: (usize, u32, u32)) {
        self.order.release(whose);
    }

    /// The receive that a write of the card belongs to.
    fn receiver(&self, range: &Range) -> Option<Agent> {
        self.queues.iter().find_map(|(&(_, qpn), queue)| {
            queue.receive_into(range).map(|entry| Agent::Card { qpn: Some(qpn), entry: Some(entry) })
        })
    }

    /// A packet that writes or reads by a remote key arrives.
    pub(crate) fn remote_access(
        &mut self,
        card: usize,
        nic: &Nic,
        (qpn, key): (u32, u32),
        (addr, len): (u64, u64),
        at_ps: u64,
    ) {
        if let Some(attr) = nic.query_mkey(key) {
            self.keys.insert((card, key), *attr);
            return;
        }
        // A UC queue pair drops what the key does not allow and goes on: keys are taken back so that late packets find
        // none. And what is for a queue pair that is gone, too, reaches nothing.
        let answers = nic.query_qp(qpn).is_ok_and(|qp| qp.attr.transport != Transport::Uc);
        if let Some(attr) = self.keys.get(&(card, key)).filter(|_| answers) {
            let (first, bytes) = attr.memory();
            let range = Range { card, space: attr.space, addr: first, len: bytes };
            // When it was destroyed nobody has noted: `at_ps` is the latest that it can have been.
            let wrote = Range { addr: addr.wrapping_add(attr.offset), len, ..range };
            self.report(Race {
                kind: RaceKind::RevokedKey,
                first: range.access(Agent::Host, "destroyed the key of", at_ps),
                second: wrote.access(Agent::Card { qpn: Some(qpn), entry: None }, "was asked to access", at_ps),
            });
        }
    }
}

/// Whether two reports would say the same of an agent.
fn alike(a: &Agent, b: &Agent) -> bool {
    match (a, b) {
        (Agent::Thread { pc: a, process: p, .. }, Agent::Thread { pc: b, process: q, .. }) => (a, p) == (b, q),
        (Agent::Card { qpn: a, .. }, Agent::Card { qpn: b, .. }) => a == b,
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn released_ranges_follow_the_allocator() {
        let mut races = Races::default();
        races.release(0, 1, 0x1000, 0x100, 5);
        races.allocate(0, 1, 0x1040, 0x40);
        let write = |races: &mut Races, addr: u64| {
            let range = Range { card: 0, space: Space::Dpa(1), addr, len: 8 };
            let before = races.count();
            races.written(range, &Agent::Host, 9);
            races.count() - before
        };
        assert_eq!(write(&mut races, 0x1000), 1);
        assert_eq!(write(&mut races, 0x1040), 0, "it has a new owner");
        assert_eq!(write(&mut races, 0x1080), 1);
        assert_eq!(write(&mut races, 0x1100), 0);
        assert_eq!(races.count(), 2);
        assert_eq!(races.take().len(), 1, "the same two agents are reported once");
        races.forget(0, 1);
        assert_eq!(write(&mut races, 0x1000), 0);
    }

    #[test]
    fn reports_are_bounded_and_readable() {
        let mut races = Races::default();
        races.release(0, 1, 0x1000, 0x1000, 5);
        for pc in 0..100 {
            let agent = Agent::Thread { process: 1, thread: 7, pc, symbol: Some(("pong".to_owned(), pc)) };
            races.written(Range { card: 0, space: Space::Dpa(1), addr: 0x1800, len: 8 }, &agent, 77);
        }
        assert_eq!(races.count(), 100);
        let found = races.take();
        assert_eq!((found.len(), races.count()), (MAX_RACES, 0));
        let text = found[3].to_string();
        for part in ["after its release", "the host gave back: 4096 bytes at 0x1000", "thread 7", "(pong+0x3)", "77 ps"]
        {
            assert!(text.contains(part), "{part} in {text}");
        }
    }
}
