//! Options of a comparison, and their limits.

use clap::{Args, ValueEnum};
use serde::Serialize;

use super::{CompareError, Op, System};
use crate::options::{parse_bytes, whole};
use crate::perf::spec::Zeros;
use crate::sparse::PatternName;

/// Most hosts: more processes on one computer would wait for one another rather than run.
pub const MOST_RANKS: u32 = 32;
/// Largest size.
pub const MOST_BYTES: u64 = 128 << 20;
/// Most bytes that a rank gathers: a signed 32-bit count of MPI.
const MOST_GATHERED_BYTES: u64 = 1 << 31;
/// Most repetitions.
pub const MOST_REPETITIONS: u32 = 10_000;

/// Whether network offloads are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Offloads {
    /// Segmentation and receive offloads of the interfaces are on, as is the default of Linux.
    On,
    /// Every packet crosses interfaces and bridge by itself.
    Off,
}

impl Offloads {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::On => "on",
            Self::Off => "off",
        }
    }
}

/// What is compared, and how.
#[derive(Clone, Debug, PartialEq, Args)]
pub struct CompareSpec {
    /// Operations. The size is, for allgather, what each rank contributes; for bcast, the whole buffer; for allreduce,
    /// the buffer of each rank; for alltoall, what each rank sends in all.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "OP,...", default_values_t = [Op::Allgather, Op::Bcast, Op::Allreduce, Op::Alltoall])]
    pub ops: Vec<Op>,
    /// Sizes in bytes, also as 64KiB or 1MiB; at most 128MiB.
    #[arg(long, value_parser = size, value_delimiter = ',', value_name = "N,...",
        default_values_t = [64, 1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 8 << 20])]
    pub sizes: Vec<u64>,
    /// Numbers of ranks, 2 to 32.
    #[arg(long, value_parser = whole::<u32>(2, MOST_RANKS), value_delimiter = ',', value_name = "P,...", default_values_t = [2, 4, 8])]
    pub ranks: Vec<u32>,
    /// Ranks on each host, 1 to 16; every number of ranks is a multiple, and more than one host's.
    #[arg(long, value_parser = whole::<u32>(1, MOST_RANKS / 2), value_name = "N", default_value_t = 1)]
    pub ranks_per_host: u32,
    /// Systems.
    #[arg(long, value_enum, value_delimiter = ',', value_name = "NAME,...",
        default_values_t = [System::Flexcast, System::OpenMpi, System::Mpich, System::Gloo, System::MpiFlexcast, System::MpiDirect, System::TorchFlexcast, System::Bound])]
    pub systems: Vec<System>,
    /// UDP packets that each host loses on their way in, up to 50; TCP, which the others use, loses none. Not for
    /// bound.
    #[arg(long, value_parser = percent, value_name = "PERCENT", default_value_t = 0.0)]
    pub loss: f64,
    /// Blocks of 1 KiB that are zero, of a hundred, for sparse-allreduce. To be compared with allreduce, whose time
    /// does not depend on it.
    #[arg(long, value_parser = whole::<u32>(0, 100), value_name = "PERCENT", default_value_t = 90)]
    pub zeros: u32,
    /// How the zeros of ranks belong together.
    #[arg(long, value_enum, default_value_t = PatternName::Identical)]
    pub pattern: PatternName,
    /// Contributions lie in the receive buffers, as those of gloo's allreduce always do: for allreduce and
    /// sparse-allreduce.
    #[arg(long)]
    pub in_place: bool,
    /// Segmentation and receive offloads of the interfaces.
    #[arg(long, value_enum, default_value = "on", value_name = "on|off")]
    pub gso: Offloads,
    /// Timed repetitions of each operation and size, at least 2.
    #[arg(long, value_parser = whole::<u32>(2, MOST_REPETITIONS), value_name = "N", default_value_t = 30)]
    pub repetitions: u32,
    /// Repetitions before them that are not timed.
    #[arg(long, value_parser = whole::<u32>(0, MOST_REPETITIONS), value_name = "N", default_value_t = 3)]
    pub warm_up: u32,
    /// Longest time of one set of processes; beyond it they are ended, and what they have measured by then counts.
    #[arg(long, value_parser = whole::<u64>(1, 86_400), value_name = "SECONDS", default_value_t = 300)]
    pub limit: u64,
}

