//! Greeting of workers and reports of aggregators: all that they say to one another except the messages of operations.
//!
//! A worker connects by TCP and says first who it is, little-endian:
//!
//! | Offset | Bytes | Field |
//! |---:|---:|---|
//! | 0 | 4 | `FXAG` |
//! | 4 | 4 | version: 4 |
//! | 8 | 8 | job: number of the communicator, which its rank 0 has drawn |
//! | 16 | 8 | proof: alike for all workers of a job, and known to them alone |
//! | 24 | 4 | rank |
//! | 28 | 4 | workers |
//! | 32 | 4 | number of this aggregator among those of the job |
//! | 36 | 4 | aggregators of the job |
//! | 40 | 1 | order in which blocks are added: 0 as they come, 1 by rank |
//! | 41 | 1 | 1: the worker's words begin with their highest byte |
//! | 42 | 1 | what carries blocks: 0 this connection, 1 queue pairs of RDMA cards |
//! | 43 | 3 | traffic class of queue pairs, exponent of their timeout, and how often they send again; 0 without |
//! | 46 | 1 | 1: the worker has a secret that it shares with the aggregator |
//! | 47 | 1 | zero |
//!
//! The hello of a handshake ([`flexcast_proto::session`]) stands behind it. Its scope is a keyed hash of these bytes,
//! so that a greeting counts only if a worker with the same secret has sent it, and on this connection. The aggregator
//! answers with `FXAG`, its version and the challenge; or it says why not, by a frame with a [`Report`] in clear, which
//! is alike in all versions. Without a secret on both sides the handshake has a key that everybody knows: it proves
//! nothing then.
//!
//! Frames follow, as between two ranks: messages of operations both ways, each with its length, operator, element,
//! block and blocks per message; and from the aggregator the reports here ([`Report`]). With a secret they have tags.
//!
//! Where RDMA cards carry blocks, a worker's messages of operations are empty and say what it calls. Before its first
//! one, and whenever it has other queue pairs, it sends their connection information as a control message. When that of
//! all workers is there, the aggregator answers each with its own.

use flexcast_bootstrap::Secret;
use flexcast_bootstrap::store::SECRET_FILE;
use flexcast_proto::session::{HandshakeError, Secret as SessionSecret};
use flexcast_proto::sparse::Order;
use flexcast_proto::{Algorithm, Kind, MAX_RANKS, Summary};
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 4] = *b"FXAG";
const VERSION: u32 = 4;
/// Most aggregators of a job.
pub const MOST_AGGREGATORS: u32 = 64;
/// Longest reason of a refusal.
const MOST_REASON_BYTES: usize = 1024;
/// Most bytes of a refusal.
pub(crate) const MOST_REFUSAL_BYTES: usize = size_of::<Start>() + MOST_REASON_BYTES;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Hello {
    magic: [u8; 4],
    version: U32,
    job: U64,
    proof: U64,
    rank: U32,
    workers: U32,
    aggregator: U32,
    aggregators: U32,
    by_rank: u8,
    big_endian: u8,
    on_cards: u8,
    class: u8,
    timeout_exponent: u8,
    count: u8,
    has_secret: u8,
    zero: u8,
}

/// Bytes of a greeting.
pub const GREETING_BYTES: usize = size_of::<Hello>();

/// Bytes of what an aggregator says before its challenge.
pub const ANSWER_BYTES: usize = size_of::<Answer>();

/// What an aggregator says before its challenge.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Answer {
    magic: [u8; 4],
    version: U32,
}

/// What an aggregator of this version says before its challenge.
pub fn answer() -> [u8; ANSWER_BYTES] {
    zerocopy::transmute!(Answer { magic: MAGIC, version: VERSION.into() })
}

/// What the handshakes of workers and aggregators are under.
#[derive(Clone, Debug)]
pub struct Key {
    secret: SessionSecret,
    is_shared: bool,
}

impl Key {
    /// That of a secret which workers and aggregators share; without one, a key that everybody knows.
    pub fn of(secret: Option<&Secret>) -> Self {
        let bytes = secret.map_or([0; 32], |secret| secret.derived("flexcast aggregators 4"));
        Self { secret: SessionSecret::new(bytes), is_shared: secret.is_some() }
    }

