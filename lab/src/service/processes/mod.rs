//! Service processes as real processes: daemons, and ranks that are each a process of its own, on emulated cards that
//! they share over sockets.
//!
//! Each host is a daemon whose process has the host's card, and the ranks that use it. What is killed here is killed by
//! SIGKILL, and what is reported to the others is checked.

mod child;
mod hosts;
mod rank;
mod report;
mod words;

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use nix::sys::signal::Signal;
use thiserror::Error;

pub use child::end_with;
pub use rank::serve as serve_rank;
pub use report::{Collective, Death, HeldUp, Job, Notice, ProcessReport};
pub use words::{Kind, now_ns};

use super::world::ServiceOp;
use child::{RankProcess, until};
use hosts::Hosts;
use words::{Answer, Computed, Ending, Order, Start};

/// Hidden command of `flexcast service` that is a daemon of the demonstration.
pub const DAEMON_COMMAND: &str = "demo-daemon";
/// Hidden command of `flexcast service` that is a rank of it.
pub const RANK_COMMAND: &str = "demo-rank";
/// Most hosts, and most ranks on each.
pub const MOST_HOSTS: u32 = 8;
/// See [`MOST_HOSTS`].
pub const MOST_RANKS_PER_HOST: u32 = 8;
/// Longest block, in bytes.
pub const MOST_BYTES: u64 = 1 << 20;
/// Most bytes of the buffers of all ranks together.
const MOST_BUFFERS: u64 = 2 << 30;
/// Most service processes of a card.
const MOST_PROCESSES: u32 = 2;

/// All collectives that ranks call.
const OPS: [ServiceOp; 4] = [ServiceOp::Alltoallv, ServiceOp::Allgatherv, ServiceOp::Broadcast, ServiceOp::Allgather];
/// Those under way when something is killed: one from host memory to host memory, and one through memory of the cards.
const UNDER_WAY: [ServiceOp; 2] = [ServiceOp::Alltoallv, ServiceOp::Allgather];
/// Times that each is called.
const TURNS: u32 = 2;
/// How long a rank is stopped: less than four heartbeats of a second each.
const STOPPED: Duration = Duration::from_millis(1500);
/// Between two readings of what daemons have done, which they report at most some ten milliseconds late.
const SETTLES: Duration = Duration::from_millis(50);
/// Longest that a rank waits for anything.
const RANK_BOUND: Duration = Duration::from_secs(20);
/// Longest that a rank is waited for.
const BOUND: Duration = Duration::from_secs(60);

/// What is to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessSpec {
    /// Hosts, 1 to [`MOST_HOSTS`].
    pub hosts: u32,
    /// Ranks on each, 1 to [`MOST_RANKS_PER_HOST`].
    pub ranks_per_host: u32,
    /// Bytes of a block, 1 to [`MOST_BYTES`].
    pub bytes: u64,
}

impl ProcessSpec {
    /// All ranks.
    #[must_use]
    pub const fn ranks(&self) -> u32 {
        self.hosts * self.ranks_per_host
    }

    /// Service processes of each daemon: two, where there are as many ranks.
    #[must_use]
    pub fn processes_per_host(&self) -> u32 {
        self.ranks_per_host.min(MOST_PROCESSES)
    }

    fn check(&self) -> Result<(), ProcessError> {
        let limits = [
            ("--hosts", u64::from(self.hosts), u64::from(MOST_HOSTS)),
            ("--ranks-per-host", u64::from(self.ranks_per_host), u64::from(MOST_RANKS_PER_HOST)),
            ("--bytes", self.bytes, MOST_BYTES),
        ];
        for (option, value, most) in limits {
            if !(1..=most).contains(&value) {
                return Err(ProcessError::Option { option, value, limit: format!("1 to {most}") });
            }
        }
        if self.ranks() < 2 {
            let limit = "at least 2 where there is one host, so that somebody is left".to_owned();
            return Err(ProcessError::Option { option: "--ranks-per-host", value: 1, limit });
        }
        // Send and receive buffers of up to six times a block for each rank, and those of staged collectives.
        let ranks = u64::from(self.ranks());
        let most = MOST_BUFFERS / (ranks * (13 * ranks + 1));
        if self.bytes > most {
            let limit =
                format!("at most {most} with {ranks} ranks, so that their buffers have no more than 2 GiB together");
            return Err(ProcessError::Option { option: "--bytes", value: self.bytes, limit });
        }
        Ok(())
    }
}

