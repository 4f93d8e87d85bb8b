//! Pointers of the caller.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::fault::Fault;
use crate::status::flexcast_status::*;

/// Where FLEXCAST_IN_PLACE points; see the header.
pub(crate) const IN_PLACE: usize = usize::MAX;

/// Memory of the program that an operation reads or writes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Memory {
    pub(crate) start: *mut c_void,
    pub(crate) bytes: usize,
}

// SAFETY: an address and a length. Whoever reads or writes there does so by the promise of the program that gave them,
// which is of no thread.
unsafe impl Send for Memory {}
// SAFETY: the same.
unsafe impl Sync for Memory {}

impl Memory {
    pub(crate) const NOTHING: Self = Self { start: std::ptr::null_mut(), bytes: 0 };
}

/// What a program gives its own functions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct User(pub(crate) *mut c_void);

// SAFETY: nobody but the program's functions follows it; the header says by which threads they are called.
unsafe impl Send for User {}
// SAFETY: the same.
unsafe impl Sync for User {}

/// Where a result goes.
///
/// # Safety
/// The pointer is null or points at memory that a `T` can be written to.
pub(crate) unsafe fn out<T>(pointer: *mut T, what: &str) -> Result<Out<T>, Fault> {
    if pointer.is_null() { Err(Fault::null(what)) } else { Ok(Out(pointer)) }
}

/// A place for a result, which may be unaligned and uninitialised.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    pub(crate) fn put(&self, value: T) {
        // SAFETY: whoever made it vouches for the memory.
        unsafe { self.0.write_unaligned(value) };
    }
}

/// A text of the caller; `None` for null.
///
/// # Safety
/// The pointer is null or points at a C string that does not change while the result is used.
pub(crate) unsafe fn text<'t>(pointer: *const c_char, what: &str) -> Result<Option<&'t str>, Fault> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: not null, and a C string by this function's contract.
    let text = unsafe { CStr::from_ptr(pointer) };
    match text.to_str() {
        Ok(text) => Ok(Some(text)),
        Err(_) => Err(Fault::new(FLEXCAST_ERROR_ARGUMENT, format!("{what} is not UTF-8: {}", text.to_string_lossy()))),
    }
}

/// A rank or a number of ranks as C has it.
pub(crate) fn count(value: c_int, what: &str) -> Result<u32, Fault> {
    u32::try_from(value)
        .map_err(|_| Fault::new(FLEXCAST_ERROR_ARGUMENT, format!("{what} is {value}: must not be negative")))
}

/// A structure of the caller that begins with its own size: fields that the caller's header does not have keep their
/// defaults.
///
/// # Safety
/// `T` is `repr(C)`, any bytes are a `T`, and its first field is a `usize`, its size. The pointer is null or points at
/// as many bytes.
pub(crate) unsafe fn sized<T: Copy>(pointer: *const T, default: T, what: &str) -> Result<T, Fault> {
    if pointer.is_null() {
        return Ok(default);
    }
    // SAFETY: at least the size is there.
    let size = unsafe { pointer.cast::<usize>().read_unaligned() };
    check(size, size_of::<T>(), what)?;
    let mut value = default;
    // SAFETY: `size` bytes are there by the contract, and no more than `value` has room for; they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping(pointer.cast::<u8>(), (&raw mut value).cast::<u8>(), size) };
    Ok(value)
}

/// Gives a structure to the caller, as much of it as its header knows.
///
/// # Safety
/// `T` is `repr(C)`. The pointer is null or points at `size` writable bytes.
pub(crate) unsafe fn give<T: Copy>(pointer: *mut T, size: usize, value: T, what: &str) -> Result<(), Fault> {
    if pointer.is_null() {
        return Err(Fault::null(what));
    }
    check(size, size_of::<T>(), what)?;
    // SAFETY: `size` bytes are there, and no more than `value` has; they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping((&raw const value).cast::<u8>(), pointer.cast::<u8>(), size) };
    Ok(())
}

fn check(size: usize, most: usize, what: &str) -> Result<(), Fault> {
    if (size_of::<usize>()..=most).contains(&size) && size.is_multiple_of(size_of::<usize>()) {
        return Ok(());
    }
    let least = size_of::<usize>();
    let next = "initialise it with its function, and compile against the header of this library";
    Err(Fault::new(
        FLEXCAST_ERROR_SIZE,
        format!("{what} has {size} bytes: must be {least} to {most}, a multiple of {least}; {next}"),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(C)]
    #[derive(Clone, Copy, Debug, PartialEq)]
    struct Sized {
        size: usize,
        one: u64,
        two: u64,
    }

    #[test]
    fn what_an_older_header_lacks_keeps_its_default() {
        let default = Sized { size: 24, one: 1, two: 2 };
        let old: [u64; 2] = [16, 7];
        // SAFETY: 16 bytes are there, as they say.
        let read = unsafe { sized(old.as_ptr().cast(), default, "options") }.unwrap();
        assert_eq!(read, Sized { size: 16, one: 7, two: 2 });
        // SAFETY: null is the default.
        assert_eq!(unsafe { sized(std::ptr::null(), default, "options") }.unwrap(), default);
        for size in [0, 7, 9, 32, usize::MAX] {
            let wrong = Sized { size, ..default };
            // SAFETY: a size that cannot be is refused before anything else is read.
            let fault = unsafe { sized(&raw const wrong, default, "options") }.unwrap_err();
            assert!(fault.status == FLEXCAST_ERROR_SIZE && fault.text.contains(&size.to_string()), "{}", fault.text);
        }
    }

    #[test]
    fn an_older_caller_gets_the_part_that_it_knows() {
        let mut room = [9u64; 3];
        // SAFETY: 16 bytes are there.
        unsafe { give(room.as_mut_ptr().cast(), 16, Sized { size: 24, one: 1, two: 2 }, "stats") }.unwrap();
        assert_eq!(room, [24, 1, 9]);
    }
}
