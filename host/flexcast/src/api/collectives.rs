//! Collectives by messages between pairs of ranks: barrier, reductions, and blocks from each to each.
//!
//! They have the argument order and the meaning of MPI's (MPI 4.1, chapter 6), with lengths in bytes. All ranks call
//! the same operations, with the same root, reduction and lengths, as far as each gives them; what differs is found,
//! and named ([`Communicator::disagreement`]). All datapaths carry them, by reliable connections; with the protocol on
//! the card ([`Control::Device`](crate::Control::Device)) they are refused. Over RDMA cards the first of them, a
//! Barrier apart, connects all pairs of ranks ([`Footprint::pair_queue_pairs`](crate::Footprint::pair_queue_pairs)).

use crate::api::communicator::Communicator;
use crate::api::request::Request;
use crate::engine::Task;
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::collective::{Collective, Places};
use crate::op::lists::ListPool;
use crate::op::outcome::Failed;
use crate::op::reduce::Reduction;
use crate::op::report::Report;
use crate::op::sparse_options::SparseOptions;
use crate::p2p::messages::sparse;

/// Lengths and offsets of each rank's block in a buffer, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'b> {
    /// Bytes of each rank's block, in the order of ranks.
    pub counts: &'b [u64],
    /// Where each begins.
    pub displacements: &'b [u64],
}

impl Communicator {
    /// Ends on no rank before all have called it.
    ///
    /// # Errors
    /// [`Failed`]: a communicator that has failed, or whose datapath does not carry it.
    pub fn barrier(&self) -> Result<Request, Box<Failed>> {
        let nothing = self.card().buffer(0);
        let receive = nothing
            .map_err(|error| Box::new(Failed { error, send: None, receive: None, report: Report::default() }))?;
        self.collective(None, receive, |_| Ok(Collective::Barrier))
    }

    /// The reduction of the contributions of all ranks, to `receive` on all of them. Every rank contributes `send`;
    /// both buffers have its length.
    ///
    /// # Errors
    /// [`Failed`] with the buffers: lengths that differ, or are no multiple of an element's; and as in
    /// [`Communicator::barrier`].
    pub fn all_reduce(&self, send: Buffer, receive: Buffer, reduction: Reduction) -> Result<Request, Box<Failed>> {
        let bytes = receive.len() as u64;
        self.collective(Some(send), receive, |_| Ok(Collective::Allreduce { bytes, reduction }))
    }

