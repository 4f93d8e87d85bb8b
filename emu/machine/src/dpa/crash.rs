//! The crash record: everything one wants to know of a thread that died, and where.

use std::fmt;

use flexcast_image::PanicPlace;

use crate::dpa::statistics::thread_in_words as named;

/// Target of the events of `tracing` that report what a [`FaultSink`](crate::FaultSink) receives as well.
pub const ANNOUNCED: &str = "emu_machine::announced";

/// Names of the integer registers in the order x0..x31.
const REGISTERS: [&str; 32] = [
    "zero", "ra", "sp", "gp", "tp", "t0", "t1", "t2", "s0", "s1", "a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "s2",
    "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "t3", "t4", "t5", "t6",
];

/// State of a thread at its fatal event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CrashRecord {
    /// Process id.
    pub process: u32,
    /// Build id of its image, if it has one.
    pub build_id: Option<String>,
    /// Thread id.
    pub thread: u32,
    /// Execution unit.
    pub eu: u32,
    /// Symbol of what the thread executes from its start: its event handler, or the function called. Empty where the
    /// image has none.
    pub entry: String,
    /// Completion queues that start the thread.
    pub queues: Vec<u32>,
    /// Program counter of the instruction that did not complete.
    pub pc: u64,
    /// Symbol that holds `pc`, with the offset in it.
    pub symbol: Option<(String, u64)>,
    /// What happened, in words.
    pub cause: String,
    /// Where the firmware panicked, if that is what happened.
    pub panic: Option<PanicPlace>,
    /// Address or instruction bits that belong to the cause.
    pub value: u64,
    /// x0..x31.
    pub registers: [u64; 32],
    /// Instructions retired by the thread since it was created.
    pub instructions: u64,
    /// Virtual time in picoseconds.
    pub at_ps: u64,
}

impl CrashRecord {
    /// One line: cause, place, thread with its handler and queues.
    #[must_use]
    pub fn summary(&self) -> String {
        let place = match &self.symbol {
            Some((name, offset)) => format!("{name}+{offset:#x}"),
            None => "no symbol".to_owned(),
        };
        let panic = self.panic.as_ref().map_or_else(String::new, |panic| format!("{panic}; "));
        let thread = named(self.thread, &self.entry, &self.queues);
        format!("{panic}{} at pc {:#x} ({place}), {thread}, value {:#x}", self.cause, self.pc, self.value)
    }
}

impl fmt::Display for CrashRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "DPA process {} crashed", self.process)?;
        if let Some(id) = &self.build_id {
            writeln!(f, "  build id  {id}")?;
        }
        writeln!(f, "  thread    {} on execution unit {}", self.thread, self.eu)?;
        let queues: String = self.queues.iter().map(|cqn| format!(", CQ {cqn:#x}")).collect();
        writeln!(f, "  entry     {}{queues}", self.entry)?;
        writeln!(f, "  cause     {}", self.cause)?;
        if let Some(panic) = &self.panic {
            writeln!(f, "  panic     {panic}")?;
        }
        writeln!(f, "  value     {:#018x}", self.value)?;
        write!(f, "  pc        {:#018x}", self.pc)?;
        if let Some((name, offset)) = &self.symbol {
            write!(f, "  {name}+{offset:#x}")?;
        }
        writeln!(f)?;
        writeln!(f, "  retired   {} instructions", self.instructions)?;
        writeln!(f, "  time      {} ps (emulated)", self.at_ps)?;
        for row in 0..8 {
            for column in 0..4 {
                let index = row * 4 + column;
                write!(f, "  {:>4} {:016x}", REGISTERS[index], self.registers[index])?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
