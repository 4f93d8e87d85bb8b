//! Choice of an algorithm by a table: what is fastest, by operation, number of ranks and length, as it was measured.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::LazyLock;

use flexcast_proto::{Algorithm, Kind};
use serde::{Deserialize, Serialize};

use super::sparse_cost::{SparseCost, SparseCosts, Times};
use crate::error::{Error, Result};

/// A line of a [`Tuning`]: the algorithm of an operation up to a number of ranks and a length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The operation.
    pub operation: Kind,
    /// Most ranks of a communicator to which it applies.
    pub ranks: u32,
    /// Most bytes of a rank's block to which it applies; where ranks differ, of the largest. For a reduction the bytes
    /// of a contribution, for a Reduce-Scatter those of a share.
    pub bytes: u64,
    /// What is taken.
    pub algorithm: Algorithm,
}

/// Which algorithms a communicator takes: of all lines that fit an operation, the first counts; without one the library
/// chooses by itself. Over an Ethernet interface it may also say how what is multicast goes. `flexcast tune` measures a
/// network and writes such a table to a file.
///
/// ```
/// let tuning = flexcast::Tuning::parse(
///     r#"
///     subgroups = 2
///
///     [[choice]]
///     operation = "broadcast"
///     ranks = 8
///     bytes = 65536
///     algorithm = "binomial"
///     "#,
/// )?;
/// assert_eq!(tuning.choices().len(), 1);
/// # Ok::<(), flexcast::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    choices: Vec<Choice>,
    subgroups: Option<u32>,
    chunk_bytes: Option<u32>,
    sparse_from_bytes: Option<u32>,
    sparse: SparseCosts,
}

/// Most lines: what ranks send one another stays short.
const MOST_CHOICES: usize = 1024;
/// Most subgroups over an Ethernet interface: what the header of a datagram has numbers for.
pub(crate) const MOST_SUBGROUPS: u32 = 16;
/// Shortest chunk.
pub(crate) const LEAST_CHUNK_BYTES: u32 = 64;

/// A file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct File {
    subgroups: Option<u32>,
    chunk_bytes: Option<u32>,
    sparse_from_bytes: Option<u32>,
    #[serde(default)]
    choice: Vec<Line>,
    #[serde(default)]
    sparse: Vec<SparseCost>,
}

/// A line of a file.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Line {
    operation: String,
    ranks: u32,
    bytes: u64,
    algorithm: String,
}

fn wrong(reason: String) -> Error {
    Error::Argument { operation: "tuning", reason }
}

fn named<T: Copy>(what: &str, found: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T> {
    all.iter().copied().find(|one| name(*one) == found).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|one| name(*one)).collect();
        wrong(format!("{what} {found:?} is not known: give one of {}", known.join(", ")))
    })
}

impl Tuning {
    /// A table of these lines.
    ///
    /// # Errors
    /// [`Error::Argument`]: more than 1024 lines.
    pub fn new(choices: Vec<Choice>) -> Result<Self> {
        if choices.len() > MOST_CHOICES {
            return Err(wrong(format!("{} choices: at most {MOST_CHOICES}", choices.len())));
        }
        Ok(Self::of(choices))
    }

    fn of(choices: Vec<Choice>) -> Self {
        Self { choices, ..Self::default() }
    }

    /// One algorithm for an operation, whatever the ranks and lengths. Multicast is taken then although it does not
    /// arrive.
    #[must_use]
    pub fn always(operation: Kind, algorithm: Algorithm) -> Self {
        Self::of(vec![Choice { operation, ranks: u32::MAX, bytes: u64::MAX, algorithm }])
    }

    /// The same with so many subgroups for what is multicast, as in
    /// [`UdpOptions::subgroups`](crate::UdpOptions::subgroups), which counts before this.
    ///
    /// # Errors
    /// [`Error::Argument`]: not 1 to 16.
    pub fn with_subgroups(self, subgroups: u32) -> Result<Self> {
        if !(1..=MOST_SUBGROUPS).contains(&subgroups) {
            return Err(wrong(format!("{subgroups} subgroups: 1 to {MOST_SUBGROUPS}")));
        }
        Ok(Self { subgroups: Some(subgroups), ..self })
    }

