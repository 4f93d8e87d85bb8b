//! The machine around a bare-metal program: traps, system calls, `tohost`, trace.

use std::io::Write;

use flexcast_isa::Instruction;

use super::board::Devices;
use super::csr_file::{CsrFile, Mode};
use super::memory::{Layout, Memory, place_arguments};
use super::{BareError, Board, Options, Outcome, Program, Report, Streams};
use crate::bus::{Bus, Cause, Fault, Width};
use crate::hart::{Hart, Limits, Stop};
use crate::text::Text;

const WRITE: u64 = 64;
const EXIT: u64 = 93;
const EXIT_GROUP: u64 = 94;
const BRK: u64 = 214;
const EBADF: u64 = 9;
const EFAULT: u64 = 14;
const ENOSYS: u64 = 38;

const SP: usize = 2;
const A0: usize = 10;
const A1: usize = 11;
const A2: usize = 12;
const A7: usize = 17;

/// A segment is decoded as a whole up to this length; beyond it only the part that the file holds, not its zeroes.
const TEXT_LIMIT_BYTES: u64 = 16 << 20;

struct BareBus {
    memory: Memory,
    devices: Option<Devices>,
    csrs: CsrFile,
    tohost: Option<u64>,
    /// What has been stored to `tohost`.
    reported: Option<u64>,
}

impl Bus for BareBus {
    fn load(&mut self, addr: u64, width: Width, _cycles: &mut u64) -> Result<u64, Fault> {
        let fault = match self.memory.load(addr, width) {
            Ok(value) => return Ok(value),
            Err(fault) => fault,
        };
        self.devices.as_ref().and_then(|devices| devices.load(addr)).ok_or(fault)
    }

    fn store(&mut self, addr: u64, width: Width, value: u64, _cycles: &mut u64) -> Result<(), Fault> {
        if let Err(fault) = self.memory.store(addr, width, value) {
            return self.devices.as_mut().and_then(|devices| devices.store(addr, width, value)).ok_or(fault);
        }
        if Some(addr) == self.tohost {
            let stored = self.memory.load(addr, width)?;
            // Zero clears the word before a request.
            self.reported = (stored != 0).then_some(stored);
        }
        Ok(())
    }

    fn fetch16(&mut self, addr: u64) -> Result<u16, Fault> {
        self.memory.fetch16(addr)
    }

    fn csr_time(&mut self, cycles_now: u64) -> u64 {
        cycles_now
    }

    fn should_stop(&self) -> bool {
        self.reported.is_some() || self.devices.as_ref().is_some_and(Devices::calls)
    }

    fn counter_offsets(&self) -> (u64, u64) {
        self.csrs.counter_offsets()
    }

    fn csr_read(&mut self, csr: u16, cycles: u64, instret: u64) -> Option<u64> {
        self.csrs.read(csr, cycles, instret)
    }

    fn csr_write(&mut self, csr: u16, value: u64, cycles: u64, instret: u64) -> Option<()> {
        self.csrs.write(csr, value, cycles, instret)
    }

    fn machine_return(&mut self) -> Option<u64> {
        self.csrs.machine_return()
    }
}

/// Runs a program to its end or to the limit.
///
/// # Errors
/// A program that cannot be laid out in memory, or a stream that cannot be written. What the program itself does wrong
/// is an [`Outcome`].
pub fn run(program: &Program<'_>, options: &Options, streams: &mut Streams<'_>) -> Result<Report, BareError> {
    let (mut memory, layout) = Memory::new(program, options)?;
    let mut hart = Hart::new(program.entry);
    if options.board == Board::Flat {
        hart.x[SP] = place_arguments(&mut memory, &layout, &program.arguments)?;
    }
    if let Some((base, len)) = program.dump {
        memory.bytes(base, len).ok_or(BareError::DumpOutside { base, len })?;
    }
    let mut text = Text::default().with_isa(options.isa);
    for &(base, bytes, len) in &program.segments {
        text.add(base, if len <= TEXT_LIMIT_BYTES { len } else { bytes.len() as u64 });
    }
    let devices = (options.board == Board::Virt).then(Devices::default);
    let bus = BareBus { memory, devices, csrs: CsrFile::new(options.isa), tohost: program.tohost, reported: None };
    let mut machine = Machine { hart, text, bus, layout, heap_top: layout.heap_base, traps: 0 };
    let outcome = machine.run(options, streams)?;
    machine.print(streams)?;
    let dump = program
        .dump
        .and_then(|(base, len)| machine.bus.memory.bytes(base, len))
        .map_or_else(Vec::new, |bytes| bytes.to_vec());
    let hart = machine.hart;
    Ok(Report { outcome, instret: hart.instret, cycles: hart.cycles, hart, dump })
}

struct Machine {
    hart: Hart,
    text: Text,
    bus: BareBus,
    layout: Layout,
    heap_top: u64,
    /// Traps taken. They retire nothing, so that a handler that itself traps would never reach a limit on instructions.
    traps: u64,
}

