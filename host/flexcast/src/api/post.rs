//! Posting of operations, checked before any peer sees anything of it.

use crate::api::communicator::Communicator;
use crate::api::request::Request;
use crate::engine::Task;
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::displs;
use crate::op::outcome::Failed;
use crate::op::reduce::Reduction;
use crate::op::sparse_options::SparseOptions;
use crate::plan::{Kind, Plan};

impl Communicator {
    /// Bytes of `buffer` from rank `root` to all. On the root it is read, elsewhere written.
    ///
    /// # Errors
    /// [`Failed`] with the buffer: no such root, too many chunks, or a communicator that has failed.
    pub fn broadcast(&self, buffer: Buffer, root: u32) -> Result<Request, Box<Failed>> {
        let bytes = buffer.len() as u64;
        self.post(Kind::Broadcast { root, bytes }, None, buffer)
    }

    /// All bytes of `send` from every rank to every rank, in the order of ranks.
    ///
    /// # Errors
    /// [`Failed`] with the buffers: `receive` is not `size()` times as long as `send`, and as in
    /// [`Communicator::broadcast`].
    pub fn allgather(&self, send: Buffer, receive: Buffer) -> Result<Request, Box<Failed>> {
        let bytes = send.len() as u64;
        self.post(Kind::Allgather { bytes }, Some(send), receive)
    }

    /// The same with the own bytes in their place in `receive` already; every rank contributes `receive.len() / size()`
    /// bytes.
    ///
    /// # Errors
    /// As [`Communicator::allgather`].
    pub fn allgather_in_place(&self, receive: Buffer) -> Result<Request, Box<Failed>> {
        let bytes = receive.len() as u64 / u64::from(self.size());
        self.post(Kind::Allgather { bytes }, None, receive)
    }

    /// `counts[r]` bytes from every rank r to every rank, one rank's after another's in `receive`. `counts` is alike on
    /// all ranks.
    ///
    /// # Errors
    /// [`Failed`] with the buffers: `send` is not `counts[rank()]` bytes long, `receive` not their sum, or `counts` has
    /// not `size()` entries, and as in [`Communicator::broadcast`].
    pub fn allgatherv(&self, send: Buffer, receive: Buffer, counts: &[u64]) -> Result<Request, Box<Failed>> {
        self.post(self.lengths(counts), Some(send), receive)
    }

    /// The same with the own bytes in their place in `receive` already.
    ///
    /// # Errors
    /// As [`Communicator::allgatherv`].
    pub fn allgatherv_in_place(&self, receive: Buffer, counts: &[u64]) -> Result<Request, Box<Failed>> {
        self.post(self.lengths(counts), None, receive)
    }

    /// `counts[r]` bytes from every rank r to every rank, to `displacements[r]` in `receive`, which may be longer than
    /// needed; what belongs to no block stays as it is. Both lists are alike on all ranks: what a rank has lost it
    /// reads from where its neighbour has it.
    ///
    /// # Errors
    /// [`Failed`] with the buffers: blocks that overlap or end beyond `receive`, a list that has not `size()` entries,
    /// and as in [`Communicator::allgatherv`].
    pub fn allgatherv_displs(
        &self,
        send: Buffer,
        receive: Buffer,
        counts: &[u64],
        displacements: &[u64],
    ) -> Result<Request, Box<Failed>> {
        let call = Call { kind: self.lengths(counts), displacements: Some(displacements) };
        self.post_blocks(call, Some(send), receive)
    }

    /// The same with the own bytes in their place in `receive` already.
    ///
    /// # Errors
    /// As [`Communicator::allgatherv_displs`].
    pub fn allgatherv_displs_in_place(
        &self,
        receive: Buffer,
        counts: &[u64],
        displacements: &[u64],
    ) -> Result<Request, Box<Failed>> {
        let call = Call { kind: self.lengths(counts), displacements: Some(displacements) };
        self.post_blocks(call, None, receive)
    }

    /// Whether the datapath carries an operation of this shape; nothing is posted. The answer is the same on all ranks
    /// that ask with the same shape.
    ///
    /// # Errors
    /// [`Error::TooManyChunks`] for more bytes than chunks have numbers for, [`Error::Argument`] for what the datapath
    /// does not carry.
    pub fn admits(&self, shape: Shape<'_>) -> Result<()> {
        let kind = match shape {
            Shape::Broadcast { bytes } => Kind::Broadcast { root: 0, bytes },
            Shape::Allgather { bytes } => Kind::Allgather { bytes },
            Shape::Allgatherv { counts } => self.lengths(counts),
            Shape::SparseAllreduce { bytes, reduction, options } => {
                return self.admits_sparse(bytes, reduction, options);
            }
            Shape::Other { operation } => return self.admission().check_collective(operation),
        };
        let config = self.config();
        // Rank 0 of all, so that no rank answers for itself.
        self.admission().check(&Plan::new(kind, 0, self.size(), config.chunk_bytes, config.subgroups))
    }

