//! The control path: processes, heap, threads, windows, outboxes, streams and calls, as the host library drives them.

use emu_hart::Hart;

use crate::card::{Card, RPC_EU};
use crate::dpa::heap::{Heap, HeapInfo};
use crate::dpa::layout::{CONTEXT_OFFSET, THREAD_BLOCK, THREADS, WINDOW_0, WINDOW_CONFIG, context};
use crate::dpa::layout::{EUS_PER_CORE, OUTBOXES, PAGE};
use crate::dpa::memory::ProcessMemory;
use crate::dpa::process::{Process, ProcessStatus, RpcSlot, Stream};
use crate::dpa::thread::{Attention, L1, Port, Thread, ThreadKind, ThreadState};
use crate::error::MachineError;
use crate::observe::snapshot::{GONE_PROCESSES, GONE_THREADS, ProcessSnapshot, remember};
use crate::time::ps_to_cycles;
use crate::world::World;

/// Most outboxes and windows of a process; the thread context holds their ids in 16 bits.
const MAX_OBJECTS: u32 = 256;
/// Most message streams of a process; id 0xff addresses all of them.
const MAX_STREAMS: u32 = 255;

impl World {
    /// Loads an image into a new process and gives its id.
    ///
    /// # Errors
    /// What [`Image::parse`](flexcast_image::Image::parse) and
    /// [`Image::expect_served`](flexcast_image::Image::expect_served) refuse, an image for a processor that the card
    /// does not have ([`Image::expect_isa`](flexcast_image::Image::expect_isa)), and segments outside the address range
    /// of images.
    pub fn create_process(&mut self, card: usize, elf: &[u8]) -> Result<u32, MachineError> {
        let (number, image) = self.images.parse(elf)?;
        image.expect_isa(self.config.isa, "the emulated card")?;
        let global_pointer = image.symbol("__global_pointer$").unwrap_or(0);
        let heap_bytes = self.config.heap_bytes;
        let memory = ProcessMemory::load(&image, heap_bytes)?;
        let code = self.images.code(number, &image, self.config.isa);
        let card = self.card(card)?;
        let id = card.next_process;
        card.next_process += 1;
        card.processes.insert(
            id,
            Process {
                id,
                label: String::new(),
                image,
                global_pointer,
                memory,
                code,
                heap: Heap::new(heap_bytes),
                threads: Default::default(),
                windows: Default::default(),
                outboxes: Default::default(),
                default_outbox: None,
                streams: Default::default(),
                status: ProcessStatus::Healthy,
                rpc: None,
                command_queues: Default::default(),
                gone: Default::default(),
                forgotten_threads: 0,
                on_death: None,
            },
        );
        Ok(id)
    }

    /// Ends a process and frees all it owned.
    pub fn destroy_process(&mut self, card: usize, id: u32) -> Result<(), MachineError> {
        self.card(card)?.process(id)?;
        self.debug_end(card, id);
        let ended = self.card(card)?.process(id)?.status.clone();
        self.stop_process(card, id, if ended == ProcessStatus::Healthy { ProcessStatus::Finished } else { ended });
        self.watch_forget(card, id);
        self.publish_state();
        let card = self.card(card)?;
        if let Some(process) = card.processes.remove(&id) {
            remember(&mut card.gone, GONE_PROCESSES, ProcessSnapshot::of(&process, true));
            for thread in process.threads.values() {
                card.owners.remove(&thread.id);
                card.eus[thread.port.eu as usize] = None;
            }
        }
        Ok(())
    }

    /// Takes bytes of DPA heap (not zeroed when reused); 64-byte aligned.
    pub fn heap_alloc(&mut self, card: usize, process: u32, bytes: u64) -> Result<u64, MachineError> {
        self.release_held(card, process)?;
        let addr = self.card(card)?.process_mut(process)?.heap.alloc(bytes)?;
        self.watch_alloc(card, process, addr, bytes);
        Ok(addr)
    }