/// Programs and libraries of the demonstration.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `flexcast`, whose hidden commands are ranks, and daemons where there is no other program.
    pub flexcast: PathBuf,
    /// `flexcast-service`, if it is there.
    pub daemon: Option<PathBuf>,
    /// Folder of the emulator's libraries; none: the processes have the emulator that is part of `flexcast`, which is
    /// the daemon then, too.
    pub libraries: Option<PathBuf>,
}

/// Why the demonstration has not come to its end. What was reported wrongly to ranks is in the report, and no error.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// An option that cannot be.
    #[error("{option} is {value}, but must be {limit}")]
    Option {
        /// Which.
        option: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        limit: String,
    },
    /// A process cannot be started, or reached by a signal.
    #[error("{name}: {source}")]
    Start {
        /// Which.
        name: String,
        /// Why.
        source: std::io::Error,
    },
    /// A process has ended that should not have.
    #[error("{name} has ended, and said: {said}")]
    Lost {
        /// Which.
        name: String,
        /// The end of its log.
        said: String,
    },
    /// A process says that something is wrong.
    #[error("{name}: {said}")]
    Rank {
        /// Which.
        name: String,
        /// What it says.
        said: String,
    },
    /// Something does not come.
    #[error("{what} has not come within {waited_s} s")]
    Late {
        /// What.
        what: String,
        /// The bound.
        waited_s: u64,
    },
    /// The system refuses something.
    #[error("{what}: {source}")]
    System {
        /// What.
        what: String,
        /// Why.
        source: std::io::Error,
    },
    /// A signal to this program.
    #[error("interrupted")]
    Interrupted,
}

impl ProcessError {
    pub(super) fn system(what: &str, source: std::io::Error) -> Self {
        Self::System { what: what.to_owned(), source }
    }
}

/// Runs the demonstration; `show` is called for each step. All processes have ended when this returns.
///
/// # Errors
/// [`ProcessError`].
pub fn run(
    spec: &ProcessSpec,
    programs: &Programs,
    stop: &AtomicBool,
    show: &mut dyn FnMut(&str),
) -> Result<ProcessReport, ProcessError> {
    spec.check()?;
    let folder = tempfile::Builder::new().prefix("flexcast-").tempdir();
    let folder = folder.map_err(|error| ProcessError::system("a folder for sockets and logs", error))?;
    let hosts = Hosts::new(folder.path(), spec, programs)?;
    let mut demo = Demo { spec, programs, stop, hosts, folder: folder.path().to_owned(), group: 0 };
    let mut daemon_starts_ms = Vec::new();
    for host in 0..spec.hosts {
        daemon_starts_ms.push(report::millis(demo.hosts.start(host, programs, stop)?));
    }
    show("job 1: all collectives, a rank that is stopped for a while, and one that is killed");
    let mut first = demo.job()?;
    let mut jobs = vec![first.work()?];
    let held_up = first.hold_up()?;
    let rank_death = first.kill_rank()?;
    first.end()?;
    show("job 2 on the same daemons, one of which is killed");
    let mut second = demo.job()?;
    jobs.push(second.work()?);
    let daemon_death = second.kill_daemon()?;
    second.close()?;
    show("job 3, after that daemon was started anew");
    let host = spec.hosts - 1;
    let restart_ms = report::millis(demo.hosts.start(host, programs, stop)?);
    let mut third = demo.job()?;
    jobs.push(third.work()?);
    third.leave()?;
    third.end()?;
    Ok(ProcessReport {
        hosts: spec.hosts,
        ranks_per_host: spec.ranks_per_host,
        service_processes: spec.processes_per_host(),
        bytes: spec.bytes,
        daemon: programs.daemon.as_ref().map_or("flexcast", |_| "flexcast-service").to_owned(),
        daemon_starts_ms,
        restart_ms,
        jobs,
        held_up,
        deaths: vec![rank_death, daemon_death],
    })
}

