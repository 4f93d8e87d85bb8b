//! Core dumps of DPA processes, as gdb reads them: an ELF core file of 64-bit RISC-V with the notes of Linux
//! (`elf_prstatus`, `elf_prpsinfo`). One thread of the dump is one DPA thread, with its id.
//!
//! In it: code, data, stacks and contexts of all threads, heap in use, and the crash record as a note of our own. Host
//! memory behind windows is left out, as in the vendor's dumps.

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use emu_machine::{CrashRecord, Process, Region, Thread};
use object::write::StreamingBuffer;
use object::write::elf::{FileHeader, ProgramHeader, Writer};
use object::{Endianness, elf};

use crate::new_file::NewFile;

/// Bytes of `struct elf_prstatus` on 64-bit RISC-V, and offsets in it (Linux `elfcore.h`; binutils `elfnn-riscv.c`).
const PRSTATUS_BYTES: usize = 376;
const PRSTATUS_SIGNAL: usize = 12;
const PRSTATUS_PID: usize = 32;
const PRSTATUS_REGISTERS: usize = 112;
/// Bytes of `struct elf_prpsinfo`, and offsets in it.
const PRPSINFO_BYTES: usize = 136;
const PRPSINFO_PID: usize = 24;
const PRPSINFO_NAME: usize = 40;
const PRPSINFO_NAME_BYTES: usize = 16;
const PRPSINFO_ARGUMENTS: usize = 56;
const PRPSINFO_ARGUMENTS_BYTES: usize = 80;
/// Name and type of the note that holds the crash record as text.
const OWN_NOTE: &str = "FLEXCAST";
const OWN_NOTE_TYPE: u32 = 1;
/// `e_flags`: compressed instructions may occur (RISC-V psABI).
const EF_RISCV_RVC: u32 = 1;

/// Signals of Linux that say what happened.
mod signal {
    pub(super) const ILL: u16 = 4;
    pub(super) const TRAP: u16 = 5;
    pub(super) const ABRT: u16 = 6;
    pub(super) const BUS: u16 = 7;
    pub(super) const SEGV: u16 = 11;
}

fn signal_of(record: &CrashRecord) -> u16 {
    // The causes of the hart, as it words them; everything else is the runtime ending the process.
    let is = |word: &str| record.cause.starts_with(word) || record.cause.contains(&format!("{word}:"));
    if is("illegal instruction") {
        signal::ILL
    } else if is("breakpoint") {
        signal::TRAP
    } else if record.cause.contains("misaligned") {
        signal::BUS
    } else if record.cause.contains("access fault") {
        signal::SEGV
    } else {
        signal::ABRT
    }
}

/// The name of a dump or report of a process: `base`, three digits of the process id, `core` or `crash`, as the
/// vendor's library names them.
#[must_use]
pub fn file_name(base: &str, process: u32, kind: &str) -> PathBuf {
    PathBuf::from(format!("{base}.{process:03}.{kind}"))
}

fn note(out: &mut Vec<u8>, name: &str, kind: u32, body: &[u8]) {
    for word in [name.len() as u32 + 1, body.len() as u32, kind] {
        out.extend(word.to_le_bytes());
    }
    for bytes in [&[name.as_bytes(), b"\0"].concat()[..], body] {
        out.extend(bytes);
        out.resize(out.len().next_multiple_of(4), 0);
    }
}

fn prstatus(process: &Process, thread: &Thread, signal: u16) -> [u8; PRSTATUS_BYTES] {
    let mut status = [0; PRSTATUS_BYTES];
    status[..4].copy_from_slice(&u32::from(signal).to_le_bytes());
    status[PRSTATUS_SIGNAL..][..2].copy_from_slice(&signal.to_le_bytes());
    status[PRSTATUS_PID..][..4].copy_from_slice(&thread.id.to_le_bytes());
    let (pc, x) = process.registers(thread);
    // pc takes the place of x0.
    let registers = [pc].into_iter().chain(x[1..].iter().copied());
    for (slot, value) in status[PRSTATUS_REGISTERS..].chunks_exact_mut(8).zip(registers) {
        slot.copy_from_slice(&value.to_le_bytes());
    }
    status
}