impl CompareSpec {
    /// Which blocks are zero.
    #[must_use]
    pub const fn zeros(&self) -> Zeros {
        Zeros { percent: self.zeros, pattern: self.pattern }
    }

    /// Refuses what no system could run.
    ///
    /// # Errors
    /// [`CompareError::Option`].
    pub fn check(&self) -> Result<(), CompareError> {
        let refuse = |option, given: &dyn std::fmt::Display, reason: String| {
            Err(CompareError::Option { option, given: given.to_string(), reason })
        };
        for (option, least, most, given) in
            [("repetitions", 2, MOST_REPETITIONS, self.repetitions), ("warm-up", 0, MOST_REPETITIONS, self.warm_up)]
        {
            if !(least..=most).contains(&given) {
                return refuse(option, &given, format!("give {least} to {most}"));
            }
        }
        if let Some(ranks) = self.ranks.iter().find(|ranks| !(2..=MOST_RANKS).contains(*ranks)) {
            return refuse("ranks", ranks, format!("give 2 to {MOST_RANKS} ranks"));
        }
        let each = self.ranks_per_host;
        let is_whole = |ranks: &&u32| each > 0 && **ranks > each && ranks.is_multiple_of(each);
        if let Some(ranks) = self.ranks.iter().find(|ranks| !is_whole(ranks)) {
            return refuse(
                "ranks-per-host",
                &each,
                format!("{ranks} ranks are no 2 hosts or more with {each} each: give a divisor"),
            );
        }
        if let Some(bytes) = self.sizes.iter().find(|bytes| !(1..=MOST_BYTES).contains(*bytes)) {
            return refuse("sizes", bytes, format!("give 1 to {MOST_BYTES} bytes"));
        }
        if self.in_place
            && let Some(op) = self.ops.iter().find(|op| !matches!(op, Op::Allreduce | Op::SparseAllreduce))
        {
            let reason = "leave it out of --ops, or compare allreduce and sparse-allreduce alone";
            return refuse("in-place", &op.name(), reason.to_owned());
        }
        if self.limit == 0 {
            return refuse("limit", &0, "give at least 1 second".to_owned());
        }
        if !(0.0..=MOST_LOSS).contains(&self.loss) {
            return refuse("loss", &self.loss, format!("give 0 to {MOST_LOSS} percent"));
        }
        for bytes in &self.sizes {
            for op in &self.ops {
                let gathered = |ranks: &&u32| *op == Op::Allgather && bytes * u64::from(**ranks) > MOST_GATHERED_BYTES;
                if let Some(ranks) = self.ranks.iter().find(gathered) {
                    return refuse(
                        "sizes",
                        bytes,
                        format!(
                            "{ranks} ranks would gather more than {MOST_GATHERED_BYTES} bytes: give at most {}",
                            MOST_GATHERED_BYTES / u64::from(*ranks)
                        ),
                    );
                }
                let parts =
                    self.ranks.iter().map(|ranks| parts(*op, *ranks)).find(|(parts, _)| bytes % u64::from(*parts) != 0);
                if let Some((parts, why)) = parts {
                    let next = bytes.div_ceil(u64::from(parts)) * u64::from(parts);
                    return refuse(
                        "sizes",
                        bytes,
                        format!(
                            "{why}; give a multiple of {parts}, such as {next}, or leave {} out of --ops",
                            op.name()
                        ),
                    );
                }
            }
        }
        Ok(())
    }
}

/// What a size must be a multiple of, and why.
fn parts(op: Op, ranks: u32) -> (u32, String) {
    match op {
        Op::Allgather | Op::Bcast => (1, String::new()),
        Op::Allreduce | Op::SparseAllreduce => (4, "an allreduce sums numbers of 4 bytes".to_owned()),
        Op::Alltoall => (ranks, format!("an alltoall among {ranks} ranks sends {ranks} equal parts")),
    }
}

const MOST_LOSS: f64 = 50.0;

