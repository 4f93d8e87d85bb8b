//! `flexcast emu run`: a bare program on one hart.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, anyhow};
use emu_hart::Cause;
use emu_hart::bare::{self, Board, Options, Outcome, Program, Report, Streams};
use flexcast_cli::note;
use flexcast_image::{Image, illegal};
use flexcast_isa::Isa;
use serde::Deserialize;

use crate::args::{EmuRunArgs, MachineName};

/// Exit code when the instruction limit is reached, as `timeout` uses it.
const LIMIT_CODE: u8 = 124;
/// Exit code when the program dies of an exception, as a shell shows SIGILL.
const FAULT_CODE: u8 = 132;

pub(super) fn run(args: &EmuRunArgs) -> anyhow::Result<ExitCode> {
    let path = args.program.display();
    let isa = instruction_set(args)?;
    let elf = flexcast_files::bytes(&args.program, flexcast_files::IMAGE)
        .with_context(|| format!("program `{path}` cannot be read"))?;
    let image = Image::parse_bare(&elf).with_context(|| format!("program `{path}` cannot be run"))?;
    let signature = Signature::open(args, &image)?;
    let program = Program {
        segments: image.segments().iter().map(|s| (s.vaddr, s.bytes.as_slice(), s.mem_size)).collect(),
        entry: image.entry(),
        tohost: image.symbol("tohost"),
        arguments: std::iter::once(path.to_string()).chain(args.args.iter().cloned()).collect(),
        dump: signature.as_ref().map(|signature| (signature.base, signature.len)),
    };
    let board = match args.machine {
        MachineName::Flat => Board::Flat,
        MachineName::Virt => Board::Virt,
    };
    let options = Options { board, instructions: args.limit, isa, ..Options::default() };
    let (mut out, mut err, mut trace) = (io::stdout().lock(), io::stderr(), io::BufWriter::new(io::stderr()));
    let mut streams = Streams { out: &mut out, err: &mut err, trace: if args.trace { Some(&mut trace) } else { None } };
    let began = Instant::now();
    let report = bare::run(&program, &options, &mut streams)?;
    let took = began.elapsed();
    trace.flush()?;
    out.flush()?;
    note!("{}", speed(report.instret, took));
    if let Some(signature) = signature {
        signature.write(&report)?;
    }
    Ok(match report.outcome {
        Outcome::Exit(code) => ExitCode::from(exit_byte(code)),
        Outcome::Limit => {
            note!("error: stopped after {} instructions; raise --limit to go on", report.instret);
            ExitCode::from(LIMIT_CODE)
        }
        Outcome::Fault { pc, fault } => {
            let place = image.symbolize(pc).map_or_else(String::new, |(name, at)| format!(" ({name}+{at:#x})"));
            let why = match fault.cause {
                Cause::IllegalInstruction => format!(": {}", illegal::why(fault.tval as u32, pc, isa)),
                _ => String::new(),
            };
            note!("error: {} at pc {pc:#x}{place}, value {:#x}{why}", fault.cause, fault.tval);
            ExitCode::from(FAULT_CODE)
        }
        Outcome::HostRequest(value) => {
            note!(
                "error: the program asks the host for service {value:#x} through `tohost`; only exit (an odd value) is \
                 there"
            );
            ExitCode::from(FAULT_CODE)
        }
    })
}

/// The key of a toolchain file that says what its processor executes.
#[derive(Deserialize)]
struct Toolchain {
    isa: String,
}

/// What the hart executes.
fn instruction_set(args: &EmuRunArgs) -> anyhow::Result<Isa> {
    let (text, source) = match (&args.isa, &args.toolchain) {
        (Some(text), _) => (text.clone(), "--isa".to_owned()),
        (None, Some(path)) => {
            let source = format!("toolchain file `{}`", path.display());
            let file = flexcast_files::text(path, flexcast_files::CONFIGURATION)
                .with_context(|| format!("{source} cannot be read"))?;
            let toolchain: Toolchain = toml::from_str(&file)
                .with_context(|| format!("{source} is none: it needs a key `isa`, such as \"rv64imac_zbb\""))?;
            (toolchain.isa, source)
        }
        (None, None) => return Ok(Isa::default()),
    };
    Isa::parse(&text).map_err(|error| anyhow!("{source}: `{text}` cannot be executed: {error}"))
}

/// Memory between two symbols, and the file that it goes to.
struct Signature {
    path: PathBuf,
    file: File,
    base: u64,
    len: u64,
}

impl Signature {
    /// Finds the symbols and creates the file: what is wrong with either is reported before the run, and no file of an
    /// earlier run is taken for this one's.
    fn open(args: &EmuRunArgs, image: &Image) -> anyhow::Result<Option<Self>> {
        let Some(path) = args.signature.clone() else { return Ok(None) };
        let shown = args.program.display();
        let find = |symbol: &str, option: &str| {
            image.symbol(symbol).with_context(|| {
                format!("program `{shown}` has no symbol `{symbol}` for its signature; name another with --{option}")
            })
        };
        let (from, to) = (&args.signature_from, &args.signature_to);
        let (base, end) = (find(from, "signature-from")?, find(to, "signature-to")?);
        anyhow::ensure!(
            base < end,
            "the signature is empty: `{from}` is at {base:#x}, and `{to}` at {end:#x} is not behind it"
        );
        let len = end - base;
        anyhow::ensure!(
            len.is_multiple_of(4),
            "the signature from {base:#x} to {end:#x} is {len} bytes, not whole words of 4; align `{to}`"
        );
        let is_program = |program: &Path| Some(program.canonicalize().ok()? == path.canonicalize().ok()?);
        anyhow::ensure!(
            is_program(&args.program) != Some(true),
            "--signature {} is the program itself; name another file",
            path.display()
        );
        let file = File::create(&path)
            .with_context(|| format!("signature file `{}` cannot be written; name another", path.display()))?;
        Ok(Some(Signature { path, file, base, len }))
    }

    /// Writes what the program has left. A program that has not ended has no signature.
    fn write(mut self, report: &Report) -> anyhow::Result<()> {
        let path = self.path.display();
        if !matches!(report.outcome, Outcome::Exit(_)) {
            note!("note: the program has not ended by itself, so `{path}` is empty");
            return Ok(());
        }
        let mut text = String::with_capacity(report.dump.len() / 4 * 9);
        for word in report.dump.as_chunks().0 {
            let _ = writeln!(text, "{:08x}", u32::from_le_bytes(*word));
        }
        self.file.write_all(text.as_bytes()).with_context(|| format!("signature file `{path}` cannot be written"))
    }
}

/// How fast it went, by the clock of this computer.
fn speed(instructions: u64, took: Duration) -> String {
    let mips = instructions as f64 / took.as_secs_f64().max(1e-9) / 1e6;
    format!("{instructions} instructions retired in {:.6} s: {mips:.1} MIPS (measured)", took.as_secs_f64())
}

/// The byte of an exit code that the shell sees. A code that would vanish in it (test programs report the number of the
/// failed test) must not appear as success.
fn exit_byte(code: u64) -> u8 {
    match (code as u8, code) {
        (0, 1..) => 255,
        (low, _) => low,
    }
}

#[cfg(test)]
mod tests {
    use super::exit_byte;

    #[test]
    fn no_failure_appears_as_success() {
        assert_eq!([0, 1, 255, 256, 257, 512].map(exit_byte), [0, 1, 255, 255, 1, 255]);
    }
}
