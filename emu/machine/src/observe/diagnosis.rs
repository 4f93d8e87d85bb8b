//! Diagnoses: reasons why a program on the card is stuck, or is about to be, of which a card reports nothing.
//!
//! A death of a process has its [`CrashRecord`](crate::CrashRecord), a conflict over memory its
//! [`Race`](crate::Race); a diagnosis is reported in the same ways, and the machine goes on.

use std::fmt;

use emu_nic::{AsyncEvent, MAX_FRAME_BYTES, PostedEntry, QueuePart, RefusedEntry, vendor, wqe_opcode};

use crate::dpa::statistics::thread_in_words as named;
use crate::time::{PS_PER_S, PS_PER_US};

/// Most diagnoses kept for snapshots; later ones are reported, but not kept.
pub(crate) const MAX_DIAGNOSES: usize = 64;

/// What is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Symptom {
    /// A completion queue is full, since nobody has reported to the card what was consumed. It has failed, and so
    /// have its queue pairs.
    Overrun {
        /// The queue.
        cqn: u32,
        /// Its entries.
        depth: u32,
        /// Consumer index that the card knows.
        consumer: u32,
        /// Entries written.
        written: u32,
    },
    /// Entries have come to a completion queue that was armed once and is not now, while its thread waits for an event.
    Unarmed {
        /// The queue.
        cqn: u32,
        /// Entries since the last event.
        entries: u32,
    },
    /// Entries have come to a completion queue whose thread has never been released.
    NeverRun {
        /// The queue.
        cqn: u32,
        /// Entries so far.
        entries: u32,
    },
    /// A peer's message finds no receive.
    NotReady {
        /// The queue pair.
        qpn: u32,
        /// RNR NAKs sent.
        naks: u64,
        /// How long there has been no receive, in picoseconds.
        for_ps: u64,
    },
    /// The card cannot execute an entry.
    Refused(RefusedEntry),
    /// A queue has failed: a doorbell beyond its ring, or memory of it that is gone.
    Failed(AsyncEvent),
    /// Something has been given back or destroyed that is used still.
    Gone(Gone),
    /// An activation of an event handler, or a task of a command queue, does not end.
    Endless {
        /// A task.
        is_task: bool,
        /// Where the thread is.
        pc: u64,
        /// The function that holds `pc`, with the offset in it.
        symbol: Option<(String, u64)>,
        /// How long it has run, in picoseconds.
        for_ps: u64,
        /// Its watchdog, in picoseconds.
        watchdog_ps: u64,
        /// What it does over and over, as far as that could be seen.
        waits: Waits,
    },
}

/// What has been given back or destroyed while it was used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Gone {
    /// Memory of the heap, in which something of a queue lies. Nobody gets it until the queue is destroyed.
    Memory {
        /// Device address of the allocation.
        addr: u64,
        /// What lies there.
        part: QueuePart,
        /// Number of the queue.
        number: u32,
    },
    /// A memory key that a posted entry names.
    Key {
        /// The key.
        key: u32,
        /// The entry.
        entry: PostedEntry,
    },
    /// A window that the thread has configured.
    Window {
        /// Its id.
        window: u32,
    },
}

/// What a thread that does not end does over and over.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Waits {
    /// Unknown to the machine.
    Unknown,
    /// It reads an entry of a completion queue that the card has not written.
    Entry {
        /// The queue.
        cqn: u32,
        /// Slot in the ring.
        slot: u32,
    },
    /// It tries to take a lock: an atomic that finds the same value each time.
    Lock(Lock),
    /// As before, and another thread waits for a lock in the same way.
    Deadlock {
        /// Its own.
        lock: Lock,
        /// The other thread's id, and the symbol of its entry function.
        other: (u32, String),
        /// What that waits for.
        others_lock: Lock,
    },
    /// It reads a word that does not change.
    Word {
        /// Its address.
        addr: u64,
    },
}

/// A word that threads use as a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    /// Its address.
    pub addr: u64,
    /// The variable at that address, if the image names one.
    pub name: Option<String>,
}

