//! gdb's view of one DPA process: threads, registers and memory.

use std::collections::BTreeSet;
use std::convert::Infallible;

use emu_machine::layout::{WINDOW_0, WINDOW_1};
use emu_machine::{Action, Process, Stopped, Thread, World, thread_name};
use gdbstub::common::{Signal, Tid};
use gdbstub::target::ext::base::BaseOps;
use gdbstub::target::ext::base::multithread::{
    MultiThreadBase, MultiThreadRangeStepping, MultiThreadRangeSteppingOps, MultiThreadResume, MultiThreadResumeOps,
    MultiThreadSchedulerLocking, MultiThreadSchedulerLockingOps, MultiThreadSingleStep, MultiThreadSingleStepOps,
};
use gdbstub::target::ext::breakpoints::{
    Breakpoints, BreakpointsOps, HwBreakpoint, HwBreakpointOps, SwBreakpoint, SwBreakpointOps,
};
use gdbstub::target::ext::thread_extra_info::{ThreadExtraInfo, ThreadExtraInfoOps};
use gdbstub::target::{Target, TargetError, TargetResult};
use gdbstub_arch::riscv::Riscv64;
use gdbstub_arch::riscv::reg::RiscvCoreRegs;

/// `EFAULT`: no memory there; gdb says so.
const NO_MEMORY: TargetError<Infallible> = TargetError::Errno(14);
/// `ESRCH`: no such thread.
const NO_THREAD: TargetError<Infallible> = TargetError::Errno(3);

/// The stopped process.
pub(super) struct DpaProcess {
    /// The stopped machine; another, empty one while it runs.
    pub(super) world: World,
    /// Where it stopped last.
    pub(super) stop: Stopped,
    /// Where to stop.
    pub(super) breakpoints: BTreeSet<u64>,
    /// How to go on.
    pub(super) action: Action,
}

fn tid(thread: u32) -> Tid {
    // Thread ids of a card begin with 1.
    Tid::new(thread as usize).unwrap_or(Tid::MIN)
}

impl DpaProcess {
    fn process(&self) -> Option<&Process> {
        self.world.process(self.stop.card, self.stop.process)
    }

    fn thread(&self, tid: Tid) -> Option<(&Process, &Thread)> {
        let process = self.process()?;
        let thread = process.threads.get(&u32::try_from(tid.get()).ok()?)?;
        Some((process, thread))
    }

    /// The thread that stopped.
    pub(super) fn stopped_thread(&self) -> Tid {
        tid(self.stop.thread)
    }

    /// Bytes of memory from an address on, as many as there are.
    fn read(&self, addr: u64, out: &mut [u8]) -> usize {
        let Some(process) = self.process() else { return 0 };
        let bytes = |addr: u64, out: &mut [u8]| -> bool {
            if addr >= WINDOW_0 {
                let host = if addr >= WINDOW_1 { addr - WINDOW_1 } else { addr - WINDOW_0 };
                return self.world.host.read(host, out).is_ok();
            }
            process.memory.bytes(addr, out.len()).map(|held| out.copy_from_slice(held)).is_some()
        };
        // A stack and what lies behind it are held in one piece: the last byte has to be memory as well.
        let last = out.len().checked_sub(1).and_then(|last| addr.checked_add(last as u64));
        if last.is_some_and(|last| bytes(last, &mut [0])) && bytes(addr, out) {
            return out.len();
        }
        // It reaches beyond a region.
        (0..out.len())
            .find(|&at| !addr.checked_add(at as u64).is_some_and(|addr| bytes(addr, &mut out[at..=at])))
            .unwrap_or(out.len())
    }
}

impl Target for DpaProcess {
    type Arch = Riscv64;
    type Error = Infallible;

