//! Jobs of the MPI adapter's test: plain, preloaded, with mistakes, under the wrong MPI, and the Intel MPI Benchmarks.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use super::Mpi;
use super::job::Job;
use super::report::Calls;
use crate::{example, process, status};

/// What a job's data goes over.
pub(super) struct Network {
    name: String,
    variables: Vec<(&'static str, String)>,
    emulated: bool,
}

impl Network {
    pub(super) fn new(name: &str) -> Self {
        let mut variables = match name {
            "shm" => vec![("FLEXCAST_DATAPATH", "udp".to_owned()), ("FLEXCAST_SHM", "1".to_owned())],
            "udp" => vec![("FLEXCAST_DATAPATH", "udp".to_owned()), ("FLEXCAST_SHM", "0".to_owned())],
            other => vec![("FLEXCAST_DATAPATH", other.to_owned())],
        };
        if variables.len() > 1 {
            variables.push(("FLEXCAST_INTERFACE", "lo".to_owned()));
        }
        Self { name: name.to_owned(), variables, emulated: false }
    }

    /// One emulated BlueField-3 for each rank, all in one network.
    pub(super) fn of_cards(datapath: &str, libraries: &Path, firmware: &Path) -> Self {
        let variables = vec![
            ("FLEXCAST_DATAPATH", datapath.to_owned()),
            ("FLEXCAST_LIBRARIES", libraries.display().to_string()),
            ("FLEXCAST_FIRMWARE", firmware.display().to_string()),
        ];
        Self { name: format!("emulated cards by {datapath}"), variables, emulated: true }
    }
}

/// A job with the object preloaded, over a network.
fn joined<'a>(job: Job<'a>, network: &Network) -> Result<Job<'a>> {
    let object = job.mpi.object().display().to_string();
    let mut job = job.set("LD_PRELOAD", object);
    job.variables.extend(network.variables.iter().cloned());
    if network.emulated {
        let port = example::free_udp_ports(job.ranks)?;
        job = job.set("FLEXCAST_MACHINE", format!("toml:job = {{ first_port = {port} }}"));
    }
    Ok(job)
}

/// How much the test does.
#[derive(Clone, Copy)]
pub(super) enum Extent {
    /// All lengths.
    Full,
    /// All but the longest.
    Quick,
    /// Every function with a few lengths.
    Small,
    /// Types at absolute addresses.
    Bottom,
}

impl Extent {
    const fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Full => &[],
            Self::Quick => &["quick"],
            Self::Small => &["small"],
            Self::Bottom => &["bottom"],
        }
    }
}

/// A program of the Intel MPI Benchmarks.
#[derive(Clone, Copy)]
pub(super) enum Program {
    Blocking,
    NonBlocking,
}

impl Program {
    pub(super) const ALL: [Self; 2] = [Self::Blocking, Self::NonBlocking];

    const fn name(self) -> &'static str {
        match self {
            Self::Blocking => "IMB-MPI1",
            Self::NonBlocking => "IMB-NBC",
        }
    }

    const fn benchmarks(self) -> &'static [&'static str] {
        match self {
            Self::Blocking => &[
                "Bcast",
                "Allgather",
                "Allgatherv",
                "Allreduce",
                "Reduce",
                "Reduce_scatter",
                "Reduce_scatter_block",
                "Alltoall",
                "Alltoallv",
                "Gather",
                "Gatherv",
                "Scatter",
                "Scatterv",
                "Barrier",
            ],
            Self::NonBlocking => &[
                "Ibcast",
                "Iallgather",
                "Iallgatherv",
                "Iallreduce",
                "Ireduce",
                "Ireduce_scatter",
                "Ialltoall",
                "Ialltoallv",
                "Igather",
                "Igatherv",
                "Iscatter",
                "Iscatterv",
                "Ibarrier",
            ],
        }
    }
}

/// What has been seen.
#[derive(Default)]
pub(super) struct Totals {
    jobs: u64,
    checks: u64,
    taken: u64,
    fallen_back: u64,
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { jobs, checks, taken, fallen_back } = self;
        write!(
            f,
            "mpi-check: {jobs} jobs right; {checks} buffers of rank 0 compared; {taken} calls taken, {fallen_back} \
             left to MPI"
        )
    }
}

/// Last line of the test.
#[derive(Deserialize)]
struct Summary {
    checks: u64,
    failures: u64,
}

