//! Errors, with the value, the limit and the next step.

use std::borrow::Cow;
use std::net::SocketAddr;

use flexcast_proto::sparse::FixedPointError;
use flexcast_proto::{Cause, Failure, RankError, SpaceError};

use crate::bootstrap::ExchangeError;

/// Result of this crate's functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The value of a parameter as variables have it: words where it takes words.
pub(crate) fn shown(what: &str, value: u64) -> String {
    let words: &[&str] = match what {
        "control" | "control of the datapath with service processes" => &["host", "device", "service"],
        // The third is of simulations alone.
        "transport" => &["ud", "uc-unicast", "uc"],
        "algorithm" => &["automatic", "multicast", "ring", "linear", "recursive-doubling", "bruck"],
        "sparse.aggregation" => &["host", "dpa"],
        "placement" => &["compact", "spread"],
        "datapath" => &["dpa", "verbs", "udp", "loopback"],
        _ => &[],
    };
    let word = usize::try_from(value).ok().and_then(|at| words.get(at));
    word.map_or_else(|| value.to_string(), |word| (*word).to_owned())
}

/// Parameters that no variable sets, or no single one.
const UNSET: [&str; 3] = ["chain_mapping", "eager_bytes", "pacing_gbit_per_s"];

/// The variable that sets a parameter, in brackets behind its limit: whoever has set that searches for its name.
fn set_by(what: &str) -> String {
    match what {
        "socket_buffer_bytes" => " (FLEXCAST_SOCKET_BUFFER)".to_owned(),
        "aggregators" | "number of aggregators" => " (FLEXCAST_SPARSE_AGGREGATORS)".to_owned(),
        "service processes" => " (FLEXCAST_SERVICE_PROCESSES)".to_owned(),
        "service keys to bind" => " (FLEXCAST_SERVICE_KEYS)".to_owned(),
        "service.endpoints" | "service endpoints" => " (FLEXCAST_SERVICE)".to_owned(),
        _ if UNSET.contains(&what) || what.contains(' ') => String::new(),
        _ => format!(" (FLEXCAST_{})", what.to_ascii_uppercase().replace('.', "_")),
    }
}

/// How a communicator takes more chunks than `limit`, which its bitmaps or the bits of its sequence numbers set.
fn more_chunks(psn_bits: u32, limit: u64) -> &'static str {
    if limit < 1 << psn_bits {
        "raise max_receive_bytes (FLEXCAST_MAX_RECEIVE_BYTES), or send less"
    } else {
        "raise max_receive_bytes (FLEXCAST_MAX_RECEIVE_BYTES) and, if it is set, psn_bits (FLEXCAST_PSN_BITS), or send \
         less"
    }
}

