//! Cases of a campaign: everything about them is drawn from one number, so that one that fails can be run again.

use flexcast_proto::service::{Delivery, Limits, LocalCopies, Multicast, StagedReader, Staging};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::super::Shape;

const PS_PER_US: u64 = 1_000_000;

/// What ranks call in a campaign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseOp {
    /// A block from each to each, by alias keys.
    Alltoallv,
    /// A block of each to all, by alias keys.
    Allgatherv {
        /// Who copies inside a host.
        copies: LocalCopies,
    },
    /// The root's message to all.
    Broadcast {
        /// The root.
        root: u32,
        /// Where the data goes.
        delivery: Delivery,
    },
    /// A block of each to all, all of one length.
    Allgather {
        /// Where the data goes.
        delivery: Delivery,
    },
}

impl CaseOp {
    /// Where the data goes, of a staged collective.
    #[must_use]
    pub const fn delivery(self) -> Option<Delivery> {
        match self {
            Self::Alltoallv | Self::Allgatherv { .. } => None,
            Self::Broadcast { delivery, .. } | Self::Allgather { delivery } => Some(delivery),
        }
    }
}

/// One collective of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaseCall {
    /// Which one.
    pub op: CaseOp,
    /// Bytes of a block, or of the message.
    pub bytes: u64,
    /// Blocks of an Alltoallv or an Allgatherv have 0 to 2 times as many bytes.
    pub varies: bool,
}

impl CaseCall {
    /// Bytes from one rank to another.
    #[must_use]
    pub fn between(&self, source: u32, target: u32) -> u64 {
        match self.op {
            CaseOp::Alltoallv if self.varies => self.bytes * u64::from((source * 5 + target * 3) % 7) / 3,
            CaseOp::Allgatherv { .. } if self.varies => self.bytes * u64::from(source % 3),
            CaseOp::Broadcast { root, .. } if root != source => 0,
            _ => self.bytes,
        }
    }
}

/// A communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CaseGroup {
    /// By rank of the communicator: the program.
    pub members: Vec<u32>,
    /// What its ranks call, in this order.
    pub calls: Vec<CaseCall>,
    /// Calls of a rank that may be under way at once.
    pub window: usize,
}

/// How one rank calls something else than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Otherwise {
    /// One byte more.
    Longer,
    /// Another collective of the same kind, or an Allgatherv with copies by the host instead of the card.
    Operation,
}

/// What a faulty program says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Garbage {
    /// A message of another version of the format.
    Version,
    /// Bytes that are no message.
    Noise,
    /// An announcement, as service processes make them, twice.
    Announcement,
    /// A copied block that nobody has announced to it, for a collective that nobody has called.
    UnknownOperation,
    /// A task object whose lengths overflow.
    Overflow,
    /// A key of another card.
    ForeignKey,
    /// A key taken back that was never given.
    UnknownKey,
    /// A key bound that there is no alias of, and taken back.
    UnknownBinding,
    /// Another rank leaves.
    OthersLeave,
}

/// The one thing that goes wrong in a case.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// Nothing.
    None,
    /// A program dies; its memory is gone at once, and its service processes see it so much later.
    Rank {
        /// The program.
        program: u32,
        /// Time between its end and the end of its connections, in picoseconds.
        notice_ps: u64,
    },
    /// A service process dies; the others and its ranks see it up to so much later.
    Process {
        /// The process, on all hosts.
        process: usize,
        /// Longest time between its end and the end of its connections, in picoseconds.
        notice_ps: u64,
    },
    /// A service process does nothing for a while, and goes on.
    StallProcess {
        /// The process.
        process: usize,
        /// How long, in picoseconds.
        for_ps: u64,
    },
    /// A program does nothing for a while, and goes on.
    StallRank {
        /// The program.
        program: u32,
        /// How long, in picoseconds.
        for_ps: u64,
    },
    /// A rank takes the memory of a call back while it is under way.
    TakeBack {
        /// The communicator.
        group: usize,
        /// Its rank.
        rank: u32,
        /// The call.
        call: usize,
        /// The receive buffer; else the send buffer.
        receives: bool,
    },
    /// A rank calls something else than the others.
    Disagrees {
        /// The communicator.
        group: usize,
        /// Its rank.
        rank: u32,
        /// The call.
        call: usize,
        /// What it does instead.
        how: Otherwise,
    },
    /// A program says what it must not.
    Garbage {
        /// The program.
        program: u32,
        /// What.
        what: Garbage,
    },
    /// The last communicator finds no staging memory.
    Exhausted,
}

