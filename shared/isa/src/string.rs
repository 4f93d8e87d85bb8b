//! ISA strings (RISC-V Unprivileged ISA, chapter "ISA Extension Naming Conventions").

use crate::Isa;

/// Why an ISA string names no set of extensions.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum IsaError<'a> {
    /// Another architecture, or no ISA string at all.
    #[error("ISA string `{0}` does not start with rv64; write it as in `rv64imac_zbb_zbs`")]
    NotRv64(&'a str),
    /// An extension of which nothing is known.
    #[error("extension `{0}` is not known; the known ones are those of {all}", all = Isa::ALL)]
    Unknown(&'a str),
    /// A part of an extension without the rest.
    #[error("`{part}` is known as a part of `{whole}` only; name `{whole}` too")]
    PartOnly {
        /// The part.
        part: &'a str,
        /// The extension that has it.
        whole: &'static str,
    },
    /// No base instructions.
    #[error("the base `i` is missing; an instruction set begins with rv64i")]
    NoBase,
}

flexcast_error::debug_as_display!(IsaError<'_>);

/// The names in an ISA string, as they stand there, without versions. They need not be known ones.
///
/// # Errors
/// [`IsaError::NotRv64`] for anything but a 64-bit ISA string.
pub fn names(text: &str) -> Result<Names<'_>, IsaError<'_>> {
    match text.split_at_checked(4) {
        Some((base, rest)) if base.eq_ignore_ascii_case("rv64") => Ok(Names { rest }),
        _ => Err(IsaError::NotRv64(text)),
    }
}

/// See [`names`].
#[derive(Clone, Debug)]
pub struct Names<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Names<'a> {
    type Item = &'a str;

    fn next(&mut self) -> Option<&'a str> {
        let text = self.rest.trim_start_matches('_');
        let first = text.chars().next()?;
        if "zsxZSX".contains(first) {
            // Such a name goes on to the next underscore.
            let (part, rest) = text.split_at(text.find('_').unwrap_or(text.len()));
            self.rest = rest;
            return Some(without_version(part));
        }
        let (name, rest) = text.split_at(first.len_utf8());
        self.rest = behind_version(rest);
        Some(name)
    }
}

/// `zbb1p0` and `zbb1` are `zbb`; `zbp0p93` is `zbp`. A name ends in a letter, and not in a digit and `p`.
fn without_version(part: &str) -> &str {
    let major = without_digits(part);
    match major.strip_suffix('p').or_else(|| major.strip_suffix('P')) {
        Some(name) if major.len() < part.len() && name.ends_with(|c: char| c.is_ascii_digit()) => without_digits(name),
        _ => major,
    }
}

fn without_digits(text: &str) -> &str {
    text.trim_end_matches(|c: char| c.is_ascii_digit())
}

/// What follows the version of a one-letter name, if it has one: `2`, or `2p1`.
fn behind_version(text: &str) -> &str {
    let digits = |c: char| c.is_ascii_digit();
    let behind_major = text.trim_start_matches(digits);
    match behind_major.strip_prefix(['p', 'P']) {
        Some(minor) if behind_major.len() < text.len() && minor.starts_with(digits) => minor.trim_start_matches(digits),
        _ => behind_major,
    }
}
