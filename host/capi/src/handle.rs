//! Handles: numbers in the form of pointers, which a table of the process resolves.
//!
//! A handle holds the kind of the object, its slot in the table and how often the slot has been used. So a handle that
//! was freed, or never made, is distinguished from a good one, and never followed.

use std::any::Any;
use std::sync::{Arc, PoisonError, RwLock};

use crate::fault::Fault;
use crate::status::flexcast_status::*;

const SLOT_BITS: u32 = 24;
const GENERATION_BITS: u32 = 36;
const MOST_SLOTS: usize = 1 << SLOT_BITS;
const KIND_SHIFT: u32 = SLOT_BITS + GENERATION_BITS;

/// What a handle stands for.
type Object = Arc<dyn Any + Send + Sync>;

/// Types of objects, as handles hold them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    Endpoint = 1,
    Bootstrap = 2,
    Communicator = 3,
    Request = 4,
}

impl Code {
    const ALL: [Self; 4] = [Self::Endpoint, Self::Bootstrap, Self::Communicator, Self::Request];

    /// The one that a handle holds; none if it holds anything else.
    fn of(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|code| *code as u64 == number)
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::Bootstrap => "bootstrap",
            Self::Communicator => "communicator",
            Self::Request => "request",
        }
    }
}

/// A type of object, and its handle's.
pub(crate) trait Kind: Any + Send + Sync {
    /// The opaque type of the header.
    type Handle;
    const CODE: Code;
}

struct Slot {
    generation: u64,
    object: Option<Object>,
}

struct Table {
    slots: Vec<Slot>,
    free: Vec<usize>,
}

impl Table {
    const fn new() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }

    /// Puts an object into a free slot, or into a new one while there are fewer than `limit`: gives its place and
    /// generation. A refusal leaves the table as it was.
    fn insert(&mut self, object: Object, limit: usize) -> Option<(usize, u64)> {
        let at = match self.free.pop() {
            Some(at) => at,
            None if self.slots.len() >= limit => return None,
            None => {
                self.slots.push(Slot { generation: 0, object: None });
                self.slots.len() - 1
            }
        };
        let slot = &mut self.slots[at];
        slot.generation += 1;
        slot.object = Some(object);
        Some((at, slot.generation))
    }
}

/// Objects of all threads. Its lock is held for a few instructions, and never while anything of the library or the
/// program runs.
static TABLE: RwLock<Table> = RwLock::new(Table::new());

/// Gives an object a handle.
pub(crate) fn insert<K: Kind>(object: Arc<K>) -> Result<*mut K::Handle, Fault> {
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let Some((at, generation)) = table.insert(object, MOST_SLOTS) else {
        let text =
            format!("this process has {MOST_SLOTS} objects, the most that it may have: free those that are done");
        return Err(Fault::new(FLEXCAST_ERROR_LIMIT, text));
    };
    let number = (K::CODE as u64) << KIND_SHIFT | generation << SLOT_BITS | at as u64;
    Ok(std::ptr::without_provenance_mut(number as usize))
}

fn stale<K: Kind>(why: &str) -> Fault {
    Fault::new(FLEXCAST_ERROR_HANDLE, format!("the handle is no {} of this library: {why}", K::CODE.name()))
}

/// Slot and generation of a handle.
fn locate<K: Kind>(handle: *mut K::Handle) -> Result<(usize, u64), Fault> {
    let number = handle.addr() as u64;
    if number == 0 {
        return Err(Fault::null(&format!("the {}", K::CODE.name())));
    }
    let field = |shift: u32, bits: u32| number >> shift & ((1 << bits) - 1);
    match Code::of(number >> KIND_SHIFT) {
        Some(code) if code == K::CODE => Ok((field(0, SLOT_BITS) as usize, field(SLOT_BITS, GENERATION_BITS))),
        Some(code) => {
            let article = if code == Code::Endpoint { "an" } else { "a" };
            Err(stale::<K>(&format!("it is one of {article} {}", code.name())))
        }
        None => Err(stale::<K>("it is a number that no function has given")),
    }
}

/// The object of a handle.
pub(crate) fn get<K: Kind>(handle: *mut K::Handle) -> Result<Arc<K>, Fault> {
    let (at, generation) = locate::<K>(handle)?;
    let table = TABLE.read().unwrap_or_else(PoisonError::into_inner);
    let slot = table.slots.get(at).filter(|slot| slot.generation == generation);
    let object = slot.and_then(|slot| slot.object.clone()).and_then(|object| object.downcast().ok());
    object.ok_or_else(|| stale::<K>("it was freed"))
}

/// Takes an object out of the table; its handle is worth nothing afterwards. Of two threads that do so one gets the
/// error that it was freed.
pub(crate) fn remove<K: Kind>(handle: *mut K::Handle) -> Result<Arc<K>, Fault> {
    let (at, generation) = locate::<K>(handle)?;
    let mut table = TABLE.write().unwrap_or_else(PoisonError::into_inner);
    let slot = table.slots.get_mut(at).filter(|slot| slot.generation == generation);
    let object = slot.and_then(|slot| slot.object.take_if(|object| object.is::<K>()));
    let object = object.and_then(|object| object.downcast().ok()).ok_or_else(|| stale::<K>("it was freed"))?;
    // A slot that has used up its generations is not used again.
    if generation + 1 < 1 << GENERATION_BITS {
        table.free.push(at);
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::Bootstrap;
    use crate::endpoint::EndpointSlot;
    use crate::flexcast_bootstrap;

    fn bootstrap() -> Arc<Bootstrap> {
        Arc::new(Bootstrap::new(Box::new(crate::bootstrap::tests::Alone)))
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
        // Other tests have some, too.
        assert!(TABLE.read().unwrap().slots.len() < 100);
    }

    #[test]
    fn a_refused_object_leaves_a_full_table_as_it_was() {
        let mut table = Table::new();
        let object = || -> Object { bootstrap() };
        for at in 0..3 {
            assert_eq!(table.insert(object(), 3), Some((at, 1)));
        }
        for _ in 0..1000 {
            assert_eq!(table.insert(object(), 3), None);
        }
        assert_eq!((table.slots.len(), table.free.len()), (3, 0));
        // A slot that becomes free is used again.
        table.slots[1].object = None;
        table.free.push(1);
        assert_eq!((table.insert(object(), 3), table.insert(object(), 3)), (Some((1, 2)), None));
    }

    #[test]
    fn other_numbers_and_kinds_are_refused() {
        assert_eq!(fails(std::ptr::null_mut(), "bootstrap is NULL"), FLEXCAST_ERROR_NULL);
        for number in [1usize, 4096, usize::MAX, 7 << 60, 0x7fff_ffff_f000] {
            assert_eq!(fails(std::ptr::without_provenance_mut(number), "no function"), FLEXCAST_ERROR_HANDLE);
        }
        let handle = insert(bootstrap()).unwrap();
        let fault = get::<EndpointSlot>(handle.cast()).map(drop).expect_err("another kind");
        assert!(fault.text.contains("no endpoint") && fault.text.contains("one of a bootstrap"), "{}", fault.text);
        // A slot that there is not.
        let beyond = std::ptr::without_provenance_mut(handle.addr() + (1 << 20));
        assert_eq!(fails(beyond, "freed"), FLEXCAST_ERROR_HANDLE);
        let number = handle.addr();
        let other = move || get::<Bootstrap>(std::ptr::without_provenance_mut(number)).map(drop);
        std::thread::spawn(other).join().unwrap().expect("handles are those of the process");
        remove::<Bootstrap>(handle).unwrap();
    }
}
