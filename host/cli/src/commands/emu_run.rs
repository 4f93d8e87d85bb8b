//! `flexcast emu run`: a bare program on one hart.

use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use emu_hart::bare::{self, Board, Options, Outcome, Program, Streams};
use flexcast_image::Image;

use crate::args::{EmuRunArgs, MachineName};

/// Exit code when the instruction limit is reached, as `timeout` uses it.
const LIMIT_CODE: u8 = 124;
/// Exit code when the program dies of an exception, as a shell shows SIGILL.
const FAULT_CODE: u8 = 132;

pub(super) fn run(args: &EmuRunArgs) -> anyhow::Result<ExitCode> {
    let path = args.program.display();
    let elf = std::fs::read(&args.program).with_context(|| format!("program `{path}` cannot be read"))?;
    let image = Image::parse_bare(&elf).with_context(|| format!("program `{path}` cannot be run"))?;
    let program = Program {
        segments: image.segments().iter().map(|s| (s.vaddr, s.bytes.as_slice(), s.mem_size)).collect(),
        entry: image.entry(),
        tohost: image.symbol("tohost"),
        arguments: std::iter::once(path.to_string()).chain(args.args.iter().cloned()).collect(),
    };
    let board = match args.machine {
        MachineName::Flat => Board::Flat,
        MachineName::Virt => Board::Virt,
    };
    let options = Options { board, instructions: args.limit, ..Options::default() };
    let (mut out, mut err, mut trace) = (io::stdout().lock(), io::stderr(), io::BufWriter::new(io::stderr()));
    let mut streams = Streams { out: &mut out, err: &mut err, trace: if args.trace { Some(&mut trace) } else { None } };
    let report = bare::run(&program, &options, &mut streams)?;
    trace.flush()?;
    out.flush()?;
    match report.outcome {
        Outcome::Exit(code) => Ok(ExitCode::from(exit_byte(code))),
        Outcome::Limit => {
            eprintln!("error: stopped after {} instructions; raise --limit to go on", report.instret);
            Ok(ExitCode::from(LIMIT_CODE))
        }
        Outcome::Fault { pc, fault } => {
            let place = image.symbolize(pc).map_or_else(String::new, |(name, at)| format!(" ({name}+{at:#x})"));
            eprintln!("error: {} at pc {pc:#x}{place}, value {:#x}", fault.cause, fault.tval);
            Ok(ExitCode::from(FAULT_CODE))
        }
        Outcome::HostRequest(value) => {
            eprintln!(
                "error: the program asks the host for service {value:#x} through `tohost`; only exit (an odd value) is there"
            );
            Ok(ExitCode::from(FAULT_CODE))
        }
    }
}

/// The byte of an exit code that the shell sees. A code that would vanish in it (test programs report the number of the
/// failed test) must not look like success.
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
    fn no_failure_looks_like_success() {
        assert_eq!([0, 1, 255, 256, 257, 512].map(exit_byte), [0, 1, 255, 255, 1, 255]);
    }
}
