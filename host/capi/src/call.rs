//! Arguments of a collective as the library keeps them: what `flexcast_collective` says, with lists of its own.

use std::ffi::c_void;

use flexcast_rust as rust;
use flexcast_rust::reduce::Reduction;
use flexcast_rust::{Blocks, Buffer, Communicator, Error, Shape, SparseOptions};

use crate::collective::*;
use crate::fault::Fault;
use crate::memory::{IN_PLACE, Memory, count};
use crate::operations::{self, Extent, InPlace, Lists, Row};
use crate::reduction::reduction;
use crate::status::flexcast_status::*;

/// The own rank, and how many there are.
pub(crate) type Place = (u32, u32);

/// What an operation reduces by, and how it cuts zeros out.
type Reduced = (Reduction, SparseOptions);

/// An operation of one rank.
pub(crate) struct Call {
    row: &'static Row,
    pub(crate) root: u32,
    /// Of reductions.
    reduced: Option<Reduced>,
    /// Blocks that are sent and received, of operations with lists.
    pub(crate) sent: Listed,
    pub(crate) received: Listed,
    /// None in place.
    pub(crate) send: Option<Memory>,
    /// None of a Scatter in place.
    pub(crate) receive: Option<Memory>,
}

/// Lengths and offsets of each rank's block, and how far they reach.
#[derive(Default)]
pub(crate) struct Listed {
    pub(crate) counts: Vec<u64>,
    pub(crate) displacements: Vec<u64>,
    /// Whether blocks do not lie one after another.
    pub(crate) displaced: bool,
    bytes: usize,
}

impl Listed {
    /// # Safety
    /// Both are null, or readable for as many entries as there are ranks.
    unsafe fn read(
        ranks: u32,
        counts: *const usize,
        displacements: *const usize,
        unit: usize,
        what: &str,
    ) -> Result<Self, Fault> {
        if counts.is_null() {
            return Err(Fault::null(&format!("{what}_counts")));
        }
        // SAFETY: not null, and an entry for each rank by this function's contract.
        let entry = |list: *const usize, rank: usize| unsafe { list.add(rank).read_unaligned() } as u64;
        let beyond = |what: &str, rank: usize, one: u64, other: u64| {
            let text = format!("{what}[{rank}]: {one} and {other} bytes end beyond the address space");
            Fault::new(FLEXCAST_ERROR_ARGUMENT, text)
        };
        let (mut listed, mut next, mut bytes) = (Self::default(), 0u64, 0u64);
        for rank in 0..ranks as usize {
            let given = entry(counts, rank);
            let length =
                given.checked_mul(unit as u64).ok_or_else(|| beyond(&format!("{what}_counts"), rank, given, 0))?;
            // A block of no bytes lies anywhere.
            let at = match (length, displacements.is_null()) {
                (0, _) => 0,
                (_, true) => next,
                (_, false) => entry(displacements, rank),
            };
            let end = at.checked_add(length).filter(|end| usize::try_from(*end).is_ok());
            let end = end.ok_or_else(|| beyond(what, rank, at, length))?;
            listed.displaced |= length > 0 && at != next;
            next = next.saturating_add(length);
            bytes = bytes.max(end);
            listed.counts.push(length);
            listed.displacements.push(at);
        }
        listed.bytes = bytes as usize;
        Ok(listed)
    }

    pub(crate) fn blocks(&self) -> Blocks<'_> {
        Blocks { counts: &self.counts, displs: &self.displacements }
    }
}

fn product(what: &str, one: usize, other: usize) -> Result<usize, Fault> {
    one.checked_mul(other).ok_or_else(|| {
        let text = format!("{what}: {one} times {other} bytes are more than the address space");
        Fault::new(FLEXCAST_ERROR_ARGUMENT, text)
    })
}

