//! Kernels that were launched.
//!
//! The threads of a launch are made at once, asleep, and started when the event that it waits for is large enough, by
//! calls of this interface. The threads themselves count down how many still run, and the last changes the other
//! event. Threads that have ended are removed by later calls.

use std::sync::Arc;

use emu_libdoca::failure::Result;
use emu_machine::{MachineError, World};

use crate::event::Event;
use crate::layout::Thread;
use crate::process::{Process, lock, world};

/// The function of the device library that a thread of a launch runs.
pub(crate) const ENTRY: &str = "flexcast_doca_kernel";

/// What is launched.
pub(crate) struct Kernel {
    /// Address of [`ENTRY`].
    pub(crate) entry: u64,
    pub(crate) function: u64,
    pub(crate) unpack: u64,
    pub(crate) arguments: Vec<u8>,
    pub(crate) threads: u32,
}

/// A launch that has not ended.
pub(crate) struct Launch {
    /// Event and threshold that it waits for still.
    wait: Option<(Arc<Event>, u64)>,
    is_started: bool,
    /// Held so that the event is there when the last thread changes it.
    _end: Option<Arc<Event>>,
    threads: Vec<u32>,
    /// Memory of the DPA; the first word counts the threads that have not ended.
    memory: u64,
}

/// Virtual time that a thread may take from its last count to its end.
const LAST_INSTRUCTIONS_PS: u64 = 1_000_000_000;
/// Bytes of a launch's memory before the threads' own.
const HEAD: u64 = 64;

/// Adds a launch.
pub(crate) fn add(
    process: &Process,
    kernel: &Kernel,
    wait: Option<(Arc<Event>, u64)>,
    end: Option<(Arc<Event>, u64, bool)>,
) -> Result<()> {
    // Their execution units are free, and what they stored is there for this one.
    forget_finished(process)?;
    let event = end.as_ref().map(|(event, ..)| event.address_for(process)).transpose()?.unwrap_or(0);
    let (event_value, event_adds) = end.as_ref().map_or((0, false), |(_, value, adds)| (*value, *adds));
    let arguments_bytes = kernel.arguments.len().next_multiple_of(8) as u64;
    let bytes = HEAD + arguments_bytes + u64::from(kernel.threads) * Thread::BYTES;
    let (card, id) = (process.card, process.id);
    let memory = world(|world| world.heap_alloc(card, id, bytes))?;
    let arguments = memory + HEAD;
    let records = arguments + arguments_bytes;
    let made = world(|world| {
        world.write_memory(card, id, memory, &u64::from(kernel.threads).to_le_bytes())?;
        world.write_memory(card, id, arguments, &kernel.arguments)?;
        let mut threads = Vec::new();
        for rank in 0..kernel.threads {
            let record = records + u64::from(rank) * Thread::BYTES;
            let content = Thread {
                local_storage: 0,
                rank,
                count: kernel.threads,
                unpack: kernel.unpack,
                function: kernel.function,
                arguments,
                running: memory,
                event,
                event_value,
                event_adds,
            };
            world.write_memory(card, id, record, &content.bytes())?;
            match world.create_thread(card, id, kernel.entry, record, record, None) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    threads.into_iter().try_for_each(|thread| world.destroy_thread(card, thread))?;
                    return Err(error);
                }
            }
        }
        Ok::<_, MachineError>(threads)
    });
    let threads = match made {
        Ok(threads) => threads,
        Err(failure) => {
            process.free(memory)?;
            return Err(failure);
        }
    };
    let mut launch = Launch { wait, _end: end.map(|(event, ..)| event), is_started: false, threads, memory };
    let started = launch.start_if_due(process);
    lock(&process.launches).push(launch);
    started
}

impl Launch {
    /// Starts the threads unless they have been, or the event is not large enough.
    fn start_if_due(&mut self, process: &Process) -> Result<()> {
        let is_due = match &self.wait {
            Some((event, threshold)) => event.value()? > *threshold,
            None => true,
        };
        if self.is_started || !is_due {
            return Ok(());
        }
        (self.is_started, self.wait) = (true, None);
        let card = process.card;
        world(|world| {
            self.threads.iter().try_for_each(|&thread| {
                world.run_event_handler(card, thread, 0)?;
                world.trigger_event_handler(card, thread)
            })
        })
    }

    /// Whether all threads have ended, after they had time to if they have all counted down.
    fn has_ended(&self, process: &Process) -> Result<bool> {
        let mut running = [0; 8];
        process.read(self.memory, &mut running)?;
        if running != [0; 8] {
            return Ok(false);
        }
        let (card, threads) = (process.card, &self.threads);
        let ended = |world: &mut World| {
            threads.iter().all(|&thread| world.event_handler_has_finished(card, thread).unwrap_or(true))
        };
        world(|world| Ok::<_, MachineError>(world.run_until(LAST_INSTRUCTIONS_PS, ended)))
    }

    fn remove(self, process: &Process) -> Result<()> {
        world(|world| {
            self.threads.iter().try_for_each(|&thread| world.destroy_thread(process.card, thread))?;
            world.heap_free(process.card, process.id, self.memory)
        })
    }
}

/// Removes the launches of a process that have ended, or all if the process has.
pub(crate) fn forget_finished(process: &Process) -> Result<()> {
    let has_stopped = world(|world| {
        let of = world.process(process.card, process.id);
        Ok::<_, MachineError>(of.is_none_or(|process| process.stopped().is_some()))
    })?;
    let mut launches = lock(&process.launches);
    let mut at = 0;
    while at < launches.len() {
        if has_stopped || launches[at].is_started && launches[at].has_ended(process)? {
            launches.swap_remove(at).remove(process)?;
        } else {
            at += 1;
        }
    }
    Ok(())
}

/// Starts the launches of a process whose events are large enough.
pub(crate) fn progress(process: &Process) -> Result<()> {
    lock(&process.launches).iter_mut().try_for_each(|launch| launch.start_if_due(process))
}
