//! Live handles of the C ABIs.
//!
//! A handle is the address of an object that this module keeps alive until it is destroyed. Every call finds its handle
//! by address and type before anything is read through it, so a null, foreign, destroyed or mistyped handle is an
//! error and never a crash.

use std::any::Any;
use std::cell::UnsafeCell;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// A type whose objects are C handles.
pub trait Object: Any + Send + Sync {
    /// What it is, for messages.
    const KIND: &'static str;
    /// What C calls it.
    type C;
    /// The address that C sees. It must lie inside the object and not change while the object lives in one place.
    fn c_address(&self) -> *mut Self::C;
}

/// Not a live handle of the kind asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{addr:#x} is not a live {kind}: it is null, was destroyed, or is something else")]
pub struct BadHandle {
    /// What was wanted.
    pub kind: &'static str,
    /// What was given.
    pub addr: usize,
}

/// The part of an object that C programs see and may read at any time.
#[repr(transparent)]
pub struct CStruct<T>(UnsafeCell<T>);

// SAFETY: Rust code reaches the contents through raw pointers only. This library writes them before the handle is
// published. Afterwards it writes single numbers as atomics, and what only one call at a time may change by the C
// contract.
unsafe impl<T> Send for CStruct<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for CStruct<T> {}

impl<T> CStruct<T> {
    /// Wraps a value.
    pub fn new(value: T) -> Self {
        CStruct(UnsafeCell::new(value))
    }

    /// Its address.
    pub fn get(&self) -> *mut T {
        self.0.get()
    }
}

impl<T> std::fmt::Debug for CStruct<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CStruct({:p})", self.get())
    }
}

type Live = BTreeMap<usize, Arc<dyn Any + Send + Sync>>;

static LIVE: RwLock<Live> = RwLock::new(BTreeMap::new());

/// Makes an object a live handle.
pub fn publish<T: Object>(object: &Arc<T>) -> *mut T::C {
    let handle = object.c_address();
    LIVE.write().unwrap_or_else(PoisonError::into_inner).insert(handle as usize, Arc::clone(object) as _);
    handle
}

/// The object behind a live handle.
pub fn get<T: Object>(handle: *const T::C) -> Result<Arc<T>, BadHandle> {
    let addr = handle as usize;
    if crate::fork::is_child() {
        return Err(BadHandle { kind: T::KIND, addr });
    }
    let object = LIVE.read().unwrap_or_else(PoisonError::into_inner).get(&addr).cloned();
    object.and_then(|object| object.downcast().ok()).ok_or(BadHandle { kind: T::KIND, addr })
}

/// Ends a handle, and gives the object back.
pub fn retire<T: Object>(handle: *const T::C) -> Result<Arc<T>, BadHandle> {
    let object = get::<T>(handle)?;
    LIVE.write().unwrap_or_else(PoisonError::into_inner).remove(&(handle as usize));
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Number(CStruct<u32>);
    impl Object for Number {
        const KIND: &'static str = "number";
        type C = u32;
        fn c_address(&self) -> *mut u32 {
            self.0.get()
        }
    }

    struct Other(CStruct<u32>);
    impl Object for Other {
        const KIND: &'static str = "other";
        type C = u32;
        fn c_address(&self) -> *mut u32 {
            self.0.get()
        }
    }

    #[test]
    fn only_live_handles_of_the_right_kind_are_found() {
        let handle = publish(&Arc::new(Number(CStruct::new(7))));
        // SAFETY: the registry keeps the object alive.
        assert_eq!(unsafe { *handle }, 7);
        assert!(get::<Number>(handle).is_ok());
        assert_eq!(get::<Other>(handle).err(), Some(BadHandle { kind: "other", addr: handle as usize }));
        assert!(get::<Number>(std::ptr::null()).is_err());
        assert!(get::<Number>(handle.wrapping_add(1)).is_err());
        assert!(retire::<Number>(handle).is_ok());
        assert!(get::<Number>(handle).is_err());
        assert!(retire::<Number>(handle).is_err());
    }
}