struct Demo<'d> {
    spec: &'d ProcessSpec,
    programs: &'d Programs,
    stop: &'d AtomicBool,
    hosts: Hosts,
    folder: PathBuf,
    /// Number of the last group.
    group: u32,
}

impl<'d> Demo<'d> {
    /// Starts a process for each rank, and waits until all have joined a group.
    fn job<'j>(&'j mut self) -> Result<Running<'j, 'd>, ProcessError> {
        self.group += 1;
        let (spec, number) = (self.spec, self.group);
        let mut ranks = Vec::new();
        for rank in 0..spec.ranks() {
            let host = rank / spec.ranks_per_host;
            let mut command = Command::new(&self.programs.flexcast);
            command.args(["service", RANK_COMMAND, "--parent", &std::process::id().to_string()]);
            command.env("FLEXCAST_MACHINE", self.hosts.attach(host)?);
            let mut process = RankProcess::start(&format!("rank {rank} of job {number}"), &self.folder, command)?;
            process.send(&Order::Start(Box::new(Start {
                libraries: self.programs.libraries.clone(),
                device: "mlx5_0".to_owned(),
                secret: self.hosts.secret(),
                group: number,
                rank,
                hosts: spec.hosts,
                ranks_per_host: spec.ranks_per_host,
                processes_per_host: spec.processes_per_host(),
                processes: self.hosts.endpoints(),
                bytes: spec.bytes,
                bound_ms: report::millis(RANK_BOUND) as u64,
            })))?;
            ranks.push(process);
        }
        let mut running = Running { demo: self, ranks, joins: Vec::new(), turn: 0 };
        for rank in running.all() {
            match running.answer(rank)? {
                Answer::Joined { connect_us, join_us } => running.joins.push((connect_us, join_us)),
                other => return Err(running.strange(rank, &other)),
            }
        }
        let peers: Vec<u32> = running.ranks.iter().map(|rank| rank.process.id()).collect();
        running.carry_out(&running.all(), &Order::Peers(peers))?;
        Ok(running)
    }
}

/// The ranks of a job, on daemons that run.
struct Running<'j, 'd> {
    demo: &'j mut Demo<'d>,
    ranks: Vec<RankProcess>,
    joins: Vec<(u64, u64)>,
    turn: u32,
}

impl Running<'_, '_> {
    fn all(&self) -> Vec<u32> {
        (0..self.ranks.len() as u32).collect()
    }

    fn but(&self, others: &[u32]) -> Vec<u32> {
        self.all().into_iter().filter(|rank| !others.contains(rank)).collect()
    }

    fn answer(&mut self, rank: u32) -> Result<Answer, ProcessError> {
        self.ranks[rank as usize].answer(BOUND, self.demo.stop)
    }

    fn strange(&self, rank: u32, answer: &Answer) -> ProcessError {
        ProcessError::Rank {
            name: format!("rank {rank} of job {}", self.demo.group),
            said: format!("{answer:?}, which is out of turn"),
        }
    }

    fn begin(&mut self, ranks: &[u32], order: &Order) -> Result<(), ProcessError> {
        ranks.iter().try_for_each(|rank| self.ranks[*rank as usize].send(order))
    }

    /// An order that all do before this returns.
    fn carry_out(&mut self, ranks: &[u32], order: &Order) -> Result<(), ProcessError> {
        self.begin(ranks, order)?;
        for rank in ranks {
            match self.answer(*rank)? {
                Answer::Done => {}
                other => return Err(self.strange(*rank, &other)),
            }
        }
        Ok(())
    }

    fn post(&mut self, ranks: &[u32], ops: &[ServiceOp]) -> Result<(), ProcessError> {
        self.carry_out(ranks, &Order::Post { ops: ops.to_vec(), turn: self.turn })
    }