    /// The secret of a handshake.
    pub const fn secret(&self) -> &SessionSecret {
        &self.secret
    }

    /// Whether only those who have the secret know it: then frames have tags.
    pub const fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// The scope of a handshake that begins with this greeting.
    pub fn scope(&self, greeting: &[u8; GREETING_BYTES]) -> u64 {
        let mut hash = hmac_sha256::HMAC::new(self.secret.bytes());
        hash.update(b"flexcast greeting of a worker");
        hash.update(greeting);
        let [a, b, c, d, e, f, g, h, ..] = hash.finalize();
        u64::from_le_bytes([a, b, c, d, e, f, g, h])
    }

    /// Why an aggregator does not take a worker whose greeting says whether it has a secret; none if both agree.
    pub(crate) fn objection(&self, greeting: &Greeting) -> Option<String> {
        match (self.is_shared, greeting.has_secret) {
            (true, false) => Some(format!(
                "it has a secret and the rank has none: give both the same file ({SECRET_FILE}, or \
                 Config::aggregator_secret)"
            )),
            (false, true) => Some(format!(
                "the rank has a secret and it has none: start flexcast-aggregator with the same file ({SECRET_FILE})"
            )),
            _ => None,
        }
    }

    /// Why an aggregator does not take a worker whose hello is wrong.
    pub(crate) fn refusal(&self, error: HandshakeError) -> String {
        match error {
            HandshakeError::Scope { .. } if self.is_shared => format!(
                "its secret is another one than the rank's, or the greeting was changed on the way: give both the same \
                 file ({SECRET_FILE})"
            ),
            HandshakeError::Scope { .. } => "the greeting was changed on the way".to_owned(),
            error => error.to_string(),
        }
    }

    /// What a worker says of an aggregator with which the handshake fails.
    pub(crate) fn distrust(error: HandshakeError) -> String {
        format!(
            "does not prove who it is ({error}): see whether somebody else answers at this address, and give the \
             daemon \
             and all ranks the same file ({SECRET_FILE})"
        )
    }
}

/// What carries blocks between workers and aggregators.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// The connection on which a worker has said who it is.
    Connection,
    /// Queue pairs of RDMA cards.
    Cards {
        /// Traffic class: bits 7 to 5 are the priority.
        class: u8,
        /// Exponent of the time after which a card sends again, 1 to 31: 4.096 µs times 2 to this power.
        timeout_exponent: u8,
        /// How often it sends again before the connection breaks, 0 to 7.
        retries: u8,
    },
}

impl Carrier {
    /// Its name in a status.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Connection => "tcp",
            Self::Cards { .. } => "rdma",
        }
    }
}

/// What all workers of a job say alike to an aggregator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Number of the communicator, which its rank 0 has drawn at random.
    pub job: u64,
    /// A number that only the workers of the job know: who has another one is not of this job.
    pub proof: u64,
    /// How many workers there are, 1 to `MAX_RANKS`.
    pub workers: u32,
    /// Number of this aggregator among those of the job.
    pub aggregator: u32,
    /// How many aggregators the job has, up to [`MOST_AGGREGATORS`].
    pub aggregators: u32,
    /// In which order blocks of different workers are added.
    pub order: Order,
    /// What carries the blocks.
    pub carrier: Carrier,
}

/// Who connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Its rank in the job.
    pub rank: u32,
    /// Whether it has a secret that it shares with the aggregator.
    pub has_secret: bool,
    /// What its job is like.
    pub terms: Terms,
}

/// A greeting that is none, or cannot be taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unheard {
    /// Whoever it is does not speak this protocol.
    Stranger,
    /// It is a worker, which is to be sent the reason.
    Refused(String),
}

