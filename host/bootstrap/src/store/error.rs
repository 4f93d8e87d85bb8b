//! Errors of ranks that meet.

use std::time::Duration;

use flexcast_proto::RankError;
use thiserror::Error;

use super::secret::{SECRET_FILE, SecretError};
use crate::DescriptorsUsedUp;

/// How the secrets of two ranks differ, seen by the one that has found it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SecretDifference {
    /// Both have one, and not the same.
    Other,
    /// The other rank has none.
    TheirsMissing,
    /// This rank has none.
    OwnMissing,
}

/// Why ranks did not come together over a [`TcpStore`](super::TcpStore).
#[derive(Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No such rank, or no such number of ranks.
    #[error(transparent)]
    Rank(RankError),
    /// The same, where variables say it.
    #[error("{0} (see FLEXCAST_RANK and FLEXCAST_SIZE, or what the launcher sets)")]
    RankVariables(RankError),
    /// A variable that has to be set.
    #[error("{name} is not set: it has to be {wanted}")]
    Unset {
        /// The variable.
        name: &'static str,
        /// What it has to be.
        wanted: &'static str,
    },
    /// A variable with a value that cannot be.
    #[error("{name} is {value:?}: it has to be {wanted}")]
    Variable {
        /// The variable.
        name: &'static str,
        /// What it is.
        value: String,
        /// What it has to be.
        wanted: &'static str,
    },
    /// No address.
    #[error(
        "address {address:?} of the store: it has to be host:port, with a port from 1 to 65535 and an IPv6 address in \
         brackets"
    )]
    Address {
        /// What was given.
        address: String,
    },
    /// A link-local address that does not say of which link.
    #[error(
        "address {address:?} of the store is link-local and needs its zone, the interface behind which it is, such as \
         [{host}%eth0]:{port}"
    )]
    Zone {
        /// What was given.
        address: String,
        /// Its IPv6 address.
        host: String,
        /// Its port.
        port: u16,
    },
    /// A secret that cannot be used.
    #[error(transparent)]
    Secret(SecretError),
    /// Two ranks that do not have one secret.
    #[error("{}: give all ranks the same {SECRET_FILE}", differing(*.rank, .at, *.own, *.difference))]
    SecretDiffers {
        /// The other rank, as far as it can be known: it has proved nothing.
        rank: u32,
        /// Where it is.
        at: String,
        /// This rank.
        own: u32,
        /// What is different.
        difference: SecretDifference,
    },
    /// A rank that has no file descriptor left for its connections.
    #[error("rank {rank} cannot connect to the others: {found}")]
    Descriptors {
        /// The rank.
        rank: u32,
        /// Whose limit was met.
        found: DescriptorsUsedUp,
    },
    /// Only rank 0 listens.
    #[error("rank {rank} has a listening socket, but only rank 0 listens")]
    NotFirst {
        /// The own rank.
        rank: u32,
    },
    /// More bytes than allowed.
    #[error("{what} of {found} bytes: the limit is {limit}")]
    TooLong {
        /// What is too long.
        what: &'static str,
        /// Its bytes.
        found: usize,
        /// Its limit in bytes.
        limit: usize,
    },
    /// Rank 0 cannot listen.
    #[error("rank 0 cannot listen at {address}: {reason}; it has to run on the computer that the address names")]
    Listen {
        /// Where.
        address: String,
        /// What the system says.
        reason: String,
    },
    /// Another program listens where rank 0 should.
    #[error(
        "rank 0 cannot listen at {address}: another program listens there; is rank 0 started twice? If not, choose \
         another port"
    )]
    InUse {
        /// Where.
        address: String,
    },
    /// Nobody listens.
    #[error(
        "rank 0 was not found at {address} within {}: {reason}; see whether it runs, and whether all ranks have its \
         address{}",
        seconds(*.waited),
        if *.is_loopback { ". This address is that of every computer itself: if rank 0 runs on another one, name that" } else { "" }
    )]
    Unreachable {
        /// Where.
        address: String,
        /// For how long.
        waited: Duration,
        /// What the last attempt ended in.
        reason: String,
        /// Whether the address is one that no other computer reaches.
        is_loopback: bool,
    },
    /// Somebody listens, and ends every connection without a word.
    #[error(
        "what listens at {address} has ended {times} connections within {} without an answer ({reason}); see whether \
         it is rank 0, or another program has the port",
        seconds(*.waited)
    )]
    Dropped {
        /// Where.
        address: String,
        /// How many connections.
        times: u32,
        /// For how long.
        waited: Duration,
        /// How the last one ended.
        reason: String,
    },
    /// Rank 0 has failed, and does not say why to a rank that has not proved that it has the secret.
    #[error("rank 0 at {address} has failed before this rank had joined; see what it says")]
    FirstFailed {
        /// Where.
        address: String,
    },
    /// Somebody else listens.
    #[error(
        "what listens at {address} is no store of this library: it answered {answer:02x?}; choose another port, or \
         correct the address"
    )]
    NotAStore {
        /// Where.
        address: String,
        /// The beginning of its answer.
        answer: Vec<u8>,
    },
    /// Rank 0 is there and does not answer.
    #[error("rank 0 at {address} did not answer within {} while {during}; see what it is doing, and whether this is \
        its port", seconds(*.waited))]
    Unanswered {
        /// Where.
        address: String,
        /// For how long.
        waited: Duration,
        /// What this rank was at.
        during: String,
    },
    /// The connection to rank 0 has ended.
    #[error("rank 0 at {address} closed the connection while {during}: {reason}; see why it ended")]
    FirstLost {
        /// Where.
        address: String,
        /// What this rank was at.
        during: String,
        /// What the system says.
        reason: String,
    },
    /// Ranks that did not come.
    #[error(
        "{} of {size} did not come within {}{}; see whether {}, and whether {} the address of rank 0{}",
        ranks(.missing),
        seconds(*.waited),
        others(.turned_away),
        if .missing.len() == 1 { "it runs" } else { "they run" },
        if .missing.len() == 1 { "it has" } else { "they have" },
        only_here(.loopback.as_deref())
    )]
    Missing {
        /// Who.
        missing: Vec<u32>,
        /// Number of ranks.
        size: u32,
        /// For how long rank 0 waited.
        waited: Duration,
        /// Who else came, and why it was turned away; the first few.
        turned_away: Vec<String>,
        /// Where rank 0 listens, if no other computer reaches it there.
        loopback: Option<String>,
    },
    /// A rank that came twice.
    #[error("rank {rank} came twice, from {first} and from {second}: give each process a rank of its own")]
    Duplicate {
        /// The rank; 0 if a second process thinks it is that one.
        rank: u32,
        /// Who came first.
        first: String,
        /// Who came then.
        second: String,
    },
    /// A rank of another job.
    #[error(
        "a rank of job {theirs:?} came to the store of job {own:?}: give all ranks of a job the same job id, and each \
         job a port of its own"
    )]
    OtherJob {
        /// Its job id.
        theirs: String,
        /// That of rank 0.
        own: String,
    },
    /// A rank that counts otherwise.
    #[error("rank {rank} at {from} is one of {theirs} ranks, rank 0 one of {own}: give all the same size")]
    OtherSize {
        /// The rank.
        rank: u32,
        /// Where it is.
        from: String,
        /// Its number of ranks.
        theirs: u32,
        /// That of rank 0.
        own: u32,
    },
    /// A rank that there is not.
    #[error("rank {rank} at {from} is one of {size} ranks: they run from 0 to {}", size - 1)]
    OutOfRange {
        /// The rank.
        rank: u32,
        /// Where it is.
        from: String,
        /// Number of ranks.
        size: u32,
    },
    /// A rank that has found that it cannot go on.
    #[error("rank {rank} cannot go on: {reason}")]
    Refused {
        /// The rank.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// Another protocol.
    #[error(
        "rank {rank} at {from} speaks version {theirs} of the store, rank 0 version {own}: run the same release on all \
         ranks"
    )]
    OtherVersion {
        /// The rank.
        rank: u32,
        /// Where it is.
        from: String,
        /// Its version.
        theirs: u32,
        /// That of rank 0.
        own: u32,
    },
    /// Other layouts.
    #[error(
        "rank {rank} at {from} was built with other layouts ({theirs:#018x}) than rank 0 ({own:#018x}): run the same \
         release on all ranks"
    )]
    OtherBuild {
        /// The rank.
        rank: u32,
        /// Where it is.
        from: String,
        /// Digest of its layouts.
        theirs: u64,
        /// That of rank 0.
        own: u64,
    },
    /// Ranks that did not take part in an exchange.
    #[error("{} did not contribute to exchange {tag:?} within {}; see what they are doing", ranks(.missing), seconds(*.waited))]
    NotContributed {
        /// Who.
        missing: Vec<u32>,
        /// The exchange.
        tag: String,
        /// For how long rank 0 waited.
        waited: Duration,
    },
    /// Ranks that do different things.
    #[error("rank {rank} is at exchange {theirs:?}, rank 0 at {own:?}: all ranks must do the same in the same order")]
    OtherTag {
        /// The rank.
        rank: u32,
        /// Its exchange.
        theirs: String,
        /// That of rank 0.
        own: String,
    },
    /// A rank that has gone.
    #[error("rank {rank} at {from} closed its connection while {during}: {reason}; see why it ended")]
    Died {
        /// The rank.
        rank: u32,
        /// Where it was.
        from: String,
        /// What rank 0 was at.
        during: String,
        /// What the system says.
        reason: String,
    },
    /// A rank that sends what it cannot.
    #[error("rank {rank} at {from} sent nonsense while {during}: {what}")]
    Nonsense {
        /// The rank.
        rank: u32,
        /// Where it is.
        from: String,
        /// What this rank was at.
        during: String,
        /// What is wrong.
        what: String,
    },
    /// A rank that takes no answer.
    #[error("rank {rank} at {from} did not read its answer to exchange {tag:?} within {}; see what it is doing", seconds(*.waited))]
    NotRead {
        /// The rank.
        rank: u32,
        /// Where it is.
        from: String,
        /// The exchange.
        tag: String,
        /// For how long rank 0 waited.
        waited: Duration,
    },
    /// What rank 0 has found and reports to all others.
    #[error("rank 0 says: {what}")]
    Reported {
        /// Its error.
        what: String,
    },
    /// The store has failed before.
    #[error("the store has failed before and is closed: {earlier}")]
    Broken {
        /// How.
        earlier: Box<StoreError>,
    },
    /// Sockets of this host.
    #[error("sockets of this host: {reason}")]
    Socket {
        /// What the system says.
        reason: String,
    },
}

