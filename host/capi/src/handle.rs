//! Handles: numbers that look like pointers, looked up in a table of the thread that made the object.
//!
//! A handle holds the kind of the object, the number of its thread, its slot in that thread's table and how often the slot has been
//! used. So a handle that was freed, or never made, is told from a good one, and never followed.

use std::cell::{Cell, RefCell};
use std::mem::ManuallyDrop;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bootstrap::Bootstrap;
use crate::card::OpenCard;
use crate::communicator::Group;
use crate::fault::Fault;
use crate::request::Operation;
use crate::status::flexcast_status::*;

const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 20;
const THREAD_BITS: u32 = 20;
const KIND_SHIFT: u32 = SLOT_BITS + GENERATION_BITS + THREAD_BITS;

/// What a handle stands for.
#[derive(Clone)]
pub(crate) enum Object {
    Card(Rc<OpenCard>),
    Bootstrap(Rc<Bootstrap>),
    Group(Rc<Group>),
    Operation(Rc<Operation>),
}

/// A type of object and its handle's.
pub(crate) trait Kind: Sized {
    /// The opaque type of the header.
    type Handle;
    /// From 1, unlike all others.
    const CODE: u64;
    const NAME: &'static str;
    fn wrap(this: Rc<Self>) -> Object;
    fn unwrap(object: &Object) -> Option<&Rc<Self>>;
}

macro_rules! kinds {
    ($($code:literal $kind:ident $variant:ident $handle:ident $name:literal)*) => {
        $(impl Kind for $kind {
            type Handle = crate::$handle;
            const CODE: u64 = $code;
            const NAME: &'static str = $name;
            fn wrap(this: Rc<Self>) -> Object {
                Object::$variant(this)
            }
            fn unwrap(object: &Object) -> Option<&Rc<Self>> {
                if let Object::$variant(this) = object { Some(this) } else { None }
            }
        })*

        fn name(code: u64) -> Option<&'static str> {
            match code {
                $($code => Some($name),)*
                _ => None,
            }
        }
    };
}

kinds! {
    1 OpenCard Card flexcast_card "card"
    2 Bootstrap Bootstrap flexcast_bootstrap "bootstrap"
    3 Group Group flexcast_comm "communicator"
    4 Operation Operation flexcast_request "request"
}

struct Slot {
    generation: u64,
    object: Option<Object>,
}

#[derive(Default)]
struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

thread_local! {
    /// Never dropped: a thread may end after the libraries that its objects belong to.
    static TABLE: ManuallyDrop<RefCell<Table>> = const { ManuallyDrop::new(RefCell::new(Table { slots: Vec::new(), free: Vec::new() })) };
    static THREAD: Cell<u64> = const { Cell::new(0) };
}

/// Number of the calling thread, from 1.
fn thread() -> Result<u64, Fault> {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if THREAD.get() == 0 {
        THREAD.set(NEXT.fetch_add(1, Ordering::Relaxed));
    }
    match THREAD.get() {
        number if number < 1 << THREAD_BITS => Ok(number),
        _ => Err(Fault::new(
            FLEXCAST_ERROR_LIMIT,
            format!("{} threads have used the library: make handles in fewer", 1 << THREAD_BITS),
        )),
    }
}

/// Gives an object a handle.
pub(crate) fn insert<K: Kind>(object: Rc<K>) -> Result<*mut K::Handle, Fault> {
    let thread = thread()?;
    TABLE.with(|table| {
        let mut table = table.borrow_mut();
        let at = table.free.pop().unwrap_or_else(|| {
            table.slots.push(Slot { generation: 0, object: None });
            table.slots.len() - 1
        });
        if at >> SLOT_BITS != 0 {
            let text = format!("{} objects of this thread: free those that are done", 1 << SLOT_BITS);
            return Err(Fault::new(FLEXCAST_ERROR_LIMIT, text));
        }
        let slot = &mut table.slots[at];
        slot.generation += 1;
        slot.object = Some(K::wrap(object));
        let number =
            K::CODE << KIND_SHIFT | thread << (SLOT_BITS + GENERATION_BITS) | slot.generation << SLOT_BITS | at as u64;
        Ok(std::ptr::without_provenance_mut(number as usize))
    })
}

fn stale<K: Kind>(why: &str) -> Fault {
    Fault::new(FLEXCAST_ERROR_HANDLE, format!("the handle is no {} of this library: {why}", K::NAME))
}