    /// The same with chunks of at most so many bytes for what is multicast.
    ///
    /// # Errors
    /// [`Error::Argument`]: less than 64.
    pub fn with_chunk_bytes(self, bytes: u32) -> Result<Self> {
        if bytes < LEAST_CHUNK_BYTES {
            return Err(wrong(format!("chunk_bytes is {bytes}: at least {LEAST_CHUNK_BYTES}")));
        }
        Ok(Self { chunk_bytes: Some(bytes), ..self })
    }

    /// The same with sparse AllReduces that search for zeros in all arrays of at least so many bytes, whatever is
    /// expected to be faster; shorter ones go as an AllReduce does.
    #[must_use]
    pub fn with_sparse_from_bytes(self, bytes: u32) -> Self {
        Self { sparse_from_bytes: Some(bytes), ..self }
    }

    /// Bytes of the shortest array in which a sparse AllReduce searches for zeros, if it says how many.
    #[must_use]
    pub const fn sparse_from_bytes(&self) -> Option<u32> {
        self.sparse_from_bytes
    }

    /// The same with these times, by which a sparse AllReduce goes as an AllReduce does where that is expected to be
    /// faster.
    ///
    /// # Errors
    /// [`Error::Argument`]: more than 256 points, or one whose nearly empty arrays take longer than full ones.
    pub fn with_sparse_costs(self, costs: Vec<SparseCost>) -> Result<Self> {
        Ok(Self { sparse: SparseCosts::new(costs)?, ..self })
    }

    /// Times of sparse AllReduces, by number of ranks and then by length.
    #[must_use]
    pub fn sparse_costs(&self) -> &[SparseCost] {
        self.sparse.points()
    }

    /// How long an AllReduce takes that searches for zeros, or one that does not; none if it does not say.
    pub(crate) fn sparse_times(&self, ranks: u32, bytes: u64) -> Option<Times> {
        self.sparse.times(ranks, bytes)
    }

    /// Subgroups for what is multicast, if it says how many.
    #[must_use]
    pub const fn subgroups(&self) -> Option<u32> {
        self.subgroups
    }

    /// Most bytes of a chunk for what is multicast, if it says how many.
    #[must_use]
    pub const fn chunk_bytes(&self) -> Option<u32> {
        self.chunk_bytes
    }

    /// The lines.
    #[must_use]
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    /// Reads a table as TOML.
    ///
    /// # Errors
    /// [`Error::Argument`]: no such TOML, an operation or algorithm that is not known, more than 1024 lines, or a
    /// number beyond its limits.
    pub fn parse(text: &str) -> Result<Self> {
        let file: File = toml::from_str(text).map_err(|error| wrong(error.message().to_owned()))?;
        let choice = |line: Line| {
            let operation = named("operation", &line.operation, &Kind::ALL, Kind::name)?;
            let algorithm = named("algorithm", &line.algorithm, &Algorithm::ALL, Algorithm::name)?;
            Ok(Choice { operation, ranks: line.ranks, bytes: line.bytes, algorithm })
        };
        let mut tuning = Self::new(file.choice.into_iter().map(choice).collect::<Result<_>>()?)?;
        if let Some(subgroups) = file.subgroups {
            tuning = tuning.with_subgroups(subgroups)?;
        }
        if let Some(bytes) = file.chunk_bytes {
            tuning = tuning.with_chunk_bytes(bytes)?;
        }
        if let Some(bytes) = file.sparse_from_bytes {
            tuning = tuning.with_sparse_from_bytes(bytes);
        }
        tuning.with_sparse_costs(file.sparse)
    }