fn prpsinfo(process: &Process) -> [u8; PRPSINFO_BYTES] {
    let mut info = [0; PRPSINFO_BYTES];
    info[PRPSINFO_PID..][..4].copy_from_slice(&process.id.to_le_bytes());
    let mut text = |at: usize, room: usize, text: &str| {
        // The last byte stays zero.
        let len = text.len().min(room - 1);
        info[at..at + len].copy_from_slice(&text.as_bytes()[..len]);
    };
    // Debuggers compare the name with that of the file which they were given, and warn.
    let program = format!("{}.elf", if process.label.is_empty() { "dpa" } else { &process.label });
    text(PRPSINFO_NAME, PRPSINFO_NAME_BYTES, &program);
    text(PRPSINFO_ARGUMENTS, PRPSINFO_ARGUMENTS_BYTES, &format!("{program} as DPA process {}", process.id));
    info
}

/// All notes; the thread that died comes first, because debuggers begin with it.
fn notes(process: &Process, crash: Option<&CrashRecord>) -> Vec<u8> {
    let mut out = Vec::new();
    let died = crash.map(|record| record.thread);
    // Readers take the signal of the last note: it is the process's, and the same in all of them.
    let signal = crash.map_or(0, signal_of);
    let mut threads: Vec<&Thread> = process.threads.values().collect();
    threads.sort_by_key(|thread| (died.is_none_or(|id| id != thread.id), thread.id));
    for (index, thread) in threads.into_iter().enumerate() {
        note(&mut out, "CORE", elf::NT_PRSTATUS.0, &prstatus(process, thread, signal));
        if index == 0 {
            note(&mut out, "CORE", elf::NT_PRPSINFO.0, &prpsinfo(process));
        }
    }
    if let Some(record) = crash {
        note(&mut out, OWN_NOTE, OWN_NOTE_TYPE, record.to_string().as_bytes());
    }
    out
}

/// Writes a core dump of a process as it is.
///
/// # Errors
/// The writer failed, or the dump has more regions than an ELF file can have program headers.
pub fn write(process: &Process, crash: Option<&CrashRecord>, writer: impl Write) -> io::Result<()> {
    const ALIGN: u64 = 0x1000;
    let regions = process.regions();
    let notes = notes(process, crash);
    let mut buffer = StreamingBuffer::new(BufWriter::new(writer));
    let mut elf_writer = Writer::new(Endianness::Little, true, &mut buffer);
    elf_writer.reserve_file_header();
    elf_writer.reserve_program_headers(regions.len() as u32 + 1);
    let notes_at = elf_writer.reserve(notes.len() as u64, 4);
    let places: Vec<u64> = regions.iter().map(|region| elf_writer.reserve(region.bytes.len() as u64, ALIGN)).collect();
    let other = |error: object::write::Error| io::Error::other(error.to_string());
    elf_writer
        .write_file_header(&FileHeader {
            os_abi: elf::ELFOSABI_NONE,
            abi_version: 0,
            e_type: elf::ET_CORE,
            e_machine: elf::EM_RISCV,
            e_entry: 0,
            e_flags: elf::FileFlags(EF_RISCV_RVC),
        })
        .map_err(other)?;
    elf_writer.write_align_program_headers();
    elf_writer.write_program_header(&ProgramHeader {
        p_type: elf::PT_NOTE,
        p_flags: elf::ProgramFlags(0),
        p_offset: notes_at,
        p_vaddr: 0,
        p_paddr: 0,
        p_filesz: notes.len() as u64,
        p_memsz: 0,
        p_align: 4,
    });
    for (region, offset) in regions.iter().zip(places) {
        elf_writer.write_program_header(&load(region, offset, ALIGN));
    }
    elf_writer.write_align(4);
    elf_writer.write(&notes);
    for region in &regions {
        elf_writer.write_align(ALIGN);
        elf_writer.write(region.bytes);
    }
    buffer.result()?;
    buffer.into_inner().flush()
}

fn load(region: &Region<'_>, p_offset: u64, p_align: u64) -> ProgramHeader {
    let bytes = region.bytes.len() as u64;
    let mut p_flags = elf::PF_R.0;
    if region.writable {
        p_flags |= elf::PF_W.0;
    }
    if region.executable {
        p_flags |= elf::PF_X.0;
    }
    ProgramHeader {
        p_type: elf::PT_LOAD,
        p_flags: elf::ProgramFlags(p_flags),
        p_offset,
        p_vaddr: region.addr,
        p_paddr: region.addr,
        p_filesz: bytes,
        p_memsz: bytes,
        p_align,
    }
}

/// Writes a core dump to a file, whole or not at all.
///
/// # Errors
/// As [`write()`].
pub fn write_file(process: &Process, crash: Option<&CrashRecord>, path: &Path) -> io::Result<()> {
    let mut file = NewFile::create(path)?;
    write(process, crash, &mut file)?;
    file.finish()
}