    /// Gives an allocation back. While something of a queue lies in it, which is reported, nobody else gets it.
    pub fn heap_free(&mut self, card: usize, process: u32, addr: u64) -> Result<(), MachineError> {
        let is_used = self.explain_freed(card, process, addr)?;
        let heap = &mut self.card(card)?.process_mut(process)?.heap;
        let bytes = if is_used { heap.hold(addr) } else { heap.free(addr) }?;
        self.watch_free(card, process, addr, bytes);
        Ok(())
    }

    /// Totals of the heap.
    pub fn heap_info(&mut self, card: usize, process: u32) -> Result<HeapInfo, MachineError> {
        Ok(self.card(card)?.process(process)?.heap.info())
    }

    /// Copies host bytes into process memory.
    pub fn write_memory(&mut self, card: usize, process: u32, addr: u64, data: &[u8]) -> Result<(), MachineError> {
        self.host_write(card, process, (addr, data.len()), |at| at.copy_from_slice(data))
    }

    /// Fills process memory with one value.
    pub fn fill_memory(
        &mut self,
        card: usize,
        process: u32,
        addr: u64,
        bytes: u64,
        value: u8,
    ) -> Result<(), MachineError> {
        let bad = MachineError::BadDeviceRange { process, addr, bytes };
        let Ok(len) = usize::try_from(bytes) else { return Err(bad) };
        self.host_write(card, process, (addr, len), |at| {
            // Pages that nobody has written are zero and cost nothing until somebody does; most of a heap that is
            // cleared are.
            for page in at.chunks_mut(4096) {
                if value != 0 || page.iter().fold(0, |all, byte| all | byte) != 0 {
                    page.fill(value);
                }
            }
        })
    }

    /// Reads process memory: the emulator's own view, for tests and debuggers; the host API has no such call.
    pub fn peek_memory(&mut self, card: usize, process: u32, addr: u64, out: &mut [u8]) -> Result<(), MachineError> {
        let bytes = out.len() as u64;
        self.publish_due(ps_to_cycles(self.now_ps));
        let Card { processes, cores, .. } = self.card(card)?;
        let memory = &mut processes.get_mut(&process).ok_or(MachineError::NoProcess(process))?.memory;
        if let Some(timed) = cores.timed.as_deref_mut() {
            timed.before_access(process, addr, bytes, memory);
        }
        let at = memory.bytes(addr, out.len()).ok_or(MachineError::BadDeviceRange { process, addr, bytes })?;
        out.copy_from_slice(at);
        Ok(())
    }

    /// Makes an event handler at `entry`, asleep and not yet released; `eu` asks for one execution unit.
    pub fn create_thread(
        &mut self,
        index: usize,
        process: u32,
        entry: u64,
        arg: u64,
        tls: u64,
        eu: Option<u32>,
    ) -> Result<u32, MachineError> {
        let now_cycles = ps_to_cycles(self.now_ps);
        let card = self.card(index)?;
        card.healthy(process)?;
        let eu = card.pick_eu(eu)?;
        if eu == RPC_EU {
            self.leave_unit_of_calls(index)?;
        }
        let card = self.card(index)?;
        let id = add_thread(card, process, eu, ThreadKind::EventHandler, now_cycles)?;
        let thread = card.thread_mut(id)?;
        (thread.entry, thread.arg, thread.tls) = (entry, arg, tls);
        Ok(id)
    }

    /// A handler takes the unit of calls: the threads of calls there, which wait, are removed; the next call makes
    /// another elsewhere.
    fn leave_unit_of_calls(&mut self, card: usize) -> Result<(), MachineError> {
        let processes = &mut self.card(card)?.processes;
        let there: Vec<u32> = processes
            .values_mut()
            .filter_map(|process| process.rpc.take_if(|slot| slot.result.is_some()))
            .map(|slot| slot.thread)
            .collect();
        there.into_iter().try_for_each(|thread| self.destroy_thread(card, thread))
    }

