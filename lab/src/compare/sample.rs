//! Results that a program of the comparison prints, and the rows made of them.

use serde::{Deserialize, Serialize};

use super::{Op, Row, System};
use crate::evaluate::statistics::Statistics;
use crate::perf::spec::Zeros;

/// Arguments of a program: one operation, all sizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The operation.
    pub op: Op,
    /// Sizes.
    pub sizes: Vec<u64>,
    /// Timed repetitions.
    pub repetitions: u32,
    /// Repetitions before them.
    pub warm_up: u32,
    /// Of a sparse AllReduce.
    pub zeros: Zeros,
    /// AllReduces have their contribution in the receive buffer.
    pub in_place: bool,
}

impl Task {
    /// The words of the command line: `OP REPETITIONS WARM_UP INTERFACE SIZE...`, the operation being
    /// `allreduce-in-place` if it is one.
    #[must_use]
    pub fn words(&self, interface: &str) -> Vec<String> {
        let place = if self.in_place { "-in-place" } else { "" };
        let mut words = vec![
            format!("{}{place}", self.op.name()),
            self.repetitions.to_string(),
            self.warm_up.to_string(),
            interface.to_owned(),
        ];
        words.extend(self.sizes.iter().map(u64::to_string));
        words
    }
}

/// A line that a program prints: one size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The size.
    pub bytes: u64,
    /// Bytes that the hosts have sent, per operation.
    pub switch_bytes: f64,
    /// Bytes that the hosts have sent and received, per operation.
    pub port_bytes: f64,
    /// Processor time of all ranks, per operation.
    pub cpu_s: f64,
    /// Largest time over the ranks, of each repetition.
    pub samples_us: Vec<f64>,
}

impl Sample {
    /// The row; none where no time has been reported.
    #[must_use]
    pub fn row(&self, system: System, op: Op, ranks: u32) -> Option<Row> {
        let statistics = Statistics::of(&self.samples_us)?;
        let whole = |bytes: f64| bytes.max(0.0).round();
        Some(Row {
            system,
            op,
            ranks,
            bytes: self.bytes,
            median_us: thousandths(statistics.median),
            p95_us: thousandths(statistics.p95),
            switch_bytes: Some(whole(self.switch_bytes)),
            port_bytes: Some(whole(self.port_bytes)),
            cpu_s: Some(self.cpu_s.max(0.0)),
        })
    }
}

/// Nothing is measured to more digits.
pub(super) fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

/// The rows of what a program has printed; other lines are ignored.
#[must_use]
pub fn rows(printed: &str, system: System, op: Op, ranks: u32) -> Vec<Row> {
    let samples = printed.lines().filter_map(|line| serde_json::from_str::<Sample>(line.trim()).ok());
    samples.filter_map(|sample| sample.row(system, op, ranks)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_a_size() {
        let printed = "mpirun: a warning\n\
            {\"bytes\":64,\"switch_bytes\":1643.64,\"port_bytes\":3287.2,\"cpu_s\":0.000145,\"samples_us\":[3.0,1.0,2.00049]}\n\
            {\"bytes\":1024,\"switch_bytes\":-3.0,\"port_bytes\":1,\"cpu_s\":-0.1,\"samples_us\":[7]}\n\
            {\"bytes\":2048,\"switch_bytes\":1,\"port_bytes\":1,\"cpu_s\":0,\"samples_us\":[]}\n{\"bytes\":40";
        let rows = rows(printed, System::Mpich, Op::Bcast, 4);
        assert_eq!(rows.len(), 2);
        let first = &rows[0];
        assert_eq!((first.bytes, first.median_us, first.p95_us), (64, 2.0, 2.9));
        assert_eq!((first.switch_bytes, first.port_bytes, first.cpu_s), (Some(1644.0), Some(3287.0), Some(0.000_145)));
        assert_eq!(
            (rows[1].switch_bytes, rows[1].cpu_s),
            (Some(0.0), Some(0.0)),
            "differences are never below nothing"
        );
    }

    #[test]
    fn words_of_a_task() {
        let task = Task {
            op: Op::Alltoall,
            sizes: vec![64, 1024],
            repetitions: 5,
            warm_up: 1,
            zeros: Zeros::default(),
            in_place: false,
        };
        assert_eq!(task.words("eth0"), ["alltoall", "5", "1", "eth0", "64", "1024"]);
    }
}