    /// Reads a file.
    ///
    /// # Errors
    /// [`Error::Argument`]: it cannot be read, and as in [`Tuning::parse`]; with its name.
    pub fn read(path: &Path) -> Result<Self> {
        let of_file = |reason: String| wrong(format!("{}: {reason}", path.display()));
        let text = flexcast_files::text(path, flexcast_files::TABLE).map_err(|error| {
            wrong(format!("{} cannot be read: {error}, or write it with `flexcast tune`", path.display()))
        })?;
        Self::parse(&text).map_err(|error| match error {
            Error::Argument { reason, .. } => of_file(reason),
            other => other,
        })
    }

    /// The table as TOML, as [`Tuning::parse`] reads it.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut text = String::new();
        let numbers = [
            ("subgroups", self.subgroups),
            ("chunk_bytes", self.chunk_bytes),
            ("sparse_from_bytes", self.sparse_from_bytes),
        ];
        for (name, number) in numbers.into_iter().filter_map(|(name, number)| Some((name, number?))) {
            let _ = writeln!(text, "{name} = {number}");
        }
        if !text.is_empty() {
            text.push('\n');
        }
        for Choice { operation, ranks, bytes, algorithm } in &self.choices {
            // TOML has no number beyond that.
            let bytes = (*bytes).min(i64::MAX as u64);
            let (operation, algorithm) = (operation.name(), algorithm.name());
            let _ = writeln!(
                text,
                "[[choice]]\noperation = \"{operation}\"\nranks = {ranks}\nbytes = {bytes}\nalgorithm \
                 = \"{algorithm}\"\n"
            );
        }
        for SparseCost { ranks, bytes, dense_us, full_us, tenth_us } in self.sparse.points() {
            let bytes = (*bytes).min(i64::MAX as u64);
            let _ = writeln!(
                text,
                "[[sparse]]\nranks = {ranks}\nbytes = {bytes}\ndense_us = {dense_us}\nfull_us = {full_us}\ntenth_us = \
                 {tenth_us}\n"
            );
        }
        text
    }

    /// What is known of an Ethernet interface without measuring it.
    pub(crate) fn ethernet() -> Self {
        static TABLE: LazyLock<Tuning> = LazyLock::new(|| {
            let sparse = SparseCosts::new(SPARSE.to_vec()).unwrap_or_default();
            Tuning { sparse, ..Tuning::of(ETHERNET.to_vec()) }
        });
        TABLE.clone()
    }

    /// What is known of ranks of one computer, which share memory.
    pub(crate) fn computer() -> Self {
        Self::of(COMPUTER.to_vec()).before(Self::ethernet())
    }

    /// What is known of collectives between pairs of ranks over an RDMA card.
    pub(crate) fn between_pairs() -> &'static Self {
        static TABLE: LazyLock<Tuning> = LazyLock::new(|| Tuning::of(BETWEEN_PAIRS.to_vec()));
        &TABLE
    }

    /// The algorithm of an operation; none if no line fits.
    pub(crate) fn choose(&self, operation: Kind, ranks: u32, bytes: u64) -> Option<Algorithm> {
        let fits = |choice: &&Choice| choice.operation == operation && ranks <= choice.ranks && bytes <= choice.bytes;
        self.choices.iter().find(fits).map(|choice| choice.algorithm)
    }

    /// Whether the user has named multicast for an operation, whatever the ranks and lengths ([`Tuning::always`]).
    pub(crate) fn insists_on_multicast(&self, operation: Kind) -> bool {
        let is_always = |choice: &&Choice| (choice.ranks, choice.bytes) == (u32::MAX, u64::MAX);
        let first = self.choices.iter().find(|choice| choice.operation == operation).filter(is_always);
        first.is_some_and(|choice| choice.algorithm == Algorithm::Multicast)
    }

    /// The lines of this table, and behind them those of another; numbers of the other that this one does not have.
    pub(crate) fn before(mut self, other: Self) -> Self {
        self.choices.extend(other.choices);
        self.subgroups = self.subgroups.or(other.subgroups);
        self.chunk_bytes = self.chunk_bytes.or(other.chunk_bytes);
        self.sparse_from_bytes = self.sparse_from_bytes.or(other.sparse_from_bytes);
        self.sparse = self.sparse.or(other.sparse);
        self
    }
}

