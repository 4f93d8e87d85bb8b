//! Differences of two sets of bindings, in words.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use quote::ToTokens as _;

/// What bindings have of a library: structures and unions by their members, constants by their values.
struct Bindings {
    structures: BTreeMap<String, Vec<(String, String)>>,
    constants: BTreeMap<String, String>,
}

/// The differences, a line for each.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Differences {
    pub(super) lines: Vec<String>,
    /// Of them, those that would have a program of ours read or write the wrong bytes.
    incompatible: usize,
}

impl Differences {
    pub(super) fn verdict(&self) -> String {
        match self.incompatible {
            0 => "The structures and constants that we have are the same there.".to_owned(),
            count => format!(
                "{count} of these differences are in what we use: host/flexio-sys has to be built with the feature \
                 `sdk` and changed where it does not compile."
            ),
        }
    }
}

/// How the bindings of an SDK differ from ours. Names that only the SDK has are no trouble, and come last.
///
/// # Errors
/// One of the texts is no Rust.
pub(super) fn between(ours: &str, theirs: &str) -> Result<Differences> {
    let (ours, theirs) = (read(ours).context("our bindings")?, read(theirs).context("the SDK's bindings")?);
    let mut lines = Vec::new();
    for (name, members) in &ours.structures {
        match theirs.structures.get(name) {
            None => lines.push(format!("{name}: the SDK has no such structure")),
            Some(others) if members == others => {}
            Some(others) => lines.push(format!("{name}: {}", members_in_words(members, others))),
        }
    }
    for (name, value) in &ours.constants {
        match theirs.constants.get(name) {
            None => lines.push(format!("{name}: the SDK has no such constant")),
            Some(other) if value == other => {}
            Some(other) => lines.push(format!("{name}: {other} in the SDK, {value} here")),
        }
    }
    let incompatible = lines.len();
    let new = |theirs: Vec<&String>, kind: &str| {
        (!theirs.is_empty()).then(|| {
            let names: Vec<&str> = theirs.into_iter().map(String::as_str).collect();
            format!("{kind} that the SDK alone has: {}", names.join(", "))
        })
    };
    let structures = theirs.structures.keys().filter(|name| !ours.structures.contains_key(*name)).collect();
    let constants = theirs.constants.keys().filter(|name| !ours.constants.contains_key(*name)).collect();
    lines.extend(new(structures, "structures"));
    lines.extend(new(constants, "constants"));
    Ok(Differences { lines, incompatible })
}

/// The first member that differs.
fn members_in_words(ours: &[(String, String)], theirs: &[(String, String)]) -> String {
    let at = ours.iter().zip(theirs).position(|(a, b)| a != b).unwrap_or_else(|| ours.len().min(theirs.len()));
    let member = |members: &[(String, String)]| {
        members.get(at).map_or_else(|| "no further one".to_owned(), |(name, ty)| format!("`{name}: {ty}`"))
    };
    format!("member {} is {} in the SDK, {} here", at + 1, member(theirs), member(ours))
}

/// Whether a name is the library's, and not one of the C library's that its header brings along.
fn is_of_library(name: &str) -> bool {
    name.to_ascii_lowercase().starts_with("flexio_")
}

fn read(text: &str) -> Result<Bindings> {
    let file = syn::parse_file(text)?;
    let mut bindings = Bindings { structures: BTreeMap::new(), constants: BTreeMap::new() };
    for item in file.items {
        match item {
            syn::Item::Struct(item) if is_of_library(&item.ident.to_string()) => {
                bindings.structures.insert(item.ident.to_string(), members(item.fields.iter()));
            }
            syn::Item::Union(item) if is_of_library(&item.ident.to_string()) => {
                bindings.structures.insert(item.ident.to_string(), members(item.fields.named.iter()));
            }
            syn::Item::Const(item) if is_of_library(&item.ident.to_string()) => {
                bindings.constants.insert(item.ident.to_string(), item.expr.to_token_stream().to_string());
            }
            _ => {}
        }
    }
    Ok(bindings)
}

fn members<'a>(fields: impl Iterator<Item = &'a syn::Field>) -> Vec<(String, String)> {
    let name = |field: &syn::Field| field.ident.as_ref().map_or_else(String::new, ToString::to_string);
    let ty = |field: &syn::Field| {
        let text = field.ty.to_token_stream().to_string();
        text.replace(" :: ", "::").replace(":: ", "::").replace("* mut ", "*mut ").replace("* const ", "*const ")
    };
    fields.map(|field| (name(field), ty(field))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "pub const FLEXIO_A: u32 = 1; pub const OTHER: u32 = 7;\n\
                        pub struct flexio_x { pub first: u8, pub second: *mut flexio_app }\n\
                        pub union flexio_u { pub a: u32 }";

    #[test]
    fn the_same_bindings_differ_in_nothing() {
        let same = between(OURS, OURS).expect("Rust");
        assert_eq!((same.lines.len(), same.verdict().contains("are the same")), (0, true));
    }

    #[test]
    fn each_difference_is_a_line() {
        let theirs = "pub const FLEXIO_A: u32 = 2; pub const FLEXIO_B: u32 = 3;\n\
                      pub struct flexio_x { pub first: u8, pub between: u64, pub second: *mut flexio_app }\n\
                      pub struct flexio_y { pub a: u8 }";
        let found = between(OURS, theirs).expect("Rust");
        assert_eq!(
            found.lines,
            [
                "flexio_u: the SDK has no such structure",
                "flexio_x: member 2 is `between: u64` in the SDK, `second: *mut flexio_app` here",
                "FLEXIO_A: 2 in the SDK, 1 here",
                "structures that the SDK alone has: flexio_y",
                "constants that the SDK alone has: FLEXIO_B",
            ]
        );
        assert!(found.verdict().starts_with("3 of these differences"));
    }

    #[test]
    fn what_is_no_rust_is_refused() {
        assert!(between(OURS, "struct {").unwrap_err().to_string().contains("the SDK's bindings"));
    }
}