/// Any failure of this crate.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The card or its library refused something.
    #[error(transparent)]
    Flexio(#[from] flexio::Error),
    /// Ranks did not come together.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A parameter outside its range.
    #[error("{what} is {}: must be {limit}{}", shown(what, *value), set_by(what))]
    Config {
        /// The parameter.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What it may be.
        limit: String,
    },
    /// The card has not enough of something.
    #[error("{needed} {what} needed, but only {limit} are there: {next}")]
    Budget {
        /// What is short.
        what: &'static str,
        /// How many are needed.
        needed: u64,
        /// How many there are.
        limit: u64,
        /// What helps.
        next: &'static str,
    },
    /// The card gives this process no execution unit for a thread.
    #[error(
        "no execution unit takes a thread of this process (tried: {tried}; the last refusal: {refusal}): they are \
         taken, or of other partitions; end another DPA process of the card, or have a partition made for this function \
         (dpaeumgmt partition create)"
    )]
    Units {
        /// Those that were asked for.
        tried: String,
        /// How the last was refused.
        refusal: flexio::Error,
    },
    /// The card lacks something.
    #[error("the card has no {what} ({refusal}): {next}")]
    Unsupported {
        /// What it lacks.
        what: &'static str,
        /// What to take instead.
        next: &'static str,
        /// How it refused.
        refusal: flexio::Error,
    },
    /// There is no network interface as it is wanted.
    #[error("interface {name}: {reason}")]
    Interface {
        /// Its name or address, as it was given.
        name: String,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// The system refuses a socket, or something of it.
    #[error("{what}: {source}; {next}")]
    Socket {
        /// What was refused.
        what: String,
        /// Why.
        #[source]
        source: std::io::Error,
        /// What helps.
        next: &'static str,
    },
    /// An environment variable has a value that it cannot have.
    #[error("{name} is {value:?}: must be {limit}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it may be.
        limit: Cow<'static, str>,
    },
    /// The firmware answers as if built with another ABI.
    #[error("image `{image}` answers {answer:#x} to bring-up, not {expected:#x}: build it with this library's version")]
    BringUp {
        /// Name of the image.
        image: String,
        /// What it answered.
        answer: u64,
        /// What this library's firmware answers.
        expected: u64,
    },
    /// The firmware refused a context.
    #[error("the firmware refused the context of {what} {number}: fault {code} ({name})")]
    Context {
        /// Kind of context.
        what: &'static str,
        /// Which one.
        number: u32,
        /// Its code.
        code: u64,
        /// Its name.
        name: String,
    },
    /// No such rank, or too many of them.
    #[error(transparent)]
    Rank(#[from] RankError),
    /// What another rank sent about itself does not fit.
    #[error("rank {rank} {reason}")]
    Peer {
        /// The rank.
        rank: u32,
        /// What is wrong with it, and what to do.
        reason: String,
    },
    /// A buffer has not the length that the operation needs.
    #[error("{operation}: the {which} buffer has {len} bytes, but {needed} are needed ({why})")]
    BufferLength {
        /// The operation.
        operation: &'static str,
        /// Which of its buffers.
        which: &'static str,
        /// Its length.
        len: u64,
        /// The length needed.
        needed: u64,
        /// Where that comes from.
        why: String,
    },
    /// The operation needs more sequence numbers than the immediate has bits for.
    #[error("{chunks} chunks in one subgroup, but there is room for {limit}: {}", more_chunks(*psn_bits, *limit))]
    TooManyChunks {
        /// Chunks of the largest subgroup.
        chunks: u64,
        /// Bits of the sequence number.
        psn_bits: u32,
        /// Chunks that the bitmaps hold.
        limit: u64,
    },
    /// A root, or a list of counts, that does not fit the communicator.
    #[error("{operation}: {reason}")]
    Argument {
        /// The operation.
        operation: &'static str,
        /// What is wrong.
        reason: String,
    },
    /// A service process may still use the buffer, and write to it.
    #[error(
        "the buffer is leased to the service process at {process}, which may write to it: call \
         `Communicator::take_back` before its bytes are borrowed, or copy them by `Buffer::read` and `Buffer::write`"
    )]
    Leased {
        /// Its address.
        process: SocketAddr,
    },
    /// The receive space cannot be laid out.
    #[error(transparent)]
    Space(#[from] SpaceError),
    /// The operation has failed on all ranks. A rank that posts it later gets [`Error::Broken`] with the same failure.
    #[error("{operation} failed: {}", why(.failure, .calls.as_deref()))]
    Failed {
        /// The operation.
        operation: &'static str,
        /// Who and why.
        failure: Failure,
        /// What two ranks have called, in words, if it has failed because that differs
        /// ([`Cause::Disagrees`](flexcast_proto::Cause::Disagrees)).
        calls: Option<String>,
    },
    /// The operation has failed because of what is wrong with a connection between this rank and another one: bytes
    /// that the other has not sent, somebody else who proves that it is that rank, or a handshake that does not
    /// succeed.
    #[error("{operation} failed: the connection with rank {rank}, {address}, {reason}")]
    Connection {
        /// The operation.
        operation: &'static str,
        /// The rank at the other end.
        rank: u32,
        /// Its address and port, or that it is reached through shared memory.
        address: String,
        /// What is wrong, and what helps.
        reason: String,
        /// The failure that all ranks name.
        failure: Failure,
    },
    /// The operation has failed on all ranks because of an aggregator that is no rank.
    #[error("{operation} failed: aggregator {address} {reason}")]
    Aggregator {
        /// The operation.
        operation: &'static str,
        /// The aggregator, as it was given to this rank.
        address: String,
        /// What it has done, or not done, and what helps.
        reason: String,
        /// The failure that all ranks name.
        failure: Failure,
    },
    /// The operation has failed on all ranks because of a number in this rank's contribution.
    #[error("{operation} failed: rank {rank}, {source}")]
    Contribution {
        /// The operation.
        operation: &'static str,
        /// This rank.
        rank: u32,
        /// Which number, and what helps.
        source: FixedPointError,
        /// The failure that all ranks name.
        failure: Failure,
    },
    /// The communicator cannot be used any more.
    #[error(
        "the communicator is of no use since an operation failed ({}{}{}): free it, and {}",
        named(.aggregator.as_deref()),
        why(.failure, .calls.as_deref()),
        explained(.connection.as_deref()),
        remedy(.failure, .aggregator.is_some())
    )]
    Broken {
        /// The failure.
        failure: Failure,
        /// The aggregator that is the failed rank, as it was given to this rank.
        aggregator: Option<String>,
        /// What two ranks have called, in words, if it has failed because that differs.
        calls: Option<String>,
        /// What is wrong with the connection to the rank that is the failed rank, with its address, if this rank has
        /// found that.
        connection: Option<String>,
    },
    /// The progress thread cannot be started.
    #[error(
        "the progress thread cannot be started{}: {source}; choose a processor that the process may use, or leave the \
         thread out",
        on_cpu(*.cpu)
    )]
    ProgressThread {
        /// The processor that it was to stay on.
        cpu: Option<u32>,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Memory cannot be watched.
    #[error(
        "memory cannot be watched by userfaultfd: {source}; leave the watch out, and forget registrations before \
         memory is freed"
    )]
    Watch {
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A request whose outcome has been given before.
    #[error("request {request} is over, and its outcome has been given: do not poll it again")]
    RequestOver {
        /// Its number.
        request: u64,
    },
}

