//! The handles that a program has had.

use crate::abi::Program;
use crate::input::Input;

/// What a handle is one of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Device,
    Context,
    Pd,
    Mr,
    Channel,
    Cq,
    Qp,
    Ah,
    Umem,
    Uar,
    App,
    Process,
    Mkey,
    FlexioCq,
    FlexioQp,
    Handler,
    Thread,
    Window,
    Outbox,
    FlexioUar,
    Stream,
}

#[derive(Clone, Copy, Debug)]
struct Handle {
    kind: Kind,
    address: usize,
    /// What the interface calls the object by, in addition to its handle: a key, a queue number, a card.
    number: u32,
    live: bool,
    /// Belongs to another object, with which it goes.
    borrowed: bool,
}

/// All of them, destroyed ones too.
#[derive(Default)]
pub(super) struct Handles(Vec<Handle>);

/// Most handles of one kind that are live; creating more than that says no more.
const MOST: usize = 12;
/// Most that are remembered.
const REMEMBERED: usize = 128;

impl Handles {
    /// A new object. Its address may be that of one that is gone.
    pub(super) fn add<T>(&mut self, kind: Kind, handle: *mut T, number: u32) {
        self.insert(kind, handle as usize, number, false);
    }

    /// An object that belongs to another one.
    pub(super) fn borrow<T>(&mut self, kind: Kind, handle: *mut T, number: u32) {
        self.insert(kind, handle as usize, number, true);
    }

    fn insert(&mut self, kind: Kind, address: usize, number: u32, borrowed: bool) {
        assert_ne!(address, 0);
        self.0.retain(|handle| handle.address != address || handle.kind == Kind::Device);
        if self.0.len() > REMEMBERED
            && let Some(stale) = self.0.iter().position(|handle| !handle.live)
        {
            self.0.remove(stale);
        }
        if kind != Kind::Device || !self.0.iter().any(|handle| handle.address == address) {
            self.0.push(Handle { kind, address, number, live: true, borrowed });
        }
    }

    /// It is gone.
    pub(super) fn retire(&mut self, kind: Kind, address: usize) {
        for handle in &mut self.0 {
            if (handle.kind, handle.address) == (kind, address) {
                handle.live = false;
            }
        }
    }

    pub(super) fn is_live(&self, kind: Kind, address: usize) -> bool {
        self.0.iter().any(|handle| (handle.kind, handle.address, handle.live) == (kind, address, true))
    }

    /// Whether there are as many as a program needs.
    pub(super) fn enough(&self, kind: Kind) -> bool {
        self.0.iter().filter(|handle| handle.kind == kind && handle.live).count() >= MOST
    }

    /// Live objects that the program made, oldest first.
    pub(super) fn owned(&self) -> Vec<(Kind, usize)> {
        let owned = self.0.iter().filter(|handle| handle.live && !handle.borrowed && handle.kind != Kind::Device);
        owned.map(|handle| (handle.kind, handle.address)).collect()
    }

    /// The one made `index`th of a kind.
    pub(super) fn nth<T>(&self, kind: Kind, index: usize) -> *mut T {
        let handle = self.0.iter().filter(|handle| handle.kind == kind).nth(index);
        handle.map_or(core::ptr::null_mut(), |handle| handle.address as *mut T)
    }

    /// A handle as the input asks: mostly one of the kind, live or not; sometimes null, plain memory, or another
    /// kind's.
    pub(super) fn pick<T>(&self, kind: Kind, input: &mut Input<'_>, program: &Program) -> *mut T {
        let address = match input.u8() {
            0xFF => 0,
            0xFE => program.at(64) as usize,
            0xFD => self.0.get(usize::from(input.u8()) % self.0.len().max(1)).map_or(0, |handle| handle.address),
            which => self.choose(kind, which).map_or(0, |handle| handle.address),
        };
        address as *mut T
    }

    /// The number of an object of a kind.
    pub(super) fn number(&self, kind: Kind, input: &mut Input<'_>) -> u32 {
        let which = input.u8();
        self.choose(kind, which).map_or(which.into(), |handle| handle.number)
    }

    fn choose(&self, kind: Kind, which: u8) -> Option<&Handle> {
        let count = self.0.iter().filter(|handle| handle.kind == kind).count();
        self.0.iter().filter(|handle| handle.kind == kind).nth(usize::from(which) % count.max(1))
    }
}
