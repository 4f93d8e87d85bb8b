//! Flexcast among the hosts: `flexcast perf` as one process a rank, and what rank 0 prints.

use std::path::Path;
use std::process::Command;

use serde::Deserialize;

use super::bound::variables;
use super::network::Network;
use super::sample::{Task, thousandths};
use super::{Op, Row, System};
use crate::perf::spec::Zeros;

/// What rank 0 prints.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Printed {
    /// One a size.
    pub rows: Vec<PerfRow>,
}

/// One size.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct PerfRow {
    /// Name of the operation.
    pub op: String,
    /// Among how many.
    pub ranks: u32,
    /// Its size.
    pub bytes: u64,
    /// Median of the largest times over the ranks.
    pub median_us: f64,
    /// Their 95th percentile.
    pub p95_us: f64,
    /// How many were timed.
    pub repetitions: u32,
    /// Processor time of all ranks per operation, where it is reported.
    pub cpu_s: Option<f64>,
    /// Buffers that were not as they should be.
    #[serde(default)]
    pub errors: u64,
}

/// The processes of all ranks.
#[must_use]
pub fn commands(program: &Path, network: &Network, task: &Task, port: u16) -> Vec<Command> {
    let sizes = task.sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(",");
    let of_rank = |rank| {
        let mut command = network.on(rank, program);
        command.args(["perf", "--op", op_name(task.op), "--sizes", &sizes]);
        command.args([
            "--repetitions",
            &task.repetitions.to_string(),
            "--warm-up",
            &task.warm_up.to_string(),
            "--json",
        ]);
        if task.op == Op::SparseAllreduce {
            let Zeros { percent, pattern } = task.zeros;
            command.args(["--zeros", &percent.to_string(), "--pattern", &pattern.to_string()]);
        }
        command.args(task.in_place.then_some("--in-place"));
        command.envs(variables(network, rank, port)).env("FLEXCAST_DATAPATH", "udp");
        command
    };
    (0..network.ranks()).map(of_rank).collect()
}

/// The name by which `flexcast perf` knows an operation.
fn op_name(op: Op) -> &'static str {
    match op {
        Op::Bcast => "broadcast",
        other => other.name(),
    }
}

/// The row of one size among what was printed, without the bytes that crossed the switch.
///
/// # Errors
/// What is wrong with what was printed.
pub fn row(printed: &str, op: Op, ranks: u32, bytes: u64) -> Result<Row, String> {
    // Log lines may be around it.
    let object =
        printed.lines().map(str::trim).find(|line| line.starts_with('{')).map_or(printed, |_| from_object(printed));
    let printed: Printed = serde_json::from_str(object).map_err(|error| {
        format!("what `flexcast perf --json` prints is not as expected: {error}; build both from one source")
    })?;
    let fits = |row: &&PerfRow| row.op == op_name(op) && row.ranks == ranks && row.bytes == bytes;
    let row = printed.rows.iter().find(fits);
    let row = row.ok_or_else(|| {
        format!("`flexcast perf` has printed no row of {} among {ranks} with {bytes} bytes", op_name(op))
    })?;
    if row.errors > 0 {
        return Err(format!("{} buffers were not as they should be: this is a bug of Flexcast", row.errors));
    }
    if ![row.median_us, row.p95_us].iter().all(|time| time.is_finite() && *time >= 0.0) {
        return Err(format!(
            "`flexcast perf` has printed times that cannot be: {} and {} us",
            row.median_us, row.p95_us
        ));
    }
    Ok(Row {
        system: System::Flexcast,
        op,
        ranks,
        bytes,
        median_us: thousandths(row.median_us),
        p95_us: thousandths(row.p95_us),
        switch_bytes: None,
        port_bytes: None,
        cpu_s: row.cpu_s,
    })
}

/// The text from its first line that begins an object to the last that ends one.
fn from_object(text: &str) -> &str {
    match (text.find('{'), text.rfind('}')) {
        (Some(first), Some(last)) if first < last => &text[first..=last],
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use super::super::child::{ChildError, Group};
    use super::*;

    /// A program in the place of `flexcast perf`, which prints such a thing as rank 0.
    fn printed_by(script: &str) -> Result<String, ChildError> {
        let folder = tempfile::tempdir().unwrap();
        let program = folder.path().join("flexcast");
        std::fs::write(&program, script).unwrap();
        let of_rank = |rank: &str| {
            let mut command = Command::new("sh");
            command.arg(&program).args(["perf", "--op", "broadcast", "--sizes", "64", "--json"]).env("RANK", rank);
            command
        };
        let mut group = Group::start(["0", "1"].map(of_rank)).unwrap();
        group.wait(Duration::from_secs(30), &AtomicBool::new(false))?;
        Ok(group.stdout(0))
    }

    #[test]
    fn what_rank_0_prints_is_read() {
        let printed = printed_by(
            "[ $RANK = 0 ] || exit 0\n[ \"$2 $3\" = '--op broadcast' ] || exit 1\n\
             echo \
             '{\"rows\":[{\"op\":\"broadcast\",\"ranks\":2,\"bytes\":64,\"median_us\":31.4159,\"p95_us\":40,\"repetitions\":9}]}'",
        )
        .unwrap();
        let read = row(&printed, Op::Bcast, 2, 64).unwrap();
        assert_eq!((read.system, read.op, read.median_us, read.p95_us), (System::Flexcast, Op::Bcast, 31.416, 40.0));
        assert_eq!((read.switch_bytes, read.cpu_s), (None, None));
        let missing = row(&printed, Op::Bcast, 2, 1024).unwrap_err();
        assert_eq!(missing, "`flexcast perf` has printed no row of broadcast among 2 with 1024 bytes");
    }

    #[test]
    fn objects_over_several_lines_are_read() {
        let printed = "ready\n{\n \"rows\": \
            [{\"op\":\"allgather\",\"ranks\":2,\"bytes\":8,\"median_us\":1,\"p95_us\":2,\"repetitions\":2,\"cpu_s\":0.5}]\n}\n";
        assert_eq!(row(printed, Op::Allgather, 2, 8).unwrap().cpu_s, Some(0.5));
    }

    #[test]
    fn a_failure_is_its_message() {
        let error =
            printed_by("[ $RANK = 0 ] && exec sleep 60\necho 'error: rank 1 has no route' >&2\nexit 1").unwrap_err();
        assert_eq!(error.to_string(), "error: rank 1 has no route");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let wrong = row("{\"rows\":[{\"op\":\"allgather\"}]}", Op::Allgather, 2, 8).unwrap_err();
        assert!(wrong.contains("not as expected") && wrong.contains("build both from one source"), "{wrong}");
        assert!(row("", Op::Allgather, 2, 8).is_err());
        let differing = "{\"rows\":[{\"op\":\"allgather\",\"ranks\":2,\"bytes\":8,\"median_us\":1,\"p95_us\":2,\"repetitions\":2,\"errors\":3}]}";
        assert!(row(differing, Op::Allgather, 2, 8).unwrap_err().starts_with("3 buffers were not"));
        let negative = "{\"rows\":[{\"op\":\"allgather\",\"ranks\":2,\"bytes\":8,\"median_us\":-1,\"p95_us\":2,\"repetitions\":2}]}";
        assert!(row(negative, Op::Allgather, 2, 8).unwrap_err().contains("cannot be"));
    }
}
