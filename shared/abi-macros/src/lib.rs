//! `#[derive(Layout)]`: the layout hash of a structure that host and firmware share.
#![forbid(unsafe_code)]

mod layout;

use proc_macro::TokenStream;
use syn::parse_macro_input;

/// Implements `Layout` for a structure: a hash over its name, size, alignment and fields (name, offset, hash of the
/// type), computed by the compiler. Described, with an example, at the trait (`flexcast_abi::Layout`).
///
/// Refused, each with a sentence, are: what is no structure with named fields; generic structures; those without
/// `#[repr(C)]`, or packed ones. Refused by the compiler are fields whose type has no layout of its own, and structures
/// with padding between fields or at the end: what is there would be neither sent nor hashed.
///
/// `#[layout(crate = path)]` names the crate that the trait comes from, where that is neither `flexcast_abi` nor
/// `dpa::abi`.
#[proc_macro_derive(Layout, attributes(layout))]
pub fn layout(item: TokenStream) -> TokenStream {
    let item = parse_macro_input!(item as syn::DeriveInput);
    layout::derive(&item).unwrap_or_else(syn::Error::into_compile_error).into()
}