    /// Lets an event handler go on behind a yield at its next trigger.
    pub fn make_continuable(&mut self, card: usize, thread: u32) -> Result<(), MachineError> {
        self.card(card)?.thread_mut(thread)?.continuable = true;
        Ok(())
    }

    /// Releases an event handler: from now on its triggers start it. A non-zero argument replaces the one it was made
    /// with.
    pub fn run_event_handler(&mut self, card: usize, thread: u32, arg: u64) -> Result<(), MachineError> {
        let now_ps = self.now_ps;
        let handler = self.card(card)?.thread_mut(thread)?;
        if arg != 0 {
            handler.arg = arg;
        }
        if handler.state == ThreadState::Created {
            handler.state = ThreadState::Waiting;
            handler.since_cycles = handler.since_cycles.max(ps_to_cycles(now_ps));
            if handler.pending {
                self.start(ps_to_cycles(now_ps), card, thread);
            }
        }
        Ok(())
    }

    /// Triggers an event handler, as one of the firmware does that activates it. A call's time passes until then.
    pub fn trigger_event_handler(&mut self, card: usize, thread: u32) -> Result<(), MachineError> {
        let at_ps = self.now_ps + self.rpc_ps();
        self.card(card)?.thread(thread)?;
        self.activate(at_ps, card, thread);
        Ok(())
    }

    /// Whether an event handler has ended for good. If so, what it stored is there for whatever the host starts next.
    pub fn event_handler_has_finished(&mut self, card: usize, thread: u32) -> Result<bool, MachineError> {
        let has_finished = self.card(card)?.thread(thread)?.state == ThreadState::Finished;
        if has_finished {
            self.watch_gave(card, thread);
        }
        Ok(has_finished)
    }

    /// Removes an event handler, running or not.
    pub fn destroy_thread(&mut self, card: usize, thread: u32) -> Result<(), MachineError> {
        self.card(card)?.thread(thread)?;
        self.publish_all_of(card, thread);
        self.note_end(card, thread);
        let Card { processes, owners, cores, eus, .. } = &mut self.cards[card];
        if let Some(process) = owners.remove(&thread).and_then(|process| processes.get_mut(&process))
            && let Some(mut gone) = process.threads.remove(&thread)
        {
            self.ready.remove((gone.hart.cycles, card, thread));
            eus[gone.port.eu as usize] = None;
            cores.leave(&mut gone, ThreadState::Finished);
            let statistics = process.statistics(&gone, true);
            process.forgotten_threads += u64::from(remember(&mut process.gone, GONE_THREADS, statistics));
        }
        self.watch_end(card, thread);
        Ok(())
    }

    /// Makes a window over a protection domain and gives its id.
    pub fn create_window(&mut self, card: usize, process: u32, pd: u32) -> Result<u32, MachineError> {
        let process = self.card(card)?.process_mut(process)?;
        let id = free_id("window", process.id, MAX_OBJECTS, |id| process.windows.contains_key(&id))?;
        process.windows.insert(id, pd);
        Ok(id)
    }

    /// Removes a window; threads that still use it fault at their next access.
    pub fn destroy_window(&mut self, card: usize, process: u32, id: u32) -> Result<(), MachineError> {
        let missing = MachineError::NoObject { what: "window", id, process };
        self.card(card)?.process_mut(process)?.windows.remove(&id).map(|_| ()).ok_or(missing)?;
        self.explain_window_end(card, process, id);
        Ok(())
    }

    /// Makes an outbox and gives its id.
    pub fn create_outbox(&mut self, card: usize, process: u32) -> Result<u32, MachineError> {
        let process = self.card(card)?.process_mut(process)?;
        let id = free_id("outbox", process.id, MAX_OBJECTS, |id| process.outboxes.contains_key(&id))?;
        process.outboxes.insert(id, None);
        Ok(id)
    }