/// A program is stuck, or is about to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnosis {
    /// Index of the card.
    pub card: usize,
    /// Process id.
    pub process: u32,
    /// The thread that it concerns: id, and symbol of its entry function.
    pub thread: Option<(u32, String)>,
    /// Completion queues that start the thread.
    pub queues: Vec<u32>,
    /// What is wrong.
    pub symptom: Symptom,
    /// Virtual time in picoseconds.
    pub at_ps: u64,
}

/// A time in words: whole seconds, milliseconds or microseconds.
fn duration(ps: u64) -> String {
    const PS_PER_MS: u64 = 1000 * PS_PER_US;
    match ps {
        PS_PER_S.. => format!("{} s", ps / PS_PER_S),
        PS_PER_MS.. => format!("{} ms", ps / PS_PER_MS),
        _ => format!("{} us", ps / PS_PER_US),
    }
}

/// A number with a comma before each three digits.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Name of a send opcode as the vendor's headers have it.
fn opcode_name(opcode: u8) -> &'static str {
    match opcode {
        wqe_opcode::NOP => "NOP",
        wqe_opcode::SEND_INVAL => "SEND_INVAL",
        wqe_opcode::RDMA_WRITE => "RDMA_WRITE",
        wqe_opcode::RDMA_WRITE_IMM => "RDMA_WRITE_IMM",
        wqe_opcode::SEND => "SEND",
        wqe_opcode::SEND_IMM => "SEND_IMM",
        0x0E => "TSO (LSO)",
        0x0F => "WAIT",
        wqe_opcode::RDMA_READ => "RDMA_READ",
        wqe_opcode::ATOMIC_CS => "ATOMIC_CS",
        wqe_opcode::ATOMIC_FA => "ATOMIC_FA",
        0x14 => "ATOMIC_MASKED_CS",
        0x15 => "ATOMIC_MASKED_FA",
        0x17 => "SEND_EN",
        0x18 => "BIND_MW",
        wqe_opcode::LOCAL_INVAL => "LOCAL_INVAL",
        0x20 => "SET_PSV",
        0x23 => "DUMP",
        wqe_opcode::UMR => "UMR",
        0x2C => "FLOW_TBL_ACCESS",
        0x2D => "ACCESS_ASO",
        0x2F => "MMO",
        0x32 => "LDMA",
        _ => "unknown",
    }
}

/// Why the card cannot execute an entry, and what helps.
fn refusal(entry: &RefusedEntry) -> String {
    let (syndrome, reason) = entry.syndrome;
    let (key, range) = entry.segment.map_or_else(
        || ("a memory key".to_owned(), "its range".to_owned()),
        |(key, addr, len)| (format!("memory key {key:#x}"), format!("{len} bytes at {addr:#x}")),
    );
    let why = match reason {
        vendor::KEY_UNKNOWN => {
            format!("{key} does not exist; name one of flexio_mkey_get_id or of a verbs registration")
        }
        vendor::KEY_PD => format!("{key} is of another protection domain than the queue pair; make both with one"),
        vendor::KEY_RANGE => format!("{key} does not cover {range}; register all that the entry names"),
        vendor::KEY_RIGHTS => format!("{key} does not allow the access; make it with IBV_ACCESS_LOCAL_WRITE"),
        vendor::KEY_FREE | vendor::KEY_REVOKED | vendor::KEY_DEPTH => {
            format!("{key} leads to no memory now; bind it, or share what it is an alias of")
        }
        vendor::NO_MEMORY => format!("there is no memory behind {key} at {range}; keep it registered"),
        vendor::OPCODE => {
            let (opcode, modifier) = entry.opcode;
            let name = opcode_name(opcode);
            format!(
                "opcode {name} ({opcode:#04x}, modifier {modifier:#04x}) is not supported on this queue pair; \
                 `cargo xtask coverage` lists the opcodes that the emulated card executes"
            )
        }
        vendor::SIZE => "its size does not fit its segments, or it ends behind the producer index".to_owned(),
        vendor::QPN => "its control segment names another queue pair".to_owned(),
        vendor::ADDRESS => "its address vector names a source that the card does not have".to_owned(),
        vendor::LENGTH => format!(
            "its length does not fit its kind: a message has 1 GiB at most, a datagram one MTU, an atomic operation \
             8 bytes at least, and a raw Ethernet frame 14 to {MAX_FRAME_BYTES} bytes with what the card adds to it"
        ),
        vendor::RECEIVE_LENGTH => "the message is longer than the receive; post longer ones".to_owned(),
        vendor::READ_DEPTH => "the queue pair may have no read outstanding; set max_rd_atomic".to_owned(),
        vendor::UMR => "it is a UMR of a kind that is not emulated".to_owned(),
        _ => format!("the card refuses it with syndrome {syndrome:#04x}, vendor syndrome {reason:#04x}"),
    };
    format!("{why} (the queue pair has failed, as a completion in error reports)")
}

