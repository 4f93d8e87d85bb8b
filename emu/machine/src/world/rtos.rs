//! Calls of threads to the operating system of the DPA.

use crate::card::Card;
use crate::dpa::layout::{CONTEXT_OFFSET, OUTBOXES, PAGE, THREAD_BLOCK, THREADS, call, context};
use crate::dpa::process::ProcessStatus;
use crate::dpa::thread::{ThreadKind, ThreadState};
use crate::time::cycles_to_ps;
use crate::world::World;
use crate::world::schedule::reg;

/// Longest message of a stream, in bytes, without its terminator (512-byte message chunk).
const MAX_MESSAGE_BYTES: u64 = 511;
/// Most messages of a stream that wait for the host; more are refused, as by a full buffer on the card.
const MAX_WAITING_MESSAGES: usize = 1 << 14;
/// Least error code of the user's own code; those below are the runtime's and the SDK's.
const FIRST_USER_ERROR: u8 = 0x80;
/// How a process ends that reports an error code that is not the user's (`FLEXIO_DEV_ERROR_ILLEGAL_ERR`).
const ILLEGAL_ERROR: u8 = 0x42;
/// Stream id that addresses every stream.
const BROADCAST_STREAM: u64 = 0xFF;

/// What a thread does after an RTOS call.
enum After {
    /// Goes on with this value in a0.
    Value(u64),
    /// Has ended; may be triggered again.
    Wait,
    /// Has ended and starts again.
    Again,
    /// Waits for a trigger to go on here; `again`: it has one.
    Suspend { again: bool },
    /// Has ended for good.
    Finish,
    /// The whole process has ended.
    FinishProcess,
    /// The firmware reports an error.
    Error(u8),
    /// The call cannot be carried out, and ends the process.
    Fault(String),
    /// The call is not one.
    Unknown,
}

