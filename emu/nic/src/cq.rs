//! Completion queues.

use crate::memory::{Dma, DmaFault, QueueMemory};

/// Who is notified of a completion event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum CqTarget {
    /// Nobody: the queue is polled.
    None,
    /// This DPA thread is activated.
    DpaThread(u32),
    /// This host completion channel gets an event.
    Channel(u32),
}

/// How a completion queue is made.
///
/// The owner of the ring must set the owner bit of every entry to 1 before: the card writes 0 in the first lap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqAttr {
    /// The ring, 64-byte aligned.
    pub ring: QueueMemory,
    /// log2 of its CQEs, 0 to 22.
    pub log_depth: u8,
    /// The doorbell record, 8-byte aligned: word 0 holds the consumer index (24 bits, big-endian).
    pub doorbell_record: QueueMemory,
    /// Who is notified of events.
    pub target: CqTarget,
    /// A full ring is overwritten instead of being an error.
    pub overrun_ignore: bool,
    /// Every CQE raises an event; arming is not needed.
    pub always_armed: bool,
    /// The first CQE raises an event without arming.
    pub armed_at_creation: bool,
    /// The UAR through which the queue may be armed. The card keeps it; whoever decodes doorbells enforces it.
    pub uar: u32,
}

/// When an armed completion queue raises its event, other than at once. Arming finds what has come before by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moderation {
    /// Completions until the event; 0 and 1 stand for the first.
    pub count: u16,
    /// Microseconds after the first of them at which it is raised all the same; 0 for never.
    pub period_us: u16,
}

/// How far a completion queue has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CqProgress {
    /// Entries of its ring.
    pub depth: u32,
    /// Entries written so far, modulo 2^32.
    pub written: u32,
    /// Consumer index that the card knows, 24 bits.
    pub consumer: u32,
    /// The next entry raises an event.
    pub armed: bool,
    /// Events raised so far.
    pub events: u64,
    /// Entries written since the last event or arming, and when the first of them was, in picoseconds.
    pub unannounced: Option<(u32, u64)>,
}

/// Bytes of a CQE.
pub(crate) const CQE_BYTES: usize = 64;
/// Consumer and producer indices have 24 bits.
pub(crate) const INDEX_MASK: u32 = 0xFF_FFFF;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Arm {
    No,
    Solicited,
    Any,
}

/// What became of a CQE.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// In the ring, without an event.
    Quiet,
    /// In the ring, and the queue's target is to be notified.
    Event,
    /// In the ring, the first of those after which the queue's target is notified, at the latest so long after it.
    Held { first: u32, period_us: u16 },
    /// The ring was full: the queue has failed.
    Overrun,
    /// The ring or the record is in memory the card cannot reach: the queue has failed.
    Unreachable(DmaFault),
    /// The queue had failed before.
    Dead,
}

#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) attr: CqAttr,
    /// The virtual HCA that it belongs to.
    pub(crate) vhca: u16,
    /// Work queues that complete into this queue.
    pub(crate) users: u32,
    /// CQEs written, modulo 2^32.
    producer: u32,
    /// Consumer index as last read, 24 bits.
    consumer: u32,
    /// How far behind the producer the latest solicited entry is, 1 for the newest; 0 without one.
    solicited_behind: u32,
    arm: Arm,
    failed: bool,
    /// Events raised.
    events: u64,
    /// Entries since the last event or arming, and the time of the first.
    unannounced: (u32, u64),
    pub(crate) moderation: Moderation,
    /// Completions since arming, of those that count, and how often the first of them has come.
    held: (u16, u32),
}

impl Cq {
    pub(crate) fn new(attr: CqAttr, vhca: u16) -> Self {
        let arm = if attr.armed_at_creation { Arm::Any } else { Arm::No };
        Self {
            attr,
            vhca,
            users: 0,
            producer: 0,
            consumer: 0,
            solicited_behind: 0,
            arm,
            failed: false,
            events: 0,
            unannounced: (0, 0),
            moderation: Moderation::default(),
            held: (0, 0),
        }
    }

    pub(crate) fn progress(&self) -> CqProgress {
        CqProgress {
            depth: 1 << self.attr.log_depth,
            written: self.producer,
            consumer: self.consumer,
            armed: self.arm != Arm::No || self.attr.always_armed,
            events: self.events,
            unannounced: Some(self.unannounced).filter(|(entries, _)| *entries > 0),
        }
    }

    /// An event is raised.
    pub(crate) fn announced(&mut self) {
        self.events += 1;
        self.unannounced = (0, 0);
    }