/// `64`, `64KiB`, `1MiB`.
fn size(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).filter(|bytes| (1..=MOST_BYTES).contains(bytes));
    bytes.ok_or_else(|| format!("give 1 to {MOST_BYTES} bytes, such as 64, 64KiB or 1MiB"))
}

fn percent(text: &str) -> Result<f64, String> {
    let percent = text.strip_suffix('%').unwrap_or(text).parse::<f64>().ok();
    percent
        .filter(|percent| (0.0..=MOST_LOSS).contains(percent))
        .ok_or_else(|| format!("give 0 to {MOST_LOSS} percent"))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        spec: CompareSpec,
    }

    fn read(words: &[&str]) -> Result<CompareSpec, String> {
        let line = Line::try_parse_from(["compare"].iter().chain(words)).map_err(|error| error.to_string())?;
        line.spec.check().map_err(|error| error.to_string())?;
        Ok(line.spec)
    }

    #[test]
    fn the_defaults_can_be_run() {
        let spec = read(&[]).unwrap();
        assert_eq!((spec.ops.len(), spec.systems.len(), spec.ranks), (4, 8, vec![2, 4, 8]));
        assert_eq!((spec.sizes.first(), spec.sizes.last()), (Some(&64), Some(&(8 << 20))));
    }

    #[test]
    fn sizes_have_units() {
        let spec = read(&["--sizes", "64,64KiB,1MiB", "--ops", "bcast", "--ranks", "2", "--systems", "openmpi,bound"])
            .unwrap();
        assert_eq!(spec.sizes, [64, 65_536, 1 << 20]);
        assert_eq!(spec.systems, [System::OpenMpi, System::Bound]);
    }

    #[test]
    fn what_cannot_be_run_is_refused_with_what_can() {
        for (words, said) in [
            (&["--sizes", "0"][..], "give 1 to 134217728 bytes"),
            (&["--sizes", "129MiB"], "give 1 to 134217728 bytes"),
            (&["--sizes", "99999999999999999999MiB"], "give 1 to 134217728 bytes"),
            (&["--sizes", "1GB"], "such as 64, 64KiB or 1MiB"),
            (
                &["--sizes", "100", "--ops", "alltoall", "--ranks", "2,8"],
                "--sizes 100: an alltoall among 8 ranks sends 8 equal parts; give a multiple of 8, such as 104",
            ),
            (&["--sizes", "6", "--ops", "allreduce"], "multiple of 4, such as 8, or leave allreduce out of --ops"),
            (&["--ranks", "1"], "from 2 to 32"),
            (&["--ranks", "33"], "from 2 to 32"),
            (&["--ranks", "two"], "from 2 to 32"),
            (&["--ranks", "8", "--ranks-per-host", "3"], "--ranks-per-host 3: 8 ranks are no 2 hosts"),
            (&["--ranks", "4,8", "--ranks-per-host", "4"], "--ranks-per-host 4: 4 ranks are no 2 hosts"),
            (&["--ranks-per-host", "0"], "'0' for '--ranks-per-host"),
            (&["--repetitions", "1"], "from 2 to 10000"),
            (&["--loss", "51"], "give 0 to 50 percent"),
            (&["--loss", "NaN"], "give 0 to 50 percent"),
            (&["--in-place", "--ops", "allreduce,bcast"], "--in-place bcast: leave it out of --ops"),
            (
                &["--sizes", "128MiB", "--ranks", "2,32", "--ops", "allgather"],
                "--sizes 134217728: 32 ranks would gather",
            ),
            (&["--limit", "0"], "'0' for '--limit"),
            (&["--ops", "scan"], "allgather"),
            (&["--systems", "nccl"], "openmpi"),
        ] {
            let error = read(words).expect_err(said);
            assert!(error.contains(said), "{words:?}: {error}");
        }
        assert!(read(&["--sizes", "100", "--ops", "allgather,bcast"]).is_ok());
        assert!(read(&["--ranks", "4,8", "--ranks-per-host", "2"]).is_ok());
        assert!(read(&["--sizes", "128MiB", "--ops", "allreduce,sparse-allreduce", "--in-place"]).is_ok());
    }
}