    /// An Allgatherv of blocks of these lengths.
    fn lengths(&self, counts: &[u64]) -> Kind {
        Kind::Allgatherv { bytes: self.lists().list(counts.iter().copied()) }
    }

    fn post(&self, kind: Kind, send: Option<Buffer>, receive: Buffer) -> Result<Request, Box<Failed>> {
        self.post_blocks(Call { kind, displacements: None }, send, receive)
    }

    fn post_blocks(&self, call: Call<'_>, send: Option<Buffer>, receive: Buffer) -> Result<Request, Box<Failed>> {
        let plan = self.plan(call, send.as_ref(), &receive).map(Task::Blocks);
        self.post_task(plan, send, receive)
    }

    /// Checks an operation's arguments.
    fn plan(&self, call: Call<'_>, send: Option<&Buffer>, receive: &Buffer) -> Result<Plan> {
        let Call { kind, displacements } = call;
        self.check_whole()?;
        let (operation, config) = (kind.name(), self.config());
        let (ranks, own) = (self.size(), self.rank());
        self.check_buffers(operation, send, receive)?;
        match &kind {
            Kind::Broadcast { root, .. } if *root >= ranks => {
                let reason = format!("root {root} of {ranks} ranks: roots run from 0 to {}", ranks - 1);
                return Err(Error::Argument { operation, reason });
            }
            Kind::Allgatherv { bytes } if bytes.len() != ranks as usize => {
                let reason = format!("{} counts for {ranks} ranks: give one per rank", bytes.len());
                return Err(Error::Argument { operation, reason });
            }
            _ => {}
        }
        let total = match &kind {
            Kind::Allgatherv { bytes } => bytes.iter().try_fold(0u64, |sum, bytes| sum.checked_add(*bytes)),
            Kind::Allgather { bytes } => bytes.checked_mul(u64::from(ranks)),
            Kind::Broadcast { bytes, .. } => Some(*bytes),
        };
        if total.is_none() {
            return Err(Error::Argument { operation, reason: "the contributions exceed 2^64 bytes".to_owned() });
        }
        let len = receive.len() as u64;
        let displaced = match (&kind, displacements) {
            (Kind::Allgatherv { bytes }, Some(displacements)) => {
                let checked = displs::check(self.lists(), bytes, displacements, len);
                checked.map_err(|reason| Error::Argument { operation, reason })?
            }
            _ => None,
        };
        let plan = Plan::new(kind, own, ranks, config.chunk_bytes, config.subgroups).displaced(displaced);
        let needed = plan.receive_bytes();
        if displacements.is_none() && len != needed {
            let why = format!("contributions of {ranks} ranks");
            return Err(Error::BufferLength { operation, which: "receive", len, needed, why });
        }
        if let Some(send) = send {
            let needed = plan.block(own).bytes;
            if send.len() as u64 != needed {
                let why = format!("what rank {own} contributes");
                return Err(Error::BufferLength { operation, which: "send", len: send.len() as u64, needed, why });
            }
        }
        self.admission().check(&plan)?;
        Ok(plan)
    }
}

/// What an operation is to carry, as all ranks know it.
#[derive(Clone, Copy, Debug)]
pub enum Shape<'s> {
    /// A Broadcast of so many bytes.
    Broadcast {
        /// Bytes.
        bytes: u64,
    },
    /// An Allgather.
    Allgather {
        /// Bytes of each rank.
        bytes: u64,
    },
    /// An Allgatherv.
    Allgatherv {
        /// Bytes of each rank, one for each.
        counts: &'s [u64],
    },
    /// A sparse AllReduce.
    SparseAllreduce {
        /// Bytes of the array.
        bytes: u64,
        /// Its reduction.
        reduction: Reduction,
        /// Its parameters.
        options: SparseOptions,
    },
    /// Any other collective.
    Other {
        /// Its name, for the error.
        operation: &'static str,
    },
}

/// What is to be done, unchecked.
struct Call<'c> {
    kind: Kind,
    displacements: Option<&'c [u64]>,
}