const fn choice(operation: Kind, ranks: u32, bytes: u64, algorithm: Algorithm) -> Choice {
    Choice { operation, ranks, bytes, algorithm }
}

/// Most ranks that each have something for every other one at once: a message costs more than its bytes.
const FEW: u32 = 64;
const ANY: u32 = u32::MAX;
const LONG: u64 = u64::MAX;

/// Of an Ethernet interface, unless a file says otherwise. Measured by `flexcast tune` among eight hosts, network
/// namespaces of a computer with 16 processors (docs/ethernet.md). An Allgather goes by multicast from a length on at
/// which other algorithms were still up to 1.3 times as fast there: it loads the network with a (P - 1)-th of the
/// bytes.
const ETHERNET: &[Choice] = &[
    choice(Kind::Broadcast, ANY, 64 << 10, Algorithm::Binomial),
    choice(Kind::Allgather, FEW, 128 << 10, Algorithm::RecursiveDoubling),
    choice(Kind::Allgather, FEW, 512 << 10, Algorithm::Linear),
    choice(Kind::Allgather, ANY, 8 << 10, Algorithm::Bruck),
    choice(Kind::Allgatherv, FEW, 128 << 10, Algorithm::Bruck),
    choice(Kind::Allgatherv, FEW, 512 << 10, Algorithm::Linear),
    choice(Kind::Allgatherv, ANY, 8 << 10, Algorithm::Bruck),
    choice(Kind::Allreduce, ANY, 128 << 10, Algorithm::RecursiveDoubling),
    choice(Kind::Allreduce, FEW, 4 << 20, Algorithm::Linear),
    choice(Kind::Allreduce, ANY, LONG, Algorithm::Ring),
    choice(Kind::Reduce, FEW, 128 << 10, Algorithm::Binomial),
    choice(Kind::Reduce, FEW, LONG, Algorithm::Linear),
    choice(Kind::Reduce, ANY, LONG, Algorithm::Binomial),
    choice(Kind::ReduceScatter, FEW, LONG, Algorithm::Linear),
    choice(Kind::ReduceScatter, ANY, LONG, Algorithm::Ring),
    choice(Kind::ReduceScatterv, FEW, LONG, Algorithm::Linear),
    choice(Kind::ReduceScatterv, ANY, LONG, Algorithm::Ring),
    choice(Kind::Alltoall, FEW, LONG, Algorithm::Linear),
    choice(Kind::Alltoall, ANY, LONG, Algorithm::Pairwise),
];

/// Of sparse AllReduces over an Ethernet interface, unless a file says otherwise. Measured with
/// `flexcast tune --ops sparse-allreduce` among 4 hosts, network namespaces of a computer with 2 processors.
const SPARSE: &[SparseCost] = &[
    sparse(16 << 10, [106, 228, 205]),
    sparse(32 << 10, [120, 289, 212]),
    sparse(64 << 10, [159, 322, 223]),
    sparse(128 << 10, [183, 348, 244]),
    sparse(256 << 10, [340, 614, 309]),
    sparse(512 << 10, [992, 1454, 572]),
    sparse(1 << 20, [2174, 2914, 853]),
    sparse(2 << 20, [4749, 5874, 996]),
    sparse(4 << 20, [7667, 6916, 1672]),
    sparse(8 << 20, [18268, 14264, 3573]),
    sparse(32 << 20, [71884, 55551, 13287]),
];

const fn sparse(bytes: u64, [dense_us, full_us, tenth_us]: [u32; 3]) -> SparseCost {
    SparseCost { ranks: ANY, bytes, dense_us, full_us, tenth_us }
}

