//! Report of the demonstration: jobs, deaths, and what was reported to each rank.

use std::fmt;
use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};

use super::super::world::ServiceOp;
use super::words::{Computed, Ending, Kind};

pub(super) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// What the demonstration has shown. All times are measured, by the wall clock of this computer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProcessReport {
    /// Hosts, each with an emulated card and a daemon.
    pub hosts: u32,
    /// Ranks on each, a process each.
    pub ranks_per_host: u32,
    /// Service processes of each daemon.
    pub service_processes: u32,
    /// Bytes of a block.
    pub bytes: u64,
    /// Program of the daemons.
    pub daemon: String,
    /// By host: until its daemon serves, in milliseconds.
    pub daemon_starts_ms: Vec<f64>,
    /// The same of the daemon that was started anew.
    pub restart_ms: f64,
    /// Jobs, one after the other.
    pub jobs: Vec<Job>,
    /// The rank that was stopped for a while.
    pub held_up: HeldUp,
    /// Who was killed, and what was reported to the others: a rank, then a daemon.
    pub deaths: Vec<Death>,
}

/// A job: all collectives, each a few times.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Its number, which is that of its group.
    pub number: u32,
    /// Longest time of a rank to connect to its service process, in milliseconds.
    pub connect_ms: f64,
    /// Longest time of a rank from then until its group can be used, in milliseconds.
    pub join_ms: f64,
    /// Its collectives.
    pub collectives: Vec<Collective>,
}

/// One kind of collective, of all ranks and turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Collective {
    /// Which.
    pub op: ServiceOp,
    /// Calls of ranks.
    pub calls: u64,
    /// Of them, those after which every byte was right.
    pub right: u64,
    /// Longest time from a call to the flag as its rank has seen it, in milliseconds.
    pub flag_ms: f64,
    /// Part of the time from call to flag that ranks have computed, in percent.
    pub computed_percent: f64,
    /// Calls of the library between a call and its flag, of the rank that had most.
    pub library_calls: u64,
}

/// A rank that was stopped while collectives were under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HeldUp {
    /// Which.
    pub rank: u32,
    /// For how long, in milliseconds.
    pub stopped_ms: f64,
    /// From its stop until the collectives had ended for all others, in milliseconds.
    pub others_ended_ms: f64,
    /// Whether all ranks had every byte, also that one, and in the next collectives.
    pub is_right: bool,
}

/// Somebody that was killed while collectives were under way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Death {
    /// Who.
    pub killed: String,
    /// What was reported to each other rank.
    pub notices: Vec<Notice>,
}

/// What was reported to a rank of a collective.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notice {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: u32,
    /// The collective.
    pub op: ServiceOp,
    /// What kind of end is reported to it.
    pub kind: Kind,
    /// The rank that is named.
    pub names_rank: Option<u32>,
    /// The service process that is named.
    pub names_process: Option<u32>,
    /// The error, in words.
    pub text: String,
    /// How the rank's connection to its service process had ended by then.
    pub session: Option<String>,
    /// From the SIGKILL until the rank had the error, in milliseconds; none of the rank that has called afterwards.
    pub after_ms: Option<f64>,
    /// Whether it is what should have been reported.
    pub is_right: bool,
}

impl Notice {
    pub(super) fn new(rank: u32, host: u32, ending: Ending, killed_ns: Option<u64>, is_right: bool) -> Self {
        let Ending { op, kind, rank: names_rank, process: names_process, text, session, seen_ns } = ending;
        let after_ms = killed_ns.map(|killed_ns| seen_ns.saturating_sub(killed_ns) as f64 / 1e6);
        Self { rank, host, op, kind, names_rank, names_process, text, session, after_ms, is_right }
    }
}

impl Notice {
    /// Who is named, or the error.
    fn summary(&self) -> String {
        match (self.kind, self.names_rank, self.names_process, &self.session) {
            (Kind::Died, Some(rank), _, _) => format!("rank {rank} has died"),
            (Kind::Died, _, Some(process), _) => format!("service process {process} has died"),
            (Kind::Failed, Some(rank), _, _) => format!("memory of rank {rank} cannot be reached"),
            (Kind::Gone, _, _, Some(session)) => format!("its service process is gone: {session}"),
            _ => self.text.clone(),
        }
    }
}

