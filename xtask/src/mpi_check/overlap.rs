//! Overlap of communication and computation by the Intel MPI Benchmarks, between two hosts at a link of limited rate.

use std::fmt;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use comfy_table::{CellAlignment, Table, presets};

use super::Mpi;
use super::hosts::{self, Hosts};
use super::job::{Ended, Job};
use crate::{process, status};

/// Lengths of a block: powers of two.
const LOG_BYTES: [u32; 3] = [20, 21, 22];
/// Repetitions of a run; the processor time of an operation is what a long run takes beyond a short one.
const REPETITIONS: [u32; 2] = [10, 40];
/// The requirements: overlap in percent, and time with the progress thread by that without.
const LEAST_OVERLAP: f64 = 90.0;
const MOST_SLOWER: f64 = 1.1;
/// Busier computers measure their other programs.
const QUIET: f64 = 1.5;

/// A collective: its name in each of the benchmarks.
struct Operation {
    overlapped: &'static str,
    pure: &'static str,
    blocking: &'static str,
}

const OPERATIONS: [Operation; 2] = [
    Operation { overlapped: "Iallgather", pure: "Iallgather_pure", blocking: "Allgather" },
    Operation { overlapped: "Ibcast", pure: "Ibcast_pure", blocking: "Bcast" },
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum System {
    /// With its progress thread.
    Flexcast,
    /// Without: blocking collectives alone.
    NoThread,
    /// Intel MPI's own over TCP.
    Peer,
}

impl System {
    const ALL: [Self; 3] = [Self::Flexcast, Self::NoThread, Self::Peer];

    const fn name(self) -> &'static str {
        match self {
            Self::Flexcast => "Flexcast",
            Self::NoThread => "Flexcast, no thread, blocking",
            Self::Peer => "Intel MPI, TCP",
        }
    }
}

/// What was measured of an operation, in microseconds and percent.
struct Row {
    operation: &'static str,
    bytes: u64,
    system: System,
    pure: f64,
    /// Time with concurrent computation, time of that computation, and overlap.
    overlapped: Option<[f64; 3]>,
    /// Processor time of both ranks.
    processor: f64,
}

/// Measures and prints the table and the verdicts.
pub(super) fn run(mpi: &Mpi, rate: &str) -> Result<()> {
    let hosts = match Hosts::new(rate) {
        Ok(hosts) => hosts,
        Err(reason) => {
            status::warn(format_args!("skipped: overlap, because it needs two network namespaces, as root: {reason}"));
            return Ok(());
        }
    };
    let measured = Measurement { mpi, hosts: &hosts };
    let load = load();
    let mut rows = Vec::new();
    for operation in &OPERATIONS {
        for log in LOG_BYTES {
            status::say("Measuring", format_args!("{} of {} bytes", operation.overlapped, 1_u64 << log));
            for system in System::ALL {
                rows.push(measured.row(operation, log, system)?);
            }
        }
    }
    status::print(format_args!(
        "measured: two ranks on hosts of their own (network namespaces), link of {rate} each way, {}; load {load:.1} \
         before",
        computer()
    ))?;
    status::print(table(&rows))?;
    for verdict in verdicts(&rows)? {
        status::print(verdict)?;
    }
    if load > QUIET {
        status::warn(format_args!(
            "other programs ran (load {load:.1}, more than {QUIET}): repeat it on a quiet computer"
        ));
    }
    Ok(())
}

struct Measurement<'a> {
    mpi: &'a Mpi,
    hosts: &'a Hosts,
}

