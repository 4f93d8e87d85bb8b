//! The archive of all C ABIs. A package of its own, so that a build of the whole workspace makes it
//! (`xtask/src/emu_libs.rs`) and builds of Rust programs do not.

// Its exported functions, and those of what it carries, belong to the archive.
pub use emu_libdoca_dpa;
pub use emu_librdmacm;