impl Collective {
    pub(super) fn of(op: ServiceOp, found: &[Computed]) -> Self {
        let sum = |of: fn(&Computed) -> u64| found.iter().map(of).sum::<u64>();
        let most = |of: fn(&Computed) -> u64| found.iter().map(of).max().unwrap_or(0);
        Self {
            op,
            calls: found.len() as u64,
            right: found.iter().filter(|computed| computed.is_right).count() as u64,
            flag_ms: most(|computed| computed.flag_us) as f64 / 1e3,
            computed_percent: sum(|computed| computed.computed_us) as f64 * 100.0
                / sum(|computed| computed.flag_us).max(1) as f64,
            library_calls: most(|computed| computed.calls),
        }
    }
}

impl Job {
    pub(super) fn new(number: u32, joins: &[(u64, u64)], collectives: Vec<Collective>) -> Self {
        let most = |of: fn(&(u64, u64)) -> u64| joins.iter().map(of).max().unwrap_or(0) as f64 / 1e3;
        Self { number, connect_ms: most(|join| join.0), join_ms: most(|join| join.1), collectives }
    }
}

impl ProcessReport {
    /// Whether every byte was right, and what should have been reported was reported to everybody.
    #[must_use]
    pub fn is_right(&self) -> bool {
        let jobs = self.jobs.iter().flat_map(|job| &job.collectives).all(|one| one.right == one.calls);
        let deaths = self
            .deaths
            .iter()
            .all(|death| !death.notices.is_empty() && death.notices.iter().all(|notice| notice.is_right));
        jobs && deaths && self.held_up.is_right
    }
}

fn table(header: &[&str], right: std::ops::Range<usize>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::UTF8_FULL_CONDENSED);
    table.set_header(header);
    for column in right {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

impl fmt::Display for ProcessReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hosts, ranks_per_host, service_processes, bytes, daemon, restart_ms, held_up, .. } = self;
        let starts = self.daemon_starts_ms.iter().copied().fold(0.0, f64::max);
        writeln!(
            f,
            "{hosts} hosts with {ranks_per_host} ranks each, a process each; daemons {daemon} with {service_processes} \
             service processes each, serving after {starts:.0} ms; blocks of {bytes} bytes (times 0 to 6 in \
             Ialltoallv, 0 to 3 in Iallgatherv)"
        )?;
        let mut jobs =
            table(&["job", "collective", "calls", "right", "call to flag, ms", "computing, %", "library calls"], 2..7);
        for (job, one) in self.jobs.iter().flat_map(|job| job.collectives.iter().map(move |one| (job, one))) {
            jobs.add_row([
                job.number.to_string(),
                one.op.to_string(),
                one.calls.to_string(),
                one.right.to_string(),
                format!("{:.1}", one.flag_ms),
                format!("{:.0}", one.computed_percent),
                one.library_calls.to_string(),
            ]);
        }
        writeln!(f, "{jobs}")?;
        writeln!(
            f,
            "rank {} stopped for {:.0} ms: the others had ended after {:.1} ms, {}",
            held_up.rank,
            held_up.stopped_ms,
            held_up.others_ended_ms,
            if held_up.is_right { "nobody counts as dead, every byte on every rank" } else { "WRONG BYTES" }
        )?;
        let mut notices = table(&["killed", "rank", "collective", "after, ms", "reported to the rank"], 3..4);
        for (death, notice) in
            self.deaths.iter().flat_map(|death| death.notices.iter().map(move |notice| (death, notice)))
        {
            let mark = if notice.is_right { "" } else { "WRONG: " };
            notices.add_row([
                death.killed.clone(),
                format!("{} (host {})", notice.rank, notice.host),
                notice.op.to_string(),
                notice.after_ms.map_or_else(|| "called later".to_owned(), |after_ms| format!("{after_ms:.1}")),
                format!("{mark}{}", notice.summary()),
            ]);
        }
        writeln!(f, "{notices}")?;
        writeln!(f, "the daemon that was killed serves again {restart_ms:.0} ms after it was started anew")?;
        write!(f, "emulated cards; all times measured by the wall clock of this computer, the longest of all ranks")
    }
}