    fn computed(&mut self, ranks: &[u32]) -> Result<Vec<Computed>, ProcessError> {
        let mut all = Vec::new();
        for rank in ranks {
            match self.answer(*rank)? {
                Answer::Computed(computed) => all.extend(computed),
                other => return Err(self.strange(*rank, &other)),
            }
        }
        Ok(all)
    }

    /// All collectives, one after the other.
    fn work(&mut self) -> Result<Job, ProcessError> {
        let mut collectives = Vec::new();
        for op in OPS {
            let mut found = Vec::new();
            for _ in 0..TURNS {
                self.turn += 1;
                let all = self.all();
                self.post(&all, &[op])?;
                self.begin(&all, &Order::Compute)?;
                found.extend(self.computed(&all)?);
            }
            collectives.push(Collective::of(op, &found));
        }
        Ok(Job::new(self.demo.group, &self.joins, collectives))
    }

    /// Stops the last rank while collectives are under way, which end for all others meanwhile, and lets it go on
    /// before it counts as dead.
    fn hold_up(&mut self) -> Result<HeldUp, ProcessError> {
        let (late, held) = (0, self.ranks.len() as u32 - 1);
        self.turn += 1;
        self.post(&self.but(&[late]), &UNDER_WAY)?;
        self.ranks[held as usize].process.signal(Signal::SIGSTOP)?;
        let begun = std::time::Instant::now();
        self.post(&[late], &UNDER_WAY)?;
        let others = self.but(&[held]);
        self.begin(&others, &Order::Compute)?;
        let of_others = self.computed(&others);
        let meanwhile = begun.elapsed();
        // Whatever the others say: it goes on.
        std::thread::sleep(STOPPED.saturating_sub(meanwhile));
        self.ranks[held as usize].process.signal(Signal::SIGCONT)?;
        let of_others = of_others?;
        self.begin(&[held], &Order::Compute)?;
        let own = self.computed(&[held])?;
        // It is a member like any other afterwards.
        self.turn += 1;
        let all = self.all();
        self.post(&all, &UNDER_WAY)?;
        self.begin(&all, &Order::Compute)?;
        let after = self.computed(&all)?;
        let is_right = of_others.iter().chain(&own).chain(&after).all(|computed| computed.is_right);
        Ok(HeldUp {
            rank: held,
            stopped_ms: report::millis(STOPPED),
            others_ended_ms: report::millis(meanwhile),
            is_right,
        })
    }

    /// Calls on all ranks but `late`, so that nothing can end, and kills somebody. Asks all others that live what was
    /// reported to them; then `late` calls as well, and is asked.
    fn kill(
        &mut self,
        late: u32,
        what: String,
        dead: &[u32],
        kill: impl FnOnce(&mut Self) -> Result<(), ProcessError>,
        judge: impl Fn(u32, &Ending) -> bool,
    ) -> Result<Death, ProcessError> {
        self.turn += 1;
        self.post(&self.but(&[late]), &UNDER_WAY)?;
        self.settle()?;
        let killed_ns = now_ns();
        kill(self)?;
        let waiting = self.but(&[&[late], dead].concat());
        let mut endings = self.endings(&waiting)?;
        self.post(&[late], &UNDER_WAY)?;
        endings.splice(0..0, self.endings(&[late])?);
        let host = |rank: u32| rank / self.demo.spec.ranks_per_host;
        let notice = |(rank, ending): (u32, Ending)| {
            let is_right = judge(rank, &ending);
            let since_ns = if rank == late { None } else { Some(killed_ns) };
            Notice::new(rank, host(rank), ending, since_ns, is_right)
        };
        Ok(Death { killed: what, notices: endings.into_iter().map(notice).collect() })
    }

