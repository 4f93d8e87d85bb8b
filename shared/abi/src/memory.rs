//! Descriptors of memory: queues, arrays, tables, bitmaps and lines of the DPA process, opaque on the device.
//!
//! The host makes them (feature `host`): one constructor states address and extent together. Firmware, built without
//! that feature, finds them in its context and can neither make one, nor change it, nor copy it; `dpa` turns a
//! reference to one into a view that stays inside. What a kind leads to is part of its type, so that no memory is taken
//! for another kind's.
//!
//! The host promises for everything that it names so: the memory is there, and for this purpose alone, as long as the
//! firmware may run; it is aligned to its elements; it has the stated extent. All zeros mean none.
//!
//! What the host rewrites while firmware runs never holds one of these: see [`HostLine`].

use core::fmt;
use core::marker::PhantomData;

use zerocopy::{Immutable, IntoBytes, KnownLayout};

#[cfg(feature = "host")]
use crate::DeviceAddress;
use crate::Layout;

mod sealed {
    pub trait Sealed {}
}

/// What a [`Queue`] is.
pub trait QueueKind: sealed::Sealed + 'static {
    /// Name in layout hashes.
    const NAME: &'static str;
    /// Bytes of an entry, to which the ring is aligned.
    const ENTRY_BYTES: u64;
}

macro_rules! queue_kinds {
    ($($(#[doc = $doc:literal])* $kind:ident = $bytes:literal;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind {}

        impl sealed::Sealed for $kind {}

        impl QueueKind for $kind {
            const NAME: &'static str = stringify!($kind);
            const ENTRY_BYTES: u64 = $bytes;
        }
    )*};
}

queue_kinds! {
    /// Completion queues: entries of 64 bytes. The host fills the ring with `Cqe::INITIAL` of the hardware layouts
    /// before it creates the CQ.
    Completions = 64;
    /// Receive queues with one scatter element per entry: 16 bytes.
    Receives = 16;
    /// Send queues: basic blocks of 64 bytes.
    Sends = 64;
}

/// A queue in DPA memory: its ring, its doorbell record and its number.
#[derive(IntoBytes, Immutable, KnownLayout)]
#[cfg_attr(feature = "host", derive(zerocopy::FromBytes))]
#[repr(transparent)]
pub struct Queue<K> {
    raw: RawQueue,
    kind: PhantomData<fn() -> K>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, Immutable, KnownLayout)]
#[cfg_attr(feature = "host", derive(zerocopy::FromBytes))]
#[repr(C)]
struct RawQueue {
    ring: u64,
    doorbell_record: u64,
    number: u32,
    log_depth: u32,
    reserved: u64,
}

/// A completion queue.
pub type CompletionQueueMemory = Queue<Completions>;
/// A receive queue.
pub type ReceiveQueueMemory = Queue<Receives>;
/// A send queue.
pub type SendQueueMemory = Queue<Sends>;

impl<K: QueueKind> Queue<K> {
    /// The queue whose ring of 2^`log_depth` entries (1 to 15) begins at `ring`. The doorbell record has 8 bytes,
    /// 8-byte aligned, zero at creation; RQ and SQ of a queue pair name the same one. `number`: of the CQ or QP, 24
    /// bits.
    #[cfg(feature = "host")]
    #[must_use]
    pub const fn new(ring: DeviceAddress, doorbell_record: DeviceAddress, number: u32, log_depth: u32) -> Self {
        let (ring, doorbell_record) = (ring.get(), doorbell_record.get());
        Self { raw: RawQueue { ring, doorbell_record, number, log_depth, reserved: 0 }, kind: PhantomData }
    }

    /// Address of the ring; 0: there is no queue.
    #[inline(always)]
    #[must_use]
    pub const fn ring(&self) -> u64 {
        self.raw.ring
    }

    /// Address of the doorbell record.
    #[inline(always)]
    #[must_use]
    pub const fn doorbell_record(&self) -> u64 {
        self.raw.doorbell_record
    }

    /// CQ number or QP number.
    #[inline(always)]
    #[must_use]
    pub const fn number(&self) -> u32 {
        self.raw.number
    }

    /// log2 of the number of entries (of a send queue: of basic blocks).
    #[inline(always)]
    #[must_use]
    pub const fn log_depth(&self) -> u32 {
        self.raw.log_depth
    }

    /// Number of entries (of a send queue: of basic blocks).
    #[inline(always)]
    #[must_use]
    pub const fn depth(&self) -> u64 {
        1 << (self.raw.log_depth & 63)
    }

    /// Bytes of the ring.
    #[must_use]
    pub const fn ring_bytes(&self) -> u64 {
        K::ENTRY_BYTES << (self.raw.log_depth & 31)
    }