impl Machine {
    fn run(&mut self, options: &Options, streams: &mut Streams<'_>) -> Result<Outcome, BareError> {
        loop {
            let left = options.instructions.saturating_sub(self.hart.instret.saturating_add(self.traps));
            if left == 0 {
                return Ok(Outcome::Limit);
            }
            let mut limits = Limits { instructions: left, cycles: u64::MAX, gap_cycles: options.gap_cycles };
            let stop = if let Some(trace) = streams.trace.as_deref_mut() {
                limits.instructions = 1;
                self.step_traced(&limits, trace)?
            } else {
                self.hart.run(&mut self.text, &mut self.bus, &limits)
            };

            let pc = self.hart.pc;
            match stop {
                // No interrupt will ever come; the architecture lets `wfi` return at once.
                Stop::Instructions | Stop::Cycles | Stop::Wfi => {}
                Stop::Requested => {
                    self.print(streams)?;
                    if let Some(code) = self.bus.devices.as_ref().and_then(|devices| devices.ended) {
                        return Ok(Outcome::Exit(code));
                    }
                    if let Some(value) = self.bus.reported.take() {
                        return Ok(if value & 1 == 1 {
                            Outcome::Exit(value >> 1)
                        } else {
                            Outcome::HostRequest(value)
                        });
                    }
                }
                Stop::Ecall => {
                    let cause = match self.bus.csrs.mode {
                        Mode::User => Cause::EcallUser,
                        Mode::Machine => Cause::EcallMachine,
                    };
                    if !self.trap(pc, Fault::new(cause, 0))
                        && let Some(outcome) = self.system_call(options, streams)?
                    {
                        return Ok(outcome);
                    }
                }
                Stop::Ebreak => {
                    let fault = Fault::new(Cause::Breakpoint, pc);
                    if !self.trap(pc, fault) {
                        return Ok(Outcome::Fault { pc, fault });
                    }
                }
                Stop::Fault(fault) => {
                    if !self.trap(pc, fault) {
                        return Ok(Outcome::Fault { pc, fault });
                    }
                }
            }
        }
    }

    /// Prints what the serial port has sent.
    fn print(&mut self, streams: &mut Streams<'_>) -> Result<(), BareError> {
        let Some(devices) = &mut self.bus.devices else { return Ok(()) };
        let sent = std::mem::take(&mut devices.sent);
        streams.out.write_all(&sent).map_err(|error| BareError::Stream { stream: "output", error })
    }

    /// Enters the program's trap handler, if it has one.
    fn trap(&mut self, pc: u64, fault: Fault) -> bool {
        let Some(handler) = self.bus.csrs.trap(pc, fault) else {
            return false;
        };
        self.traps += 1;
        self.hart.pc = handler;
        true
    }

    fn system_call(&mut self, options: &Options, streams: &mut Streams<'_>) -> Result<Option<Outcome>, BareError> {
        let x = &mut self.hart.x;
        let result = match x[A7] {
            EXIT | EXIT_GROUP => {
                let code = x[A0] & 0xff;
                self.hart.complete_ecall(options.gap_cycles.max(1));
                return Ok(Some(Outcome::Exit(code)));
            }
            WRITE => {
                let (stream, name): (&mut dyn Write, _) = match x[A0] {
                    1 => (&mut *streams.out, "output"),
                    2 => (&mut *streams.err, "error output"),
                    _ => {
                        x[A0] = EBADF.wrapping_neg();
                        self.hart.complete_ecall(options.gap_cycles.max(1));
                        return Ok(None);
                    }
                };
                match self.bus.memory.bytes(x[A1], x[A2]) {
                    Some(bytes) => {
                        stream.write_all(bytes).map_err(|error| BareError::Stream { stream: name, error })?;
                        x[A2]
                    }
                    None if x[A2] == 0 => 0,
                    None => EFAULT.wrapping_neg(),
                }
            }
            BRK => {
                if (self.layout.heap_base..=self.layout.heap_end).contains(&x[A0]) {
                    self.heap_top = x[A0];
                }
                self.heap_top
            }
            _ => ENOSYS.wrapping_neg(),
        };
        x[A0] = result;
        self.hart.complete_ecall(options.gap_cycles.max(1));
        Ok(None)
    }

    fn step_traced(&mut self, limits: &Limits, trace: &mut dyn Write) -> Result<Stop, BareError> {
        let (pc, retired) = (self.hart.pc, self.hart.instret);
        let bits = self.bus.memory.fetch16(pc).map(|low| {
            let high = if low & 3 == 3 { self.bus.memory.fetch16(pc.wrapping_add(2)).unwrap_or(0) } else { 0 };
            u32::from(high) << 16 | u32::from(low)
        });
        let stop = self.hart.run(&mut self.text, &mut self.bus, limits);
        let line = match bits {
            Ok(bits) if self.hart.instret == retired => format!("{pc:#018x} {bits:08x} ({stop:?})\n"),
            Ok(bits) => match Instruction::new(pc, bits).destination() {
                Some(register) => {
                    format!("{pc:#018x} {bits:08x} x{register}={:#018x}\n", self.hart.x[usize::from(register)])
                }
                None => format!("{pc:#018x} {bits:08x}\n"),
            },
            Err(fault) => format!("{pc:#018x} {fault}\n"),
        };
        trace.write_all(line.as_bytes()).map_err(|error| BareError::Stream { stream: "trace", error })?;
        Ok(stop)
    }
}