/// Who has failed and why, with both calls if these differ and are known.
fn why(failure: &Failure, calls: Option<&str>) -> String {
    calls.map_or_else(|| failure.to_string(), |calls| format!("{calls}: compare their calls"))
}

/// What helps after a failure.
fn remedy(failure: &Failure, of_aggregator: bool) -> String {
    match failure.cause {
        Cause::Disagrees => "create another with calls that agree".to_owned(),
        Cause::Cancelled => "create another".to_owned(),
        _ if of_aggregator => "create another without that aggregator".to_owned(),
        _ => format!("create another without rank {}", failure.failed_rank),
    }
}

fn named(aggregator: Option<&str>) -> String {
    aggregator.map_or_else(String::new, |aggregator| format!("aggregator {aggregator}: "))
}

fn explained(connection: Option<&str>) -> String {
    connection.map_or_else(String::new, |connection| format!("; {connection}"))
}

fn on_cpu(cpu: Option<u32>) -> String {
    cpu.map_or_else(String::new, |cpu| format!(" on processor {cpu}"))
}

impl From<flexcast_mesh::Error> for Error {
    /// A connection that cannot be made fails as everything else of its kind.
    fn from(error: flexcast_mesh::Error) -> Self {
        use flexcast_mesh::Error as Mesh;
        match error {
            Mesh::Socket { what, source, next } => Self::Socket { what, source, next },
            Mesh::Peer { rank, reason } => Self::Peer { rank, reason },
            Mesh::TooManyAggregators { given } => {
                let limit = format!("at most {}", flexcast_mesh::aggregator::MOST_AGGREGATORS);
                Self::Config { what: "number of aggregators", value: given, limit }
            }
            Mesh::AggregatorAddress { name, reason } => {
                let reason = format!("{name:?} {reason}: give host:port of a flexcast-aggregator");
                Self::Argument { operation: "aggregators", reason }
            }
        }
    }
}

impl From<flexcast_sparse::messages::Refusal> for Error {
    fn from(refusal: flexcast_sparse::messages::Refusal) -> Self {
        use flexcast_sparse::messages::Refusal;
        match refusal {
            Refusal::Memory(error) => Self::Flexio(error),
            refusal => Self::Argument { operation: "sparse_allreduce", reason: refusal.to_string() },
        }
    }
}

impl From<flexcast_reduce::Undefined> for Error {
    fn from(undefined: flexcast_reduce::Undefined) -> Self {
        Self::Argument { operation: "reduction", reason: undefined.to_string() }
    }
}

flexcast_error::debug_as_display!(Error);
