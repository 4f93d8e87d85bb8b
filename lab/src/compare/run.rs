//! The run of a comparison: for each number of hosts one network, in which the systems take turns.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;

use super::child::{self, ChildError, Group};
use super::gloo::{self, Gloo};
use super::mpi::{self, Mpi};
use super::network::{self, MTU, Network};
use super::sample::{self, Task};
use super::spec::{CompareSpec, Offloads};
use super::{CompareError, Op, Row, System, bound, flexcast};

/// First port on which the processes of a job meet; each job has the next, so that none meets what is left of another.
const FIRST_PORT: u16 = 29_500;
/// Jobs until ports are used again.
const PORTS: u16 = 1000;

/// Under what the figures were measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Settings {
    /// What the figures are.
    pub kind: &'static str,
    /// Ranks on each host.
    pub ranks_per_host: u32,
    /// Largest packet of the links.
    pub mtu: u32,
    /// Whether interfaces segment and merge packets.
    pub offloads: Offloads,
    /// UDP packets lost on their way into a host.
    pub udp_loss_percent: f64,
    /// Contributions lie in the receive buffers.
    pub in_place: bool,
    /// Timed repetitions.
    pub repetitions: u32,
    /// Repetitions before them.
    pub warm_up: u32,
    /// Release of the kernel.
    pub kernel: String,
    /// Model of the processor.
    pub processor: String,
    /// Processor cores that this program may use; ranks share them.
    pub cores: usize,
    /// Systems that were found, and their versions.
    pub versions: BTreeMap<&'static str, String>,
}

/// What was not measured, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Of which system.
    pub system: System,
    /// Where: operations, hosts and sizes; empty where it is all of it.
    pub places: Vec<String>,
    /// Why.
    pub reason: String,
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.system.name(), self.reason)?;
        if self.places.is_empty() { Ok(()) } else { write!(f, " ({})", self.places.join("; ")) }
    }
}

/// A whole comparison.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Under what.
    pub settings: Settings,
    /// By operation, hosts, size and system.
    pub rows: Vec<Row>,
    /// What was not measured.
    pub problems: Vec<Problem>,
}

/// Programs and folders.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The command-line tool, for Flexcast and the bound.
    pub flexcast: PathBuf,
    /// Its version.
    pub version: String,
    /// Folder of results, which may hold `mpich/`, `gloo/` and `flexcast/`.
    pub folder: PathBuf,
}

/// Measures everything; `report` gets a line on each step, and setting `stop` ends it.
///
/// # Errors
/// [`CompareError`]: what one system cannot do is a [`Problem`] instead.
pub fn run(
    spec: &CompareSpec,
    programs: &Programs,
    stop: &AtomicBool,
    report: &mut dyn FnMut(&str),
) -> Result<Comparison, CompareError> {
    spec.check()?;
    tools(spec)?;
    network::prepare()?;
    let work = tempfile::Builder::new().prefix("flexcast-compare-").tempdir();
    let work = work.map_err(|source| CompareError::File { path: std::env::temp_dir(), source })?;
    let mut runner = Runner {
        spec,
        programs,
        stop,
        report,
        work: work.path(),
        jobs: 0,
        rows: Vec::new(),
        problems: Vec::new(),
        warned: BTreeSet::new(),
    };
    let found = runner.find();
    let settings =
        settings(spec, found.iter().map(|(system, ready)| (system.name(), ready.version(programs))).collect());
    for ranks in &spec.ranks {
        runner.interrupted()?;
        let network = Network::new(ranks / spec.ranks_per_host, spec.ranks_per_host, spec.gso, spec.loss)?;
        for op in &spec.ops {
            for (system, ready) in found.iter().filter(|(system, _)| system.has(*op)) {
                (runner.report)(&format!("{} among {ranks} ranks: {}", op.name(), system.name()));
                runner.measure(ready, &network, *op)?;
            }
        }
    }
    let Runner { mut rows, problems, .. } = runner;
    rows.sort_by_key(|row| (row.op, row.ranks, row.bytes, row.system));
    Ok(Comparison { settings, rows, problems })
}

/// Refuses what needs a tool that is not there.
fn tools(spec: &CompareSpec) -> Result<(), CompareError> {
    let missing = |program, purpose, hint| Err(CompareError::Missing { program, purpose, hint });
    if spec.loss > 0.0 && child::find("nft").is_none() {
        return missing("nft", "drops packets", "apt-get install nftables, or leave out --loss");
    }
    if spec.gso == Offloads::Off && child::find("ethtool").is_none() {
        return missing("ethtool", "switches offloads off", "apt-get install ethtool, or leave out --gso off");
    }
    Ok(())
}

/// A system that can run.
enum Ready {
    Flexcast,
    Mpi(System, Mpi),
    Gloo(Gloo),
    Bound,
}