impl Trouble {
    /// Its name in tables.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Rank { .. } => "rank dies",
            Self::Process { .. } => "process dies",
            Self::StallProcess { .. } => "process stands still",
            Self::StallRank { .. } => "rank stands still",
            Self::TakeBack { .. } => "memory taken back",
            Self::Disagrees { .. } => "calls disagree",
            Self::Garbage { .. } => "garbage",
            Self::Exhausted => "no staging memory",
        }
    }
}

/// A job of ranks on service processes, drawn from a seed.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// The seed.
    pub seed: u64,
    /// Hosts, ranks and service processes.
    pub shape: Shape,
    /// Frames of a million that are lost.
    pub loss_ppm: u32,
    /// Bounds of the service processes.
    pub limits: Limits,
    /// What each communicator's staged collectives may use.
    pub staging: Staging,
    /// Keys that each program offers each of its service processes to bind.
    pub bound_keys: u16,
    /// How many of them a service process takes of each program.
    pub most_bound_keys: u32,
    /// Programs share no memory before those are there.
    pub awaits_keys: bool,
    /// The communicators.
    pub groups: Vec<CaseGroup>,
    /// Longest pause of a rank before a call, in picoseconds.
    pub skew_ps: u64,
    /// What goes wrong.
    pub trouble: Trouble,
    /// When, in picoseconds after the first call.
    pub when_ps: u64,
}

fn pick<T: Copy>(random: &mut ChaCha8Rng, of: &[T]) -> T {
    of[random.random_range(0..of.len())]
}

const COPIES: [LocalCopies; 2] = [LocalCopies::Host, LocalCopies::Card];
const DELIVERIES: [Delivery; 3] = [Delivery::Flat, Delivery::Hierarchical, Delivery::Direct];

fn call(random: &mut ChaCha8Rng, ranks: u32) -> CaseCall {
    let op = match random.random_range(0..6) {
        0 | 1 => CaseOp::Alltoallv,
        2 | 3 => CaseOp::Allgatherv { copies: pick(random, &COPIES) },
        4 => CaseOp::Broadcast { root: random.random_range(0..ranks), delivery: pick(random, &DELIVERIES) },
        _ => CaseOp::Allgather { delivery: pick(random, &DELIVERIES) },
    };
    CaseCall { op, bytes: pick(random, &[0, 1, 7, 61, 1009, 4099, 10_007]), varies: random.random_ratio(1, 2) }
}

fn group(random: &mut ChaCha8Rng, ranks: u32, whole: bool) -> CaseGroup {
    let mut members: Vec<u32> = (0..ranks).filter(|_| whole || random.random_ratio(2, 3)).collect();
    if members.is_empty() {
        members.push(random.random_range(0..ranks));
    }
    // Ranks of a communicator need not follow the hosts.
    if random.random_ratio(1, 3) {
        let by = random.random_range(0..members.len());
        members.rotate_left(by);
    }
    let count = members.len() as u32;
    let calls = (0..random.random_range(1..=6)).map(|_| call(random, count)).collect();
    CaseGroup { members, calls, window: random.random_range(1..=3) }
}