impl Measurement<'_> {
    fn row(&self, operation: &Operation, log: u32, system: System) -> Result<Row> {
        let [few, many] = REPETITIONS;
        let bytes = 1 << log;
        let name = if system == System::NoThread { operation.blocking } else { operation.pure };
        let short = self.job(system, name, log, few)?;
        let long = self.job(system, name, log, many)?;
        let processor = 1e6 * (processor_time(&long)? - processor_time(&short)?) / f64::from(many - few);
        let (overlapped, pure) = if system == System::NoThread {
            let [_, longest, _] = figures(&long, name, bytes)?;
            (None, longest)
        } else {
            let ended = self.job(system, operation.overlapped, log, many)?;
            let [together, pure, computed, percent] = figures(&ended, operation.overlapped, bytes)?;
            (Some([together, computed, percent]), pure)
        };
        Ok(Row { operation: operation.overlapped, bytes, system, pure, overlapped, processor: processor.max(0.0) })
    }

    fn job(&self, system: System, benchmark: &str, log: u32, repetitions: u32) -> Result<Ended> {
        let file = self.program(if system == System::NoThread { "IMB-MPI1" } else { "IMB-NBC" })?;
        let mut job = Job::new(self.mpi, 2);
        job = match system {
            System::Peer => {
                job.set("I_MPI_FABRICS", "ofi").set("FI_PROVIDER", "tcp").set("FI_TCP_IFACE", hosts::INTERFACE)
            }
            _ => {
                let thread = if system == System::Flexcast { "1" } else { "0" };
                job.set("FLEXCAST_PROGRESS_THREAD", thread)
                    .set("FLEXCAST_DATAPATH", "udp")
                    .set("FLEXCAST_SHM", "0")
                    .set("FLEXCAST_INTERFACE", hosts::INTERFACE)
                    .set("FLEXCAST_MPI_CONNECT", "early")
            }
        };
        let object = match system {
            System::Peer => String::new(),
            _ => self.mpi.object().display().to_string(),
        };
        let (preload, file) = (format!("LD_PRELOAD={object}"), file.display().to_string());
        let (log, repetitions) = (format!("{log}:{log}"), repetitions.to_string());
        let rank = ["-c", hosts::ON_HOST, "sh", self.hosts.prefix(), &preload, &file];
        let options = ["-npmin", "2", "-msglog", &log, "-iter", &repetitions, "-iter_policy", "off", "-time", "120"];
        job.run(&PathBuf::from("/bin/sh"), &[&rank[..], &options[..], &[benchmark]].concat())?.expect()
    }

    fn program(&self, name: &str) -> Result<PathBuf> {
        let file = self.mpi.home.as_ref().context("no folder of Intel MPI: --imb DIR")?.join("bin").join(name);
        if !process::is_program(&file) {
            bail!("{} is not there: DIR/bin/pip install impi-rt, and --imb DIR", file.display());
        }
        Ok(file)
    }
}

/// The figures of a length, without the length and the repetitions in front of them.
fn figures<const N: usize>(ended: &Ended, benchmark: &str, bytes: u64) -> Result<[f64; N]> {
    let heading = format!("# Benchmarking {benchmark} ");
    let rows = ended.stdout.lines().skip_while(|line| !line.starts_with(&heading));
    let words = rows.map(|line| line.split_whitespace().collect::<Vec<_>>());
    let row = words.into_iter().find(|words| words.first().is_some_and(|first| first.parse() == Ok(bytes)));
    let row = row.and_then(|words| words.get(2..)?.iter().map(|word| word.parse().ok()).collect::<Option<Vec<f64>>>());
    row.and_then(|row| row.try_into().ok())
        .with_context(|| format!("no {N} figures of {benchmark} of {bytes} bytes: {}", ended.line))
}

/// Processor time of the ranks in seconds: lines of the shell's `times`.
fn processor_time(ended: &Ended) -> Result<f64> {
    let lines = ended.stderr.lines().filter_map(times);
    let (count, sum) = lines.fold((0, 0.0), |(count, sum), seconds| (count + 1, sum + seconds));
    // Of each rank's shell, and of its children.
    if count != 4 {
        bail!("{count} lines of processor times, not 4: {}\n{}", ended.line, ended.stderr);
    }
    Ok(sum)
}

fn times(line: &str) -> Option<f64> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let seconds = |word: &str| {
        let (minutes, seconds) = word.strip_suffix('s')?.split_once('m')?;
        Some(60.0 * minutes.parse::<f64>().ok()? + seconds.parse::<f64>().ok()?)
    };
    match words[..] {
        [user, system] => Some(seconds(user)? + seconds(system)?),
        _ => None,
    }
}

fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::ASCII_MARKDOWN);
    table.set_header([
        "Operation",
        "MiB",
        "System",
        "t_ovrl [ms]",
        "t_pure [ms]",
        "t_CPU [ms]",
        "Overlap [%]",
        "Processor time of both ranks [ms]",
    ]);
    for column in table.column_iter_mut().filter(|column| ![0, 2].contains(&column.index)) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    for row in rows {
        let time = |us: f64| format!("{:.1}", us / 1000.0);
        let [together, computed, percent] = row.overlapped.map_or_else(
            || ["-"; 3].map(str::to_owned),
            |[together, computed, percent]| [time(together), time(computed), format!("{percent:.0}")],
        );
        table.add_row([
            row.operation.to_owned(),
            (row.bytes >> 20).to_string(),
            row.system.name().to_owned(),
            together,
            time(row.pure),
            computed,
            percent,
            time(row.processor),
        ]);
    }
    table
}

/// A requirement, and the figures that it was held to.
struct Verdict {
    requirement: String,
    passed: bool,
    figures: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requirement, passed, figures } = self;
        write!(f, "{requirement}: {} ({figures})", if *passed { "passed" } else { "failed" })
    }
}