/// The test, by itself or over a network: its own comparisons, and the calls that were taken.
pub(super) fn test(
    mpi: &Mpi,
    ranks: u16,
    network: Option<&Network>,
    extent: Extent,
    totals: &mut Totals,
) -> Result<()> {
    let over = network.map_or("by itself", |network| network.name.as_str());
    status::say("Running", format_args!("test under {}, {ranks} ranks, {over}", mpi.kind.name()));
    compare(mpi, ranks, network, (&mpi.test(), extent.arguments()), totals)
}

/// The test in a program that is not linked with MPI, and loads it into a scope of its own.
pub(super) fn local(mpi: &Mpi, network: &Network, totals: &mut Totals) -> Result<()> {
    status::say("Running", format_args!("test in a local scope under {}, {}", mpi.kind.name(), network.name));
    let [program, object] = mpi.local();
    let object = object.display().to_string();
    compare(mpi, 2, Some(network), (&program, &[&object, "small"]), totals)
}

/// What Python's mpi4py calls, by whatever way it has been installed.
pub(super) fn python(mpi: &Mpi, network: &Network, totals: &mut Totals) -> Result<()> {
    let Some(python) = python_of(mpi)? else {
        status::warn(format_args!(
            "skipped: mpi4py under {}, because no Python has it for this MPI; `pip install mpi4py` in its environment, \
             or Debian: apt-get install python3-mpi4py",
            mpi.kind.name()
        ));
        return Ok(());
    };
    status::say("Running", format_args!("mpi4py of {} under {}, {}", python.display(), mpi.kind.name(), network.name));
    let report = report_file(mpi)?;
    let job = joined(python_job(mpi), network)?.set("FLEXCAST_MPI_REPORT", report.display().to_string());
    let ended = job.run(&python, &["-c", PYTHON_SUM])?.expect()?;
    // Ranks may write into one another's lines.
    let right = ended.stdout.matches("sum 3").count();
    let calls = read_report(&report)?;
    if right != 2 || calls.functions.get("MPI_Allreduce").is_none_or(|(taken, _)| *taken != 1) {
        bail!("{right} of 2 ranks had the sum; calls: {calls:?}: {}\n{}", ended.line, ended.stderr);
    }
    totals.jobs += 1;
    totals.add(&calls);
    Ok(())
}

/// Sums up 1 and 2, by a call that is taken.
const PYTHON_SUM: &str = "import array; from mpi4py import MPI; \
    mine, total = array.array('i', [MPI.COMM_WORLD.rank + 1]), array.array('i', [0]); \
    MPI.COMM_WORLD.Allreduce(mine, total); print('sum %d' % total[0])";

/// Says whether mpi4py runs on an MPI of which two ranks see one another.
const PYTHON_THERE: &str = "from mpi4py import MPI; print('ranks %d' % MPI.COMM_WORLD.size)";

fn python_job(mpi: &Mpi) -> Job<'_> {
    let abi = if mpi.kind.abi() == "openmpi" { "openmpi" } else { "mpich" };
    let job = Job::new(mpi, 2).set("MPI4PY_MPIABI", abi);
    match &mpi.home {
        Some(home) => {
            let lib = home.join("lib");
            let file = lib.join("libmpi.so.12").display().to_string();
            job.set("LD_LIBRARY_PATH", lib.display().to_string()).set("MPI4PY_LIBMPI", file)
        }
        None => job,
    }
}

/// A Python that has mpi4py for this MPI, of its environment or the system's.
fn python_of(mpi: &Mpi) -> Result<Option<PathBuf>> {
    // The package has no extension for the standard ABI yet.
    if mpi.kind.abi() == "abi" {
        return Ok(None);
    }
    let own = mpi.home.iter().map(|home| home.join("bin/python"));
    let all = own.chain(["/usr/bin/python3".into()]).chain(process::find("python3"));
    for python in all.filter(|python| process::is_program(python)) {
        let ended = python_job(mpi).run(&python, &["-c", PYTHON_THERE])?;
        if ended.success && ended.stdout.matches("ranks 2").count() == 2 {
            return Ok(Some(python));
        }
    }
    Ok(None)
}

/// Runs a program that is the test, and compares the calls that were taken with what it expects.
fn compare(
    mpi: &Mpi,
    ranks: u16,
    network: Option<&Network>,
    (program, arguments): (&Path, &[&str]),
    totals: &mut Totals,
) -> Result<()> {
    let report = report_file(mpi)?;
    let mut job = Job::new(mpi, ranks);
    if let Some(network) = network {
        job = joined(job, network)?.set("FLEXCAST_MPI_REPORT", report.display().to_string());
    }
    let ended = job.run(program, arguments)?.expect()?;
    let last = ended.stdout.lines().rev().find(|line| line.starts_with("{\"ranks\""));
    let summary: Summary = serde_json::from_str(last.context("the test has printed no summary")?)?;
    if summary.failures > 0 {
        bail!("{} of {} comparisons failed: {}", summary.failures, summary.checks, ended.line);
    }
    totals.jobs += 1;
    totals.checks += summary.checks;
    if network.is_some() {
        let calls = read_report(&report)?;
        calls.compare(&Calls::read(&ended.stdout)?).with_context(|| ended.line.clone())?;
        if calls.taken() == 0 {
            bail!("no call was taken: {}", ended.line);
        }
        totals.add(&calls);
    }
    Ok(())
}