impl Greeting {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; GREETING_BYTES] {
        let Terms { job, proof, workers, aggregator, aggregators, order, carrier } = self.terms;
        let (on_cards, class, timeout_exponent, count) = match carrier {
            Carrier::Connection => (0, 0, 0, 0),
            Carrier::Cards { class, timeout_exponent, retries } => (1, class, timeout_exponent, retries),
        };
        let hello = Hello {
            magic: MAGIC,
            version: VERSION.into(),
            job: job.into(),
            proof: proof.into(),
            rank: self.rank.into(),
            workers: workers.into(),
            aggregator: aggregator.into(),
            aggregators: aggregators.into(),
            by_rank: u8::from(order == Order::Rank),
            big_endian: u8::from(cfg!(target_endian = "big")),
            on_cards,
            class,
            timeout_exponent,
            count,
            has_secret: u8::from(self.has_secret),
            zero: 0,
        };
        zerocopy::transmute!(hello)
    }

    /// Whether bytes that have come may be the beginning of a greeting.
    pub(crate) fn may_begin(bytes: &[u8]) -> bool {
        let len = bytes.len().min(MAGIC.len());
        bytes[..len] == MAGIC[..len]
    }

    /// The greeting that bytes are.
    ///
    /// # Errors
    /// They are none, or the worker cannot be taken.
    pub fn decode(bytes: &[u8; GREETING_BYTES]) -> Result<Self, Unheard> {
        let hello: Hello = zerocopy::transmute!(*bytes);
        if hello.magic != MAGIC {
            return Err(Unheard::Stranger);
        }
        let refused = |reason: String| Err(Unheard::Refused(reason));
        if hello.version.get() != VERSION {
            return refused(format!(
                "it speaks version {VERSION} of the protocol, the worker version {}: install one release on all \
                 computers",
                hello.version
            ));
        }
        let (rank, workers) = (hello.rank.get(), hello.workers.get());
        let (aggregator, aggregators) = (hello.aggregator.get(), hello.aggregators.get());
        let is_sound = (1..=MAX_RANKS).contains(&workers)
            && rank < workers
            && (1..=MOST_AGGREGATORS).contains(&aggregators)
            && aggregator < aggregators
            && hello.by_rank <= 1
            && hello.big_endian <= 1
            && hello.on_cards <= 1
            && hello.has_secret <= 1
            && hello.zero == 0;
        if !is_sound {
            return refused(format!(
                "rank {rank} of {workers} workers at aggregator {aggregator} of {aggregators} cannot be: there are at \
                 most {MAX_RANKS} workers and {MOST_AGGREGATORS} aggregators"
            ));
        }
        if (hello.big_endian == 1) != cfg!(target_endian = "big") {
            return refused("the worker's words have another order of bytes: use computers of one kind".to_owned());
        }
        let order = if hello.by_rank == 1 { Order::Rank } else { Order::Arrival };
        let (job, proof) = (hello.job.get(), hello.proof.get());
        let Hello { class, timeout_exponent, count, .. } = hello;
        let carrier = match hello.on_cards {
            0 if (class, timeout_exponent, count) == (0, 0, 0) => Carrier::Connection,
            1 if (1..=31).contains(&timeout_exponent) && count <= 7 => {
                Carrier::Cards { class, timeout_exponent, retries: count }
            }
            _ => {
                return refused(format!(
                    "queue pairs with the timeout 2^{timeout_exponent}, sent again {count} times, cannot be: 1 to 31, \
                     and up to 7"
                ));
            }
        };
        let has_secret = hello.has_secret == 1;
        Ok(Self { rank, has_secret, terms: Terms { job, proof, workers, aggregator, aggregators, order, carrier } })
    }
}

/// What an aggregator says of an operation, or of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// It is alive, and waits for a message of a rank.
    Waiting {
        /// The rank.
        rank: u32,
    },
    /// A rank is gone: the operation has failed.
    Lost {
        /// The rank.
        rank: u32,
    },
    /// A rank has been silent for too long: the operation has failed.
    Silent {
        /// The rank.
        rank: u32,
    },
    /// A rank has called something else: the operation has failed.
    Differs {
        /// The rank.
        rank: u32,
        /// What it has called.
        theirs: Summary,
    },
    /// It does not serve this worker any more.
    Refused {
        /// Why, for the user; control characters are removed.
        reason: String,
    },
    /// Its queue pairs, which are connected to those of all workers.
    ConnectInfo {
        /// The connection information, as aggregators over RDMA cards encode it.
        bytes: Vec<u8>,
    },
}

