//! Send and receive buffers of a rank: registered memory, or memory by its address.
#![allow(unsafe_code)] // Memory by its address, which is owned here.

use std::ptr::NonNull;

use flexcast::registration::Limits;
use flexcast::{Buffer, Endpoint, Result, UserMemory};

/// A rank's buffers between operations.
pub(super) struct Buffers {
    pub(super) send: Option<Buffer>,
    pub(super) receive: Buffer,
}

/// What is to be in them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contents<'c> {
    /// The send buffer, if there is one.
    pub(super) send: Option<&'c [u8]>,
    /// Bytes of the receive buffer, and what each is.
    pub(super) receive_bytes: usize,
    pub(super) filler: u8,
    /// Bytes of the receive buffer that are otherwise, and where.
    pub(super) placed: Option<(usize, &'c [u8])>,
}

/// Memory that nobody moves or frees before this is dropped.
#[derive(Debug)]
struct Block(NonNull<[u8]>);

impl Block {
    fn new(bytes: Vec<u8>) -> Self {
        Self(NonNull::from(Box::leak(bytes.into_boxed_slice())))
    }

    fn start(&self) -> *mut u8 {
        self.0.as_ptr().cast()
    }

    /// # Safety
    /// No buffer of the block exists.
    unsafe fn set(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.0.len(), "a block keeps its length");
        // SAFETY: the block has as many bytes, and by the caller's promise nobody else accesses them.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start(), bytes.len()) };
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: it was leaked from a box in `new`, and is given back to one once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Memory by its address for one rank.
#[derive(Debug)]
struct UserSide {
    /// Dropped before the memory.
    memory: UserMemory,
    /// The send and the receive buffer's, and those of operations that have kept them.
    blocks: Vec<Block>,
    /// Whether the last two blocks have been given to an operation.
    handed_out: bool,
}

/// Where a rank's buffers come from. It must outlive the rank's communicator, which may keep buffers of an operation
/// that failed.
#[derive(Debug)]
pub(super) struct Places {
    endpoint: Endpoint,
    user: Option<UserSide>,
}

impl Places {
    pub(super) fn new(endpoint: &Endpoint, is_user_memory: bool) -> Self {
        let memory = || UserMemory::new(endpoint, Limits::default());
        let user = is_user_memory.then(|| UserSide { memory: memory(), blocks: Vec::new(), handed_out: false });
        Self { endpoint: endpoint.clone(), user }
    }

    /// The buffers of an operation. `last`: those of the operation before, of the same lengths, if it has given them
    /// back.
    pub(super) fn buffers(&mut self, last: Option<Buffers>, contents: &Contents<'_>) -> Result<Buffers> {
        match &mut self.user {
            None => registered(&self.endpoint, last, contents),
            Some(user) => user.buffers(last, contents),
        }
    }
}

fn registered(endpoint: &Endpoint, last: Option<Buffers>, contents: &Contents<'_>) -> Result<Buffers> {
    let mut made = match last {
        Some(last) => last,
        None => Buffers {
            send: contents.send.map(|own| endpoint.buffer(own.len())).transpose()?,
            receive: endpoint.buffer(contents.receive_bytes)?,
        },
    };
    made.receive.fill(contents.filler);
    if let (Some(send), Some(own)) = (&mut made.send, contents.send) {
        send.write(0, own)?;
    }
    if let Some((at, own)) = contents.placed {
        made.receive.write(at, own)?;
    }
    Ok(made)
}

impl UserSide {
    fn buffers(&mut self, last: Option<Buffers>, contents: &Contents<'_>) -> Result<Buffers> {
        let mut receive = vec![contents.filler; contents.receive_bytes];
        if let Some((at, own)) = contents.placed {
            receive[at..at + own.len()].copy_from_slice(own);
        }
        let send = contents.send.map(<[u8]>::to_vec);
        // An operation that keeps its buffers keeps their memory.
        if last.is_none() && std::mem::replace(&mut self.handed_out, true) || self.blocks.is_empty() {
            self.blocks.push(Block::new(send.unwrap_or_default()));
            self.blocks.push(Block::new(receive));
        } else if let [.., own, all] = self.blocks.as_slice() {
            drop(last);
            // SAFETY: the only buffers of these blocks are those that were handed out last, which have just been
            // dropped.
            unsafe {
                own.set(&send.unwrap_or_default());
                all.set(&receive);
            }
        }
        self.handed_out = true;
        let [.., own, all] = self.blocks.as_slice() else { unreachable!("two blocks have been made") };
        // SAFETY: the blocks outlive `memory`, and whoever has the buffers: see `Places`. Nobody accesses them until
        // the buffers are back.
        unsafe {
            let send = contents.send.map(|bytes| self.memory.source(own.start(), bytes.len())).transpose()?;
            Ok(Buffers { send, receive: self.memory.buffer(all.start(), contents.receive_bytes)? })
        }
    }
}