impl Totals {
    fn add(&mut self, calls: &Calls) {
        self.taken += calls.taken();
        self.fallen_back += calls.fallen_back();
    }
}

fn report_file(mpi: &Mpi) -> Result<PathBuf> {
    let file = mpi.out.join("report.json");
    match std::fs::remove_file(&file) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", file.display()))
        }
        _ => Ok(file),
    }
}

fn read_report(file: &Path) -> Result<Calls> {
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("the adapter has written no report {}: is it loaded?", file.display()))?;
    Calls::read(&text)
}

/// Mistakes of a program end in an error of MPI on every rank that waits.
pub(super) fn mistakes(mpi: &Mpi, network: &Network, totals: &mut Totals) -> Result<()> {
    for mistake in ["disagree", "disagree-nonblocking", "absent"] {
        status::say("Running", format_args!("mistake `{mistake}` under {}, {}", mpi.kind.name(), network.name));
        let job = joined(Job::new(mpi, 3), network)?.set("FLEXCAST_BARRIER_TIMEOUT_NS", "3000000000");
        let ended = job.run(&mpi.test(), &[mistake])?.expect()?;
        let refused = ended.stdout.matches("\"refused\":true").count();
        if refused != 3 || !ended.stderr.contains("llgather: ") {
            bail!("{refused} of 3 ranks had an error of MPI with a text: {}\n{}", ended.line, ended.stderr);
        }
        totals.jobs += 1;
    }
    Ok(())
}

/// The object of another MPI ends the program with the name of the right one.
pub(super) fn wrong_object(mpi: &Mpi, other: &Mpi, totals: &mut Totals) -> Result<()> {
    let job = Job::new(mpi, 2).set("LD_PRELOAD", other.object().display().to_string());
    status::say("Running", format_args!("object of {} under {}", other.kind.name(), mpi.kind.name()));
    let ended = job.run(&mpi.test(), &["quick"])?;
    let advice = format!("preload libflexcast-mpi-{}.so", mpi.kind.abi());
    if ended.success || !ended.stderr.contains(&advice) {
        bail!("the wrong object must end the program with `{advice}`: {}\n{}", ended.line, ended.stderr);
    }
    totals.jobs += 1;
    Ok(())
}

/// The Intel MPI Benchmarks: each collective is taken, but for lengths of nothing and what comes before the first
/// blocking one.
pub(super) fn benchmark(mpi: &Mpi, program: Program, ranks: u16, network: &Network, totals: &mut Totals) -> Result<()> {
    let Some(home) = &mpi.home else { return Ok(()) };
    let file = home.join("bin").join(program.name());
    if !process::is_program(&file) {
        status::warn(format_args!("skipped: {}, which is not in {}", program.name(), home.display()));
        return Ok(());
    }
    status::say("Running", format_args!("{}, {ranks} ranks, {}", program.name(), network.name));
    let report = report_file(mpi)?;
    let job = joined(Job::new(mpi, ranks), network)?.set("FLEXCAST_MPI_REPORT", report.display().to_string());
    let processes = ranks.to_string();
    let mut arguments = vec!["-npmin", &processes, "-iter", "20", "-msglog", "2:18", "-time", "2"];
    arguments.extend(program.benchmarks());
    let ended = job.run(&file, &arguments)?.expect()?;
    let calls = read_report(&report)?;
    for benchmark in program.benchmarks() {
        let function = format!("MPI_{benchmark}");
        if calls.functions.get(&function).is_none_or(|(taken, _)| *taken == 0) {
            bail!("no call of {function} was taken: {}", ended.line);
        }
        if !ended.stdout.contains(&format!("# Benchmarking {benchmark} ")) {
            bail!("{} has not run {benchmark}: {}", program.name(), ended.line);
        }
    }
    if let Some(reason) = calls.reasons.keys().find(|reason| !["size", "not connected yet"].contains(&reason.as_str()))
    {
        bail!("calls were left to MPI for the reason `{reason}`: {}", ended.line);
    }
    totals.jobs += 1;
    totals.add(&calls);
    Ok(())
}
