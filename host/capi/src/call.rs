//! Descriptions of operations: what is to be done with which memory, checked as far as that is possible without posting
//! it.

use std::ffi::{c_int, c_void};

use flexcast_rust as rust;
use flexcast_rust::reduce::Reduction;
use flexcast_rust::{Blocks, Buffer, Communicator, Error, Failed, Request, Shape, SparseOptions};

use crate::fault::Fault;
use crate::memory::{IN_PLACE, Memory, count};
use crate::status::flexcast_status::*;

pub(crate) type Posted = Result<Request, Box<Failed>>;

/// The own rank, and how many there are.
pub(crate) type Place = (u32, u32);

/// What an operation does. Lengths are in bytes.
pub(crate) enum Action {
    Barrier,
    Broadcast { root: u32 },
    Allgather,
    Allgatherv { counts: Vec<u64>, displacements: Option<Vec<u64>> },
    Allreduce { reduction: Reduction },
    SparseAllreduce { reduction: Reduction, options: SparseOptions },
    Reduce { root: u32, reduction: Reduction },
    ReduceScatter { shares: Vec<u64>, reduction: Reduction },
    Alltoall,
    Alltoallv { from: Listed, to: Listed },
    Gather { root: u32 },
    Gatherv { root: u32, blocks: Listed },
    Scatter { root: u32, in_place: bool },
    Scatterv { root: u32, blocks: Listed, in_place: bool },
}

/// An operation of one rank.
pub(crate) struct Call {
    pub(crate) action: Action,
    /// None in place.
    pub(crate) send: Option<Memory>,
    pub(crate) receive: Memory,
}

/// Lengths and places of each rank's block, and how far they reach.
pub(crate) struct Listed {
    counts: Vec<u64>,
    displacements: Vec<u64>,
    bytes: usize,
}

impl Listed {
    /// # Safety
    /// Both are null, or readable for as many entries as there are ranks.
    unsafe fn read(ranks: u32, counts: *const usize, displacements: *const usize, what: &str) -> Result<Self, Fault> {
        // SAFETY: by this function's contract.
        let counts = unsafe { entries(ranks, counts, &format!("{what}_counts")) }?;
        // SAFETY: the same.
        let displacements = unsafe { entries(ranks, displacements, &format!("{what}_displacements")) }?;
        let ends = counts.iter().zip(&displacements).map(|(bytes, at)| at.checked_add(*bytes));
        let end = ends.collect::<Option<Vec<u64>>>().map(|ends| ends.into_iter().max().unwrap_or(0));
        let Some(bytes) = end.and_then(|end| usize::try_from(end).ok()) else {
            return Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, format!("{what}: a block ends beyond the address space")));
        };
        Ok(Self { counts, displacements, bytes })
    }

    const fn none() -> Self {
        Self { counts: Vec::new(), displacements: Vec::new(), bytes: 0 }
    }

    fn blocks(&self) -> Blocks<'_> {
        Blocks { counts: &self.counts, displs: &self.displacements }
    }
}

/// A list with an entry for each rank.
///
/// # Safety
/// Null, or readable for as many entries as there are ranks.
unsafe fn entries(ranks: u32, list: *const usize, what: &str) -> Result<Vec<u64>, Fault> {
    if list.is_null() {
        return Err(Fault::null(what));
    }
    // SAFETY: not null, and an entry for each rank by this function's contract.
    Ok((0..ranks as usize).map(|rank| unsafe { list.add(rank).read_unaligned() } as u64).collect())
}

fn product(what: &str, one: usize, other: usize) -> Result<usize, Fault> {
    one.checked_mul(other).ok_or_else(|| {
        let text = format!("{what}: {one} times {other} bytes are more than the address space");
        Fault::new(FLEXCAST_ERROR_ARGUMENT, text)
    })
}

fn sum(what: &str, counts: &[u64]) -> Result<usize, Fault> {
    let all = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
    all.and_then(|all| usize::try_from(all).ok()).ok_or_else(|| {
        Fault::new(FLEXCAST_ERROR_ARGUMENT, format!("{what}: the counts are more than the address space"))
    })
}

/// One per operation, of what a program gives: lists are null, or have an entry for each rank, which the callers vouch
/// for.
impl Call {
    pub(crate) const fn barrier() -> Self {
        Self { action: Action::Barrier, send: None, receive: Memory::NOTHING }
    }

    pub(crate) fn broadcast(buffer: *mut c_void, bytes: usize, root: c_int) -> Result<Self, Fault> {
        let action = Action::Broadcast { root: count(root, "root")? };
        Ok(Self { action, send: None, receive: Memory { start: buffer, bytes } })
    }