impl World {
    /// The thread is at an `ecall`.
    pub(crate) fn rtos_call(&mut self, card_index: usize, id: u32) {
        let gap = self.gap_cycles(card_index);
        let Card { nic, processes, owners, cores, .. } = &mut self.cards[card_index];
        let Some(process) = owners.get(&id).and_then(|process| processes.get_mut(process)) else { return };
        let Some(x) = process.threads.get(&id).map(|thread| thread.hart.x) else { return };
        let number = x[reg::A7];
        let activated = u32::try_from(x[reg::A0]).ok().and_then(|other| process.threads.get(&other));
        let is_handler = activated.is_some_and(|other| other.kind == ThreadKind::EventHandler);
        let Some(thread) = process.threads.get_mut(&id) else { return };
        let at_ps = cycles_to_ps(thread.hart.cycles);
        let context_addr = THREADS + u64::from(thread.port.eu) * THREAD_BLOCK + CONTEXT_OFFSET;
        let memory = &mut process.memory;
        let mut poke = |offset: u64, bytes: &[u8]| {
            if let Some(at) = memory.bytes_mut(context_addr + offset, bytes.len()) {
                at.copy_from_slice(bytes);
            }
        };
        const OK: u64 = 0;
        const FAILED: u64 = 1;
        let mut triggered = None;
        let after = match number {
            call::RESCHEDULE => After::Wait,
            call::FINISH => After::Finish,
            call::RETRIGGER => After::Again,
            call::PROCESS_FINISH => After::FinishProcess,
            call::YIELD | call::YIELD_AND_RETRIGGER if thread.continuable => {
                After::Suspend { again: number == call::YIELD_AND_RETRIGGER }
            }
            call::YIELD | call::YIELD_AND_RETRIGGER => After::Value(OK),
            call::OUTBOX_CONFIG => {
                let outbox = x[reg::A0] as u16;
                if process.outboxes.contains_key(&u32::from(outbox)) {
                    thread.port.outbox = Some(u32::from(outbox));
                    poke(context::OUTBOX_ID, &outbox.to_le_bytes());
                    poke(context::OUTBOX_BASE, &(OUTBOXES + u64::from(outbox) * PAGE).to_le_bytes());
                    After::Value(OK)
                } else {
                    After::Value(FAILED)
                }
            }
            call::WINDOW_CONFIG => {
                let (entity, window, key) = (x[reg::A0], x[reg::A1] as u32, x[reg::A2] as u32);
                if entity < 2 && process.windows.contains_key(&window) {
                    thread.port.windows[entity as usize] = Some((window, key));
                    if entity == 0 {
                        poke(context::WINDOW_ID, &(window as u16).to_le_bytes());
                    }
                    After::Value(OK)
                } else {
                    After::Value(FAILED)
                }
            }
            call::WINDOW_MKEY_CONFIG => match thread.port.windows.get_mut(x[reg::A0] as usize) {
                Some(Some((_, key))) => {
                    *key = x[reg::A1] as u32;
                    After::Value(OK)
                }
                _ => After::Value(FAILED),
            },
            call::MSG => {
                let (stream, level, addr, len) = (x[reg::A0], x[reg::A1] as u8, x[reg::A2], x[reg::A3]);
                let text = (len <= MAX_MESSAGE_BYTES).then(|| memory.bytes(addr, len as usize)).flatten();
                let mut status = FAILED;
                if let Some(text) = text {
                    self.probes.note_log(at_ps, card_index, id, stream, text);
                }
                if let Some(mut text) = text.map(<[u8]>::to_vec) {
                    if let Some(watch) = &self.watch {
                        watch.forward((card_index, id), addr, &mut text);
                    }
                    for (&number, to) in &mut process.streams {
                        if stream == u64::from(number) || stream == BROADCAST_STREAM {
                            let room = to.messages.len() < MAX_WAITING_MESSAGES;
                            // A message of level 0 is for nobody.
                            let passes = (1..=to.level).contains(&level);
                            if !passes || room {
                                status = OK;
                            }
                            if passes && room {
                                to.messages.push(text.clone());
                            }
                        }
                    }
                }
                After::Value(status)
            }
            call::ERROR => After::Error(x[reg::A0] as u8),
            call::EVENT_HANDLER_ACTIVATE if is_handler => {
                triggered = Some(x[reg::A0] as u32);
                After::Value(OK)
            }
            call::EVENT_HANDLER_ACTIVATE => After::Value(FAILED),
            call::THREAD_ID => After::Value(u64::from(thread.id)),
            call::TLS => After::Value(thread.tls),
            call::OUTBOX_CONFIG_UAR_EXTENSION => After::Value(FAILED),
            call::NIC_COUNTER => match x[reg::A0] {
                call::COUNTER_RX_BYTES => After::Value(nic.counters().rx_bytes),
                call::COUNTER_TX_BYTES => After::Value(nic.counters().tx_bytes),
                call::COUNTER_NONE => {
                    After::Fault("flexio_dev_nic_counters_sample before flexio_dev_nic_counters_config".into())
                }
                other => After::Fault(format!(
                    "no counter {other:#x}: the card has {:#x} (bytes received at port 0) and {:#x} (bytes sent from \
                     it)",
                    call::COUNTER_RX_BYTES,
                    call::COUNTER_TX_BYTES
                )),
            },
            _ => After::Unknown,
        };
        self.trace.record(at_ps, "call", u64::from(id), number);
        self.probes.note_call(at_ps, card_index, id, number);
        let ended = |what: &str| format!("a call (RPC) or a task of a command queue ended by {what}; it must return");
        let must_return = thread.kind != ThreadKind::EventHandler;
        match after {
            After::Value(value) => {
                thread.hart.complete_ecall(gap);
                thread.hart.x[reg::A0] = value;
                let cycles = thread.hart.cycles;
                self.resume(cycles, card_index, id);
                if let Some(other) = triggered {
                    self.watch_gave(card_index, id);
                    self.activate(at_ps, card_index, other);
                }
            }
            After::Wait | After::Again | After::Finish if must_return => {
                self.crash(card_index, id, ended("reschedule, finish or retrigger"), number);
            }
            After::Wait | After::Again | After::Suspend { .. } => {
                thread.hart.complete_ecall(gap);
                thread.suspended = matches!(after, After::Suspend { .. });
                cores.leave(thread, ThreadState::Waiting);
                let again = matches!(after, After::Again | After::Suspend { again: true }) || thread.pending;
                let cycles = thread.hart.cycles;
                self.watch_end(card_index, id);
                if again {
                    self.start(cycles, card_index, id);
                }
            }
            After::Finish => {
                thread.hart.complete_ecall(gap);
                cores.leave(thread, ThreadState::Finished);
                self.watch_end(card_index, id);
            }
            After::FinishProcess => {
                let process = owners.get(&id).copied();
                if let Some(process) = process {
                    self.stop_process(card_index, process, ProcessStatus::Finished);
                    self.publish_state();
                }
            }
            After::Error(code) if code < FIRST_USER_ERROR => {
                let cause = format!(
                    "the firmware reported error {code:#x}, which is not the user's ({FIRST_USER_ERROR:#x} to 0xff): \
                     the process ends with {ILLEGAL_ERROR:#x}"
                );
                self.crash_with(card_index, id, cause, u64::from(code), Some(ILLEGAL_ERROR));
            }
            After::Error(code) => {
                let cause = format!("the firmware reported error {code:#x}");
                self.crash_with(card_index, id, cause, u64::from(code), Some(code));
            }
            After::Fault(cause) => self.crash(card_index, id, cause, number),
            After::Unknown => {
                self.crash(card_index, id, format!("unknown RTOS call {number}"), number);
            }
        }
    }
}
