//! libflexio: types, the table of functions, and the loader that fills it.
//!
//! The types come from the crate's own header (`include/libflexio/flexio.h`), which states the host ABI of the FlexIO
//! 2.7 generation; `cargo build -p flexio-sys --features generate` writes them anew to `OUT_DIR/bindings.rs`, and
//! `cargo xtask bindgen` copies that file over `src/bindings.rs`. With the feature `sdk` they are generated from an
//! installed SDK instead. The 3.x generation hides `flexio_app_attr`, so against its headers this crate does not
//! compile; it does load such a library, and the missing function is then named.
//!
//! [`FlexioApi`] is filled by [`load`] from the installed library or by the emulator; nothing else differs between
//! them.
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

pub use api::{EmulatorApi, FlexioApi, load, load_from, pack_u64, stub_key};
pub use bindings::*;
pub use verbs_sys::LoadError;