/// Each requirement holds for every operation and length.
fn verdicts(rows: &[Row]) -> Result<[Verdict; 2]> {
    let mut overlap = Vec::new();
    let mut slower = Vec::new();
    for row in rows.iter().filter(|row| row.system == System::Flexcast) {
        let alike = |other: &&Row| {
            other.system == System::NoThread && other.operation == row.operation && other.bytes == row.bytes
        };
        let without = rows.iter().find(alike).context("a row without a thread")?;
        overlap.push(row.overlapped.context("a row with overlap")?[2]);
        slower.push(row.pure / without.pure);
    }
    let list = |figures: &[f64], digits| {
        let texts: Vec<String> = figures.iter().map(|figure| format!("{figure:.digits$}")).collect();
        format!("in the order of the table: {}", texts.join(", "))
    };
    Ok([
        Verdict {
            requirement: format!("overlap of at least {LEAST_OVERLAP} %"),
            passed: overlap.iter().all(|percent| *percent >= LEAST_OVERLAP),
            figures: list(&overlap, 0),
        },
        Verdict {
            requirement: format!("t_pure at most {MOST_SLOWER} times that without the thread"),
            passed: slower.iter().all(|factor| *factor <= MOST_SLOWER),
            figures: list(&slower, 2),
        },
    ])
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Mean number of runnable processes in the last minute.
fn load() -> f64 {
    read("/proc/loadavg").split_whitespace().next().and_then(|word| word.parse().ok()).unwrap_or_default()
}

fn computer() -> String {
    let processors = read("/proc/cpuinfo");
    let model = processors.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    let model = model.map_or(std::env::consts::ARCH, |(_, model)| model.trim());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{cores} processors ({model}), Linux {}", read("/proc/sys/kernel/osrelease").trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "\
# Benchmarking Ibcast 
# #processes = 2 
       #bytes #repetitions t_ovrl[usec] t_pure[usec]  t_CPU[usec]   overlap[%]
            0           30         0.73         0.33         0.30         0.00
      1048576           30     14853.18      8712.51      5533.85        12.50
      4194304 time-out.; Time limit
# Benchmarking Ibcast_pure 
      1048576           30      9635.02      9922.50      9778.76
";

    fn ended(stdout: &str, stderr: &str) -> Ended {
        Ended { success: true, stdout: stdout.to_owned(), stderr: stderr.to_owned(), line: "mpiexec".to_owned() }
    }

    #[test]
    fn figures_are_those_of_the_benchmark_and_the_length() {
        let printed = ended(PRINTED, "");
        assert_eq!(figures(&printed, "Ibcast", 1 << 20).expect("figures"), [14853.18, 8712.51, 5533.85, 12.5]);
        assert_eq!(figures(&printed, "Ibcast_pure", 1 << 20).expect("figures"), [9635.02, 9922.5, 9778.76]);
        for (benchmark, bytes) in [("Ibcast", 4 << 20), ("Ibcast", 1 << 21), ("Iallgather", 1 << 20)] {
            let error = figures::<4>(&printed, benchmark, bytes).expect_err("not there").to_string();
            assert!(error.starts_with(&format!("no 4 figures of {benchmark} of {bytes} bytes")), "{error}");
        }
    }

    #[test]
    fn processor_times_of_both_ranks_are_added() {
        let rank = "0m0.000000s 0m0.010000s\n1m4.500000s 0m2.100000s\nsomething else\n";
        let sum = processor_time(&ended("", &rank.repeat(2))).expect("times");
        assert!((sum - 133.22).abs() < 1e-9, "{sum}");
        processor_time(&ended("", rank)).expect_err("one rank");
    }

    #[test]
    fn verdicts_need_every_length() {
        let row = |system, bytes, pure, percent: f64| Row {
            operation: "Ibcast",
            bytes,
            system,
            pure,
            overlapped: (system == System::Flexcast).then_some([1.0, 1.0, percent]),
            processor: 1.0,
        };
        let rows = |percent, pure| {
            [
                row(System::Flexcast, 1, 100.0, 95.0),
                row(System::NoThread, 1, 100.0, 0.0),
                row(System::Flexcast, 2, pure, percent),
                row(System::NoThread, 2, 100.0, 0.0),
            ]
        };
        let passed = |percent, pure| verdicts(&rows(percent, pure)).expect("verdicts").map(|verdict| verdict.passed);
        assert_eq!(passed(90.0, 110.0), [true, true]);
        assert_eq!(passed(89.9, 110.0), [false, true]);
        assert_eq!(passed(90.0, 111.0), [true, false]);
        let text = verdicts(&rows(89.0, 120.0)).expect("verdicts").map(|verdict| verdict.to_string());
        assert_eq!(text[0], "overlap of at least 90 %: failed (in the order of the table: 95, 89)");
        assert_eq!(
            text[1],
            "t_pure at most 1.1 times that without the thread: failed (in the order of the table: 1.00, 1.20)"
        );
    }
}
