//! Posting of operations, checked before any peer sees anything of it.

use crate::api::buffer::Buffer;
use crate::api::communicator::Communicator;
use crate::api::outcome::Failed;
use crate::api::report::Report;
use crate::api::request::Request;
use crate::datapath::{Datapath, Posted};
use crate::error::{Error, Result};
use crate::plan::displs;
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
    /// [`Failed`] with the buffers: `receive` is not `size()` times as long as `send`, and as in [`Communicator::broadcast`].
    pub fn allgather(&self, send: Buffer, receive: Buffer) -> Result<Request, Box<Failed>> {
        let bytes = send.len() as u64;
        self.post(Kind::Allgather { bytes }, Some(send), receive)
    }

    /// The same with the own bytes in their place in `receive` already; every rank contributes `receive.len() / size()` bytes.
    ///
    /// # Errors
    /// As [`Communicator::allgather`].
    pub fn allgather_in_place(&self, receive: Buffer) -> Result<Request, Box<Failed>> {
        let bytes = receive.len() as u64 / u64::from(self.size());
        self.post(Kind::Allgather { bytes }, None, receive)
    }

    /// `counts[r]` bytes from every rank r to every rank, one rank's after another's in `receive`. `counts` is alike on all ranks.
    ///
    /// # Errors
    /// [`Failed`] with the buffers: `send` is not `counts[rank()]` bytes long, `receive` not their sum, or `counts` has not `size()`
    /// entries, and as in [`Communicator::broadcast`].
    pub fn allgatherv(&self, send: Buffer, receive: Buffer, counts: &[u64]) -> Result<Request, Box<Failed>> {
        self.post(Kind::Allgatherv { bytes: counts.to_vec() }, Some(send), receive)
    }

    /// The same with the own bytes in their place in `receive` already.
    ///
    /// # Errors
    /// As [`Communicator::allgatherv`].
    pub fn allgatherv_in_place(&self, receive: Buffer, counts: &[u64]) -> Result<Request, Box<Failed>> {
        self.post(Kind::Allgatherv { bytes: counts.to_vec() }, None, receive)
    }

    /// `counts[r]` bytes from every rank r to every rank, to `displacements[r]` in `receive`, which may be longer than needed; what
    /// belongs to no block stays as it is. Both lists are alike on all ranks: what a rank has lost it reads from where its neighbour has it.
    ///
    /// # Errors
    /// [`Failed`] with the buffers: blocks that overlap or end beyond `receive`, a list that has not `size()` entries, and as in
    /// [`Communicator::allgatherv`].
    pub fn allgatherv_displs(
        &self,
        send: Buffer,
        receive: Buffer,
        counts: &[u64],
        displacements: &[u64],
    ) -> Result<Request, Box<Failed>> {
        let kind = Kind::Allgatherv { bytes: counts.to_vec() };
        let call = Call { kind, displacements: Some(displacements) };
        self.post_with(|datapath| post(datapath, call, Some(send), receive))
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
        let kind = Kind::Allgatherv { bytes: counts.to_vec() };
        let call = Call { kind, displacements: Some(displacements) };
        self.post_with(|datapath| post(datapath, call, None, receive))
    }

    fn post(&self, kind: Kind, send: Option<Buffer>, receive: Buffer) -> Result<Request, Box<Failed>> {
        self.post_with(|datapath| post(datapath, Call { kind, displacements: None }, send, receive))
    }
}

/// What is to be done, unchecked.
struct Call<'c> {
    kind: Kind,
    displacements: Option<&'c [u64]>,
}

/// Takes an operation on, starts it if none is ahead of it, and gives the number of its request.
fn post(
    datapath: &mut dyn Datapath,
    call: Call<'_>,
    send: Option<Buffer>,
    mut receive: Buffer,
) -> Result<u64, Box<Failed>> {
    let plan = match plan(datapath, call, send.as_ref(), &receive) {
        Ok(plan) => plan,
        Err(error) => {
            return Err(Box::new(Failed { error, send, receive: Some(receive), report: Report::default() }));
        }
    };
    receive.tell();
    let (request, posted_ps) = (datapath.requests().open(), datapath.now_ps());
    // With the protocol on the card, that needs nobody from here on.
    let taken = datapath.take_on(Posted { request, plan, send, receive, posted_ps });
    taken.inspect_err(|_| datapath.requests().withdraw())?;
    Ok(request)
}

/// Checks an operation's arguments.
fn plan(datapath: &dyn Datapath, call: Call<'_>, send: Option<&Buffer>, receive: &Buffer) -> Result<Plan> {
    let Call { kind, displacements } = call;
    if let Some(failure) = datapath.broken() {
        return Err(Error::Broken { failure });
    }
    let (operation, place, config) = (kind.name(), datapath.place(), datapath.config());
    let (ranks, own) = (place.ranks(), place.rank());
    if let Some(other) = send.into_iter().chain([receive]).find(|buffer| !datapath.takes(buffer)) {
        let reason =
            format!("a buffer of {} bytes of another kind of card: make it by this communicator's card", other.len());
        return Err(Error::Argument { operation, reason });
    }
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
            displs::check(bytes, displacements, len).map_err(|reason| Error::Argument { operation, reason })?
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
    datapath.check(&plan)?;
    Ok(plan)
}