impl Call {
    /// Reads arguments for a rank.
    ///
    /// # Safety
    /// Lists are null or have an entry for each rank.
    pub(crate) unsafe fn read(given: &flexcast_collective, (own, ranks): Place) -> Result<Self, Fault> {
        let Some(row) = operations::find(given.operation) else {
            let text = format!(
                "operation is {}: must be one of FLEXCAST_OPERATION_*, 1 to {}",
                given.operation,
                operations::OPERATIONS.len()
            );
            return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
        };
        let reduced = if row.reduces { Some(reduced(given)?) } else { None };
        let unit = reduced.map_or(1, |(reduction, _)| reduction.element_bytes() as usize);
        let root = if row.has_root { count(given.root, "root")? } else { 0 };
        let is_root = own == root;
        let asked = |pointer: *const c_void| given.flags & FLEXCAST_FLAG_IN_PLACE != 0 || pointer.addr() == IN_PLACE;
        let (send_stays, receive_stays) = match row.in_place {
            InPlace::Never => (true, false),
            InPlace::Receive | InPlace::AsSent => (asked(given.send), false),
            InPlace::Send => (false, asked(given.receive)),
        };

        let (counts, displacements) = (given.receive_counts, given.receive_displacements);
        if row.received == Lists::Counts && !displacements.is_null() {
            let name = row.name;
            let text = format!("{name} has no receive_displacements, since a rank receives one block: set it to NULL");
            return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
        }
        let read = |lists: Lists, counts, displacements, what| match lists {
            Lists::None => Ok(Listed::default()),
            Lists::Root if !is_root => Ok(Listed::default()),
            // SAFETY: by this function's contract.
            Lists::All | Lists::Root | Lists::Counts => unsafe {
                Listed::read(ranks, counts, displacements, unit, what)
            },
        };
        let received = read(row.received, counts, displacements, "receive")?;
        let lists_of_send = if send_stays { Lists::None } else { row.sent };
        let sent = read(lists_of_send, given.send_counts, given.send_displacements, "send")?;

        let bytes = || product(row.name, given.count, unit);
        let all = || product(row.name, bytes()?, ranks as usize);
        let length = |extent: Extent, listed: &Listed| match extent {
            Extent::None => Ok(0),
            Extent::RootOne | Extent::RootAll if !is_root => Ok(0),
            Extent::One | Extent::RootOne => bytes(),
            Extent::All | Extent::RootAll => all(),
            Extent::Listed => Ok(listed.bytes),
            Extent::Received => Ok(received.bytes),
            Extent::Own => Ok(received.counts[own as usize] as usize),
        };
        let (sends, receives) =
            (row.send != Extent::None && !send_stays, row.receive != Extent::None && !receive_stays);
        // In place, too, it must be a length.
        let send_bytes = length(row.send, &sent)?;
        let as_sent = send_stays && row.in_place == InPlace::AsSent;
        let receive_bytes = length(if as_sent { row.send } else { row.receive }, &received)?;
        let send = Memory { start: given.send.cast_mut(), bytes: send_bytes };
        let send = sends.then_some(if send_bytes > 0 { send } else { Memory::NOTHING });
        // Where nothing is received the pointer may be anything.
        let start = if receive_bytes > 0 { given.receive } else { std::ptr::null_mut() };
        let receive = receives.then_some(Memory { start, bytes: receive_bytes });
        Ok(Self { row, root, reduced, sent, received, send, receive })
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.row.name
    }

    /// Whether the card reaches no memory of the caller's, as what it sends and receives is copied.
    pub(crate) const fn is_copied(&self) -> bool {
        self.row.operation == FLEXCAST_OPERATION_SPARSE_ALLREDUCE
    }

    /// A buffer that the operation has.
    pub(crate) fn found(buffer: Option<Buffer>) -> Result<Buffer, Fault> {
        buffer.ok_or_else(lost)
    }

    /// What it reduces by.
    pub(crate) fn reduction(&self) -> Result<Reduction, Fault> {
        self.reduced.map(|(reduction, _)| reduction).ok_or_else(lost)
    }

    /// How it cuts zeros out.
    pub(crate) fn sparse(&self) -> Result<SparseOptions, Fault> {
        self.reduced.map(|(_, options)| options).ok_or_else(lost)
    }

    /// Whether the communicator carries it, as all ranks can decide alike: FLEXCAST_NOT_SUPPORTED if not.
    pub(crate) fn check_supported(&self, communicator: &Communicator) -> Result<(), Fault> {
        let bytes = self.receive.map_or(0, |receive| receive.bytes) as u64;
        let shape = match self.row.shape {
            Some(shape) => shape(self, bytes, communicator.size().into())?,
            None => Shape::Other { operation: self.name() },
        };
        communicator.admits(shape).map_err(|error| match &error {
            Error::TooManyChunks { .. } | Error::Argument { .. } | Error::Space(_) => {
                Fault::new(FLEXCAST_NOT_SUPPORTED, error.to_string())
            }
            _ => Fault::from(&error),
        })
    }

    /// The call of the library in Rust, with its buffers.
    pub(crate) fn with(&self, send: Option<Buffer>, receive: Option<Buffer>) -> Result<rust::Call<'_>, Fault> {
        (self.row.make)(self, send, receive)
    }
}

fn lost() -> Fault {
    Fault::new(FLEXCAST_ERROR_INTERNAL, "a mistake of this library: a buffer or reduction is lost")
}

fn reduced(given: &flexcast_collective) -> Result<Reduced, Fault> {
    let reduction = reduction(given.data_type, given.reduction)?;
    let default = SparseOptions::default();
    let or = |given: u32, default: u32| if given == 0 { default } else { given };
    let options = SparseOptions {
        block_bytes: or(given.block_bytes, default.block_bytes),
        blocks_per_message: or(given.blocks_per_message, default.blocks_per_message),
    };
    if given.operation == FLEXCAST_OPERATION_SPARSE_ALLREDUCE {
        options
            .check_ranges(reduction)
            .map_err(|text| Fault::new(FLEXCAST_ERROR_ARGUMENT, format!("sparse_allreduce: {text}")))?;
    }
    Ok((reduction, options))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reduction::{FLEXCAST_DOUBLE, FLEXCAST_SUM};

    #[test]
    fn a_length_beyond_the_address_space_is_refused_in_place_and_elsewhere() {
        for row in operations::OPERATIONS.iter().filter(|row| row.reduces && row.received == Lists::None) {
            for flags in [0, FLEXCAST_FLAG_IN_PLACE] {
                let given = flexcast_collective {
                    operation: row.operation,
                    flags,
                    count: usize::MAX / 2,
                    data_type: FLEXCAST_DOUBLE,
                    reduction: FLEXCAST_SUM,
                    ..NOTHING
                };
                // SAFETY: there are no lists.
                let read = unsafe { Call::read(&given, (1, 2)) };
                let fault = read.map(drop).expect_err(row.name);
                assert!(fault.text.contains("more than the address space"), "{}: {}", row.name, fault.text);
            }
        }
    }
}