    pub(crate) fn allgather(
        (_, ranks): Place,
        send: *const c_void,
        receive: *mut c_void,
        bytes: usize,
    ) -> Result<Self, Fault> {
        let all = bytes.checked_mul(ranks as usize).ok_or_else(|| {
            let text = format!("allgather: {bytes} bytes from {ranks} ranks are more than the address space");
            Fault::new(FLEXCAST_ERROR_ARGUMENT, text)
        })?;
        let (send, receive) = (Memory::unless_in_place(send, bytes), Memory { start: receive, bytes: all });
        Ok(Self { action: Action::Allgather, send, receive })
    }

    /// With places in a receive buffer of so many bytes, or one after another.
    ///
    /// # Safety
    /// Lists are null or have an entry for each rank.
    pub(crate) unsafe fn allgatherv(
        (own, ranks): Place,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const usize,
        displaced: Option<(usize, *const usize)>,
    ) -> Result<Self, Fault> {
        // SAFETY: by this function's contract.
        let counts = unsafe { entries(ranks, counts, "counts") }?;
        let (bytes, displacements) = match displaced {
            // SAFETY: the same.
            Some((bytes, list)) => (bytes, Some(unsafe { entries(ranks, list, "displacements") }?)),
            None => (sum("allgatherv", &counts)?, None),
        };
        let send = Memory::unless_in_place(send, counts[own as usize] as usize);
        Ok(Self {
            action: Action::Allgatherv { counts, displacements },
            send,
            receive: Memory { start: receive, bytes },
        })
    }

    pub(crate) fn allreduce(
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        reduction: Reduction,
    ) -> Result<Self, Fault> {
        let bytes = product("allreduce", count, reduction.element_bytes() as usize)?;
        let (send, receive) = (Memory::unless_in_place(send, bytes), Memory { start: receive, bytes });
        Ok(Self { action: Action::Allreduce { reduction }, send, receive })
    }

    /// Blocks of so many bytes, and so many of them in a message; 0: as many as the library chooses.
    pub(crate) fn sparse_allreduce(
        (send, receive): (*const c_void, *mut c_void),
        count: usize,
        reduction: Reduction,
        (block_bytes, blocks_per_message): (u32, u32),
    ) -> Result<Self, Fault> {
        let bytes = product("sparse_allreduce", count, reduction.element_bytes() as usize)?;
        let default = SparseOptions::default();
        let or = |given: u32, default: u32| if given == 0 { default } else { given };
        let options = SparseOptions {
            block_bytes: or(block_bytes, default.block_bytes),
            blocks_per_message: or(blocks_per_message, default.blocks_per_message),
        };
        options
            .check_ranges(reduction)
            .map_err(|text| Fault::new(FLEXCAST_ERROR_ARGUMENT, format!("sparse_allreduce: {text}")))?;
        let (send, receive) = (Memory::unless_in_place(send, bytes), Memory { start: receive, bytes });
        Ok(Self { action: Action::SparseAllreduce { reduction, options }, send, receive })
    }

    pub(crate) fn reduce(
        (own, _): Place,
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        reduction: Reduction,
        root: c_int,
    ) -> Result<Self, Fault> {
        let bytes = product("reduce", count, reduction.element_bytes() as usize)?;
        let root = self::count(root, "root")?;
        let receive = if own == root { Memory { start: receive, bytes } } else { Memory::NOTHING };
        Ok(Self { action: Action::Reduce { root, reduction }, send: Memory::unless_in_place(send, bytes), receive })
    }

    pub(crate) fn reduce_scatter_block(
        place: Place,
        send: *const c_void,
        receive: *mut c_void,
        count: usize,
        reduction: Reduction,
    ) -> Result<Self, Fault> {
        let share = product("reduce_scatter_block", count, reduction.element_bytes() as usize)?;
        Self::reduced(place, (send, receive), vec![share as u64; place.1 as usize], reduction)
    }

    /// # Safety
    /// The list is null or has an entry for each rank.
    pub(crate) unsafe fn reduce_scatter(
        place: Place,
        send: *const c_void,
        receive: *mut c_void,
        counts: *const usize,
        reduction: Reduction,
    ) -> Result<Self, Fault> {
        // SAFETY: by this function's contract.
        let counts = unsafe { entries(place.1, counts, "counts") }?;
        let element = reduction.element_bytes() as usize;
        let shares = counts.iter().map(|count| Ok(product("reduce_scatter", *count as usize, element)? as u64));
        Self::reduced(place, (send, receive), shares.collect::<Result<_, Fault>>()?, reduction)
    }

