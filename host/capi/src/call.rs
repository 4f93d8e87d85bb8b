//! Arguments of a collective as the library keeps them: what `flexcast_collective` says, with lists of its own.

use std::ffi::c_void;

use flexcast_rust as rust;
use flexcast_rust::reduce::Reduction;
use flexcast_rust::{Blocks, Buffer, Communicator, Error, Shape, SparseOptions};

use crate::collective::*;
use crate::fault::Fault;
use crate::memory::{IN_PLACE, Memory, count};
use crate::reduction::reduction;
use crate::status::flexcast_status::*;

/// The own rank, and how many there are.
pub(crate) type Place = (u32, u32);

/// Name of an operation, for errors and the log. One of `FLEXCAST_OPERATION_*` was checked before.
const NAMES: [&str; FLEXCAST_OPERATION_SPARSE_ALLREDUCE as usize] = [
    "barrier",
    "broadcast",
    "allgather",
    "allgatherv",
    "allreduce",
    "reduce",
    "reduce_scatter_block",
    "reduce_scatter",
    "alltoall",
    "alltoallv",
    "gather",
    "gatherv",
    "scatter",
    "scatterv",
    "sparse_allreduce",
];

/// What an operation reduces by, and how it cuts zeros out.
type Reduced = (Reduction, SparseOptions);

/// An operation of one rank.
pub(crate) struct Call {
    operation: u32,
    root: u32,
    /// Of reductions.
    reduced: Option<Reduced>,
    /// Blocks that are sent and received, of operations with lists.
    sent: Listed,
    received: Listed,
    /// None in place.
    pub(crate) send: Option<Memory>,
    /// None of a Scatter in place.
    pub(crate) receive: Option<Memory>,
}

/// Lengths and offsets of each rank's block, and how far they reach.
#[derive(Default)]
struct Listed {
    counts: Vec<u64>,
    displacements: Vec<u64>,
    /// Whether blocks do not lie one after another.
    displaced: bool,
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

    fn blocks(&self) -> Blocks<'_> {
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
        let operation = given.operation;
        let Some(name) = (operation as usize).checked_sub(1).and_then(|at| NAMES.get(at).copied()) else {
            let text = format!(
                "operation is {operation}: must be one of FLEXCAST_OPERATION_*, 1 to \
                 {FLEXCAST_OPERATION_SPARSE_ALLREDUCE}"
            );
            return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
        };
        let reduced = match operation {
            FLEXCAST_OPERATION_ALLREDUCE
            | FLEXCAST_OPERATION_REDUCE
            | FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK
            | FLEXCAST_OPERATION_REDUCE_SCATTER
            | FLEXCAST_OPERATION_SPARSE_ALLREDUCE => Some(reduced(given)?),
            _ => None,
        };
        let unit = reduced.map_or(1, |(reduction, _)| reduction.element_bytes() as usize);
        let root = match operation {
            FLEXCAST_OPERATION_BROADCAST
            | FLEXCAST_OPERATION_REDUCE
            | FLEXCAST_OPERATION_GATHER
            | FLEXCAST_OPERATION_GATHERV
            | FLEXCAST_OPERATION_SCATTER
            | FLEXCAST_OPERATION_SCATTERV => count(given.root, "root")?,
            _ => 0,
        };
        let is_root = own == root;
        let in_place = given.flags & FLEXCAST_FLAG_IN_PLACE != 0;
        let scatters = matches!(operation, FLEXCAST_OPERATION_SCATTER | FLEXCAST_OPERATION_SCATTERV);
        let stays = |pointer: *const c_void| in_place || pointer.addr() == IN_PLACE;
        let (send_stays, receive_stays) = (!scatters && stays(given.send), scatters && stays(given.receive));