    /// Makes the outbox of a UAR that threads made from now on have without configuring it, as those of FlexIO have
    /// that of the process's UAR, and gives its id.
    ///
    /// # Errors
    /// There is no such process, or it has as many outboxes as it may.
    pub fn create_default_outbox(&mut self, card: usize, process: u32, uar: u32) -> Result<u32, MachineError> {
        let id = self.create_outbox(card, process)?;
        self.bind_outbox(card, process, id, uar)?;
        self.card(card)?.process_mut(process)?.default_outbox = Some(id);
        Ok(id)
    }

    /// Binds an outbox to a UAR: from now on it rings queues of that UAR only.
    pub fn bind_outbox(&mut self, card: usize, process: u32, id: u32, uar: u32) -> Result<(), MachineError> {
        let missing = MachineError::NoObject { what: "outbox", id, process };
        *self.card(card)?.process_mut(process)?.outboxes.get_mut(&id).ok_or(missing)? = Some(uar);
        Ok(())
    }

    /// Removes an outbox and takes it from the threads that had selected it.
    pub fn destroy_outbox(&mut self, card: usize, process: u32, id: u32) -> Result<(), MachineError> {
        let missing = MachineError::NoObject { what: "outbox", id, process };
        let process = self.card(card)?.process_mut(process)?;
        process.outboxes.remove(&id).ok_or(missing)?;
        for thread in process.threads.values_mut() {
            if thread.port.outbox == Some(id) {
                thread.port.outbox = None;
            }
        }
        Ok(())
    }

    /// Makes a message stream that lets levels up to `level` through, and gives its id.
    pub fn create_stream(&mut self, card: usize, process: u32, level: u8) -> Result<u32, MachineError> {
        let process = self.card(card)?.process_mut(process)?;
        let id = free_id("message stream", process.id, MAX_STREAMS, |id| process.streams.contains_key(&id))?;
        process.streams.insert(id, Stream { level, messages: Vec::new() });
        Ok(id)
    }

    /// Changes the level of a stream.
    pub fn set_stream_level(&mut self, card: usize, process: u32, id: u32, level: u8) -> Result<(), MachineError> {
        let missing = MachineError::NoObject { what: "message stream", id, process };
        self.card(card)?.process_mut(process)?.streams.get_mut(&id).ok_or(missing)?.level = level;
        Ok(())
    }

    /// Removes a stream; what the firmware sends to it afterwards is refused.
    pub fn destroy_stream(&mut self, card: usize, process: u32, id: u32) -> Result<(), MachineError> {
        let missing = MachineError::NoObject { what: "message stream", id, process };
        self.card(card)?.process_mut(process)?.streams.remove(&id).map(|_| ()).ok_or(missing)
    }

    /// Takes what a stream has received.
    pub fn take_stream_messages(&mut self, card: usize, process: u32, id: u32) -> Result<Vec<Vec<u8>>, MachineError> {
        let missing = MachineError::NoObject { what: "message stream", id, process };
        let stream = self.card(card)?.process_mut(process)?.streams.get_mut(&id).ok_or(missing)?;
        Ok(std::mem::take(&mut stream.messages))
    }

    /// Calls `unpack(arguments, function)` on the device and waits for its value. Virtual time passes; the wait is
    /// bounded by the RPC watchdog.
    pub fn process_call(
        &mut self,
        card: usize,
        process: u32,
        function: u64,
        unpack: u64,
        arguments: u64,
    ) -> Result<u64, MachineError> {
        let (now_ps, rpc_ps) = (self.now_ps, self.rpc_ps());
        let this = self.card(card)?;
        let unit = this.rpc_eu();
        let elsewhere = this.cores.timed.as_ref().is_some_and(|timed| timed.is_taken(unit));
        if this.healthy(process)?.rpc.is_some_and(|slot| slot.result.is_none()) || elsewhere {
            return Err(MachineError::CallInProgress(process));
        }
        let thread = match this.process(process)?.rpc {
            Some(slot) => slot.thread,
            None => add_thread(this, process, unit, ThreadKind::Rpc, ps_to_cycles(now_ps))?,
        };
        this.process_mut(process)?.rpc = Some(RpcSlot { thread, function, result: None });
        this.thread_mut(thread)?.entry = unpack;
        self.start_with(ps_to_cycles(now_ps + rpc_ps), card, thread, |hart: &mut Hart| {
            hart.x[10] = arguments;
            hart.x[11] = function;
        });
        loop {
            let process = self.card(card)?.process_mut(process)?;
            if let Some(result) = process.rpc.and_then(|slot| slot.result) {
                self.now_ps += rpc_ps;
                return Ok(result);
            }
            if let Some(reason) = process.stopped() {
                return Err(MachineError::Crashed(reason));
            }
            if !self.step() {
                return Err(MachineError::Crashed("its thread is not running and nothing is due".to_owned()));
            }
        }
    }