    fn reduced(
        (own, _): Place,
        (send, receive): (*const c_void, *mut c_void),
        shares: Vec<u64>,
        reduction: Reduction,
    ) -> Result<Self, Fault> {
        let total = sum("reduce_scatter", &shares)?;
        let send = Memory::unless_in_place(send, total);
        let bytes = if send.is_some() { shares[own as usize] as usize } else { total };
        Ok(Self {
            action: Action::ReduceScatter { shares, reduction },
            send,
            receive: Memory { start: receive, bytes },
        })
    }

    pub(crate) fn alltoall(
        (_, ranks): Place,
        send: *const c_void,
        receive: *mut c_void,
        bytes: usize,
    ) -> Result<Self, Fault> {
        let bytes = product("alltoall", bytes, ranks as usize)?;
        let (send, receive) = (Memory::unless_in_place(send, bytes), Memory { start: receive, bytes });
        Ok(Self { action: Action::Alltoall, send, receive })
    }

    /// # Safety
    /// Lists are null or have an entry for each rank.
    pub(crate) unsafe fn alltoallv(
        (_, ranks): Place,
        (send, send_counts, send_displacements): (*const c_void, *const usize, *const usize),
        (receive, receive_counts, receive_displacements): (*mut c_void, *const usize, *const usize),
    ) -> Result<Self, Fault> {
        // SAFETY: by this function's contract.
        let to = unsafe { Listed::read(ranks, receive_counts, receive_displacements, "receive") }?;
        let from = match send.addr() {
            IN_PLACE => Listed::none(),
            // SAFETY: the same.
            _ => unsafe { Listed::read(ranks, send_counts, send_displacements, "send") }?,
        };
        let (send, receive) = (Memory::unless_in_place(send, from.bytes), Memory { start: receive, bytes: to.bytes });
        Ok(Self { action: Action::Alltoallv { from, to }, send, receive })
    }

    pub(crate) fn gather(
        (own, ranks): Place,
        send: *const c_void,
        receive: *mut c_void,
        bytes: usize,
        root: c_int,
    ) -> Result<Self, Fault> {
        let root = count(root, "root")?;
        let all = product("gather", bytes, ranks as usize)?;
        let receive = if own == root { Memory { start: receive, bytes: all } } else { Memory::NOTHING };
        Ok(Self { action: Action::Gather { root }, send: Memory::unless_in_place(send, bytes), receive })
    }

    /// # Safety
    /// Lists are null or have an entry for each rank.
    pub(crate) unsafe fn gatherv(
        (own, ranks): Place,
        (send, bytes): (*const c_void, usize),
        (receive, counts, displacements): (*mut c_void, *const usize, *const usize),
        root: c_int,
    ) -> Result<Self, Fault> {
        let root = count(root, "root")?;
        let blocks = match own == root {
            // SAFETY: by this function's contract.
            true => unsafe { Listed::read(ranks, counts, displacements, "receive") }?,
            false => Listed::none(),
        };
        let receive = Memory { start: receive, bytes: blocks.bytes };
        Ok(Self { action: Action::Gatherv { root, blocks }, send: Memory::unless_in_place(send, bytes), receive })
    }

    pub(crate) fn scatter(
        (own, ranks): Place,
        send: *const c_void,
        receive: *mut c_void,
        bytes: usize,
        root: c_int,
    ) -> Result<Self, Fault> {
        let root = count(root, "root")?;
        let all = if own == root { product("scatter", bytes, ranks as usize)? } else { 0 };
        let in_place = receive.addr() == IN_PLACE;
        let send = Some(Memory { start: send.cast_mut(), bytes: all });
        let receive = Memory::unless_in_place(receive, bytes).unwrap_or(Memory::NOTHING);
        Ok(Self { action: Action::Scatter { root, in_place }, send, receive })
    }

    /// # Safety
    /// Lists are null or have an entry for each rank.
    pub(crate) unsafe fn scatterv(
        (own, ranks): Place,
        (send, counts, displacements): (*const c_void, *const usize, *const usize),
        (receive, bytes): (*mut c_void, usize),
        root: c_int,
    ) -> Result<Self, Fault> {
        let root = count(root, "root")?;
        let blocks = match own == root {
            // SAFETY: by this function's contract.
            true => unsafe { Listed::read(ranks, counts, displacements, "send") }?,
            false => Listed::none(),
        };
        let in_place = receive.addr() == IN_PLACE;
        let send = Some(Memory { start: send.cast_mut(), bytes: blocks.bytes });
        let receive = Memory::unless_in_place(receive, bytes).unwrap_or(Memory::NOTHING);
        Ok(Self { action: Action::Scatterv { root, blocks, in_place }, send, receive })
    }