impl Case {
    /// The case of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        let random = &mut ChaCha8Rng::seed_from_u64(seed);
        let ranks_per_host = random.random_range(1..=4);
        let processes_per_host = random.random_range(1..=3).min(ranks_per_host);
        let shape = Shape { hosts: random.random_range(1..=4), ranks_per_host, processes_per_host };
        let ranks = shape.ranks();
        let count = random.random_range(1..=3);
        let groups: Vec<CaseGroup> = (0..count).map(|number| group(random, ranks, number == 0)).collect();
        let loss_ppm = pick(random, &[0, 0, 1000, 5000, 20_000]);
        let limits = Limits {
            active_reads: pick(random, &[1, 4, 16]),
            collectives: pick(random, &[1, 2, 8]),
            ..Limits::default()
        };
        let staging = Staging {
            // Many small segments, each of which waits for what is lost, take seconds.
            staging_bytes: pick(
                random,
                if loss_ppm == 0 { &[64, 1000, 4096, 65_536] } else { &[4096, 16_384, 65_536] },
            ),
            segments: random.random_range(1..=3),
            transfers: pick(random, &[1, 2, 16]),
            collectives: pick(random, &[1, 2, 8]),
            scatter_bytes: pick(random, &[64, 1 << 20]),
            reader: pick(random, &[StagedReader::OfRoot, StagedReader::First]),
            multicast: None,
        };
        let skew_ps = pick(random, &[0, 1, 10, 100]) * PS_PER_US;
        let trouble = Self::trouble(random, shape, &groups);
        let when_ps = random.random_range(0..=1 + skew_ps / PS_PER_US * count as u64 + 60) * PS_PER_US;
        let (bound_keys, most_bound_keys) = (pick(random, &[0, 1, 4, 16]), pick(random, &[0, 3, 64, 64]));
        let awaits_keys = random.random_ratio(3, 4);
        // Drawn last, so that everything else of a seed stays.
        let multicast = Multicast {
            repair_ps: pick(random, &[0, 5, 50]) * PS_PER_US,
            ahead_bytes: pick(random, &[0, 4096, 1 << 20]),
        };
        let staging = Staging { multicast: random.random_ratio(1, 2).then_some(multicast), ..staging };
        Self {
            seed,
            shape,
            loss_ppm,
            limits,
            staging,
            bound_keys,
            most_bound_keys,
            awaits_keys,
            groups,
            skew_ps,
            trouble,
            when_ps,
        }
    }

    fn trouble(random: &mut ChaCha8Rng, shape: Shape, groups: &[CaseGroup]) -> Trouble {
        let program = random.random_range(0..shape.ranks());
        let process = random.random_range(0..(shape.hosts * shape.processes_per_host) as usize);
        let span_ps = pick(random, &[0, 5, 50, 2000]) * PS_PER_US;
        let index = random.random_range(0..groups.len());
        let rank = random.random_range(0..groups[index].members.len()) as u32;
        let call = random.random_range(0..groups[index].calls.len());
        match random.random_range(0..12) {
            0 => Trouble::None,
            1 | 2 => Trouble::Rank { program, notice_ps: span_ps },
            3 | 4 => Trouble::Process { process, notice_ps: span_ps },
            5 => Trouble::StallProcess { process, for_ps: span_ps },
            6 => Trouble::StallRank { program, for_ps: span_ps },
            7 | 8 => Trouble::TakeBack { group: index, rank, call, receives: random.random_ratio(1, 2) },
            9 => {
                let how = pick(random, &[Otherwise::Longer, Otherwise::Operation]);
                Trouble::Disagrees { group: index, rank, call, how }
            }
            10 => {
                let all = [
                    Garbage::Version,
                    Garbage::Noise,
                    Garbage::Announcement,
                    Garbage::UnknownOperation,
                    Garbage::Overflow,
                    Garbage::ForeignKey,
                    Garbage::UnknownKey,
                    Garbage::UnknownBinding,
                    Garbage::OthersLeave,
                ];
                Trouble::Garbage { program, what: pick(random, &all) }
            }
            _ if groups.len() > 1 => Trouble::Exhausted,
            _ => Trouble::None,
        }
    }
}