    /// Running event handlers and calls of a card, per core.
    pub fn running_per_core(&mut self, card: usize) -> Result<Vec<u64>, MachineError> {
        let running = self.card(card)?.cores.running;
        debug_assert_eq!(running.len(), crate::dpa::layout::EXECUTION_UNITS / EUS_PER_CORE);
        Ok(running.to_vec())
    }
}

pub(super) fn free_id(
    what: &'static str,
    process: u32,
    limit: u32,
    taken: impl Fn(u32) -> bool,
) -> Result<u32, MachineError> {
    (0..limit).find(|&id| !taken(id)).ok_or(MachineError::NoObject { what, id: limit, process })
}

/// Adds a thread on an execution unit, with its memory block and thread context.
pub(super) fn add_thread(
    card: &mut Card,
    pid: u32,
    eu: u32,
    kind: ThreadKind,
    now_cycles: u64,
) -> Result<u32, MachineError> {
    let id = card.next_thread;
    let process = card.process_mut(pid)?;
    process.memory.map_thread(eu as usize);
    let context_addr = THREADS + u64::from(eu) * THREAD_BLOCK + CONTEXT_OFFSET;
    let fields: [(u64, u64, usize); 3] = [
        (context::VERSION, 1, 4),
        (context::WINDOW_BASE, WINDOW_0, 8),
        (context::WINDOW_CONFIG_BASE, WINDOW_CONFIG + u64::from(eu) * PAGE, 8),
    ];
    for (offset, value, width) in fields {
        if let Some(at) = process.memory.bytes_mut(context_addr + offset, width) {
            at.copy_from_slice(&value.to_le_bytes()[..width]);
        }
    }
    let outbox = process.default_outbox.filter(|outbox| process.outboxes.contains_key(outbox));
    if let Some(outbox) = outbox {
        let base = OUTBOXES + u64::from(outbox) * PAGE;
        for (offset, value, width) in [(context::OUTBOX_ID, u64::from(outbox), 2), (context::OUTBOX_BASE, base, 8)] {
            if let Some(at) = process.memory.bytes_mut(context_addr + offset, width) {
                at.copy_from_slice(&value.to_le_bytes()[..width]);
            }
        }
    }
    // As dpa-ps names threads.
    let name = format!("EH_{pid:x}_{id:x}");
    if let Some(at) = process.memory.bytes_mut(context_addr + context::NAME, name.len().min(context::NAME_BYTES - 1)) {
        at.copy_from_slice(&name.as_bytes()[..at.len()]);
    }
    process.threads.insert(Thread {
        id,
        kind,
        entry: 0,
        arg: 0,
        tls: 0,
        state: if kind != ThreadKind::EventHandler { ThreadState::Waiting } else { ThreadState::Created },
        pending: false,
        hart: Hart::new(0),
        port: Port { eu, outbox, windows: [None; 2] },
        l1: L1::new(),
        started_cycles: 0,
        due_cycles: 0,
        attention: Attention::None,
        is_woken_by_threads: false,
        since_cycles: now_cycles,
        busy_cycles: 0,
        continuable: false,
        suspended: false,
        activations: 0,
    });
    card.next_thread += 1;
    card.owners.insert(id, pid);
    if kind != ThreadKind::Rpc {
        card.eus[eu as usize] = Some(id);
    }
    Ok(id)
}