impl fmt::Display for Gone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Gone::Memory { addr, part, number } => {
                let (part, kind) = match part {
                    QueuePart::CqRing => ("the ring", "CQ"),
                    QueuePart::CqRecord => ("the doorbell record", "CQ"),
                    QueuePart::ReceiveRing => ("the receive ring", "QP"),
                    QueuePart::SendRing => ("the send ring", "QP"),
                    QueuePart::QpRecord => ("the doorbell record", "QP"),
                    QueuePart::SrqRing => ("the ring", "SRQ"),
                    QueuePart::SrqRecord => ("the doorbell record", "SRQ"),
                };
                write!(
                    f,
                    "device memory at {addr:#x} has been freed with {part} of {kind} {number:#x} in it: destroy the \
                     queue first (on a card it would use what is allocated there next; here nothing is until then)"
                )
            }
            Gone::Key { key, entry: PostedEntry { qpn, is_send, index } } => write!(
                f,
                "memory key {key:#x} is being destroyed, and {} entry {index} of QP {qpn:#x}, which is posted and not \
                 complete, names it: destroy the queue pair first, or wait for the completion",
                if is_send { "send" } else { "receive" }
            ),
            Gone::Window { window } => write!(
                f,
                "window {window} has been destroyed, and a thread that may run again has it configured: its next \
                 access through it ends the process; destroy the event handler first"
            ),
        }
    }
}

impl fmt::Display for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "lock {name} ({:#x})", self.addr),
            None => write!(f, "lock at {:#x}", self.addr),
        }
    }
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waits::Unknown => f.write_str("what it does over and over cannot be seen"),
            Waits::Entry { cqn, slot } => write!(
                f,
                "it polls entry {slot} of CQ {cqn:#x}, which the card has not written; leave the loop at an entry that \
                 is not yours yet, and arm the queue"
            ),
            Waits::Lock(lock) => {
                write!(f, "it tries to take the {lock}, which nobody gives back; unlock it wherever it has been taken")
            }
            Waits::Deadlock { lock, other: (thread, entry), others_lock } => write!(
                f,
                "deadlock: it waits for the {lock}, and {} for the {others_lock}; take several locks in one order \
                 everywhere",
                named(*thread, entry, &[])
            ),
            Waits::Word { addr } => write!(f, "it reads the word at {addr:#x}, which nobody changes"),
        }
    }
}

