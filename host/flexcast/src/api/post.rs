//! Posting of operations, checked before any peer sees anything of it.

use crate::api::call::{Allgather, Allreduce, Alltoall, Barrier, Blocks, Broadcast, Call, CallKind};
use crate::api::communicator::Communicator;
use crate::api::request::Request;
use crate::engine::Task;
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::collective::{Collective, Places};
use crate::op::displs;
use crate::op::lists::ListPool;
use crate::op::outcome::Failed;
use crate::op::report::Report;
use crate::plan::{Kind, Plan};
use flexcast_reduce::Reduction;
use flexcast_sparse::SparseOptions;

/// Name of a sparse AllReduce in errors.
const SPARSE: &str = "sparse_allreduce";

/// What a call comes to, or why it cannot be.
type Made<T> = std::result::Result<T, String>;

impl Communicator {
    /// Posts a collective, such as `Allreduce::sum(DataType::F32).buffers(send, receive)`. All carriers carry them all;
    /// but with the protocol on the card ([`Control::Device`](crate::Control::Device)) only Broadcasts and Allgathers.
    /// Over RDMA cards the first other one that is no Barrier connects all pairs of ranks
    /// ([`Footprint::pair_queue_pairs`](crate::Footprint::pair_queue_pairs)).
    ///
    /// # Errors
    /// [`Failed`] with the buffers: lengths that do not fit one another, are no multiple of an element's or of the
    /// number of ranks; lists that have not `size()` entries; blocks that end beyond their buffer, or overlap where
    /// they are received; no such root, or in place where a rank is not the root; options out of their ranges; an
    /// operator that zeros change, of a sparse AllReduce; too many chunks; a communicator that has failed, or whose
    /// carrier does not carry it.
    pub fn post<'c>(&self, call: impl Into<Call<'c>>) -> Result<Request, Box<Failed>> {
        let Call { kind, send, receive } = call.into();
        let receives = receive.is_some();
        let receive = match receive.map_or_else(|| self.endpoint().buffer(0), Ok) {
            Ok(receive) => receive,
            Err(error) => return Err(Box::new(Failed { error, send, receive: None, report: Report::default() })),
        };
        let task = self.task((kind, receives), send.as_ref(), &receive);
        self.post_task(task, send, receive)
    }

    /// Bytes of `buffer` from rank `root` to all. On the root it is read, elsewhere written.
    ///
    /// # Errors
    /// As [`Communicator::post`].
    pub fn broadcast(&self, buffer: Buffer, root: u32) -> Result<Request, Box<Failed>> {
        self.post(Broadcast::from(root).buffer(buffer))
    }

    /// All bytes of `send` from every rank to every rank, in the order of ranks.
    ///
    /// # Errors
    /// As [`Communicator::post`].
    pub fn allgather(&self, send: Buffer, receive: Buffer) -> Result<Request, Box<Failed>> {
        self.post(Allgather::new().buffers(send, receive))
    }

    /// The reduction of the contributions of all ranks, to `receive` on all of them.
    ///
    /// # Errors
    /// As [`Communicator::post`].
    pub fn allreduce(&self, send: Buffer, receive: Buffer, reduction: Reduction) -> Result<Request, Box<Failed>> {
        self.post(Allreduce::new(reduction).buffers(send, receive))
    }

    /// Block r of `send` to rank r, where it becomes block `rank()` of `receive`.
    ///
    /// # Errors
    /// As [`Communicator::post`].
    pub fn alltoall(&self, send: Buffer, receive: Buffer) -> Result<Request, Box<Failed>> {
        self.post(Alltoall::new().buffers(send, receive))
    }

    /// Ends on no rank before all have called it.
    ///
    /// # Errors
    /// As [`Communicator::post`].
    pub fn barrier(&self) -> Result<Request, Box<Failed>> {
        self.post(Barrier)
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
        let operation = SPARSE;
        self.admission().check_collective(operation)?;
        self.sparse(bytes, reduction, options).map(drop).map_err(|reason| Error::Argument { operation, reason })
    }

    /// What a call comes to. `receives`: the call has named a receive buffer.
    fn task(&self, (kind, receives): (CallKind<'_>, bool), send: Option<&Buffer>, receive: &Buffer) -> Result<Task> {
        let (len, ranks) = (receive.len() as u64, self.size());
        let sent = send.map(|send| send.len() as u64);
        let operation = kind.kind().name();
        let blocks = |kind, displs| self.plan(kind, displs, send, receive).map(Task::Blocks);
        let collective = match kind {
            CallKind::Broadcast { root } => return blocks(Kind::Broadcast { root, bytes: len }, None),
            CallKind::Allgather { counts: Some(counts), displs } => return blocks(self.lengths(counts), displs),
            CallKind::Allgather { counts: None, displs: Some(_) } => {
                let reason = "offsets without lengths: give `Allgather::counts(..)`, too".to_owned();
                return Err(Error::Argument { operation: "allgather", reason });
            }
            CallKind::Allgather { counts: None, displs: None } => {
                let bytes = sent.map_or_else(|| share(len, ranks), Ok);
                let bytes = bytes.map_err(|reason| Error::Argument { operation, reason })?;
                return blocks(Kind::Allgather { bytes }, None);
            }
            CallKind::Barrier => Ok(Collective::Barrier),
            CallKind::Allreduce { reduction, sparse: None } => Ok(Collective::Allreduce { bytes: len, reduction }),
            CallKind::Allreduce { reduction, sparse: Some(options) } => self.sparse(len, reduction, options),
            CallKind::Reduce { root, reduction } => {
                Ok(Collective::Reduce { root, bytes: sent.unwrap_or(len), reduction })
            }
            CallKind::ReduceScatter { counts: Some(counts), reduction } => {
                shares(self.lists(), counts, ranks, reduction)
            }
            // In place the buffer has all shares.
            CallKind::ReduceScatter { counts: None, reduction } => {
                let bytes = if sent.is_some() { Ok(len) } else { share(len, ranks) };
                let shares = bytes.map(|bytes| self.lists().list((0..ranks).map(|_| bytes)));
                shares.map(|shares| Collective::ReduceScatter { shares, reduction })
            }
            CallKind::Alltoall { blocks: None } => share(len, ranks).map(|bytes| Collective::Alltoall { bytes }),
            CallKind::Alltoall { blocks: Some(blocks) } => self.alltoallv(blocks, sent, len),
            CallKind::Gather { root, blocks } => self.gathered(root, blocks, sent, len),
            CallKind::Scatter { root, blocks } => {
                self.scattered(root, blocks, sent.unwrap_or(0), receives.then_some(len))
            }
        };
        let collective = collective.map_err(|reason| Error::Argument { operation, reason });
        self.check(collective, send, receive).map(Task::Collective)
    }

    fn alltoallv(&self, [sent, received]: [Blocks<'_>; 2], send: Option<u64>, len: u64) -> Made<Collective> {
        let places = |blocks: Blocks<'_>, len, reads| {
            Places::new(self.lists(), blocks.counts, blocks.displs, (self.size(), len), reads)
        };
        let receive = places(received, len, false)?;
        let send = send.map_or_else(|| Ok(receive.clone()), |len| places(sent, len, true))?;
        let own = [&send, &receive].map(|places| places.bytes_of(self.rank()));
        if own[0] != own[1] {
            return Err(format!(
                "the own block has {} bytes where it is sent and {} where it is received: give one length",
                own[0], own[1]
            ));
        }
        Ok(Collective::Alltoallv { send, receive })
    }

    fn gathered(&self, root: u32, blocks: Option<Blocks<'_>>, send: Option<u64>, len: u64) -> Made<Collective> {
        let (own, ranks) = (self.rank(), self.size());
        if send.is_none() {
            only_root(own, root)?;
        }
        let Some(blocks) = blocks else {
            let bytes = send.map_or_else(|| share(len, ranks), Ok)?;
            return Ok(Collective::Gather { root, bytes });
        };
        let places = rooted(self.lists(), blocks, (own, root, ranks), len, send.unwrap_or(0), false)?;
        Ok(Collective::Gatherv { root, places })
    }

    fn scattered(&self, root: u32, blocks: Option<Blocks<'_>>, sent: u64, len: Option<u64>) -> Made<Collective> {
        let (own, ranks, in_place) = (self.rank(), self.size(), len.is_none());
        if in_place {
            only_root(own, root)?;
        }
        let Some(blocks) = blocks else {
            let bytes = len.map_or_else(|| share(sent, ranks), Ok)?;
            return Ok(Collective::Scatter { root, bytes, in_place });
        };
        let places = rooted(self.lists(), blocks, (own, root, ranks), sent, len.unwrap_or(0), true)?;
        Ok(Collective::Scatterv { root, places, in_place })
    }

    /// Checks a collective's arguments.
    fn check(&self, made: Result<Collective>, send: Option<&Buffer>, receive: &Buffer) -> Result<Collective> {
        self.check_whole()?;
        let collective = made?;
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

    /// Checks an operation's arguments.
    fn plan(&self, kind: Kind, displs: Option<&[u64]>, send: Option<&Buffer>, receive: &Buffer) -> Result<Plan> {
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
        let displaced = match (&kind, displs) {
            (Kind::Allgatherv { bytes }, Some(displs)) => {
                let checked = displs::check(self.lists(), bytes, displs, len);
                checked.map_err(|reason| Error::Argument { operation, reason })?
            }
            _ => None,
        };
        let plan = Plan::new(kind, own, ranks, config.chunk_bytes, config.subgroups).displaced(displaced);
        let needed = plan.receive_bytes();
        if displs.is_none() && len != needed {
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

/// A rank's block of a buffer that holds one of equal length for each rank.
fn share(len: u64, ranks: u32) -> Made<u64> {
    if !len.is_multiple_of(ranks.into()) {
        return Err(format!("{len} bytes are no multiple of the {ranks} ranks, whose blocks have one length"));
    }
    Ok(len / u64::from(ranks))
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
    Places::new(lists, blocks.counts, blocks.displs, (ranks, len), reads)
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