impl Ready {
    fn system(&self) -> System {
        match self {
            Self::Flexcast => System::Flexcast,
            Self::Mpi(system, _) => *system,
            Self::Gloo(gloo) => gloo.system,
            Self::Bound => System::Bound,
        }
    }

    fn version(&self, programs: &Programs) -> String {
        match self {
            Self::Flexcast => format!("Flexcast {}, UDP datapath", programs.version),
            Self::Mpi(System::MpiFlexcast, mpi) => {
                format!("{}, preloaded Flexcast {}, UDP datapath", mpi.version, programs.version)
            }
            Self::Mpi(System::MpiDirect, mpi) => {
                format!("C interface of Flexcast {}, UDP datapath, started by {}", programs.version, mpi.version)
            }
            Self::Mpi(_, mpi) => format!("{}, TCP", mpi.version),
            Self::Gloo(gloo) => gloo.version.clone(),
            Self::Bound => "IP multicast, nothing acknowledged or repaired".to_owned(),
        }
    }
}

struct Runner<'a> {
    spec: &'a CompareSpec,
    programs: &'a Programs,
    stop: &'a AtomicBool,
    report: &'a mut dyn FnMut(&str),
    work: &'a Path,
    jobs: u16,
    rows: Vec<Row>,
    problems: Vec<Problem>,
    /// Warnings of processes that have been shown.
    warned: BTreeSet<String>,
}