    pub(crate) const fn name(&self) -> &'static str {
        self.action.name()
    }

    /// Whether the communicator carries it, as all ranks can tell alike: FLEXCAST_NOT_SUPPORTED if not.
    pub(crate) fn check_supported(&self, communicator: &Communicator) -> Result<(), Fault> {
        let shape = match &self.action {
            Action::Broadcast { .. } => Shape::Broadcast { bytes: self.receive.bytes as u64 },
            Action::Allgather => Shape::Allgather { bytes: (self.receive.bytes / communicator.size() as usize) as u64 },
            Action::Allgatherv { counts, .. } => Shape::Allgatherv { counts },
            Action::SparseAllreduce { reduction, options } => {
                Shape::SparseAllreduce { bytes: self.receive.bytes as u64, reduction: *reduction, options: *options }
            }
            other => Shape::Other { operation: other.name() },
        };
        communicator.admits(shape).map_err(|error| match &error {
            Error::TooManyChunks { .. } | Error::Argument { .. } | Error::Space(_) => {
                Fault::new(FLEXCAST_NOT_SUPPORTED, error.to_string())
            }
            _ => Fault::from(&error),
        })
    }

    /// Posts it with its memory.
    pub(crate) fn post(&self, communicator: &Communicator, send: Option<Buffer>, receive: Buffer) -> Posted {
        match &self.action {
            Action::Barrier => communicator.barrier(),
            Action::Broadcast { root } => communicator.broadcast(receive, *root),
            Action::Allgather => communicator.post(rust::Allgather::new().with(send, receive)),
            Action::Allgatherv { counts, displacements } => {
                let call = rust::Allgather::counts(counts);
                let call = displacements.as_ref().map_or(call, |displs| call.displs(displs));
                communicator.post(call.with(send, receive))
            }
            Action::Allreduce { reduction } => communicator.post(rust::Allreduce::new(*reduction).with(send, receive)),
            Action::SparseAllreduce { reduction, options } => {
                communicator.post(rust::Allreduce::new(*reduction).sparse(*options).with(send, receive))
            }
            Action::Reduce { root, reduction } => {
                communicator.post(rust::Reduce::to(*root, *reduction).with(send, receive))
            }
            Action::ReduceScatter { shares, reduction } => {
                communicator.post(rust::ReduceScatter::new(*reduction).counts(shares).with(send, receive))
            }
            Action::Alltoall => communicator.post(rust::Alltoall::new().with(send, receive)),
            Action::Alltoallv { from, to } => {
                communicator.post(rust::Alltoall::blocks(from.blocks(), to.blocks()).with(send, receive))
            }
            Action::Gather { root } => communicator.post(rust::Gather::to(*root).with(send, receive)),
            Action::Gatherv { root, blocks } => {
                communicator.post(rust::Gather::to(*root).blocks(blocks.blocks()).with(send, receive))
            }
            Action::Scatter { root, in_place } => {
                communicator.post(scattered(rust::Scatter::from(*root), *in_place, send, receive))
            }
            Action::Scatterv { root, blocks, in_place } => {
                let call = rust::Scatter::from(*root).blocks(blocks.blocks());
                communicator.post(scattered(call, *in_place, send, receive))
            }
        }
    }
}

/// A Scatter with its buffers; in place it receives nothing.
fn scattered<'c>(call: rust::Scatter<'c>, in_place: bool, send: Option<Buffer>, receive: Buffer) -> rust::Call<'c> {
    match send {
        Some(send) if !in_place => call.buffers(send, receive),
        send => call.in_place(send.unwrap_or(receive)),
    }
}

impl Action {
    /// Whether the card reaches no memory of the caller's, as what it sends and receives is copied.
    pub(crate) const fn is_copied(&self) -> bool {
        matches!(self, Self::SparseAllreduce { .. })
    }

    const fn name(&self) -> &'static str {
        match self {
            Self::Barrier => "barrier",
            Self::Broadcast { .. } => "broadcast",
            Self::Allgather => "allgather",
            Self::Allgatherv { .. } => "allgatherv",
            Self::Allreduce { .. } => "allreduce",
            Self::SparseAllreduce { .. } => "sparse_allreduce",
            Self::Reduce { .. } => "reduce",
            Self::ReduceScatter { .. } => "reduce_scatter",
            Self::Alltoall => "alltoall",
            Self::Alltoallv { .. } => "alltoallv",
            Self::Gather { .. } => "gather",
            Self::Gatherv { .. } => "gatherv",
            Self::Scatter { .. } => "scatter",
            Self::Scatterv { .. } => "scatterv",
        }
    }
}