    /// An entry was written without an event.
    pub(crate) fn wrote_quietly(&mut self, now_ps: u64) {
        if self.unannounced.0 == 0 {
            self.unannounced.1 = now_ps;
        }
        self.unannounced.0 = self.unannounced.0.saturating_add(1);
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed
    }

    /// Entries between `consumer` and the producer; huge for an index that the card has not reached.
    fn unconsumed(&self, consumer: u32) -> u32 {
        self.producer.wrapping_sub(consumer) & INDEX_MASK
    }

    /// Believes an index that is newer than the one known and not in the future.
    fn note_consumer(&mut self, consumer: u32) {
        if self.unconsumed(consumer) < self.unconsumed(self.consumer) {
            self.consumer = consumer & INDEX_MASK;
        }
    }

    /// Arms the queue, or says that the event is due now because a CQE beyond `consumer_index` that counts is there
    /// already: any, or a solicited one. A queue that is armed for any CQE stays so.
    pub(crate) fn arm(&mut self, consumer_index: u32, solicited_only: bool) -> bool {
        if self.failed {
            return false;
        }
        let ahead = self.unconsumed(consumer_index);
        self.note_consumer(consumer_index);
        // Half of the index space lies behind the producer; an index in the other half is one not reached yet.
        let behind = ahead != 0 && ahead <= INDEX_MASK / 2;
        let wanted = if solicited_only && self.arm != Arm::Any { Arm::Solicited } else { Arm::Any };
        let counts = wanted == Arm::Any || (1..=ahead).contains(&self.solicited_behind);
        let due = behind && counts;
        self.arm = if due { Arm::No } else { wanted };
        self.held.0 = 0;
        self.unannounced = (0, 0);
        due
    }

    /// One more completion that counts: whether it raises the event.
    fn is_enough(&mut self) -> bool {
        let (held, firsts) = &mut self.held;
        if *held == 0 {
            *firsts = firsts.wrapping_add(1);
        }
        *held = held.saturating_add(1);
        let enough = match self.moderation {
            // Without a count the period alone decides.
            Moderation { count: 0, period_us } => period_us == 0,
            Moderation { count, .. } => *held >= count,
        };
        if enough {
            *held = 0;
        }
        enough
    }

    /// The period is over that began with the first completion held: whether the event is due.
    pub(crate) fn period_over(&mut self, first: u32) -> bool {
        let due = self.held.0 > 0 && self.held.1 == first && self.arm != Arm::No && !self.failed;
        if due {
            (self.arm, self.held.0) = (Arm::No, 0);
        }
        due
    }

    /// Owner bit of the next CQE: it changes with every lap.
    pub(crate) fn next_owner(&self) -> u8 {
        (self.producer >> self.attr.log_depth & 1) as u8
    }

    /// Writes a CQE whose owner bit is 0 into the ring. An error counts as solicited.
    pub(crate) fn write(&mut self, mut cqe: [u8; CQE_BYTES], solicited: bool, mem: &mut dyn Dma) -> Written {
        if self.failed {
            return Written::Dead;
        }
        let depth = 1_u32 << self.attr.log_depth;
        if !self.attr.overrun_ignore && self.unconsumed(self.consumer) >= depth {
            let mut word = [0; 4];
            let record = self.attr.doorbell_record;
            if let Err(fault) = mem.read(record.space, record.addr, &mut word) {
                self.failed = true;
                return Written::Unreachable(fault);
            }
            self.note_consumer(u32::from_be_bytes(word) & INDEX_MASK);
            if self.unconsumed(self.consumer) >= depth {
                self.failed = true;
                return Written::Overrun;
            }
        }
        let slot = self.producer & (depth - 1);
        cqe[CQE_BYTES - 1] |= self.next_owner();
        let addr = self.attr.ring.at(u64::from(slot) * CQE_BYTES as u64);
        if let Err(fault) = mem.write(self.attr.ring.space, addr, &cqe) {
            self.failed = true;
            return Written::Unreachable(fault);
        }
        self.producer = self.producer.wrapping_add(1);
        self.solicited_behind = match self.solicited_behind {
            _ if solicited => 1,
            0 => 0,
            behind => behind.saturating_add(1),
        };
        let counts = match self.arm {
            Arm::Any => true,
            Arm::Solicited => solicited,
            Arm::No => false,
        };
        let fires = counts && self.is_enough();
        if fires {
            self.arm = Arm::No;
        }
        let Moderation { period_us, .. } = self.moderation;
        match (fires || self.attr.always_armed, self.held) {
            (true, _) => Written::Event,
            (false, (1, first)) if counts && period_us > 0 => Written::Held { first, period_us },
            (false, _) => Written::Quiet,
        }
    }
}