    /// Waits until what can be read has been read: then it is a lost connection that reports a death, and not a Read
    /// that was under way.
    fn settle(&mut self) -> Result<(), ProcessError> {
        let (spec, stop, hosts) = (self.demo.spec, self.demo.stop, &self.demo.hosts);
        let reads = || -> Result<Vec<[u64; 5]>, ProcessError> {
            let of = |process: &flexcast_service::ProcessStatus| {
                let (now, counts) = (process.now, process.counts);
                [now.collectives, now.active_reads, now.waiting_reads, counts.reads, counts.rank_messages]
            };
            let statuses =
                (0..spec.hosts).map(|host| Ok(hosts.status(host)?.processes.iter().map(of).collect::<Vec<_>>()));
            Ok(statuses.collect::<Result<Vec<_>, ProcessError>>()?.concat())
        };
        let mut before = Vec::new();
        until("the end of all Reads that can begin", BOUND, stop, || {
            std::thread::sleep(SETTLES);
            let now = reads()?;
            let is_quiet = now.iter().map(|now| now[1]).sum::<u64>() == 0 && now == before;
            before = now;
            Ok(is_quiet.then_some(()))
        })
    }

    /// What is reported to ranks of all that they have called.
    fn endings(&mut self, ranks: &[u32]) -> Result<Vec<(u32, Ending)>, ProcessError> {
        self.begin(ranks, &Order::Watch)?;
        let mut all = Vec::new();
        for rank in ranks {
            match self.answer(*rank)? {
                Answer::Ended(endings) => all.extend(endings.into_iter().map(|ending| (*rank, ending))),
                other => return Err(self.strange(*rank, &other)),
            }
        }
        Ok(all)
    }

    fn kill_rank(&mut self) -> Result<Death, ProcessError> {
        let victim = self.ranks.len() as u32 - 1;
        let kill = |running: &mut Self| {
            let stop = running.demo.stop;
            let process = &mut running.ranks[victim as usize].process;
            process.signal(Signal::SIGKILL)?;
            // Until it has ended its memory can be read, and the others' collectives end well.
            until("the end of a rank that was killed", BOUND, stop, || Ok(process.is_over().then_some(())))
        };
        // Its memory may be missed before its connection is.
        let judge =
            |_, ending: &Ending| matches!(ending.kind, Kind::Died | Kind::Failed) && ending.rank == Some(victim);
        self.kill(0, format!("rank {victim}"), &[victim], kill, judge)
    }

    fn kill_daemon(&mut self) -> Result<Death, ProcessError> {
        let spec = *self.demo.spec;
        let host = spec.hosts - 1;
        let kill = |running: &mut Self| {
            let Some(daemon) = running.demo.hosts.daemons[host as usize].take() else { return Ok(()) };
            daemon.signal(Signal::SIGKILL)
            // Its end is waited for as it is dropped.
        };
        let processes = host * spec.processes_per_host()..(host + 1) * spec.processes_per_host();
        let judge = |rank: u32, ending: &Ending| {
            if rank / spec.ranks_per_host == host {
                ending.kind == Kind::Gone && ending.session.as_deref() == Some("died")
            } else {
                ending.kind == Kind::Died && ending.process.is_some_and(|process| processes.contains(&process))
            }
        };
        self.kill(0, format!("the daemon of host {host}"), &[], kill, judge)
    }

    fn leave(&mut self) -> Result<(), ProcessError> {
        self.carry_out(&self.all(), &Order::Leave)
    }

    /// The ranks end; those that are dead already are taken leave of.
    fn close(mut self) -> Result<(), ProcessError> {
        let stop = self.demo.stop;
        self.ranks.iter_mut().try_for_each(|rank| rank.close(BOUND, stop))
    }

    /// The same, and nothing of them is left at the daemons.
    fn end(self) -> Result<(), ProcessError> {
        let (spec, stop, hosts) = (self.demo.spec, self.demo.stop, &self.demo.hosts);
        let mut ranks = self.ranks;
        ranks.iter_mut().try_for_each(|rank| rank.close(BOUND, stop))?;
        for host in 0..spec.hosts {
            until(&format!("the end of all that daemon {host} has for the job"), BOUND, stop, || {
                let status = hosts.status(host)?;
                let left = |now: &flexcast_service::ProcessStatus| {
                    let now = now.now;
                    now.programs
                        + now.groups
                        + now.waiting_groups
                        + now.collectives
                        + now.active_reads
                        + now.keys
                        + now.bound_keys
                };
                Ok((status.processes.iter().map(left).sum::<u64>() == 0).then_some(()))
            })?;
        }
        Ok(())
    }
}