/// Of the ranks of one computer. Measured by `flexcast tune` among two and four ranks on two processors: among four an
/// Allgather of 64 KiB is fastest by multicast (244 us, around the ring 269 us), as are Broadcasts from 1 MiB on (1,529
/// us, by a tree 1,766 us; 256 KiB 306 to 417 us, by a tree 110 to 363 us). Two need no barrier for a message to one
/// another (1 MiB 90 us by a chain, 139 us by multicast). Allgatherv was not measured and follows Allgather.
const COMPUTER: &[Choice] = &[
    choice(Kind::Broadcast, 2, 4 << 20, Algorithm::Chain),
    choice(Kind::Broadcast, ANY, 256 << 10, Algorithm::Binomial),
    choice(Kind::Allgather, 2, 1 << 20, Algorithm::RecursiveDoubling),
    choice(Kind::Allgather, FEW, 32 << 10, Algorithm::RecursiveDoubling),
    choice(Kind::Allgather, ANY, LONG, Algorithm::Multicast),
    choice(Kind::Allgatherv, 2, 1 << 20, Algorithm::Bruck),
    choice(Kind::Allgatherv, FEW, 32 << 10, Algorithm::Bruck),
    choice(Kind::Allgatherv, ANY, LONG, Algorithm::Multicast),
];