    fn base_ops(&mut self) -> BaseOps<'_, Self::Arch, Self::Error> {
        BaseOps::MultiThread(self)
    }

    fn support_breakpoints(&mut self) -> Option<BreakpointsOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadBase for DpaProcess {
    fn read_registers(&mut self, regs: &mut RiscvCoreRegs<u64>, tid: Tid) -> TargetResult<(), Self> {
        let (process, thread) = self.thread(tid).ok_or(NO_THREAD)?;
        (regs.pc, regs.x) = process.registers(thread);
        Ok(())
    }

    fn write_registers(&mut self, regs: &RiscvCoreRegs<u64>, tid: Tid) -> TargetResult<(), Self> {
        let thread = u32::try_from(tid.get()).map_err(|_| NO_THREAD)?;
        self.world.write_registers(self.stop.card, thread, regs.pc, &regs.x).map_err(|_| NO_THREAD)
    }

    fn read_addrs(&mut self, start_addr: u64, data: &mut [u8], _: Tid) -> TargetResult<usize, Self> {
        match self.read(start_addr, data) {
            0 if !data.is_empty() => Err(NO_MEMORY),
            count => Ok(count),
        }
    }

    fn write_addrs(&mut self, start_addr: u64, data: &[u8], _: Tid) -> TargetResult<(), Self> {
        let Stopped { card, process, .. } = self.stop;
        self.world.write_memory(card, process, start_addr, data).map_err(|_| NO_MEMORY)
    }

    fn list_active_threads(&mut self, thread_is_active: &mut dyn FnMut(Tid)) -> Result<(), Self::Error> {
        // gdb begins with the first.
        let stopped = self.stop.thread;
        thread_is_active(tid(stopped));
        if let Some(process) = self.process() {
            process
                .threads
                .keys()
                .filter(|&&thread| thread != stopped)
                .for_each(|&thread| thread_is_active(tid(thread)));
        }
        Ok(())
    }

    fn support_resume(&mut self) -> Option<MultiThreadResumeOps<'_, Self>> {
        Some(self)
    }

    fn support_thread_extra_info(&mut self) -> Option<ThreadExtraInfoOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadResume for DpaProcess {
    fn resume(&mut self) -> Result<(), Self::Error> {
        Ok(())
    }

    fn clear_resume_actions(&mut self) -> Result<(), Self::Error> {
        self.action = Action::Continue;
        Ok(())
    }

    fn set_resume_action_continue(&mut self, _: Tid, _: Option<Signal>) -> Result<(), Self::Error> {
        // What is not stepped goes on.
        Ok(())
    }

    fn support_scheduler_locking(&mut self) -> Option<MultiThreadSchedulerLockingOps<'_, Self>> {
        Some(self)
    }

    fn support_single_step(&mut self) -> Option<MultiThreadSingleStepOps<'_, Self>> {
        Some(self)
    }

    fn support_range_step(&mut self) -> Option<MultiThreadRangeSteppingOps<'_, Self>> {
        Some(self)
    }
}

impl MultiThreadSingleStep for DpaProcess {
    fn set_resume_action_step(&mut self, tid: Tid, _: Option<Signal>) -> Result<(), Self::Error> {
        self.action = Action::Step { thread: tid.get() as u32, range: (0, 0) };
        Ok(())
    }
}

impl MultiThreadSchedulerLocking for DpaProcess {
    fn set_resume_action_scheduler_lock(&mut self) -> Result<(), Self::Error> {
        // gdb locks while it steps over a breakpoint that it has taken out: one instruction, and no other thread runs
        // during one. Longer locks are not honoured: virtual time cannot pass for one thread alone.
        Ok(())
    }
}

impl MultiThreadRangeStepping for DpaProcess {
    fn set_resume_action_range_step(&mut self, tid: Tid, start: u64, end: u64) -> Result<(), Self::Error> {
        self.action = Action::Step { thread: tid.get() as u32, range: (start, end) };
        Ok(())
    }
}

impl Breakpoints for DpaProcess {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }
}

// Both kinds compare the program counter: no instruction is replaced.
impl SwBreakpoint for DpaProcess {
    fn add_sw_breakpoint(&mut self, addr: u64, _: usize) -> TargetResult<bool, Self> {
        self.breakpoints.insert(addr);
        Ok(true)
    }

    fn remove_sw_breakpoint(&mut self, addr: u64, _: usize) -> TargetResult<bool, Self> {
        Ok(self.breakpoints.remove(&addr))
    }
}

impl HwBreakpoint for DpaProcess {
    fn add_hw_breakpoint(&mut self, addr: u64, kind: usize) -> TargetResult<bool, Self> {
        self.add_sw_breakpoint(addr, kind)
    }

    fn remove_hw_breakpoint(&mut self, addr: u64, kind: usize) -> TargetResult<bool, Self> {
        self.remove_sw_breakpoint(addr, kind)
    }
}

impl ThreadExtraInfo for DpaProcess {
    fn thread_extra_info(&self, tid: Tid, buf: &mut [u8]) -> Result<usize, Self::Error> {
        let Some((process, thread)) = self.thread(tid) else { return Ok(0) };
        let name = thread_name(thread.kind, process.id, thread.id);
        let text = format!("{name}, {:?}, execution unit {}", thread.state, thread.port.eu);
        let len = text.len().min(buf.len());
        buf[..len].copy_from_slice(&text.as_bytes()[..len]);
        Ok(len)
    }
}