flexcast_error::debug_as_display!(StoreError);

impl StoreError {
    /// The same of a configuration that variables have given.
    pub(super) fn of_variables(self) -> Self {
        match self {
            Self::Rank(error) => Self::RankVariables(error),
            other => other,
        }
    }
}

fn seconds(waited: Duration) -> String {
    if waited < Duration::from_millis(100) {
        return format!("{waited:?}");
    }
    format!("{:.1} s", waited.as_secs_f64())
}

/// "rank 3", "ranks 3, 5 and 9", "ranks 1, 2, 3 and 97 more".
fn ranks(all: &[u32]) -> String {
    const SHOWN: usize = 8;
    let list = |ranks: &[u32]| ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    match all {
        [] => "no rank".to_owned(),
        [one] => format!("rank {one}"),
        [some @ .., last] if all.len() <= SHOWN => format!("ranks {} and {last}", list(some)),
        _ => format!("ranks {} and {} more", list(&all[..SHOWN]), all.len() - SHOWN),
    }
}

fn differing(rank: u32, at: &str, own: u32, difference: SecretDifference) -> String {
    match difference {
        SecretDifference::Other => format!("rank {rank} at {at} has another secret than rank {own}"),
        SecretDifference::TheirsMissing => format!("rank {rank} at {at} has no secret, and rank {own} has one"),
        SecretDifference::OwnMissing => format!("rank {rank} at {at} has a secret, and rank {own} has none"),
    }
}

fn only_here(loopback: Option<&str>) -> String {
    let text = |address| {
        format!(
            ". Rank 0 listens at {address}, where only processes of its own computer reach it: name its address in the \
             network if ranks are elsewhere"
        )
    };
    loopback.map_or_else(String::new, text)
}

fn others(turned_away: &[String]) -> String {
    if turned_away.is_empty() { String::new() } else { format!(" (turned away: {})", turned_away.join("; ")) }
}
