//! Objects that borrow from one another, kept together.
//!
//! A communicator is made of objects of the card, each of which borrows from the one it was made of: a queue pair from its completion
//! queue, that from its thread, that from the process. The borrow checker keeps them in order inside one function; a communicator
//! outlives the function that makes it. So it stacks them: each stays where it is until the tower is taken down, from the top.
#![allow(unsafe_code)] // The one place where a borrow is longer than the compiler can see.

use std::any::type_name;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;

struct Floor {
    object: NonNull<()>,
    drop: unsafe fn(NonNull<()>),
    name: &'static str,
}

/// A stack of objects, dropped from the last to the first.
pub(crate) struct Tower<'a> {
    floors: Vec<Floor>,
    objects: PhantomData<Box<dyn fmt::Debug + 'a>>,
}

impl fmt::Debug for Tower<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.floors.iter().map(|floor| floor.name)).finish()
    }
}

impl<'a> Tower<'a> {
    /// An empty tower.
    ///
    /// # Safety
    /// No reference that [`Tower::keep`] gives, and nothing made of one, may be used after the tower is dropped, except by objects higher
    /// up in the same tower while it is taken down. So whoever owns the tower owns whatever borrows from it, drops that first, and
    /// hands references out with its own lifetime only.
    pub(crate) const unsafe fn new() -> Self {
        Self { floors: Vec::new(), objects: PhantomData }
    }

    /// Puts an object on top. The reference is good until the tower is dropped, which its lifetime does not say: see [`Tower::new`].
    pub(crate) fn keep<T: 'a>(&mut self, object: T) -> &'a T {
        unsafe fn drop_box<T>(object: NonNull<()>) {
            // SAFETY: the pointer came from `Box::into_raw` of this type, and each floor is dropped once.
            drop(unsafe { Box::from_raw(object.cast::<T>().as_ptr()) });
        }
        let object = NonNull::from(Box::leak(Box::new(object)));
        self.floors.push(Floor { object: object.cast(), drop: drop_box::<T>, name: type_name::<T>() });
        // SAFETY: the box stays allocated until the tower is dropped; whoever made the tower promised that nobody uses the reference afterwards. It is
        // shared only: nobody has the box.
        unsafe { object.as_ref() }
    }
}

impl Drop for Tower<'_> {
    fn drop(&mut self) {
        while let Some(floor) = self.floors.pop() {
            // SAFETY: `drop` was made for the type of `object`, and the floor is gone from the stack. What borrows from the object was
            // higher up, so it is gone, too.
            unsafe { (floor.drop)(floor.object) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    #[derive(Debug)]
    struct Noisy<'a> {
        name: u32,
        below: Option<&'a Noisy<'a>>,
        log: &'a RefCell<Vec<u32>>,
    }

    impl Drop for Noisy<'_> {
        fn drop(&mut self) {
            // Reads what is below: under Miri, a wrong order is a use after free.
            let below = self.below.map_or(0, |below| below.name);
            self.log.borrow_mut().push(self.name * 10 + below);
        }
    }

    #[test]
    fn a_tower_is_taken_down_from_the_top() {
        let log = RefCell::new(Vec::new());
        // SAFETY: the references end before the tower.
        let mut tower = unsafe { Tower::new() };
        let first = tower.keep(Noisy { name: 1, below: None, log: &log });
        let second = tower.keep(Noisy { name: 2, below: Some(first), log: &log });
        tower.keep(Noisy { name: 3, below: Some(second), log: &log });
        assert_eq!(format!("{tower:?}").matches("Noisy").count(), 3);
        drop(tower);
        assert_eq!(*log.borrow(), [32, 21, 10]);
    }
}