    /// Whether there is no queue.
    #[must_use]
    pub const fn is_none(&self) -> bool {
        self.raw.ring == 0
    }

    /// Whether there is a queue, both addresses are aligned, and the depth is one that a queue can have: what an RPC
    /// that prepares a context checks of what the host says, once.
    ///
    /// # Errors
    /// What is wrong.
    pub const fn check(&self) -> Result<(), QueueFault> {
        let RawQueue { ring, doorbell_record, log_depth, .. } = self.raw;
        let aligned = ring.is_multiple_of(K::ENTRY_BYTES) && doorbell_record.is_multiple_of(8);
        if ring == 0 || doorbell_record == 0 || !aligned {
            return Err(QueueFault::Address);
        }
        if log_depth == 0 || log_depth > 15 { Err(QueueFault::Depth) } else { Ok(()) }
    }
}

/// Why a [`Queue`] cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueFault {
    /// Ring or doorbell record are null or misaligned.
    Address,
    /// The log2 of the depth is not 1 to 15.
    Depth,
}

/// What the elements of a [`Region`] are, and who accesses them how.
pub trait RegionKind: sealed::Sealed + 'static {
    /// Name in layout hashes.
    const NAME: &'static str;
    /// [`Layout::HASH`] of an element.
    const ELEMENT: u64;
}

