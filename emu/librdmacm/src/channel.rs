//! Event channels and events.

use core::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use emu_libibverbs::Mailbox;
use emu_libibverbs::errno::{Errno, Result, number, pointer};
use emu_libibverbs::handle::{self, CStruct, Object};
use verbs_sys::*;

use crate::abi::*;
use crate::device;
use crate::id::Id;
use crate::protocol::agent::Terms;

/// What an event brings besides its kind.
#[derive(Debug)]
pub(crate) enum Param {
    Nothing,
    /// Of a connection, on the other end's terms.
    Connection {
        terms: Terms,
        private: Vec<u8>,
    },
    /// Of a queue pair for datagrams.
    Datagrams {
        ah: Way,
        qpn: u32,
        qkey: u32,
        private: Vec<u8>,
    },
    /// Of a membership; the program's pointer.
    Group {
        ah: Way,
        context: usize,
    },
}

/// An `ibv_ah_attr` that can be printed.
#[derive(Clone, Copy)]
pub(crate) struct Way(pub(crate) ibv_ah_attr);

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "from GID index {}", self.0.grh.sgid_index)
    }
}

/// An event that waits for the program.
pub(crate) struct Pending {
    pub(crate) id: Arc<Id>,
    /// Who was asked, where `id` is new.
    pub(crate) listener: Option<Arc<Id>>,
    pub(crate) kind: rdma_cm_event_type,
    pub(crate) status: c_int,
    pub(crate) param: Param,
}

/// An event channel.
pub(crate) struct Channel {
    public: CStruct<rdma_event_channel>,
    pub(crate) events: Mailbox<Pending>,
    /// Identifiers that report here.
    pub(crate) users: AtomicUsize,
}

impl Object for Channel {
    const KIND: &'static str = "event channel";
    type C = rdma_event_channel;
    fn c_address(&self) -> *mut rdma_event_channel {
        self.public.get()
    }
}

impl Channel {
    /// A new one, a live handle.
    pub(crate) fn open() -> Result<Arc<Self>> {
        let events = Mailbox::new("an event channel")?;
        let public = CStruct::new(rdma_event_channel { fd: events.fd() });
        let channel = Arc::new(Self { public, events, users: AtomicUsize::new(0) });
        handle::publish(&channel);
        Ok(channel)
    }
}

#[unsafe(no_mangle)]
pub(crate) extern "C" fn rdma_create_event_channel() -> *mut rdma_event_channel {
    pointer("rdma_create_event_channel", || {
        device::devices()?;
        Ok(Channel::open()?.c_address())
    })
}

#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel) {
    number("rdma_destroy_event_channel", || {
        let object = handle::get::<Channel>(channel)?;
        let users = object.users.load(Ordering::Relaxed);
        if users > 0 {
            let reason = format!("{users} identifiers report to the channel: destroy them first");
            return Err(Errno::new(libc::EBUSY, reason));
        }
        handle::retire::<Channel>(channel)?;
        Ok(0)
    });
}

/// An event that the program has, until it acknowledges it.
pub(crate) struct Event {
    pub(crate) public: CStruct<rdma_cm_event>,
    pub(crate) _private: Vec<u8>,
    /// Whose events wait for the acknowledgement.
    pub(crate) counted: Arc<Id>,
    pub(crate) _id: Arc<Id>,
}

impl Object for Event {
    const KIND: &'static str = "event of connection management";
    type C = rdma_cm_event;
    fn c_address(&self) -> *mut rdma_cm_event {
        self.public.get()
    }
}
