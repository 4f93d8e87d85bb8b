//! Safe, typed objects over FlexIO, verbs and DOCA: open a card, load a device image, give its threads queues, memory
//! keys and windows, and talk to it.
//!
//! Everything goes through one [`Provider`]: tables of C functions and a way to wait. Installed vendor libraries
//! ([`Provider::system`]) and the emulator fill the same tables, so there is one code path.
//!
//! # Ownership
//!
//! Objects own: a child holds a count of each parent, so that a resource is destroyed with the last object that needs
//! it, and always before those that it was made from. Parents may be dropped in any order. Handles that others are made
//! from can be cloned; a clone is the same object.
//!
//! ```text
//! Provider ─ Device ─┬─ ProtectionDomain ─┬─ MemoryRegion ─ ExportedRegion
//!                    │                    ├─ PeerRegion, AddressHandle, AliasKey, AliasPool, BindingPool ─ Binding
//!                    │                    └─ QueuePair (and its CompletionQueues) ─ MulticastMembership
//!                    ├─ CompletionQueue
//!                    └─ Process (and its Application and ProtectionDomain)
//!                         ├─ MsgStream, Window, DeviceBuffer ─ MemoryKey
//!                         ├─ EventHandler ─┐
//!                         └─ Outbox ───────┴─ DpaCompletionQueue ─ DpaQueuePair ─ MulticastMembership
//! ```
//!
//! Nothing relies on destructors for memory safety: a card reaches host memory only through a [`MemoryRegion`], and
//! that owns its bytes (the form that does not is `unsafe` for just this reason, and so is a [`PeerRegion`]).
//!
//! # Threads
//!
//! Every object is `Send`: made on one thread, it may be used and dropped on another. All but [`MemoryRegion`] and
//! [`MsgStream`] are `Sync`, too: the bytes of a region are copied by plain loads and stores, which two threads must
//! not mix.
//!
//! - Verbs functions are called without a lock: they may be called by every thread at any time (libibverbs, verbs(7)).
//! - FlexIO's and DOCA's documentation promises nothing about threads. Their functions are called under one lock. So
//!   [`Process::call`], which waits for the card, keeps other threads' calls of FlexIO waiting.
//! - An emulated provider's cards follow the provider, whichever thread calls.
//!
//! # Waiting
//!
//! Every wait has a [`Bound`] and ends in [`Error::Timeout`] naming what was awaited; see [`wait()`].

// This crate is the interface to C libraries: every object wraps a raw handle. Each call states why it is sound.
#![allow(unsafe_code)]

mod addr;
mod alias_pool;
mod application;
mod async_event;
mod binding;
mod buffer;
mod capture;
mod connection;
mod device;
mod dpa_cq;
mod dpa_memory;
mod dpa_qp;
mod error;
mod event_handler;
mod exported;
mod group_key;
#[cfg(feature = "defmt")]
mod logs;
mod memory;
mod msg_stream;
mod multicast;
mod path;
mod peer_memory;
mod posting;
mod prm;
mod process;
mod provider;
mod queue_pair;
mod raw;
mod sysfs;
mod ud_address;
mod verbs;
mod wait;
mod window;

pub use addr::{DevAddr, HostAddr};
pub use alias_pool::{AliasPool, AliasQueue, AliasUse, BoundAlias};
pub use application::{AbiExpectation, Application};
pub use async_event::{AsyncEvent, QueuePairFailure};
pub use binding::{Binding, BindingPool, GRANT_BYTES, Grant, MAX_POOL_KEYS, Released};
pub use buffer::{HOST_BUFFER_ALIGN_BYTES, HostBuffer, zeroes};
pub use connection::{Connection, RemoteQp};
pub use device::{Device, DeviceInfo, Gid, Mac, Port, ProtectionDomain};
pub use dpa_cq::{CqTarget, DpaCompletionQueue};
pub use dpa_memory::{DEVICE_ALIGN_BYTES, DeviceBuffer, MemoryKey};
pub use dpa_qp::{DpaDepths, DpaQueuePair, DpaQueuePairBuilder, UdKey};
pub use error::{Error, ErrorState, Refused, Result, Status};
pub use event_handler::{Affinity, EventHandler};
pub use exported::{AccessKey, AliasKey, ExportedRegion, KEY_EXPORT_BYTES, KeyExport};
pub use flexcast_abi::{ContextAddress, Rpc, RpcAnswer, RpcArgument};
pub use flexcast_image::{Entry, EntryKind, Image, ImageError, PanicPlace, Phase, Unserved};
#[doc(hidden)]
pub use group_key::GroupKey;
#[cfg(feature = "defmt")]
pub use logs::{LogDecoder, LogTableError};
pub use memory::{Access, MemoryRegion, SharedRegion};
pub use msg_stream::{MsgLevel, MsgStream};
pub use multicast::{MulticastGroup, MulticastMembership};
pub use path::{AddressHandle, Path, Retry};
pub use peer_memory::PeerRegion;
pub use posting::{GatherRequest, InlineRequest, LocalSlice, RECEIVES_AT_ONCE, SendKind, SendRequest};
pub use process::{HeapInfo, Process};
pub use provider::Provider;
pub use queue_pair::{QueueDepths, QueuePair, QueuePairBuilder, Transport};
pub use ud_address::{LEAST_STATIC_RATE_MBIT_PER_S, UD_ADDRESS_BYTES, UdAddress};
pub use verbs::{Completion, CompletionQueue};
pub use wait::{Bound, CardKind, EmulatorClock, HostWork, Relax, SpinLoop, wait};
pub use window::{Outbox, Window};