const WAITING: u8 = 1;
const LOST: u8 = 2;
const DIFFERS: u8 = 3;
const REFUSED: u8 = 4;
const SILENT: u8 = 5;
const CONNECT_INFO: u8 = 6;

/// What a report begins with.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Start {
    kind: u8,
    zero: [u8; 3],
    rank: U32,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Called {
    kind: u8,
    algorithm: u8,
    zero: [u8; 2],
    root: U32,
    unit: U32,
    amount: U64,
}

impl Report {
    /// Its bytes: the contents of a frame.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let start = |kind, rank: u32| Start { kind, zero: [0; 3], rank: rank.into() };
        match self {
            Self::Waiting { rank } => start(WAITING, *rank).as_bytes().to_vec(),
            Self::Lost { rank } => start(LOST, *rank).as_bytes().to_vec(),
            Self::Silent { rank } => start(SILENT, *rank).as_bytes().to_vec(),
            Self::Differs { rank, theirs } => {
                let Summary { kind, root, amount, chunk_bytes, algorithm, .. } = *theirs;
                let called = Called {
                    kind: kind as u8,
                    algorithm: algorithm as u8,
                    zero: [0; 2],
                    root: root.into(),
                    unit: chunk_bytes.into(),
                    amount: amount.into(),
                };
                [start(DIFFERS, *rank).as_bytes(), called.as_bytes()].concat()
            }
            Self::Refused { reason } => {
                let reason = &reason.as_bytes()[..reason.floor_char_boundary(MOST_REASON_BYTES)];
                [start(REFUSED, 0).as_bytes(), reason].concat()
            }
            Self::ConnectInfo { bytes } => [start(CONNECT_INFO, 0).as_bytes(), bytes].concat(),
        }
    }

    /// What an aggregator has said to one of `workers` workers; none if it cannot be.
    pub fn decode(bytes: &[u8], workers: u32) -> Option<Self> {
        let (start, rest) = Start::read_from_prefix(bytes).ok()?;
        let rank = start.rank.get();
        if start.zero != [0; 3] || rank >= workers {
            return None;
        }
        match start.kind {
            WAITING if rest.is_empty() => Some(Self::Waiting { rank }),
            LOST if rest.is_empty() => Some(Self::Lost { rank }),
            SILENT if rest.is_empty() => Some(Self::Silent { rank }),
            DIFFERS => {
                let called = Called::read_from_bytes(rest).ok().filter(|called| called.zero == [0; 2])?;
                let (kind, algorithm) = (Kind::of_code(called.kind)?, Algorithm::of_code(called.algorithm)?);
                let (root, amount) = (called.root.get(), called.amount.get());
                let theirs = Summary::between_pairs(kind, root, amount, called.unit.get(), algorithm);
                Some(Self::Differs { rank, theirs })
            }
            REFUSED if rest.len() <= MOST_REASON_BYTES => {
                let text = String::from_utf8_lossy(rest);
                // It goes to the screens of users as it is.
                Some(Self::Refused { reason: text.chars().filter(|letter| !letter.is_control()).collect() })
            }
            CONNECT_INFO if rank == 0 => Some(Self::ConnectInfo { bytes: rest.to_vec() }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const GREETING: Greeting = Greeting {
        rank: 2,
        has_secret: true,
        terms: Terms {
            job: 7,
            proof: 9,
            workers: 4,
            aggregator: 1,
            aggregators: 3,
            order: Order::Rank,
            carrier: Carrier::Connection,
        },
    };

    #[test]
    fn greetings_are_what_was_encoded() {
        let bytes = GREETING.encode();
        assert_eq!(Greeting::decode(&bytes), Ok(GREETING));
        let carrier = Carrier::Cards { class: 0x60, timeout_exponent: 11, retries: 7 };
        let over_cards = Greeting { terms: Terms { carrier, ..GREETING.terms }, ..GREETING };
        assert_eq!(Greeting::decode(&over_cards.encode()), Ok(over_cards));
        for (at, value) in [(44, 0), (44, 32), (45, 8), (42, 0)] {
            let mut bytes = over_cards.encode();
            bytes[at] = value;
            assert!(matches!(Greeting::decode(&bytes), Err(Unheard::Refused(_))), "byte {at}");
        }
        assert!(Greeting::may_begin(&bytes[..3]) && Greeting::may_begin(&bytes) && !Greeting::may_begin(b"GET "));
        let text = |at: usize, value: u8| {
            let mut bytes = bytes;
            bytes[at] = value;
            match Greeting::decode(&bytes) {
                Err(Unheard::Refused(text)) => text,
                other => panic!("byte {at}: {other:?}"),
            }
        };
        assert!(text(4, 9).contains("the worker version 9"));
        for (at, value) in [(24, 4), (28, 0), (29, 9), (32, 3), (36, 0), (36, 65), (40, 2), (42, 2), (46, 2), (47, 1)] {
            assert!(text(at, value).contains("cannot be"), "byte {at}");
        }
        assert!(text(41, u8::from(cfg!(target_endian = "little"))).contains("order of bytes"));
        let mut stranger = bytes;
        stranger[0] = b'G';
        assert_eq!(Greeting::decode(&stranger), Err(Unheard::Stranger));
    }

    #[test]
    fn keys_and_scopes_are_those_of_the_secret_and_of_the_greeting() {
        let [one, other] = [b'a', b'b'].map(|byte| Secret::new(&[byte; 32]).unwrap());
        let (key, open) = (Key::of(Some(&one)), Key::of(None));
        let bytes = GREETING.encode();
        let mut changed = bytes;
        changed[24] ^= 1;
        let scopes = [key.scope(&bytes), key.scope(&changed), open.scope(&bytes), Key::of(Some(&other)).scope(&bytes)];
        assert!((0..4).all(|at| scopes.iter().filter(|scope| **scope == scopes[at]).count() == 1), "{scopes:x?}");
        assert_eq!(scopes[0], Key::of(Some(&one)).scope(&bytes));
        let without = Greeting { has_secret: false, ..GREETING };
        for (key, greeting, text) in [(&key, &without, "the rank has none"), (&open, &GREETING, "it has none")] {
            assert!(key.objection(greeting).is_some_and(|why| why.contains(text) && why.contains(SECRET_FILE)));
        }
        assert!(key.objection(&GREETING).is_none() && open.objection(&without).is_none());
    }

    #[test]
    fn reports_are_what_was_encoded() {
        let theirs = Summary::between_pairs(Kind::Allreduce, 3, 1 << 40, 5, Algorithm::Sparse);
        for report in [
            Report::Waiting { rank: 3 },
            Report::Lost { rank: 0 },
            Report::Silent { rank: 2 },
            Report::Differs { rank: 1, theirs },
            Report::Refused { reason: "no room".to_owned() },
            Report::ConnectInfo { bytes: vec![7; 99] },
        ] {
            assert_eq!(Report::decode(&report.encode(), 4), Some(report));
        }
        assert_eq!(Report::decode(&Report::Waiting { rank: 4 }.encode(), 4), None, "no such rank");
        let long = Report::Refused { reason: "é".repeat(1000) };
        let Some(Report::Refused { reason }) = Report::decode(&long.encode(), 4) else { panic!("no refusal") };
        assert!(reason.len() == MOST_REASON_BYTES && reason.chars().all(|letter| letter == 'é'));
        let Some(Report::Refused { reason }) = Report::decode(b"\x04\0\0\0\0\0\0\0a\x1b[2Jb\nc", 4) else { panic!() };
        assert_eq!(reason, "a[2Jbc");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80), kind in 0_u8..8) {
            let mut report = bytes.clone();
            if let Some(first) = report.first_mut() {
                *first = kind;
            }
            let _ = Report::decode(&report, 4);
            let mut greeting = [0; GREETING_BYTES];
            greeting.iter_mut().zip(&bytes).for_each(|(to, from)| *to = *from);
            let _ = Greeting::decode(&greeting);
            greeting[..8].copy_from_slice(&GREETING.encode()[..8]);
            let _ = Greeting::decode(&greeting);
        }
    }
}