/// Slot and generation of a handle of this thread.
fn locate<K: Kind>(handle: *mut K::Handle) -> Result<(usize, u64), Fault> {
    let number = handle.addr() as u64;
    if number == 0 {
        return Err(Fault::null(&format!("the {}", K::NAME)));
    }
    let field = |shift: u32, bits: u32| number >> shift & ((1 << bits) - 1);
    match name(number >> KIND_SHIFT) {
        Some(name) if name == K::NAME => {}
        Some(name) => return Err(stale::<K>(&format!("it is one of a {name}"))),
        None => return Err(stale::<K>("it is a number that no function has given")),
    }
    let (owner, own) = (field(SLOT_BITS + GENERATION_BITS, THREAD_BITS), thread()?);
    if owner != own {
        let text = format!(
            "the {} was made by another thread: objects, and all that is made of them, belong to the thread that made them; call from \
             there",
            K::NAME
        );
        return Err(Fault::new(FLEXCAST_ERROR_THREAD, text));
    }
    Ok((field(0, SLOT_BITS) as usize, field(SLOT_BITS, GENERATION_BITS)))
}

/// The object of a handle.
pub(crate) fn get<K: Kind>(handle: *mut K::Handle) -> Result<Rc<K>, Fault> {
    let (at, generation) = locate::<K>(handle)?;
    TABLE.with(|table| {
        let table = table.borrow();
        let slot = table.slots.get(at).filter(|slot| slot.generation == generation);
        let object = slot.and_then(|slot| slot.object.as_ref()).and_then(K::unwrap);
        object.map(Rc::clone).ok_or_else(|| stale::<K>("it was freed"))
    })
}

/// Takes an object out of the table; its handle is worth nothing afterwards.
pub(crate) fn remove<K: Kind>(handle: *mut K::Handle) -> Result<Rc<K>, Fault> {
    let object = get::<K>(handle)?;
    let (at, generation) = locate::<K>(handle)?;
    TABLE.with(|table| {
        let mut table = table.borrow_mut();
        table.slots[at].object = None;
        // A slot that has used up its generations is not used again.
        if generation + 1 < 1 << GENERATION_BITS {
            table.free.push(at);
        }
    });
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flexcast_bootstrap;

    fn bootstrap() -> Rc<Bootstrap> {
        Rc::new(Bootstrap::new(Box::new(crate::bootstrap::tests::Alone)))
    }

    fn fails(handle: *mut flexcast_bootstrap, words: &str) -> crate::flexcast_status {
        let fault = get::<Bootstrap>(handle).map(drop).expect_err("refused");
        assert!(fault.text.contains(words), "{}", fault.text);
        fault.status
    }

    #[test]
    fn handles_of_what_is_gone_are_never_good_again() {
        let first = insert(bootstrap()).unwrap();
        get::<Bootstrap>(first).unwrap();
        remove::<Bootstrap>(first).unwrap();
        assert_eq!(fails(first, "it was freed"), FLEXCAST_ERROR_HANDLE);
        // The slot is used again, with another generation.
        let mut seen = vec![first];
        for _ in 0..1000 {
            let next = insert(bootstrap()).unwrap();
            assert!(!seen.contains(&next));
            assert_eq!(fails(first, "it was freed"), FLEXCAST_ERROR_HANDLE);
            remove::<Bootstrap>(next).unwrap();
            assert!(remove::<Bootstrap>(next).is_err());
            seen.push(next);
        }
        TABLE.with(|table| assert_eq!(table.borrow().slots.len(), 1));
    }

    #[test]
    fn other_numbers_kinds_and_threads_are_refused() {
        assert_eq!(fails(std::ptr::null_mut(), "bootstrap is NULL"), FLEXCAST_ERROR_NULL);
        for number in [1usize, 4096, usize::MAX, 7 << 60, 0x7fff_ffff_f000] {
            assert_eq!(fails(std::ptr::without_provenance_mut(number), "no function"), FLEXCAST_ERROR_HANDLE);
        }
        let handle = insert(bootstrap()).unwrap();
        let fault = get::<OpenCard>(handle.cast()).map(drop).expect_err("another kind");
        assert!(fault.text.contains("no card") && fault.text.contains("one of a bootstrap"), "{}", fault.text);
        // One more than there is.
        let beyond = std::ptr::without_provenance_mut(handle.addr() + 1);
        assert_eq!(fails(beyond, "freed"), FLEXCAST_ERROR_HANDLE);
        let number = handle.addr();
        std::thread::spawn(move || {
            let handle = std::ptr::without_provenance_mut(number);
            assert_eq!(fails(handle, "another thread"), FLEXCAST_ERROR_THREAD);
        })
        .join()
        .unwrap();
        remove::<Bootstrap>(handle).unwrap();
    }
}
