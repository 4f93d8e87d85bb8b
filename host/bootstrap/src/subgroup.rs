//! Exchanges among part of the ranks, over an exchange among all of them.

use flexcast_proto::digest;

use super::{Exchange, ExchangeError, MAX_CONTRIBUTION_BYTES, MAX_TAG_BYTES};

/// The name under which the ranks of all subgroups meet.
const TAG: &str = "subgroup";
/// Before a member's contribution: digest of the list of members, digest of the inner tag.
const NOTICE_BYTES: usize = 16;

/// A list of members that makes no group.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubgroupError {
    /// A rank that the parent does not have.
    #[error("member {rank} of a subgroup, but its parent has {size} ranks: they run from 0 to {last}", last = size - 1)]
    Rank {
        /// The member.
        rank: u32,
        /// Ranks of the parent.
        size: u32,
    },
    /// The same rank twice.
    #[error("rank {rank} is twice a member of a subgroup: name it once")]
    Twice {
        /// The member.
        rank: u32,
    },
    /// The own rank is no member.
    #[error("rank {rank} is no member of the subgroup {members:?}: let it accompany the others' exchanges instead")]
    Outside {
        /// The own rank.
        rank: u32,
        /// The members.
        members: Vec<u32>,
    },
}

flexcast_error::debug_as_display!(SubgroupError);

/// Part of the ranks of another exchange. New ranks are positions in the list of members.
///
/// All ranks of the parent take part in every exchange of any subgroup, each in its own: subgroups that are made of one
/// parent run in lock step. A rank that is in none calls [`accompany`] as often as the others exchange.
#[derive(Debug)]
pub struct Subgroup<E> {
    parent: E,
    members: Vec<u32>,
    rank: u32,
}

impl<E: Exchange> Subgroup<E> {
    /// The subgroup of these ranks of the parent, in this order; the same list on all members.
    ///
    /// # Errors
    /// A member that the parent does not have, one that is named twice, or a list without the own rank.
    pub fn new(parent: E, members: Vec<u32>) -> Result<Self, SubgroupError> {
        for (position, &rank) in members.iter().enumerate() {
            if rank >= parent.size() {
                return Err(SubgroupError::Rank { rank, size: parent.size() });
            }
            if members[..position].contains(&rank) {
                return Err(SubgroupError::Twice { rank });
            }
        }
        match members.iter().position(|member| *member == parent.rank()) {
            Some(rank) => Ok(Self { parent, members, rank: rank as u32 }),
            None => Err(SubgroupError::Outside { rank: parent.rank(), members }),
        }
    }

    /// The members, as ranks of the parent.
    #[must_use]
    pub fn members(&self) -> &[u32] {
        &self.members
    }
}

impl<E: Exchange> Exchange for Subgroup<E> {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.members.len() as u32
    }

    fn exchange(&mut self, tag: &str, contribution: &[u8]) -> Result<Vec<Vec<u8>>, ExchangeError> {
        if tag.len() > MAX_TAG_BYTES || contribution.len() > MAX_CONTRIBUTION_BYTES - NOTICE_BYTES {
            let limit = MAX_CONTRIBUTION_BYTES - NOTICE_BYTES;
            let (found, of) = (contribution.len(), tag.len());
            let reason = format_args!(
                "contribution of {found} bytes and name of {of}: {limit} and {MAX_TAG_BYTES} are the limits in a \
                 subgroup"
            );
            return Err(ExchangeError::new(tag, reason));
        }
        let own = [digest(self.members.iter().map(|rank| u64::from(*rank))), digest(tag.bytes().map(u64::from))];
        let all = self.parent.exchange(TAG, &[own.map(u64::to_le_bytes).as_flattened(), contribution].concat())?;
        let mut members = Vec::new();
        for &rank in &self.members {
            let wrong = |reason: &str| ExchangeError::new(tag, format_args!("rank {rank} of the parent {reason}"));
            let theirs = all.get(rank as usize).filter(|theirs| theirs.len() >= NOTICE_BYTES);
            let (notice, rest) =
                theirs.ok_or_else(|| wrong("accompanies the exchange, but is a member here"))?.split_at(NOTICE_BYTES);
            if notice[..8] != own[0].to_le_bytes() {
                return Err(wrong("has another list of members: all members must give the same, in the same order"));
            }
            if notice[8..] != own[1].to_le_bytes() {
                return Err(wrong("is at an exchange of another name: all members must do the same"));
            }
            members.push(rest.to_vec());
        }
        Ok(members)
    }
}

/// Takes part in one exchange of the subgroups of a parent without being in any.
///
/// # Errors
/// As [`Exchange::exchange`].
pub fn accompany(parent: &mut impl Exchange) -> Result<(), ExchangeError> {
    parent.exchange(TAG, &[]).map(drop)
}

/// Parts the ranks by colour, as `MPI_Comm_split` does: gives the members of the own colour, by ascending key and then
/// by rank, for [`Subgroup::new`]. None for a rank without a colour. All ranks must call it.
///
/// # Errors
/// As [`Exchange::exchange`].
pub fn split(parent: &mut impl Exchange, colour: Option<u32>, key: i64) -> Result<Option<Vec<u32>>, ExchangeError> {
    const TAG: &str = "split";
    let own = [colour.map_or(-1, i64::from), key];
    let mut members = Vec::new();
    for (rank, theirs) in parent.exchange(TAG, own.map(i64::to_le_bytes).as_flattened())?.iter().enumerate() {
        let (words, []) = theirs.as_chunks::<8>() else {
            return Err(ExchangeError::new(
                TAG,
                format_args!("rank {rank} contributed {} bytes, not 16", theirs.len()),
            ));
        };
        let [theirs, key] = *words else {
            return Err(ExchangeError::new(
                TAG,
                format_args!("rank {rank} contributed {} bytes, not 16", theirs.len()),
            ));
        };
        if i64::from_le_bytes(theirs) == own[0] {
            members.push((i64::from_le_bytes(key), rank as u32));
        }
    }
    members.sort_unstable();
    Ok(colour.is_some().then(|| members.into_iter().map(|(_, rank)| rank).collect()))
}