impl fmt::Display for Diagnosis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Diagnosis { card, process, thread, queues, symptom, at_ps } = self;
        let whose = match thread {
            Some((thread, entry)) => format!("{} of process {process} on card {card}", named(*thread, entry, queues)),
            None => format!("process {process} on card {card}"),
        };
        match symptom {
            Symptom::Overrun { cqn, depth, consumer, written } => write!(
                f,
                "CQ {cqn:#x} of {whose} has overrun: its {depth} entries are full after {written}, and the last \
                 consumer index reported is {consumer}; report it by flexio_dev_dbr_cq_set_ci before as many are \
                 written"
            ),
            Symptom::Unarmed { cqn, entries } => write!(
                f,
                "CQ {cqn:#x} of {whose} is not armed, while the thread waits for its event: {entries} entries have \
                 come since the last one; arm it by flexio_dev_cq_arm before the handler reschedules"
            ),
            Symptom::NeverRun { cqn, entries } => write!(
                f,
                "CQ {cqn:#x} has {entries} entries for {whose}, which has never been run; release it by \
                 flexio_event_handler_run (DOCA: doca_dpa_thread_run)"
            ),
            Symptom::NotReady { qpn, naks, for_ps } => write!(
                f,
                "QP {qpn:#x}: {} RNR NAKs, no receive posted for {} of card time by {whose}; write receives and raise \
                 the first word of the doorbell record (flexio_dev_dbr_rq_inc_pi)",
                grouped(*naks),
                duration(*for_ps)
            ),
            Symptom::Refused(entry) => write!(
                f,
                "QP {:#x} of {whose}, {} entry {}: {}",
                entry.qpn,
                if entry.is_send { "send" } else { "receive" },
                entry.index,
                refusal(entry)
            ),
            Symptom::Gone(gone) => write!(f, "{gone} ({whose})"),
            Symptom::Failed(event) => write!(f, "{event} (queue of {whose})"),
            Symptom::Endless { is_task, pc, symbol, for_ps, watchdog_ps, waits } => {
                write!(f, "{whose} has run for {} of card time without ending, at pc {pc:#x}", duration(*for_ps))?;
                if let Some((name, offset)) = symbol {
                    write!(f, " ({name}+{offset:#x})")?;
                }
                let end = match (waits, is_task) {
                    (Waits::Lock(_) | Waits::Deadlock { .. }, _) => "",
                    (_, true) => "; a task of a command queue ends by returning",
                    (_, false) => "; wait for an event instead, and end by reschedule, finish or retrigger",
                };
                write!(
                    f,
                    ": {waits}{end} (a card is silent until its watchdog ends the process at {})",
                    duration(*watchdog_ps)
                )
            }
        }?;
        write!(f, " (at {at_ps} ps)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_name_thread_handler_queue_and_what_helps() {
        let of = |symptom| {
            let thread = Some((2, "echo".to_owned()));
            Diagnosis { card: 0, process: 1, thread, queues: vec![0x401], symptom, at_ps: 7 }.to_string()
        };
        let text = of(Symptom::NotReady { qpn: 0x1902, naks: 2170, for_ps: PS_PER_S });
        assert!(
            text.starts_with(
                "QP 0x1902: 2,170 RNR NAKs, no receive posted for 1 s of card time by thread 2 (echo, CQ 0x401)"
            ),
            "{text}"
        );
        let text = of(Symptom::Overrun { cqn: 0x401, depth: 64, consumer: 0, written: 64 });
        assert!(text.contains("64 entries are full") && text.contains("flexio_dev_dbr_cq_set_ci"), "{text}");
        let lock = |addr, name: &str| Lock { addr, name: Some(name.to_owned()) };
        let waits =
            Waits::Deadlock { lock: lock(8, "right"), other: (3, "echo".to_owned()), others_lock: lock(4, "left") };
        let endless = |waits| {
            of(Symptom::Endless {
                is_task: false,
                pc: 16,
                symbol: Some(("f".to_owned(), 2)),
                for_ps: PS_PER_S,
                watchdog_ps: 120 * PS_PER_S,
                waits,
            })
        };
        let text = endless(waits);
        for part in [
            "at pc 0x10 (f+0x2)",
            "lock right (0x8)",
            "thread 3 (echo) for the lock left (0x4)",
            "watchdog ends the process at 120 s",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = endless(Waits::Entry { cqn: 0x401, slot: 3 });
        assert!(text.contains("polls entry 3 of CQ 0x401") && text.contains("end by reschedule"), "{text}");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!([0, 999, 1000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!([1_500_000, 20_000_000_000, 2 * PS_PER_S].map(duration), ["1 us", "20 ms", "2 s"]);
    }
}
