//! Verdict on a message that begins to come.

use flexcast_proto::Summary;

/// What a message of a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// Expected.
    Fine,
    /// Of a rank that has called something else.
    Disagrees,
    /// Of a rank that has called the same, but with another length of the block between the two: by its call, and by
    /// this rank's.
    Differs([u64; 2]),
    /// None that a rank sends which keeps to the protocol.
    Impossible,
}

impl Begun {
    /// What the peer has called, and what this rank has, if these differ.
    #[must_use]
    pub fn calls(self, theirs: Summary, own: Summary) -> Option<[Summary; 2]> {
        match self {
            Self::Fine | Self::Impossible => None,
            Self::Disagrees => Some([theirs, own]),
            Self::Differs(lengths) => Some(lengths.map(|amount| Summary { amount, ..own })),
        }
    }
}