    /// The same with the contribution in the buffer that gets the result.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn all_reduce_in_place(&self, buffer: Buffer, reduction: Reduction) -> Result<Request, Box<Failed>> {
        let bytes = buffer.len() as u64;
        self.collective(None, buffer, |_| Ok(Collective::Allreduce { bytes, reduction }))
    }

    /// The same as [`Communicator::all_reduce`] for contributions of which much is zero: blocks that are zero are
    /// neither sent nor summed, and nobody has to say where they are. A block is zero if all of its bits are, so that
    /// -0.0 and NaN travel. For minimum and maximum a block that is zero is one that the rank does not have. Every rank
    /// sums up a part of the array, on its processor or on its card's DPA
    /// ([`Config::sparse_aggregation`](crate::Config::sparse_aggregation)). Over an Ethernet interface sums go as
    /// [`Communicator::all_reduce`] makes them, zeros included, where that is expected to be faster: short arrays, and
    /// of others those in which the last operation on an array of that length has found too few zeros
    /// ([`SparseCost`](crate::SparseCost); the report says by which algorithm, and what either was expected to take).
    /// There -0.0 of one rank and 0.0 of the others are 0.0. After a failure `receive` is part old and part new.
    ///
    /// Over an RDMA card the array is never given to the card, which sends from and receives into a ring of 2d blocks
    /// for each part of it. So it may be memory that is not registered
    /// ([`UserMemory::unregistered`](crate::UserMemory::unregistered)).
    ///
    /// With [`Config::reproducible`](crate::Config::reproducible) blocks are added in the order of ranks; otherwise in
    /// the order in which they come, and sums of floating-point numbers differ from call to call in their last bits.
    /// Sums of `f32` that DPAs add as fixed-point numbers
    /// ([`Config::sparse_fixed_point`](crate::Config::sparse_fixed_point)) have no order; -0.0 becomes 0.0 there, and a
    /// number beyond the bound fails the operation ([`Error::Contribution`]).
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; options out of their ranges; an operator that zeros change; a datapath that
    /// does not carry it.
    pub fn sparse_all_reduce(
        &self,
        send: Buffer,
        receive: Buffer,
        reduction: Reduction,
        options: SparseOptions,
    ) -> Result<Request, Box<Failed>> {
        let bytes = receive.len() as u64;
        self.collective(Some(send), receive, |_| self.sparse(bytes, reduction, options))
    }

    /// The same with the contribution in the buffer that gets the result.
    ///
    /// # Errors
    /// As [`Communicator::sparse_all_reduce`].
    pub fn sparse_all_reduce_in_place(
        &self,
        buffer: Buffer,
        reduction: Reduction,
        options: SparseOptions,
    ) -> Result<Request, Box<Failed>> {
        let bytes = buffer.len() as u64;
        self.collective(None, buffer, |_| self.sparse(bytes, reduction, options))
    }

    fn sparse(
        &self,
        bytes: u64,
        reduction: Reduction,
        options: SparseOptions,
    ) -> std::result::Result<Collective, String> {
        options.check(bytes, self.size(), reduction).map_err(|error| error.to_string())?;
        Ok(Collective::SparseAllreduce { bytes, reduction, options })
    }

    /// Whether it carries a sparse AllReduce like this.
    pub(crate) fn admits_sparse(&self, bytes: u64, reduction: Reduction, options: SparseOptions) -> Result<()> {
        let operation = sparse::NAME;
        self.admission().check_collective(operation)?;
        self.sparse(bytes, reduction, options).map(drop).map_err(|reason| Error::Argument { operation, reason })
    }

    /// The reduction of the contributions of all ranks, to `receive` on rank `root`; elsewhere that is not touched, and
    /// may be empty.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; no such root.
    pub fn reduce(
        &self,
        send: Buffer,
        receive: Buffer,
        root: u32,
        reduction: Reduction,
    ) -> Result<Request, Box<Failed>> {
        let bytes = send.len() as u64;
        self.collective(Some(send), receive, |_| Ok(Collective::Reduce { root, bytes, reduction }))
    }

    /// The same with the contribution in the buffer that gets the result on the root, and is not touched elsewhere.
    ///
    /// # Errors
    /// As [`Communicator::reduce`].
    pub fn reduce_in_place(&self, buffer: Buffer, root: u32, reduction: Reduction) -> Result<Request, Box<Failed>> {
        let bytes = buffer.len() as u64;
        self.collective(None, buffer, |_| Ok(Collective::Reduce { root, bytes, reduction }))
    }

    /// The reduction of the contributions of all ranks, a share to each: rank r gets the r-th of `size()` equal parts.
    /// `send` is `size()` times as long as `receive`.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`].
    pub fn reduce_scatter(&self, send: Buffer, receive: Buffer, reduction: Reduction) -> Result<Request, Box<Failed>> {
        let bytes = receive.len() as u64;
        self.collective(Some(send), receive, |(_, ranks)| {
            Ok(Collective::ReduceScatter { shares: self.lists().list((0..ranks).map(|_| bytes)), reduction })
        })
    }

    /// The same with shares of `counts[r]` bytes, one rank's after another's in `send`. `counts` is alike on all ranks.
    ///
    /// # Errors
    /// As [`Communicator::all_reduce`]; `counts` has not `size()` entries.
    pub fn reduce_scatterv(
        &self,
        send: Buffer,
        receive: Buffer,
        counts: &[u64],
        reduction: Reduction,
    ) -> Result<Request, Box<Failed>> {
        self.collective(Some(send), receive, |_| shares(self.lists(), counts, self.size(), reduction))
    }

    /// The same with the contribution in `buffer`, whose beginning gets the own share.
    ///
    /// # Errors
    /// As [`Communicator::reduce_scatterv`].
    pub fn reduce_scatterv_in_place(
        &self,
        buffer: Buffer,
        counts: &[u64],
        reduction: Reduction,
    ) -> Result<Request, Box<Failed>> {
        self.collective(None, buffer, |_| shares(self.lists(), counts, self.size(), reduction))
    }

    /// Block r of `send` to rank r, where it becomes block `rank()` of `receive`. Both buffers have `size()` blocks of
    /// one length.
    ///
    /// # Errors
    /// [`Failed`] with the buffers: lengths that differ, or are no multiple of `size()`; and as in
    /// [`Communicator::barrier`].
    pub fn all_to_all(&self, send: Buffer, receive: Buffer) -> Result<Request, Box<Failed>> {
        let len = receive.len() as u64;
        self.collective(Some(send), receive, |(_, ranks)| Ok(Collective::Alltoall { bytes: len / u64::from(ranks) }))
    }

    /// The same with the blocks of the own contribution in the buffer, which those of the others replace.
    ///
    /// # Errors
    /// As [`Communicator::all_to_all`].
    pub fn all_to_all_in_place(&self, buffer: Buffer) -> Result<Request, Box<Failed>> {
        let len = buffer.len() as u64;
        self.collective(None, buffer, |(_, ranks)| Ok(Collective::Alltoall { bytes: len / u64::from(ranks) }))
    }

    /// Block r of `send`, wherever it lies, to rank r. What rank r sends to this one goes to block r of `receive`; both
    /// must give one length.
    ///
    /// # Errors
    /// [`Failed`] with the buffers: blocks that end beyond their buffer, or overlap in `receive`, lists that have not
    /// `size()` entries; and as in [`Communicator::barrier`].
    pub fn all_to_allv(
        &self,
        send: Buffer,
        receive: Buffer,
        sent: Blocks<'_>,
        received: Blocks<'_>,
    ) -> Result<Request, Box<Failed>> {
        let lens = [send.len() as u64, receive.len() as u64];
        self.collective(Some(send), receive, |(_, ranks)| {
            let send = Places::new(self.lists(), sent.counts, sent.displacements, (ranks, lens[0]), true)?;
            let receive = Places::new(self.lists(), received.counts, received.displacements, (ranks, lens[1]), false)?;
            Ok(Collective::Alltoallv { send, receive })
        })
    }

    /// The same with the blocks of the own contribution in the buffer, which those of the others, of the same lengths,
    /// replace.
    ///
    /// # Errors
    /// As [`Communicator::all_to_allv`].
    pub fn all_to_allv_in_place(&self, buffer: Buffer, blocks: Blocks<'_>) -> Result<Request, Box<Failed>> {
        let len = buffer.len() as u64;
        self.collective(None, buffer, |(_, ranks)| {
            let places = Places::new(self.lists(), blocks.counts, blocks.displacements, (ranks, len), false)?;
            Ok(Collective::Alltoallv { send: places.clone(), receive: places })
        })
    }

    /// `send` of every rank to rank `root`, one rank's after another's in its `receive`; elsewhere that is not touched,
    /// and may be empty.
    ///
    /// # Errors
    /// [`Failed`] with the buffers: the root's `receive` is not `size()` times as long as `send`, no such root; and as
    /// in [`Communicator::barrier`].
    pub fn gather(&self, send: Buffer, receive: Buffer, root: u32) -> Result<Request, Box<Failed>> {
        let bytes = send.len() as u64;
        self.collective(Some(send), receive, |_| Ok(Collective::Gather { root, bytes }))
    }

    /// The same on the root with its own block in its place in `receive`; all others call [`Communicator::gather`].
    ///
    /// # Errors
    /// As [`Communicator::gather`]; on another rank than the root.
    pub fn gather_in_place(&self, receive: Buffer, root: u32) -> Result<Request, Box<Failed>> {
        let len = receive.len() as u64;
        self.collective(None, receive, |(own, ranks)| {
            only_root(own, root)?;
            Ok(Collective::Gather { root, bytes: len / u64::from(ranks) })
        })
    }

    /// `send` of every rank to rank `root`, whose `blocks` say where each goes; elsewhere they are not looked at.
    ///
    /// # Errors
    /// As [`Communicator::all_to_allv`] and [`Communicator::gather`].
    pub fn gatherv(
        &self,
        send: Buffer,
        receive: Buffer,
        blocks: Blocks<'_>,
        root: u32,
    ) -> Result<Request, Box<Failed>> {
        let (bytes, len) = (send.len() as u64, receive.len() as u64);
        self.collective(Some(send), receive, |(own, ranks)| {
            let places = rooted(self.lists(), blocks, (own, root, ranks), len, bytes, false)?;
            Ok(Collective::Gatherv { root, places })
        })
    }

    /// The same on the root with its own block in its place in `receive`; all others call [`Communicator::gatherv`].
    ///
    /// # Errors
    /// As [`Communicator::gatherv`]; on another rank than the root.
    pub fn gatherv_in_place(&self, receive: Buffer, blocks: Blocks<'_>, root: u32) -> Result<Request, Box<Failed>> {
        let len = receive.len() as u64;
        self.collective(None, receive, |(own, ranks)| {
            only_root(own, root)?;
            let places = Places::new(self.lists(), blocks.counts, blocks.displacements, (ranks, len), false)?;
            Ok(Collective::Gatherv { root, places })
        })
    }

    /// Block r of the `send` of rank `root` to `receive` of rank r; elsewhere `send` is not looked at, and may be
    /// empty.
    ///
    /// # Errors
    /// [`Failed`] with the buffers: the root's `send` is not `size()` times as long as `receive`, no such root; and as
    /// in [`Communicator::barrier`].
    pub fn scatter(&self, send: Buffer, receive: Buffer, root: u32) -> Result<Request, Box<Failed>> {
        let bytes = receive.len() as u64;
        self.collective(Some(send), receive, |_| Ok(Collective::Scatter { root, bytes, in_place: false }))
    }

    /// The same on the root, whose own block stays where it is; all others call [`Communicator::scatter`].
    ///
    /// # Errors
    /// As [`Communicator::scatter`]; on another rank than the root.
    pub fn scatter_in_place(&self, send: Buffer, root: u32) -> Result<Request, Box<Failed>> {
        let len = send.len() as u64;
        self.send_in_place(send, |(own, ranks)| {
            only_root(own, root)?;
            Ok(Collective::Scatter { root, bytes: len / u64::from(ranks), in_place: true })
        })
    }

    /// Block r of the `send` of rank `root`, where its `blocks` say, to `receive` of rank r; elsewhere they are not
    /// looked at.
    ///
    /// # Errors
    /// As [`Communicator::all_to_allv`] and [`Communicator::scatter`].
    pub fn scatterv(
        &self,
        send: Buffer,
        receive: Buffer,
        blocks: Blocks<'_>,
        root: u32,
    ) -> Result<Request, Box<Failed>> {
        let (len, bytes) = (send.len() as u64, receive.len() as u64);
        self.collective(Some(send), receive, |(own, ranks)| {
            let places = rooted(self.lists(), blocks, (own, root, ranks), len, bytes, true)?;
            Ok(Collective::Scatterv { root, places, in_place: false })
        })
    }

    /// The same on the root, whose own block stays where it is; all others call [`Communicator::scatterv`].
    ///
    /// # Errors
    /// As [`Communicator::scatterv`]; on another rank than the root.
    pub fn scatterv_in_place(&self, send: Buffer, blocks: Blocks<'_>, root: u32) -> Result<Request, Box<Failed>> {
        let len = send.len() as u64;
        self.send_in_place(send, |(own, ranks)| {
            only_root(own, root)?;
            let places = Places::new(self.lists(), blocks.counts, blocks.displacements, (ranks, len), true)?;
            Ok(Collective::Scatterv { root, places, in_place: true })
        })
    }

    /// Posts a collective that receives nothing on this rank.
    fn send_in_place(
        &self,
        send: Buffer,
        make: impl FnOnce((u32, u32)) -> std::result::Result<Collective, String>,
    ) -> Result<Request, Box<Failed>> {
        match self.card().buffer(0) {
            Ok(nothing) => self.collective(Some(send), nothing, make),
            Err(error) => Err(Box::new(Failed { error, send: Some(send), receive: None, report: Report::default() })),
        }
    }

    /// Posts a collective that is made of the own rank and the number of ranks.
    fn collective(
        &self,
        send: Option<Buffer>,
        receive: Buffer,
        make: impl FnOnce((u32, u32)) -> std::result::Result<Collective, String>,
    ) -> Result<Request, Box<Failed>> {
        let made = make((self.rank(), self.size()));
        let task = self.check(made, send.as_ref(), &receive).map(Task::Collective);
        self.post_task(task, send, receive)
    }

    /// Checks a collective's arguments.
    fn check(
        &self,
        made: std::result::Result<Collective, String>,
        send: Option<&Buffer>,
        receive: &Buffer,
    ) -> Result<Collective> {
        self.check_whole()?;
        let collective = made.map_err(|reason| Error::Argument { operation: "collective", reason })?;
        let operation = collective.kind().name();
        self.admission().check_collective(operation)?;
        let (own, ranks) = (self.rank(), self.size());
        let refuse = |reason: String| Err(Error::Argument { operation, reason });
        // Blocks of a sparse AllReduce are copied: any memory will do.
        if !matches!(collective, Collective::SparseAllreduce { .. }) || !self.admission().registered {
            self.check_buffers(operation, send, receive)?;
        }
        if let Some(root) = collective.root().filter(|root| *root >= ranks) {
            return refuse(format!("root {root} of {ranks} ranks: roots run from 0 to {}", ranks - 1));
        }
        let element = collective.reduction().map_or(1, |reduction| u64::from(reduction.element_bytes()));
        let odd = |bytes: &u64| !bytes.is_multiple_of(element);
        let odd = match &collective {
            Collective::ReduceScatter { shares, .. } => shares.iter().copied().find(odd),
            Collective::Reduce { bytes, .. }
            | Collective::Allreduce { bytes, .. }
            | Collective::SparseAllreduce { bytes, .. } => Some(*bytes).filter(odd),
            _ => None,
        };
        if let Some(bytes) = odd {
            return refuse(format!("{bytes} bytes are no multiple of an element's {element}"));
        }
        let [sends, receives] = collective.buffers(own, ranks);
        // In place, the receive buffer has what would be sent.
        let receives = match (send, &collective) {
            (None, Collective::Reduce { bytes, .. }) => Some(*bytes),
            (None, Collective::ReduceScatter { .. }) => sends,
            _ => receives,
        };
        let length = |which, buffer: &Buffer, needed: Option<u64>| match needed {
            Some(needed) if needed != buffer.len() as u64 => {
                let why = format!("rank {own} of {ranks}");
                Err(Error::BufferLength { operation, which, len: buffer.len() as u64, needed, why })
            }
            _ => Ok(()),
        };
        send.map_or(Ok(()), |send| length("send", send, sends))?;
        length("receive", receive, receives)?;
        Ok(collective)
    }
}

fn shares(
    lists: &ListPool,
    counts: &[u64],
    ranks: u32,
    reduction: Reduction,
) -> std::result::Result<Collective, String> {
    if counts.len() != ranks as usize {
        return Err(format!("{} counts for {ranks} ranks: give one per rank", counts.len()));
    }
    if counts.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes)).is_none() {
        return Err("the shares exceed 2^64 bytes".to_owned());
    }
    Ok(Collective::ReduceScatter { shares: lists.list(counts.iter().copied()), reduction })
}

fn only_root(own: u32, root: u32) -> std::result::Result<(), String> {
    if own == root { Ok(()) } else { Err(format!("in place on rank {own}: only root {root} has its block in place")) }
}

/// The blocks of a root, or the own one.
fn rooted(
    lists: &ListPool,
    blocks: Blocks<'_>,
    (own, root, ranks): (u32, u32, u32),
    len: u64,
    bytes: u64,
    reads: bool,
) -> std::result::Result<Places, String> {
    if own != root {
        return Ok(Places::only(own, bytes, ranks));
    }
    Places::new(lists, blocks.counts, blocks.displacements, (ranks, len), reads)
}
