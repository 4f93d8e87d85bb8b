//! Selection of algorithms by the user.

use flexcast_proto::Algorithm;

/// Most ranks of a communicator that has connections between all of them: four queue pairs for each other rank.
pub const MAX_LINEAR_RANKS: u32 = 64;
/// Which algorithms a communicator takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Selection {
    /// For each operation what a cost model expects to be fastest. Blocks that do not lie one behind the other go by
    /// multicast, or eagerly.
    #[default]
    Automatic,
    /// Multicast, and eagerly what is short enough for it ([`Config::eager_bytes`](crate::Config::eager_bytes)).
    Multicast,
    /// Allgathers whose blocks lie one behind the other around the ring, in four segments each; others as with
    /// `Multicast`.
    Ring,
    /// The same by writes to each rank directly.
    Linear,
    /// The same by recursive doubling.
    RecursiveDoubling,
    /// The same by the algorithm of Bruck et al.
    Bruck,
}

impl Selection {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Automatic, Self::Multicast, Self::Ring, Self::Linear, Self::RecursiveDoubling, Self::Bruck];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Automatic => "automatic",
            Self::Multicast => "multicast",
            Self::Ring => "pipelined-ring",
            Self::Linear => "linear",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::Bruck => "bruck",
        }
    }

    /// The algorithm over connections that it names.
    pub(crate) const fn direct(self) -> Option<Algorithm> {
        match self {
            Self::Automatic | Self::Multicast => None,
            Self::Ring => Some(Algorithm::Ring),
            Self::Linear => Some(Algorithm::Linear),
            Self::RecursiveDoubling => Some(Algorithm::RecursiveDoubling),
            Self::Bruck => Some(Algorithm::Bruck),
        }
    }

    /// Algorithms of an Allgather for which a communicator of `ranks` ranks has connections.
    pub(crate) fn connected(self, ranks: u32) -> impl Iterator<Item = Algorithm> {
        // Beyond, connections to all are too many, and every step of a ring costs a message.
        let few: &[Algorithm] = &[Algorithm::Linear, Algorithm::Ring, Algorithm::Bruck, Algorithm::RecursiveDoubling];
        let all = match self {
            Self::Automatic if ranks <= MAX_LINEAR_RANKS => few,
            Self::Automatic => &[Algorithm::Bruck],
            _ => &[],
        };
        // Of other numbers of ranks it takes more messages than the algorithm of Bruck.
        let fits = move |algorithm: &Algorithm| *algorithm != Algorithm::RecursiveDoubling || ranks.is_power_of_two();
        all.iter().copied().filter(fits).chain(self.direct()).filter(move |_| ranks > 1)
    }

    /// The same of a Broadcast. Any rank may be its root, so that the trees of all of them take connections between all
    /// ranks.
    pub(crate) fn broadcasts(self, ranks: u32) -> impl Iterator<Item = Algorithm> {
        let all: &[Algorithm] = match self {
            Self::Automatic if (2..=MAX_LINEAR_RANKS).contains(&ranks) => &[Algorithm::Binomial, Algorithm::Chain],
            _ => &[],
        };
        all.iter().copied()
    }
}