        // SAFETY: by this function's contract.
        let read =
            |counts, displacements, unit, what| unsafe { Listed::read(ranks, counts, displacements, unit, what) };
        let received = match operation {
            FLEXCAST_OPERATION_ALLGATHERV | FLEXCAST_OPERATION_ALLTOALLV => {
                read(given.receive_counts, given.receive_displacements, 1, "receive")?
            }
            FLEXCAST_OPERATION_GATHERV if is_root => {
                read(given.receive_counts, given.receive_displacements, 1, "receive")?
            }
            FLEXCAST_OPERATION_REDUCE_SCATTER if !given.receive_displacements.is_null() => {
                let text =
                    "reduce_scatter has no receive_displacements, since a rank receives one block: set it to NULL";
                return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, text));
            }
            FLEXCAST_OPERATION_REDUCE_SCATTER => read(given.receive_counts, std::ptr::null(), unit, "receive")?,
            _ => Listed::default(),
        };
        let sent = match operation {
            FLEXCAST_OPERATION_ALLTOALLV if !send_stays => {
                read(given.send_counts, given.send_displacements, 1, "send")?
            }
            FLEXCAST_OPERATION_SCATTERV if is_root => read(given.send_counts, given.send_displacements, 1, "send")?,
            _ => Listed::default(),
        };

        // Lengths of both buffers.
        let bytes = || product(name, given.count, unit);
        let all = || product(name, bytes()?, ranks as usize);
        let (send_bytes, receive_bytes) = match operation {
            FLEXCAST_OPERATION_BARRIER => (0, 0),
            FLEXCAST_OPERATION_BROADCAST => (0, bytes()?),
            FLEXCAST_OPERATION_ALLGATHER => (bytes()?, all()?),
            FLEXCAST_OPERATION_ALLGATHERV => (received.counts[own as usize] as usize, received.bytes),
            FLEXCAST_OPERATION_REDUCE => (bytes()?, if is_root { bytes()? } else { 0 }),
            FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK if send_stays => (0, all()?),
            FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK => (all()?, bytes()?),
            FLEXCAST_OPERATION_REDUCE_SCATTER if send_stays => (0, received.bytes),
            FLEXCAST_OPERATION_REDUCE_SCATTER => (received.bytes, received.counts[own as usize] as usize),
            FLEXCAST_OPERATION_ALLTOALL => (all()?, all()?),
            FLEXCAST_OPERATION_ALLTOALLV => (sent.bytes, received.bytes),
            FLEXCAST_OPERATION_GATHER => (bytes()?, if is_root { all()? } else { 0 }),
            FLEXCAST_OPERATION_GATHERV => (bytes()?, received.bytes),
            FLEXCAST_OPERATION_SCATTER => (if is_root { all()? } else { 0 }, bytes()?),
            FLEXCAST_OPERATION_SCATTERV => (sent.bytes, bytes()?),
            // AllReduce, sparse or not.
            _ => (bytes()?, bytes()?),
        };
        let has_send = !matches!(operation, FLEXCAST_OPERATION_BARRIER | FLEXCAST_OPERATION_BROADCAST) && !send_stays;
        let send = has_send.then(|| Memory { start: given.send.cast_mut(), bytes: send_bytes });
        let receives = operation != FLEXCAST_OPERATION_BARRIER && !receive_stays;
        // Where nothing is received the pointer may be anything.
        let start = if receive_bytes > 0 { given.receive } else { std::ptr::null_mut() };
        let receive = receives.then_some(Memory { start, bytes: receive_bytes });
        let send = send.map(|send| if send.bytes > 0 { send } else { Memory::NOTHING });
        Ok(Self { operation, root, reduced, sent, received, send, receive })
    }

    pub(crate) const fn name(&self) -> &'static str {
        NAMES[self.operation as usize - 1]
    }

    /// Whether the card reaches no memory of the caller's, as what it sends and receives is copied.
    pub(crate) const fn is_copied(&self) -> bool {
        self.operation == FLEXCAST_OPERATION_SPARSE_ALLREDUCE
    }

    /// Whether the communicator carries it, as all ranks can decide alike: FLEXCAST_NOT_SUPPORTED if not.
    pub(crate) fn check_supported(&self, communicator: &Communicator) -> Result<(), Fault> {
        let bytes = self.receive.map_or(0, |receive| receive.bytes) as u64;
        let shape = match (self.operation, self.reduced) {
            (FLEXCAST_OPERATION_BROADCAST, _) => Shape::Broadcast { bytes },
            (FLEXCAST_OPERATION_ALLGATHER, _) => Shape::Allgather { bytes: bytes / u64::from(communicator.size()) },
            (FLEXCAST_OPERATION_ALLGATHERV, _) => Shape::Allgatherv { counts: &self.received.counts },
            (FLEXCAST_OPERATION_SPARSE_ALLREDUCE, Some((reduction, options))) => {
                Shape::SparseAllreduce { bytes, reduction, options }
            }
            _ => Shape::Other { operation: self.name() },
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
        let lost = || Fault::new(FLEXCAST_ERROR_INTERNAL, "a mistake of this library: a buffer or reduction is lost");
        let root = self.root;
        let reduction = || self.reduced.ok_or_else(lost);
        if self.operation == FLEXCAST_OPERATION_BARRIER {
            return Ok(rust::Barrier.into());
        }
        if matches!(self.operation, FLEXCAST_OPERATION_SCATTER | FLEXCAST_OPERATION_SCATTERV) {
            let call = rust::Scatter::from(root);
            let is_listed = self.operation == FLEXCAST_OPERATION_SCATTERV;
            let call = if is_listed { call.blocks(self.sent.blocks()) } else { call };
            let send = send.ok_or_else(lost)?;
            return Ok(match receive {
                Some(receive) => call.buffers(send, receive),
                None => call.in_place(send),
            });
        }
        let receive = receive.ok_or_else(lost)?;
        Ok(match self.operation {
            FLEXCAST_OPERATION_BROADCAST => rust::Broadcast::from(root).buffer(receive),
            FLEXCAST_OPERATION_ALLGATHER => rust::Allgather::new().with(send, receive),
            FLEXCAST_OPERATION_ALLGATHERV => {
                let call = rust::Allgather::counts(&self.received.counts);
                let call = if self.received.displaced { call.displs(&self.received.displacements) } else { call };
                call.with(send, receive)
            }
            FLEXCAST_OPERATION_ALLREDUCE => rust::Allreduce::new(reduction()?.0).with(send, receive),
            FLEXCAST_OPERATION_SPARSE_ALLREDUCE => {
                let (reduction, options) = reduction()?;
                rust::Allreduce::new(reduction).sparse(options).with(send, receive)
            }
            FLEXCAST_OPERATION_REDUCE => rust::Reduce::to(root, reduction()?.0).with(send, receive),
            FLEXCAST_OPERATION_REDUCE_SCATTER_BLOCK => rust::ReduceScatter::new(reduction()?.0).with(send, receive),
            FLEXCAST_OPERATION_REDUCE_SCATTER => {
                rust::ReduceScatter::new(reduction()?.0).counts(&self.received.counts).with(send, receive)
            }
            FLEXCAST_OPERATION_ALLTOALL => rust::Alltoall::new().with(send, receive),
            FLEXCAST_OPERATION_ALLTOALLV => {
                rust::Alltoall::blocks(self.sent.blocks(), self.received.blocks()).with(send, receive)
            }
            FLEXCAST_OPERATION_GATHER => rust::Gather::to(root).with(send, receive),
            // All others were handled above.
            _ => rust::Gather::to(root).blocks(self.received.blocks()).with(send, receive),
        })
    }
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
