//! DOCA common, as far as finding and opening a device goes: types, the table of functions, and its loader.
//!
//! The types come from the crate's own headers (`include/`); `cargo build -p doca-sys --features generate` writes them
//! anew to `OUT_DIR/bindings.rs`, and `cargo xtask bindgen` copies that file over `src/bindings.rs`. With the feature
//! `sdk` they are generated from the installed DOCA instead.
// Function tables and the loader are foreign calls by nature.
#![allow(unsafe_code)]

mod api;
/// Types and constants of the library, with their C names.
#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unused_imports, unreachable_pub)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings {
    #[cfg(any(feature = "generate", feature = "sdk"))]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    #[cfg(not(any(feature = "generate", feature = "sdk")))]
    include!("bindings.rs");
}

pub use api::{DocaApi, load, load_from};
pub use bindings::*;
pub use verbs_sys::LoadError;
