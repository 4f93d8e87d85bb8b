//! Running threads: activation, slices of instructions, outbox stores, and death.

use emu_hart::{Cause, Hart, Limits, Stop};
use flexcast_image::illegal;

use crate::bus::costs::Simple;
use crate::bus::watched::run_watched;
use crate::bus::{OutboxStore, ThreadBus};
use crate::card::Card;
use crate::dpa::crash::{ANNOUNCED, CrashRecord};
use crate::dpa::layout::{
    CONTEXT_OFFSET, EUS_PER_CORE, EXIT_GATE, STACK_BYTES, STACK_OFFSET, THREAD_BLOCK, THREADS, outbox,
};
use crate::dpa::process::ProcessStatus;
use crate::dpa::thread::{Attention, ThreadKind, ThreadState};
use crate::time::{cycles_to_ps, ps_to_cycles};
use crate::world::World;
use crate::world::debug::run_debugged;
use crate::world::ready::Near;

/// Longest slice of one thread when nothing else is due: the clocks of threads of one machine differ by at most this.
pub(crate) const QUANTUM_CYCLES: u64 = 512;

/// Integer registers by their calling-convention names.
pub(crate) mod reg {
    pub(crate) const RA: usize = 1;
    pub(crate) const SP: usize = 2;
    pub(crate) const GP: usize = 3;
    pub(crate) const TP: usize = 4;
    pub(crate) const A0: usize = 10;
    pub(crate) const A1: usize = 11;
    pub(crate) const A2: usize = 12;
    pub(crate) const A3: usize = 13;
    pub(crate) const A7: usize = 17;
}

impl World {
    /// Puts a thread at the start of its entry function and on the ready list.
    pub(crate) fn start(&mut self, cycles: u64, card: usize, id: u32) {
        self.start_with(cycles, card, id, |_| {});
    }

    pub(crate) fn start_with(&mut self, cycles: u64, card: usize, id: u32, arguments: impl FnOnce(&mut Hart)) {
        let Card { processes, owners, cores, .. } = &mut self.cards[card];
        let Some(&pid) = owners.get(&id) else { return };
        let Some(process) = processes.get_mut(&pid) else { return };
        let gp = process.global_pointer;
        let Some(thread) = process.threads.get_mut(&id) else { return };
        let block = THREADS + u64::from(thread.port.eu) * THREAD_BLOCK;
        let hart = &mut thread.hart;
        // Behind a yield, registers and stack are as they were: no other thread has this execution unit.
        if !std::mem::take(&mut thread.suspended) {
            hart.x = [0; 32];
            hart.x[reg::RA] = EXIT_GATE;
            hart.x[reg::SP] = block + STACK_OFFSET + STACK_BYTES;
            hart.x[reg::GP] = gp;
            hart.x[reg::TP] = block + CONTEXT_OFFSET;
            hart.x[reg::A0] = thread.arg;
            hart.pc = thread.entry;
            arguments(hart);
        }
        hart.clear_reservation();
        hart.cycles = hart.cycles.max(cycles);
        thread.started_cycles = hart.cycles;
        thread.l1.clear();
        let watchdog_ps = self.config.watchdog(thread.kind).0;
        let unseen_ps = match thread.kind {
            ThreadKind::EventHandler | ThreadKind::Worker => self.config.stuck_ps.min(watchdog_ps),
            // The host waits for it.
            ThreadKind::Rpc => watchdog_ps,
        };
        thread.due_cycles = hart.cycles.saturating_add(ps_to_cycles(unseen_ps));
        thread.attention = Attention::None;
        thread.since_cycles = hart.cycles;
        thread.state = ThreadState::Running;
        thread.pending = false;
        thread.activations += 1;
        let at = hart.cycles;
        cores.enter(pid, thread);
        self.trace.record(cycles_to_ps(at), "start", card as u64, u64::from(id));
        self.resume(at, card, id);
        self.watch_begin(card, pid, id);
        self.note_begin(card, pid, id);
    }

    /// The cycle until which the threads of a card can run without missing anything, if no other thread does anything:
    /// they see what happens on their own card at once, and what happens elsewhere when it has come over a link.
    pub(crate) fn horizon(&self, card: usize) -> u64 {
        let Some(next_ps) = self.queue.next_at_ps() else { return u64::MAX };
        let from_elsewhere_ps = next_ps.saturating_add(self.wires.least_latency_ps());
        ps_to_cycles(self.queue.next_of_ps(card).map_or(from_elsewhere_ps, |own_ps| own_ps.min(from_elsewhere_ps)))
    }