macro_rules! region_kinds {
    ($($(#[doc = $doc:literal])* $kind:ident;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $kind {}

        impl sealed::Sealed for $kind {}

        impl RegionKind for $kind {
            const NAME: &'static str = stringify!($kind);
            const ELEMENT: u64 = <u64 as Layout>::HASH;
        }
    )*};
    ($($(#[doc = $doc:literal])* $kind:ident<T>;)*) => {$(
        $(#[doc = $doc])*
        #[derive(Debug)]
        pub struct $kind<T>(PhantomData<fn() -> T>);

        impl<T> sealed::Sealed for $kind<T> {}

        impl<T: Layout + 'static> RegionKind for $kind<T> {
            const NAME: &'static str = stringify!($kind);
            const ELEMENT: u64 = T::HASH;
        }
    )*};
}

region_kinds! {
    /// 64-bit words of bits, zero at set-up, that one thread uses alone.
    Bits;
    /// 64-bit words of bits that several threads set by atomic operations.
    AtomicBits;
    /// 64-bit words of messages, which the card reads and writes.
    MessageWords;
    /// 64-bit words, zero at set-up and 64-byte aligned, in which one thread keeps a value of its own.
    KeptWords;
    /// Lines of 64 bytes that measuring kernels walk through.
    MeasuredLines;
    /// 64-bit words of blocks and indices, which the card writes and reads and one thread adds up.
    SpotWords;
}
region_kinds! {
    /// Contexts that belong to the thread whose context names them.
    Owned<T>;
    /// Rows that the host writes and the thread reads.
    Rows<T>;
}

/// Consecutive elements in DPA memory.
#[derive(IntoBytes, Immutable, KnownLayout)]
#[cfg_attr(feature = "host", derive(zerocopy::FromBytes))]
#[repr(transparent)]
pub struct Region<K> {
    raw: RawRegion,
    kind: PhantomData<fn() -> K>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, IntoBytes, Immutable, KnownLayout)]
#[cfg_attr(feature = "host", derive(zerocopy::FromBytes))]
#[repr(C)]
struct RawRegion {
    address: u64,
    count: u32,
    reserved: u32,
}

/// A bitmap; its extent is in 64-bit words.
pub type BitmapMemory = Region<Bits>;
/// A bitmap that several threads share.
pub type SharedBitmapMemory = Region<AtomicBits>;
/// Memory of messages; its extent is in 64-bit words.
pub type MessageMemory = Region<MessageWords>;
/// Memory for one value that only the firmware knows; its extent is in 64-bit words.
pub type KeptMemory = Region<KeptWords>;
/// Memory that is walked through; its extent is in lines of 64 bytes.
pub type MeasuredMemory = Region<MeasuredLines>;
/// Receive and transmit slots; their extent is in 64-bit words.
pub type SpotMemory = Region<SpotWords>;
/// An array of contexts.
pub type ContextMemory<T> = Region<Owned<T>>;
/// A table.
pub type TableMemory<T> = Region<Rows<T>>;

impl<K> Region<K> {
    /// The `count` elements that begin at `address`.
    #[cfg(feature = "host")]
    #[must_use]
    pub const fn new(address: DeviceAddress, count: u32) -> Self {
        Self { raw: RawRegion { address: address.get(), count, reserved: 0 }, kind: PhantomData }
    }

    /// Address of the first element; 0: there is none.
    #[inline(always)]
    #[must_use]
    pub const fn address(&self) -> u64 {
        self.raw.address
    }

    /// Number of elements.
    #[inline(always)]
    #[must_use]
    pub const fn count(&self) -> u32 {
        self.raw.count
    }

    /// Whether there is at least one element, and the first lies at a multiple of `bytes`.
    #[must_use]
    pub const fn is_there(&self, bytes: u64) -> bool {
        self.raw.address != 0 && self.raw.address.is_multiple_of(bytes) && self.raw.count != 0
    }
}

/// A `T` in DPA memory that the host rewrites while firmware runs: an operation, an order.
///
/// It lies outside every context, since a context is borrowed exclusively; firmware copies it
/// (`dpa::HostLine::snapshot`). A copy may be torn: whether it is whole is for check fields in `T` to say. That is why
/// a `T` is plain bytes and leads nowhere (`zerocopy::FromBytes`).
#[derive(IntoBytes, Immutable, KnownLayout)]
#[cfg_attr(feature = "host", derive(zerocopy::FromBytes))]
#[repr(transparent)]
pub struct HostLine<T> {
    address: u64,
    of: PhantomData<fn() -> T>,
}

/// A `T` in DPA memory that several threads access, by atomic operations only.
#[derive(IntoBytes, Immutable, KnownLayout)]
#[cfg_attr(feature = "host", derive(zerocopy::FromBytes))]
#[repr(transparent)]
pub struct Shared<T> {
    address: u64,
    of: PhantomData<fn() -> T>,
}

macro_rules! pointers {
    ($($name:ident),*) => {$(
        impl<T> $name<T> {
            /// The `T` at `address`, aligned as a `T` is.
            #[cfg(feature = "host")]
            #[must_use]
            pub const fn new(address: DeviceAddress) -> Self {
                Self { address: address.get(), of: PhantomData }
            }

            /// Its address; 0: there is none.
            #[inline(always)]
            #[must_use]
            pub const fn address(&self) -> u64 {
                self.address
            }

            /// Whether there is one where a `T` can be.
            #[must_use]
            pub const fn is_there(&self) -> bool {
                self.address != 0 && self.address.is_multiple_of(align_of::<T>() as u64)
            }
        }
    )*};
}
pointers!(HostLine, Shared);

// What derives would do, without asking for the same of the kind. Copies, and values out of nothing, are the host's
// alone.
macro_rules! as_its_bytes {
    ($($name:ident, $($field:ident),*;)*) => {$(
        impl<K> fmt::Debug for $name<K> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &self.$field))*.finish()
            }
        }

        impl<K> PartialEq for $name<K> {
            fn eq(&self, other: &Self) -> bool {
                true $(&& self.$field == other.$field)*
            }
        }

        impl<K> Eq for $name<K> {}

        #[cfg(feature = "host")]
        impl<K> Clone for $name<K> {
            fn clone(&self) -> Self {
                *self
            }
        }

        #[cfg(feature = "host")]
        impl<K> Copy for $name<K> {}

        #[cfg(feature = "host")]
        impl<K> Default for $name<K> {
            fn default() -> Self {
                zerocopy::FromZeros::new_zeroed()
            }
        }
    )*};
}
as_its_bytes! {
    Queue, raw;
    Region, raw;
    HostLine, address;
    Shared, address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_that_cannot_be_are_distinguished() {
        let queue = |ring, record, log_depth| {
            Queue::<Completions>::new(DeviceAddress::new(ring), DeviceAddress::new(record), 7, log_depth).check()
        };
        assert_eq!([queue(0x1000, 0x2008, 1), queue(0x1000, 0x2008, 15)], [Ok(()); 2]);
        for (ring, record) in [(0, 0x2008), (0x1000, 0), (0x1020, 0x2008), (0x1000, 0x2004)] {
            assert_eq!(queue(ring, record, 4), Err(QueueFault::Address), "{ring:#x} {record:#x}");
        }
        for log_depth in [0, 16, u32::MAX] {
            assert_eq!(queue(0x1000, 0x2008, log_depth), Err(QueueFault::Depth));
        }
        let receives = Queue::<Receives>::new(DeviceAddress::new(0x1010), DeviceAddress::new(8), 7, 3);
        assert_eq!((receives.check(), receives.ring_bytes(), receives.depth()), (Ok(()), 128, 8));
        assert!(Queue::<Sends>::default().is_none());
    }

    #[test]
    fn regions_say_whether_they_are_there() {
        let region = |address, count| ContextMemory::<u64>::new(DeviceAddress::new(address), count).is_there(8);
        assert_eq!([region(64, 1), region(0, 1), region(68, 1), region(64, 0)], [true, false, false, false]);
        let line = |address| HostLine::<u64>::new(DeviceAddress::new(address)).is_there();
        assert_eq!([line(8), line(0), line(4)], [true, false, false]);
    }
}
