//! `Debug` of error types as a reader wants it: the sentence of `Display`, and those of its causes.
//!
//! A `main` that returns `Result<(), Box<dyn Error>>`, an `unwrap` and an `expect` show `Debug`. Derived, it would give
//! names of variants and fields instead of the value, the limit and the next step.
//!
//! ```
//! #[derive(Clone, Copy, PartialEq, Eq)]
//! struct Full(u32);
//!
//! impl core::fmt::Display for Full {
//!     fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
//!         write!(f, "all {} slots are taken: free one", self.0)
//!     }
//! }
//!
//! impl core::error::Error for Full {}
//! flexcast_error::debug_as_display!(Full);
//!
//! assert_eq!(format!("{:?}", Err::<(), _>(Full(8))), "Err(all 8 slots are taken: free one)");
//! ```
#![no_std]
#![forbid(unsafe_code)]

use core::error::Error;
use core::fmt;

/// Implements `Debug` for error types, by [`write_chain`].
#[macro_export]
macro_rules! debug_as_display {
    ($($error:ty),+ $(,)?) => {
        $(impl ::core::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::core::fmt::Formatter<'_>) -> ::core::fmt::Result {
                $crate::write_chain(self, f)
            }
        })+
    };
}

/// Writes an error and everything that caused it: one line with colons in between, or, as `{:#?}` asks for, a line for
/// each cause.
///
/// # Errors
/// Those of the formatter.
pub fn write_chain(error: &dyn Error, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, "{error}")?;
    let mut source = error.source();
    while let Some(cause) = source {
        f.write_str(if f.alternate() { "\n  because " } else { ": " })?;
        write!(f, "{cause}")?;
        source = cause.source();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    extern crate std;
    use std::format;

    use super::*;

    struct Outer(Inner);
    struct Inner;

    impl fmt::Display for Outer {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the card cannot be opened")
        }
    }

    impl fmt::Display for Inner {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("permission denied")
        }
    }

    impl Error for Outer {
        fn source(&self) -> Option<&(dyn Error + 'static)> {
            Some(&self.0)
        }
    }

    impl Error for Inner {}

    debug_as_display!(Outer, Inner);

    #[test]
    fn causes_follow_on_the_line_or_on_lines_of_their_own() {
        assert_eq!(format!("{:?}", Outer(Inner)), "the card cannot be opened: permission denied");
        assert_eq!(format!("{:#?}", Outer(Inner)), "the card cannot be opened\n  because permission denied");
        assert_eq!(format!("{:?}", Some(Inner)), "Some(permission denied)");
    }
}
