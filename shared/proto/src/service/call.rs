//! Calls of Alltoallv and Allgatherv from counts, displacements and datatypes, checked.

use alloc::vec::Vec;

use thiserror::Error;

use super::message::{Call, LocalCopies, Region};

/// Elements of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Datatype {
    /// Bytes of data in an element.
    pub size_bytes: u64,
    /// Distance between elements, in bytes.
    pub extent_bytes: u64,
}

/// A buffer of blocks, one per rank.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    /// First byte.
    pub address: u64,
    /// Memory key.
    pub key: u32,
    /// Its elements.
    pub datatype: Datatype,
    /// By rank: elements.
    pub counts: &'a [u64],
    /// By rank: first element, from the address.
    pub displs: &'a [u64],
}

/// A call that cannot be carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CallError {
    /// An array of another length.
    #[error("{found} {name} in a group of {ranks} ranks: give one per rank")]
    Length {
        /// Counts or displacements.
        name: &'static str,
        /// What was given.
        found: usize,
        /// Ranks of the group.
        ranks: u32,
    },
    /// Elements with gaps between them.
    #[error(
        "elements of {size_bytes} bytes are placed every {extent_bytes} bytes: pack them, service processes read \
         contiguous blocks"
    )]
    Extent {
        /// Bytes of data in an element.
        size_bytes: u64,
        /// Distance between elements, in bytes.
        extent_bytes: u64,
    },
    /// A block that ends beyond the address space.
    #[error("the block of rank {rank} ends beyond 2^64: check its count and displacement")]
    TooLarge {
        /// Whose block it is.
        rank: u32,
    },
    /// Two blocks of a receive buffer that share bytes.
    #[error("the blocks of ranks {first} and {second} overlap in the receive buffer: give each its own place")]
    Overlap {
        /// Whose block begins before.
        first: u32,
        /// Whose begins in it.
        second: u32,
    },
    /// Alltoallv in place.
    #[error("Alltoallv in place is not carried out by service processes: give a send buffer of its own")]
    InPlace,
    /// A rank that the group does not have.
    #[error("rank {rank} of {ranks}: ranks are numbered from 0")]
    Rank {
        /// What was given.
        rank: u32,
        /// Ranks of the group.
        ranks: u32,
    },
}

impl Blocks<'_> {
    fn regions(&self, ranks: u32) -> Result<Vec<Region>, CallError> {
        for (name, found) in [("counts", self.counts.len()), ("displacements", self.displs.len())] {
            if found != ranks as usize {
                return Err(CallError::Length { name, found, ranks });
            }
        }
        let Datatype { size_bytes, extent_bytes } = self.datatype;
        if size_bytes != extent_bytes {
            return Err(CallError::Extent { size_bytes, extent_bytes });
        }
        let region = |(rank, (count, displ)): (u32, (&u64, &u64))| {
            let place = |elements: &u64| elements.checked_mul(size_bytes).ok_or(CallError::TooLarge { rank });
            let (bytes, offset) = (place(count)?, place(displ)?);
            let address = self.address.checked_add(offset).ok_or(CallError::TooLarge { rank })?;
            address.checked_add(bytes).ok_or(CallError::TooLarge { rank })?;
            Ok(Region { address, key: self.key, bytes })
        };
        (0..).zip(self.counts.iter().zip(self.displs)).map(region).collect()
    }
}

/// Refuses blocks that would be written over one another.
fn disjoint(regions: &[Region]) -> Result<(), CallError> {
    let begin = |rank: &u32| regions[*rank as usize].address;
    let mut order: Vec<u32> = (0..).zip(regions).filter(|(_, region)| region.bytes > 0).map(|(rank, _)| rank).collect();
    order.sort_by_key(begin);
    let overlap = |pair: &&[u32]| {
        let [first, second] = [pair[0], pair[1]].map(|rank| regions[rank as usize]);
        second.address - first.address < first.bytes
    };
    match order.windows(2).find(overlap) {
        Some(pair) => Err(CallError::Overlap { first: pair[0], second: pair[1] }),
        None => Ok(()),
    }
}

/// An Alltoallv of `ranks` ranks. Counts may be zero, datatypes of both sides may differ. `send`: none in place.
///
/// # Errors
/// In place, arrays of another length than `ranks`, elements with gaps, a block beyond the address space, or blocks of
/// the receive buffer that overlap.
pub fn alltoallv_call(ranks: u32, send: Option<&Blocks<'_>>, receive: &Blocks<'_>) -> Result<Call, CallError> {
    let send = send.ok_or(CallError::InPlace)?;
    let (send, receive) = (send.regions(ranks)?, receive.regions(ranks)?);
    disjoint(&receive)?;
    Ok(Call::Alltoallv { send, receive })
}