impl Runner<'_> {
    /// The systems that were asked for and can run, each once.
    fn find(&mut self) -> Vec<(System, Ready)> {
        let mut systems = self.spec.systems.clone();
        systems.sort_unstable();
        systems.dedup();
        let mut found = Vec::new();
        for system in systems {
            // Compilers and imports take seconds.
            if self.interrupted().is_err() {
                break;
            }
            let ready = match system {
                System::Flexcast => Ok(Ready::Flexcast),
                System::OpenMpi | System::Mpich | System::MpiFlexcast | System::MpiDirect => {
                    mpi::find(system, &self.programs.folder, self.work).map(|mpi| Ready::Mpi(system, mpi))
                }
                System::Gloo | System::TorchFlexcast => {
                    gloo::find(system, &self.programs.folder, self.work).map(Ready::Gloo)
                }
                System::Bound if self.spec.loss > 0.0 => Err("repairs no loss; leave out --loss to have it".to_owned()),
                System::Bound if self.spec.ranks_per_host > 1 => {
                    Err("has one rank on each host; leave out --ranks-per-host to have it".to_owned())
                }
                System::Bound => Ok(Ready::Bound),
            };
            match ready {
                Ok(ready) => found.push((system, ready)),
                Err(reason) => self.problem(system, None, reason),
            }
        }
        found
    }

    fn measure(&mut self, ready: &Ready, network: &Network, op: Op) -> Result<(), CompareError> {
        if let Ready::Flexcast = ready {
            return self.flexcast(network, op);
        }
        let (system, ranks, sizes) = (ready.system(), network.ranks(), self.spec.sizes.clone());
        let task = self.task(op, sizes, self.spec.repetitions);
        let port = self.next_port();
        let commands = match ready {
            Ready::Mpi(_, mpi) => vec![mpi::command(mpi, network, &task, self.work)?],
            Ready::Gloo(gloo) => gloo::commands(gloo, network, &task, port),
            _ => bound::commands(&self.programs.flexcast, network, &task, port, self.spec.gso == Offloads::Off),
        };
        let (printed, ended) = self.job(commands, network)?;
        let rows = sample::rows(&printed, system, op, ranks);
        let missing: Vec<String> = task
            .sizes
            .iter()
            .filter(|bytes| rows.iter().all(|row| row.bytes != **bytes))
            .map(|bytes| bytes.to_string())
            .collect();
        self.rows.extend(rows);
        if !missing.is_empty() {
            let reason = ended
                .err()
                .map_or_else(|| "the program has ended without a result".to_owned(), |error| error.to_string());
            self.problem(system, Some(format!("{} among {ranks}, {} B", op.name(), missing.join(", "))), reason);
        }
        Ok(())
    }

    fn task(&self, op: Op, sizes: Vec<u64>, repetitions: u32) -> Task {
        let CompareSpec { warm_up, in_place, .. } = *self.spec;
        Task { op, sizes, repetitions, warm_up, zeros: self.spec.zeros(), in_place }
    }

    /// Each size by itself, with all repetitions and with one: what they differ in is of the repetitions alone.
    fn flexcast(&mut self, network: &Network, op: Op) -> Result<(), CompareError> {
        for bytes in self.spec.sizes.clone() {
            let full = self.perf(network, op, bytes, self.spec.repetitions)?;
            let one = match &full {
                Ok(_) => self.perf(network, op, bytes, 1)?.ok(),
                Err(_) => None,
            };
            let row = full.and_then(|full| Ok((flexcast::row(&full.printed, op, network.ranks(), bytes)?, full)));
            match row {
                Ok((mut row, full)) => {
                    if let Some(one) = one {
                        add_difference(&mut row, &full, &one, self.spec.repetitions);
                    }
                    self.rows.push(row);
                }
                // Greater sizes would say the same.
                Err(reason) => {
                    self.problem(
                        System::Flexcast,
                        Some(format!("{} among {}, from {bytes} B on", op.name(), network.ranks())),
                        reason,
                    );
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn perf(
        &mut self,
        network: &Network,
        op: Op,
        bytes: u64,
        repetitions: u32,
    ) -> Result<Result<Whole, String>, CompareError> {
        let task = self.task(op, vec![bytes], repetitions);
        let commands = flexcast::commands(&self.programs.flexcast, network, &task, self.next_port());
        let before = network.counters()?;
        let (printed, ended) = self.job(commands, network)?;
        let counters = network.counters()?.since(before);
        let (received, sent) = (counters.received as f64, counters.sent as f64);
        Ok(match ended {
            Ok(()) => Ok(Whole { printed, switch_bytes: received, port_bytes: received + sent }),
            // A program that has found wrong bytes prints what it has measured all the same.
            Err(error) if printed.is_empty() => Err(error.to_string()),
            Err(error) => Err(flexcast::row(&printed, op, network.ranks(), bytes).err().unwrap_or(error.to_string())),
        })
    }

    /// Runs the processes of one job; what the first has printed, even where the job has not ended well.
    fn job(
        &mut self,
        commands: Vec<Command>,
        network: &Network,
    ) -> Result<(String, Result<(), ChildError>), CompareError> {
        self.interrupted()?;
        let mut group = match Group::start(commands) {
            Ok(group) => group,
            Err(error) => return Ok((String::new(), Err(error))),
        };
        let ended = group.wait(Duration::from_secs(self.spec.limit), self.stop);
        if ended.is_err() {
            // Starters of MPI put their ranks into groups of their own.
            network.kill_all();
        }
        self.interrupted()?;
        for (process, line) in group.warnings() {
            // Each is said once, whichever processes and jobs it comes from.
            if self.warned.insert(line.clone()) {
                (self.report)(&format!("process {process}: {line}"));
            }
        }
        Ok((group.stdout(0), ended))
    }

    fn next_port(&mut self) -> u16 {
        self.jobs = (self.jobs + 1) % PORTS;
        FIRST_PORT + self.jobs
    }

    fn interrupted(&self) -> Result<(), CompareError> {
        if self.stop.load(Ordering::Relaxed) { Err(CompareError::Interrupted) } else { Ok(()) }
    }

    /// Notes a problem; the same one of several places is one.
    fn problem(&mut self, system: System, place: Option<String>, reason: String) {
        if let Some(known) = self.problems.iter_mut().find(|known| known.system == system && known.reason == reason) {
            known.places.extend(place);
            return;
        }
        let problem = Problem { system, places: place.into_iter().collect(), reason };
        (self.report)(&problem.to_string());
        self.problems.push(problem);
    }
}

/// What a whole run of `flexcast perf` has printed and sent.
struct Whole {
    printed: String,
    switch_bytes: f64,
    port_bytes: f64,
}

/// Bytes per operation: what all repetitions take beyond one.
fn add_difference(row: &mut Row, full: &Whole, one: &Whole, repetitions: u32) {
    let more = f64::from(repetitions.max(2) - 1);
    let per_operation = |full: f64, one: f64| ((full - one) / more).max(0.0);
    row.switch_bytes = Some(per_operation(full.switch_bytes, one.switch_bytes).round());
    row.port_bytes = Some(per_operation(full.port_bytes, one.port_bytes).round());
}

fn settings(spec: &CompareSpec, versions: BTreeMap<&'static str, String>) -> Settings {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let processors = read("/proc/cpuinfo");
    let model = processors.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(':'));
    Settings {
        kind: "measured",
        ranks_per_host: spec.ranks_per_host,
        mtu: MTU,
        offloads: spec.gso,
        udp_loss_percent: spec.loss,
        in_place: spec.in_place,
        repetitions: spec.repetitions,
        warm_up: spec.warm_up,
        kernel: format!("Linux {}", read("/proc/sys/kernel/osrelease").trim()),
        processor: model.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, model)| model.trim().to_owned()),
        cores: std::thread::available_parallelism().map_or(1, usize::from),
        versions,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        spec: CompareSpec,
    }

    /// A program in the place of the command-line tool: each operation ends in another way.
    const PROGRAM: &str = "#!/bin/sh\n\
        [ \"$1 $2 $4 $6\" = 'perf --op --sizes --repetitions' ] || { echo \"error: $*\" >&2; exit 1; }\n\
        [ \"$MASTER_ADDR $WORLD_SIZE $FLEXCAST_DATAPATH\" = '10.77.0.1 2 udp' ] || { echo error: variables >&2; exit \
        1; }\n\
        grep -q eth0: /proc/self/net/dev || { echo error: no interface >&2; exit 1; }\n\
        case $3 in\n\
        broadcast) echo 'error: rank '$RANK' has no route' >&2; exit 1 ;;\n\
        alltoall) setsid sleep 60 & echo $! > \"${0%/*}/pid\"; exec sleep 60 ;;\n\
        *) [ $RANK = 0 ] && echo \
        '{\"rows\":[{\"op\":\"'$3'\",\"ranks\":2,\"bytes\":'$5',\"median_us\":7,\"p95_us\":8,\"repetitions\":'$7',\"cpu_s\":0.5}]}'; exit 0 ;;\n\
        esac\n";

    /// Where namespaces are permitted.
    #[test]
    fn a_run_among_namespaces_has_rows_and_problems_and_leaves_nothing() {
        use std::os::unix::fs::PermissionsExt as _;

        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("flexcast");
        std::fs::write(&program, PROGRAM).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let words = "run --ranks 2 --sizes 64,1024 --systems flexcast --ops allgather,bcast,alltoall --limit 1";
        let spec = Line::try_parse_from(words.split(' ')).map(|line| line.spec).unwrap();
        let programs = Programs { flexcast: program, version: "1".to_owned(), folder: folder.path().to_owned() };
        let comparison = match run(&spec, &programs, &AtomicBool::new(false), &mut |line| println!("{line}")) {
            Ok(comparison) => comparison,
            Err(error @ (CompareError::NotPermitted(_) | CompareError::Missing { .. })) => {
                println!("skipped: {error}");
                return;
            }
            Err(error) => panic!("{error}"),
        };
        let rows: Vec<_> = comparison.rows.iter().map(|row| (row.op, row.ranks, row.bytes, row.median_us)).collect();
        assert_eq!(rows, [(Op::Allgather, 2, 64, 7.0), (Op::Allgather, 2, 1024, 7.0)], "{:?}", comparison.problems);
        assert!(comparison.rows.iter().all(|row| row.switch_bytes.is_some() && row.cpu_s == Some(0.5)), "{rows:?}");
        let problems: Vec<String> = comparison.problems.iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), 2, "{problems:?}");
        let route =
            problems[0].starts_with("flexcast: error: rank ") && problems[0].contains("(bcast among 2, from 64 B on)");
        assert!(route && problems[1].contains("not ended after 1 s"), "{problems:?}");
        let owner = format!("flexcast-compare-{}-", std::process::id());
        let mut list = Command::new("ip");
        list.args(["netns", "list"]);
        let names = child::output(list, Duration::from_secs(20)).unwrap();
        assert!(!names.contains(&owner), "{names}");
        // A program that had left its process group was in a namespace all the same.
        let pid = std::fs::read_to_string(folder.path().join("pid")).unwrap();
        let state = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
        assert!(state.split(") ").nth(1).is_none_or(|rest| rest.starts_with('Z')), "{state}");
    }

    #[test]
    fn what_repetitions_take_is_what_they_add() {
        let whole = |bytes: f64| Whole { printed: String::new(), switch_bytes: bytes, port_bytes: 2.0 * bytes };
        let mut row = Row {
            system: System::Flexcast,
            op: Op::Bcast,
            ranks: 2,
            bytes: 64,
            median_us: 1.0,
            p95_us: 1.0,
            switch_bytes: None,
            port_bytes: None,
            cpu_s: None,
        };
        add_difference(&mut row, &whole(2000.0), &whole(1000.0), 11);
        assert_eq!((row.switch_bytes, row.port_bytes), (Some(100.0), Some(200.0)));
        add_difference(&mut row, &whole(1.0), &whole(2.0), 2);
        assert_eq!(row.switch_bytes, Some(0.0));
    }

    #[test]
    fn a_problem_of_several_places_is_reported_once() {
        let problem = Problem { system: System::Gloo, places: Vec::new(), reason: "no torch".to_owned() };
        assert_eq!(problem.to_string(), "gloo: no torch");
        let places = ["bcast among 4, 64 B".to_owned(), "bcast among 8, 64 B".to_owned()].to_vec();
        assert_eq!(
            Problem { places, ..problem }.to_string(),
            "gloo: no torch (bcast among 4, 64 B; bcast among 8, 64 B)"
        );
    }
}
