//! Typed RPCs: the name of an entry, and what it takes and returns.

use core::fmt;
use core::marker::PhantomData;

use crate::{ContextFault, DeviceAddress, Layout, ReceiveThread};

/// An RPC of an image: its name, and the types of its argument and its answer.
///
/// Both travel as 64-bit words. The type of the argument has the layout hash of what the firmware's function takes, by
/// which a host program can compare it with an image.
///
/// ```
/// use flexcast_abi::{ContextAddress, Layout, Rpc};
///
/// /// Numbers to add up.
/// #[derive(Layout)]
/// #[repr(C)]
/// struct Job {
///     numbers: u64,
///     count: u64,
/// }
///
/// /// Of `#[dpa::rpc] fn sum(job: &Job) -> u64` in the image.
/// const SUM: Rpc<ContextAddress<Job>, u64> = Rpc::new("sum");
/// assert_eq!(SUM.name(), "sum");
/// ```
pub struct Rpc<Argument, Answer> {
    name: &'static str,
    types: PhantomData<fn(Argument) -> Answer>,
}

impl<Argument: RpcArgument, Answer: RpcAnswer> Rpc<Argument, Answer> {
    /// The RPC of the entry `name`.
    #[must_use]
    pub const fn new(name: &'static str) -> Self {
        Self { name, types: PhantomData }
    }

    /// Name of the entry.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

impl<Argument, Answer> fmt::Debug for Rpc<Argument, Answer> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Rpc").field(&self.name).finish()
    }
}

/// What an RPC may take.
pub trait RpcArgument {
    /// Layout hash of the parameter of the firmware's function, as an image records it.
    const LAYOUT_HASH: u64;

    /// The argument as the word that the firmware gets.
    fn to_word(self) -> u64;
}

/// What an RPC may return.
pub trait RpcAnswer: Sized {
    /// Words that are answers, for an error that names another one.
    const LIMIT: &'static str;

    /// The answer that a word of the firmware stands for; `None` if it stands for none.
    fn from_word(word: u64) -> Option<Self>;
}

impl RpcArgument for u64 {
    const LAYOUT_HASH: u64 = <Self as Layout>::HASH;

    fn to_word(self) -> u64 {
        self
    }
}

impl RpcArgument for u32 {
    // The firmware's function takes the whole word.
    const LAYOUT_HASH: u64 = <u64 as Layout>::HASH;

    fn to_word(self) -> u64 {
        self.into()
    }
}

impl RpcArgument for bool {
    const LAYOUT_HASH: u64 = <u64 as Layout>::HASH;

    fn to_word(self) -> u64 {
        self.into()
    }
}

impl RpcArgument for DeviceAddress {
    const LAYOUT_HASH: u64 = <u64 as Layout>::HASH;

    fn to_word(self) -> u64 {
        self.get()
    }
}

impl RpcAnswer for u64 {
    const LIMIT: &'static str = "any 64 bits";

    fn from_word(word: u64) -> Option<Self> {
        Some(word)
    }
}

impl RpcAnswer for u32 {
    const LIMIT: &'static str = "at most 32 bits";

    fn from_word(word: u64) -> Option<Self> {
        word.try_into().ok()
    }
}

impl RpcAnswer for bool {
    const LIMIT: &'static str = "0 or 1";

    fn from_word(word: u64) -> Option<Self> {
        match word {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl RpcAnswer for DeviceAddress {
    const LIMIT: &'static str = "any address";

    fn from_word(word: u64) -> Option<Self> {
        Some(Self::new(word))
    }
}

/// Address in DPA memory of a `T`, which the host has written there: argument of RPCs that take `&T` or `&mut T`.
pub struct ContextAddress<T> {
    address: DeviceAddress,
    of: PhantomData<fn() -> T>,
}

impl<T: Layout> ContextAddress<T> {
    /// The address of a `T`. Whoever makes one knows that there is a `T`: the firmware cannot find out.
    #[must_use]
    pub const fn new(address: DeviceAddress) -> Self {
        Self { address, of: PhantomData }
    }
}

impl<T> ContextAddress<T> {
    /// The address.
    #[must_use]
    pub const fn address(self) -> DeviceAddress {
        self.address
    }
}

impl<T> Clone for ContextAddress<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ContextAddress<T> {}

impl<T> PartialEq for ContextAddress<T> {
    fn eq(&self, other: &Self) -> bool {
        self.address == other.address
    }
}

impl<T> Eq for ContextAddress<T> {}

impl<T> fmt::Debug for ContextAddress<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ContextAddress({:#x})", self.address.get())
    }
}

impl<T: Layout> RpcArgument for ContextAddress<T> {
    const LAYOUT_HASH: u64 = T::HASH;

    fn to_word(self) -> u64 {
        self.address.get()
    }
}

/// A context that firmware refuses: answer of RPCs that prepare contexts, as `Result<(), ContextRefusal>`, where 0
/// stands for `Ok`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextRefusal {
    /// Number of the receive context at fault, or another part of the context; 0 if it has none.
    pub part: u32,
    /// Why, a [`ContextFault`].
    pub code: u32,
}

impl ContextRefusal {
    /// The fault; `None` for a code that this host does not know.
    #[must_use]
    pub fn fault(self) -> Option<ContextFault> {
        ContextFault::from_raw(self.code).ok()
    }
}

impl RpcAnswer for Result<(), ContextRefusal> {
    const LIMIT: &'static str = "0, or the code of a context's fault below the number of its part";

    fn from_word(word: u64) -> Option<Self> {
        let (part, code) = ((word >> 32) as u32, word as u32);
        match (part, code) {
            (0, 0) => Some(Ok(())),
            (_, 0) => None,
            _ => Some(Err(ContextRefusal { part, code })),
        }
    }
}

/// Answer of RPCs that wake event handlers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// All are woken.
    Woken = 0,
    /// The runtime refuses.
    Refused = 1,
}

impl RpcAnswer for Activation {
    const LIMIT: &'static str = "0 or 1";

    fn from_word(word: u64) -> Option<Self> {
        match word {
            0 => Some(Self::Woken),
            1 => Some(Self::Refused),
            _ => None,
        }
    }
}

/// Of every image: proves that its code runs and was built with this ABI, by [`crate::bring_up_answer`].
pub const BRING_UP: Rpc<u64, u64> = Rpc::new("bring_up");

/// Of images with event handlers: wakes the event handler with this activation id.
pub const ACTIVATE: Rpc<u32, Activation> = Rpc::new("activate");

/// Of image `synthetic`: runs its scenarios, and answers 0.
pub const RUN: Rpc<ContextAddress<ReceiveThread>, u64> = Rpc::new("run");