    /// Runs one thread until something that it may see is due or it stops by itself.
    pub(crate) fn run_slice(&mut self, at_cycles: u64, card_index: usize, id: u32) {
        self.ready.run((at_cycles, card_index, id));
        let resumed = self.take_debugged_slice(card_index, id);
        if resumed.is_none() {
            self.now_ps = self.now_ps.max(cycles_to_ps(at_cycles));
            if self.watch.is_some() {
                self.publish_due(at_cycles);
            }
        }
        let horizon = self.horizon(card_index);
        self.prefetch_followers();
        let Card { nic, processes, owners, cores, .. } = &mut self.cards[card_index];
        // Nearly always there is one process, and whose thread it is need not be searched for.
        let process = match processes.len() {
            1 => processes.values_mut().next(),
            _ => owners.get(&id).and_then(|process| processes.get_mut(process)),
        };
        let Some(process) = process else { return };
        let at_process = std::ptr::from_ref(process);
        let Some(thread) = process.threads.get_mut(&id) else { return };
        if thread.state != ThreadState::Running {
            return;
        }
        let near = Near::new(thread, at_process);
        if self.prefetches {
            thread.l1.prefetch();
        }
        let deadline = thread.due_cycles;
        let end = (at_cycles + QUANTUM_CYCLES).min(horizon.max(at_cycles + 1)).min(deadline.max(at_cycles + 1));
        let end = resumed.unwrap_or(end);
        let core = thread.port.eu as usize / EUS_PER_CORE;
        let limits = Limits {
            instructions: u64::MAX,
            cycles: end,
            // A core issues one instruction per cycle: n running threads get one in n cycles each.
            gap_cycles: self.config.cost.gap_cycles.max(cores.running[core]),
        };
        // Other threads and the card may have stored since this one last ran. A store-conditional may fail without
        // reason, so giving the reservation up is always right; a sequence of a few instructions fits in one slice.
        if resumed.is_none() {
            thread.hart.clear_reservation();
        }
        let debug = World::debugger_of(&mut self.probes.debug, (card_index, process.id), thread.kind);
        let watch = self.watch.as_deref_mut();
        let (memory, port, l1) = (&mut process.memory, &mut thread.port, &mut thread.l1);
        let text = self.images.text(&mut process.code);
        let hart = &mut thread.hart;
        macro_rules! bus {
            ($watched:literal) => {
                ThreadBus::<_, $watched> {
                    memory,
                    host: &self.host,
                    nic,
                    windows: &process.windows,
                    port,
                    costs: Simple { model: &self.config.cost, driven_from: self.config.driven_from, l1 },
                    outbox_store: None,
                    detail: None,
                    watch,
                    card: card_index,
                    process: process.id,
                    thread: id,
                    pc: 0,
                }
            };
        }
        let (stop, store, detail) = if watch.is_none() {
            let mut bus = bus!(false);
            let stop = match debug {
                None => hart.run(text, &mut bus, &limits),
                Some(debug) => run_debugged(debug, hart, text, &mut bus, &limits),
            };
            (stop, bus.outbox_store, bus.detail)
        } else {
            let mut bus = bus!(true);
            let stop = match debug {
                None => run_watched(hart, text, &mut bus, &limits),
                Some(debug) => run_debugged(debug, hart, text, &mut bus, &limits),
            };
            (stop, bus.outbox_store, bus.detail)
        };
        let cycles = thread.hart.cycles;
        if self.watch.is_some() {
            self.take_records();
            self.name_races();
        }
        match stop {
            Stop::Cycles | Stop::Instructions if cycles >= deadline => self.overran(card_index, id),
            Stop::Cycles | Stop::Instructions => self.ready.insert((cycles, card_index, id), near),
            Stop::Requested => {
                self.ready.insert((cycles, card_index, id), near);
                if let Some(store) = store {
                    self.outbox(cycles_to_ps(cycles), card_index, id, store);
                } else {
                    self.debug_stop(card_index, id, end);
                }
            }
            stop => self.stopped(card_index, id, stop, detail),
        }
    }