/// An Allgatherv of `ranks` ranks, called by `rank`. `send`: none in place, where the own block lies in the receive
/// buffer already. `copies`: who copies blocks inside a host, the same on all ranks.
///
/// # Errors
/// Arrays of another length than `ranks`, elements with gaps, a block beyond the address space, blocks of the receive
/// buffer that overlap, or no such rank.
pub fn allgatherv_call(
    (rank, ranks): (u32, u32),
    send: Option<Region>,
    receive: &Blocks<'_>,
    copies: LocalCopies,
) -> Result<Call, CallError> {
    let receive = receive.regions(ranks)?;
    disjoint(&receive)?;
    let own = *receive.get(rank as usize).ok_or(CallError::Rank { rank, ranks })?;
    Ok(Call::Allgatherv { send: send.unwrap_or(own), receive, copies })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::string::ToString as _;

    const DOUBLES: Datatype = Datatype { size_bytes: 8, extent_bytes: 8 };

    fn blocks<'a>(counts: &'a [u64], displs: &'a [u64]) -> Blocks<'a> {
        Blocks { address: 0x1000, key: 7, datatype: DOUBLES, counts, displs }
    }

    #[test]
    fn counts_and_displacements_become_bytes() {
        let receive = Blocks { datatype: Datatype { size_bytes: 4, extent_bytes: 4 }, ..blocks(&[2, 0], &[6, 0]) };
        let call = alltoallv_call(2, Some(&blocks(&[0, 3], &[0, 1])), &receive).unwrap();
        let region = |address, bytes| Region { address, key: 7, bytes };
        assert_eq!(
            call,
            Call::Alltoallv {
                send: [region(0x1000, 0), region(0x1008, 24)].into(),
                receive: [region(0x1018, 8), region(0x1000, 0)].into()
            }
        );
    }

    #[test]
    fn an_allgatherv_in_place_sends_its_part_of_the_receive_buffer() {
        let receive = blocks(&[1, 2], &[0, 1]);
        let call = allgatherv_call((1, 2), None, &receive, LocalCopies::Host).unwrap();
        let Call::Allgatherv { send, receive: places, .. } = call else { panic!("an Allgatherv") };
        assert_eq!((send, send.bytes), (places[1], 16));
        let no_such_rank = allgatherv_call((2, 2), None, &receive, LocalCopies::Host);
        assert_eq!(no_such_rank, Err(CallError::Rank { rank: 2, ranks: 2 }));
    }

    #[test]
    fn what_cannot_be_carried_out_is_named() {
        let good = blocks(&[1, 1], &[0, 1]);
        assert_eq!(alltoallv_call(2, None, &good), Err(CallError::InPlace));
        let error = alltoallv_call(3, Some(&good), &good).unwrap_err();
        assert_eq!(error.to_string(), "2 counts in a group of 3 ranks: give one per rank");
        let gaps = Blocks { datatype: Datatype { size_bytes: 8, extent_bytes: 16 }, ..good };
        assert_eq!(alltoallv_call(2, Some(&gaps), &good), Err(CallError::Extent { size_bytes: 8, extent_bytes: 16 }));
        // Rank 1's block ends in rank 0's; blocks of no length are nowhere.
        let overlap = Err(CallError::Overlap { first: 1, second: 0 });
        let crossed = blocks(&[2, 3], &[4, 2]);
        assert_eq!(alltoallv_call(2, Some(&good), &crossed), overlap);
        assert_eq!(allgatherv_call((0, 2), None, &crossed, LocalCopies::Host), overlap);
        assert!(alltoallv_call(2, Some(&crossed), &good).is_ok(), "what is only read may overlap");
        assert!(alltoallv_call(2, Some(&good), &blocks(&[0, 3], &[1, 0])).is_ok());
        assert!(alltoallv_call(2, Some(&good), &blocks(&[2, 2], &[2, 0])).is_ok(), "side by side");
        for (counts, displs) in [([u64::MAX, 1], [0, 0]), ([1, 1], [0, u64::MAX / 8])] {
            assert!(matches!(
                alltoallv_call(2, Some(&blocks(&counts, &displs)), &good),
                Err(CallError::TooLarge { .. })
            ));
        }
    }
}
