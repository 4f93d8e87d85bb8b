//! libibverbs and mlx5 direct verbs: types, the table of functions, and the loader that fills it.
//!
//! The types come from the crate's own headers (`include/infiniband`), whose layouts, names and values are those of
//! rdma-core 44; `cargo build -p verbs-sys --features generate` writes them anew to `OUT_DIR/bindings.rs`, and
//! `cargo xtask bindgen` copies that file over `src/bindings.rs`. With the feature `sdk` they are generated from the
//! installed rdma-core instead.
//!
//! Nothing here decides anything: [`VerbsApi`] is a struct of C function pointers, filled by [`load`] from the
//! installed libraries or by the emulator, and [`inline`] repeats the calls that the C header defines as inline
//! functions.
// Function tables, the loader and the inline calls are foreign calls by nature.
#![allow(unsafe_code)]

mod api;
/// Types and constants of the two libraries, with their C names.
#[allow(missing_docs, non_camel_case_types, non_snake_case, non_upper_case_globals, unused_imports, unreachable_pub)]
#[allow(clippy::all, clippy::undocumented_unsafe_blocks)]
mod bindings {
    #[cfg(any(feature = "generate", feature = "sdk"))]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
    #[cfg(not(any(feature = "generate", feature = "sdk")))]
    include!("bindings.rs");
}
pub mod inline;
mod layout;
mod load;

pub use api::VerbsApi;
pub use bindings::*;
pub use load::{LoadError, Loader, load, load_from};