    /// Has what the next turns need brought near, while this one runs.
    fn prefetch_followers(&self) {
        if !self.prefetches {
            return;
        }
        for (card, near) in self.ready.followers() {
            near.prefetch();
            self.cards[card].prefetch();
        }
    }

    /// A thread has executed for so long that it has to be examined, or for too long.
    pub(crate) fn overran(&mut self, card_index: usize, id: u32) {
        if self.examine(card_index, id) {
            return;
        }
        let Ok(thread) = self.cards[card_index].thread(id) else { return };
        let (watchdog_ps, what) = self.config.watchdog(thread.kind);
        let ms = watchdog_ps / 1_000_000_000;
        self.crash(card_index, id, format!("watchdog: the {what} ran for more than {ms} ms without ending"), 0);
    }

    /// A thread cannot go on by itself. `detail` says in words why its access faulted.
    pub(crate) fn stopped(&mut self, card_index: usize, id: u32, stop: Stop, detail: Option<String>) {
        match stop {
            // Limits and doorbells are the caller's affair.
            Stop::Cycles | Stop::Instructions | Stop::Requested => {}
            Stop::Ecall => self.rtos_call(card_index, id),
            Stop::Fault(fault) if fault.cause == Cause::InstructionAccess && fault.tval == EXIT_GATE => {
                self.returned(card_index, id);
            }
            Stop::Fault(fault) => {
                let illegal = || {
                    let pc = self.cards[card_index].thread(id).map_or(0, |thread| thread.hart.pc);
                    illegal::why(fault.tval as u32, pc, self.config.isa)
                };
                let is_illegal = fault.cause == Cause::IllegalInstruction;
                let cause = match detail.or_else(|| is_illegal.then(illegal)) {
                    Some(detail) => format!("{}: {detail}", fault.cause),
                    None => fault.cause.to_string(),
                };
                self.crash(card_index, id, cause, fault.tval);
            }
            Stop::Ebreak => self.crash(card_index, id, "breakpoint (ebreak)".to_owned(), 0),
            Stop::Wfi => self.crash(card_index, id, "wfi is not available to a DPA thread".to_owned(), 0),
        }
    }

    pub(crate) fn outbox(&mut self, at_ps: u64, card: usize, id: u32, store: OutboxStore) {
        let OutboxStore { offset, value } = store;
        self.trace.record(at_ps, "outbox", offset, value);
        let low24 = (value & 0xFF_FFFF) as u32;
        let high24 = (value >> 32 & 0xFF_FFFF) as u32;
        if let Some(reason) = self.foreign_queue(card, id, offset, low24, high24) {
            return self.crash(card, id, reason, value);
        }
        let mut effects = std::mem::take(&mut self.effects);
        self.probes.agent = Some(id);
        match offset {
            outbox::SXD_DB => {
                self.watch_doorbell(at_ps, card, high24, value as u16);
                self.cards[card].nic.ring_sq(at_ps, high24, value as u16, &mut effects);
            }
            outbox::CQ_DB => self.cards[card].nic.arm_cq(at_ps, low24, high24, &mut effects),
            outbox::RXT_DB => match self.cards[card].nic.query_cq(low24).map(|cq| cq.target) {
                Some(emu_nic::CqTarget::DpaThread(target)) => self.activate(at_ps, card, target),
                _ => self.crash(
                    card,
                    id,
                    format!("RXT_DB: there is no completion queue {low24:#x} with a thread"),
                    value,
                ),
            },
            // A store has no answer: what it asks for in vain ends the process, with a record that names the register.
            _ => self.crash(card, id, outbox::refusal(offset), value),
        }
        self.carry_out(card, &mut effects);
        self.effects = effects;
    }

    /// A thread triggers another.
    pub(crate) fn activate(&mut self, at_ps: u64, card: usize, id: u32) {
        if let Ok(thread) = self.cards[card].thread_mut(id) {
            thread.is_woken_by_threads = true;
        }
        self.trigger(at_ps, card, id);
    }

