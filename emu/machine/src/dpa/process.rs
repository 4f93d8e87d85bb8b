//! A DPA process: an image in memory, its threads and the objects it owns.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

use flexcast_image::{Image, PanicPlace};

use crate::dpa::command_queue::CommandQueue;
use crate::dpa::crash::CrashRecord;
use crate::dpa::heap::Heap;
use crate::dpa::images::Code;
use crate::dpa::memory::ProcessMemory;
use crate::dpa::statistics::ThreadStatistics;
use crate::dpa::thread::{Thread, Threads};
use crate::near;

/// Why a process runs nothing any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessStatus {
    /// It runs.
    Healthy,
    /// A thread died (fatal error of the device).
    Crashed(Box<CrashRecord>),
    /// The firmware ended the process with this code (`flexio_dev_error`, 0x80..=0xff).
    UserError(u8, Box<CrashRecord>),
    /// The firmware called `process_finish`.
    Finished,
}

/// Messages a stream has received and the host has not taken.
#[derive(Debug, Default)]
pub struct Stream {
    /// Highest level that is let through (1 always … 5 debug); 0 lets nothing through.
    pub level: u8,
    /// Messages in the order of arrival.
    pub messages: Vec<Vec<u8>>,
}

/// A result of an RPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RpcSlot {
    pub(crate) thread: u32,
    /// What was called.
    pub(crate) function: u64,
    pub(crate) result: Option<u64>,
}

/// What is to be done when a process dies.
pub(crate) struct DeathHook(pub(crate) Box<dyn FnOnce() + Send>);

impl fmt::Debug for DeathHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DeathHook")
    }
}

/// A loaded application.
#[derive(Debug)]
pub struct Process {
    /// Process id, unique on its card.
    pub id: u32,
    /// Name of the program, for people; empty until somebody gives one.
    pub label: String,
    /// The image, kept for its symbols; shared by the processes that run it.
    pub image: Arc<Image>,
    /// What the register gp holds when a thread starts.
    pub(crate) global_pointer: u64,
    /// Memory reached by plain loads and stores.
    pub memory: ProcessMemory,
    /// The pre-decoded instructions, shared by all threads.
    pub(crate) code: Code,
    /// Allocation state of the heap.
    pub heap: Heap,
    /// Threads by id.
    pub threads: Threads,
    /// Window id to protection domain.
    pub windows: BTreeMap<u32, u32>,
    /// Outbox id to the UAR that its doorbells come through; `None`: any.
    pub outboxes: BTreeMap<u32, Option<u32>>,
    /// The outbox that threads have from their start; `None`: they configure one first.
    pub(crate) default_outbox: Option<u32>,
    /// Message streams by id.
    pub streams: BTreeMap<u32, Stream>,
    /// Whether it runs.
    pub status: ProcessStatus,
    pub(crate) rpc: Option<RpcSlot>,
    /// Command queues by id.
    pub(crate) command_queues: BTreeMap<u32, CommandQueue>,
    /// Threads that were destroyed last.
    pub(crate) gone: VecDeque<ThreadStatistics>,
    pub(crate) forgotten_threads: u64,
    pub(crate) on_death: Option<DeathHook>,
}

impl Process {
    /// Brings near, of the process at an address, what a turn of one of its threads reads; address 0 stands for
    /// none.
    #[inline]
    pub(crate) fn prefetch(addr: usize) {
        use std::mem::offset_of;
        if addr == 0 {
            return;
        }
        near::object::<ProcessMemory>(addr + offset_of!(Self, memory));
        for offset in [offset_of!(Self, id), offset_of!(Self, threads), offset_of!(Self, code)] {
            near::line(addr + offset);
        }
    }

    /// Has something done when the process dies, at once if it is dead. Replaces what was to be done before. It is done
    /// while the machine is at work, and must not call it.
    pub fn on_death(&mut self, hook: Box<dyn FnOnce() + Send>) {
        if self.crash().is_some() {
            hook();
        } else {
            self.on_death = Some(DeathHook(hook));
        }
    }

    /// The crash record, if the process died.
    #[must_use]
    pub fn crash(&self) -> Option<&CrashRecord> {
        match &self.status {
            ProcessStatus::Crashed(record) | ProcessStatus::UserError(_, record) => Some(record),
            ProcessStatus::Healthy | ProcessStatus::Finished => None,
        }
    }

    /// Where the firmware panicked, by the record that it keeps.
    pub(crate) fn panic_place(&self) -> Option<PanicPlace> {
        self.image.panic_place(|addr, out| {
            self.memory.bytes(addr, out.len()).map(|bytes| out.copy_from_slice(bytes)).is_some()
        })
    }

    /// Symbol of what a thread executes from its start: its entry function, or the function called. Empty where the
    /// image has none.
    pub(crate) fn entry_symbol(&self, thread: &Thread) -> String {
        let called = self.rpc.filter(|slot| slot.thread == thread.id).map(|slot| slot.function);
        self.image.symbolize(called.unwrap_or(thread.entry)).map_or_else(String::new, |(name, _)| name)
    }

    /// What one of its threads has executed.
    pub(crate) fn statistics(&self, thread: &Thread, destroyed: bool) -> ThreadStatistics {
        ThreadStatistics::of(thread, self.entry_symbol(thread), &self.image, destroyed)
    }

    /// One line that says why the process has stopped, or `None` while it runs.
    #[must_use]
    pub fn stopped(&self) -> Option<String> {
        match &self.status {
            ProcessStatus::Healthy => None,
            ProcessStatus::Finished => Some("the firmware finished the process".to_owned()),
            ProcessStatus::Crashed(record) => Some(record.summary()),
            ProcessStatus::UserError(code, record) => {
                Some(format!("the firmware ended the process with error {code:#x}; {}", record.summary()))
            }
        }
    }
}