/// Of collectives between pairs of ranks over RDMA cards. Emulated, model M.2, one switch: AllReduces of 8 B to 1 MiB
/// are fastest by direct messages among 4 to 32 ranks (8 ranks: 13.0 us for 8 B, 88.5 us for 1 MiB; by recursive
/// doubling 17.5 and 146.3 us, around the ring 68.7 and 145.6 us), and by recursive doubling between 2 (8.2 us for 8 B,
/// directly 12.9 us). Beyond 64 ranks nothing was measured: there each rank sends to few at a time.
const BETWEEN_PAIRS: &[Choice] = &[
    choice(Kind::Allreduce, 2, LONG, Algorithm::RecursiveDoubling),
    choice(Kind::Allreduce, FEW, LONG, Algorithm::Linear),
    choice(Kind::Allreduce, ANY, 128 << 10, Algorithm::RecursiveDoubling),
    choice(Kind::Allreduce, ANY, LONG, Algorithm::Ring),
    choice(Kind::Reduce, FEW, LONG, Algorithm::Linear),
    choice(Kind::Reduce, ANY, LONG, Algorithm::Binomial),
    choice(Kind::ReduceScatter, FEW, LONG, Algorithm::Linear),
    choice(Kind::ReduceScatter, ANY, LONG, Algorithm::Ring),
    choice(Kind::ReduceScatterv, FEW, LONG, Algorithm::Linear),
    choice(Kind::ReduceScatterv, ANY, LONG, Algorithm::Ring),
    choice(Kind::Alltoall, FEW, LONG, Algorithm::Linear),
    choice(Kind::Alltoall, ANY, LONG, Algorithm::Pairwise),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_what_was_written_and_the_first_line_that_fits_counts() {
        let table = Tuning::new(vec![
            choice(Kind::Broadcast, 8, 100, Algorithm::Binomial),
            choice(Kind::Broadcast, 8, 1000, Algorithm::Chain),
            choice(Kind::Alltoall, 64, 5, Algorithm::Pairwise),
        ])
        .unwrap();
        assert_eq!(Tuning::parse(&table.to_toml()).unwrap(), table);
        let whole = table.clone().with_subgroups(3).unwrap().with_chunk_bytes(1000).unwrap().with_sparse_from_bytes(7);
        assert_eq!(Tuning::parse(&whole.to_toml()).unwrap(), whole);
        let before = Tuning::default().with_subgroups(2).unwrap().before(whole);
        assert_eq!(
            (before.subgroups(), before.chunk_bytes(), before.choices()),
            (Some(2), Some(1000), table.choices())
        );
        for (ranks, bytes, algorithm) in
            [(8, 100, Some(Algorithm::Binomial)), (2, 101, Some(Algorithm::Chain)), (9, 1, None), (8, 1001, None)]
        {
            assert_eq!(table.choose(Kind::Broadcast, ranks, bytes), algorithm, "{ranks} ranks, {bytes} bytes");
        }
        let always = Tuning::always(Kind::Reduce, Algorithm::Linear);
        assert_eq!(always.clone().before(table).choose(Kind::Broadcast, 1, 1), Some(Algorithm::Binomial));
        assert_eq!(
            Tuning::parse(&always.to_toml()).unwrap().choose(Kind::Reduce, 1024, 1 << 40),
            Some(Algorithm::Linear)
        );
        assert_eq!(Tuning::parse("").unwrap(), Tuning::default());
    }

    #[test]
    fn ranks_of_one_computer_multicast_sooner_and_two_of_them_later() {
        let (network, computer) = (Tuning::ethernet(), Tuning::computer());
        let of = |table: &Tuning, kind, ranks| {
            [16, 64, 512, 2048].map(|kib| table.choose(kind, ranks, kib << 10).unwrap_or(Algorithm::Multicast))
        };
        use Algorithm::{Binomial, Chain, Linear, Multicast, RecursiveDoubling};
        assert_eq!(of(&network, Kind::Allgather, 4), [RecursiveDoubling, RecursiveDoubling, Linear, Multicast]);
        assert_eq!(of(&computer, Kind::Allgather, 4), [RecursiveDoubling, Multicast, Multicast, Multicast]);
        assert_eq!(of(&computer, Kind::Allgather, 2)[..3], [RecursiveDoubling; 3]);
        assert_eq!(of(&computer, Kind::Broadcast, 2), [Chain; 4]);
        assert_eq!(of(&computer, Kind::Broadcast, 4), [Binomial, Binomial, Multicast, Multicast]);
        // The rest is as over the network.
        assert_eq!(of(&computer, Kind::Allreduce, 4), of(&network, Kind::Allreduce, 4));
    }

    #[test]
    fn few_ranks_write_to_all_others_at_once_over_rdma_cards() {
        let table = Tuning::between_pairs();
        let of = |ranks| [8, 1 << 30].map(|bytes| table.choose(Kind::Allreduce, ranks, bytes));
        assert_eq!(of(2), [Some(Algorithm::RecursiveDoubling); 2]);
        assert_eq!((of(3), of(64)), ([Some(Algorithm::Linear); 2], [Some(Algorithm::Linear); 2]));
        assert_eq!(of(65), [Some(Algorithm::RecursiveDoubling), Some(Algorithm::Ring)]);
        // The rest is direct: no rank knows all lengths.
        assert_eq!(table.choose(Kind::Alltoallv, 1000, 0), None);
    }

    #[test]
    fn tables_that_cannot_be_are_refused() {
        let text = |text: &str| Tuning::parse(text).unwrap_err().to_string();
        let line = |operation: &str, algorithm: &str| {
            format!("[[choice]]\noperation = \"{operation}\"\nranks = 8\nbytes = 5\nalgorithm = \"{algorithm}\"\n")
        };
        assert!(text(&line("bcast", "chain")).contains("operation \"bcast\" is not known: give one of broadcast, "));
        assert!(text(&line("broadcast", "tree")).contains("algorithm \"tree\" is not known"));
        assert!(text(&(line("broadcast", "chain") + "more = 1\n")).contains("unknown field `more`"));
        assert!(text(&line("broadcast", "chain").replace('5', "-5")).contains("invalid value"));
        assert!(text("[[choice").contains("tuning: "));
        assert!(text(&line("reduce", "linear").repeat(1025)).contains("1025 choices: at most 1024"));
        assert!(text("subgroups = 17").contains("17 subgroups: 1 to 16"));
        assert!(text("subgroups = 0").contains("0 subgroups: 1 to 16"));
        assert!(text("chunk_bytes = 63").contains("chunk_bytes is 63: at least 64"));
        let missing = Tuning::read(Path::new("/no/such/file")).unwrap_err().to_string();
        assert!(missing.contains("/no/such/file"), "{missing}");
    }
}