    /// Why a doorbell does not reach its queue: it belongs to another UAR than the thread's outbox.
    fn foreign_queue(&self, card: usize, id: u32, offset: u64, low24: u32, high24: u32) -> Option<String> {
        let Card { nic, processes, owners, .. } = &self.cards[card];
        let process = processes.get(owners.get(&id)?)?;
        let outbox = process.threads.get(&id)?.port.outbox?;
        let uar = (*process.outboxes.get(&outbox)?)?;
        let (what, number, owner) = match offset {
            outbox::SXD_DB => ("queue pair", high24, nic.qp_uar(high24)?),
            outbox::CQ_DB | outbox::RXT_DB => ("completion queue", low24, nic.query_cq(low24)?.uar),
            _ => return None,
        };
        (owner != uar).then(|| {
            format!("doorbell through outbox {outbox} of UAR {uar}: {what} {number:#x} was made with UAR {owner}")
        })
    }

    /// The thread jumped to the exit gate.
    fn returned(&mut self, card_index: usize, id: u32) {
        let Card { processes, owners, cores, .. } = &mut self.cards[card_index];
        let Some(process) = owners.get(&id).and_then(|process| processes.get_mut(process)) else { return };
        let Some(thread) = process.threads.get_mut(&id) else { return };
        match (thread.kind, &mut process.rpc) {
            (ThreadKind::Rpc, Some(slot)) => {
                slot.result = Some(thread.hart.x[reg::A0]);
                let at_ps = cycles_to_ps(thread.hart.cycles);
                cores.leave(thread, ThreadState::Waiting);
                self.now_ps = self.now_ps.max(at_ps);
                self.trace.record(at_ps, "return", card_index as u64, u64::from(id));
                self.watch_gave(card_index, id);
                self.watch_end(card_index, id);
            }
            (ThreadKind::Worker, _) => self.task_returned(card_index, id),
            _ => {
                let cause = "the event handler returned; it must end by flexio_dev_thread_reschedule, \
                             flexio_dev_thread_finish or flexio_dev_thread_retrigger (DOCA: \
                             doca_dpa_dev_thread_reschedule or _finish)"
                    .to_owned();
                self.crash(card_index, id, cause, EXIT_GATE);
            }
        }
    }

    pub(crate) fn crash(&mut self, card: usize, id: u32, cause: String, value: u64) {
        self.crash_with(card, id, cause, value, None);
    }

    /// Records the death of a thread and stops its process.
    pub(crate) fn crash_with(&mut self, card_index: usize, id: u32, cause: String, value: u64, user_code: Option<u8>) {
        let card = &mut self.cards[card_index];
        let Some(&pid) = card.owners.get(&id) else { return };
        let queues = card.queues_of(id);
        let Ok(process) = card.process_mut(pid) else { return };
        let Some(thread) = process.threads.get(&id) else { return };
        let at_ps = cycles_to_ps(thread.hart.cycles);
        let panic = user_code.and_then(|_| process.panic_place());
        let record = Box::new(CrashRecord {
            process: pid,
            build_id: process.image.build_id(),
            thread: id,
            eu: thread.port.eu,
            entry: process.entry_symbol(thread),
            queues,
            pc: thread.hart.pc,
            symbol: process.image.symbolize(thread.hart.pc),
            cause,
            panic,
            value,
            registers: thread.hart.x,
            instructions: thread.hart.instret,
            at_ps,
        });
        tracing::error!(target: ANNOUNCED, card = card_index, "{}", record.summary());
        self.now_ps = self.now_ps.max(at_ps);
        self.trace.record(at_ps, "crash", u64::from(id), value);
        self.publish_crash(card_index, &record);
        let status = match user_code {
            Some(code) => ProcessStatus::UserError(code, record),
            None => ProcessStatus::Crashed(record),
        };
        self.stop_process(card_index, pid, status);
        self.announce_death(card_index, pid);
    }

    /// Ends all threads of a process.
    pub(crate) fn stop_process(&mut self, card_index: usize, pid: u32, status: ProcessStatus) {
        let Card { processes, cores, .. } = &mut self.cards[card_index];
        let Some(process) = processes.get_mut(&pid) else { return };
        for thread in process.threads.values_mut() {
            if cores.timed.is_none() {
                self.ready.remove((thread.hart.cycles, card_index, thread.id));
            }
            if thread.state != ThreadState::Finished {
                thread.since_cycles = thread.since_cycles.max(ps_to_cycles(self.now_ps));
            }
            cores.leave(thread, ThreadState::Finished);
        }
        process.status = status;
        let threads: Vec<u32> = process.threads.keys().copied().collect();
        for thread in threads {
            self.watch_end(card_index, thread);
        }
    }
}
