//! Filling a function table from an installed shared library.

use std::error::Error as _;
use std::path::Path;

use crate::api::VerbsApi;

/// Why the installed libraries cannot be used. Every message ends with the next step.
#[derive(thiserror::Error)]
pub enum LoadError {
    /// The library is not installed, or it depends on one that is not.
    #[error("{library} cannot be loaded ({reason}); {install}, or add the directory of the library to LD_LIBRARY_PATH")]
    Library {
        /// File names tried.
        library: String,
        /// What the dynamic loader says.
        reason: String,
        /// Where the library comes from.
        install: &'static str,
    },
    /// The library lacks a function of the ABI this table describes.
    #[error(
        "{library} has no function {symbol}: it is of another generation than these bindings; {install}, or build with \
         the feature `sdk` against its headers"
    )]
    Symbol {
        /// File name of the library.
        library: String,
        /// The function it lacks.
        symbol: &'static str,
        /// What would provide it.
        install: &'static str,
    },
}

flexcast_error::debug_as_display!(LoadError);

/// An open shared library. It is never closed: these libraries start threads and register exit handlers of their own,
/// so unloading one is unsound, and a function table must stay valid for as long as anyone holds a copy.
#[derive(Debug)]
pub struct Loader {
    name: String,
    install: &'static str,
    library: &'static libloading::Library,
}

impl Loader {
    /// Opens the first of `names` that the dynamic loader finds; `install` says where the library comes from.
    pub fn open(names: &[&str], install: &'static str) -> Result<Self, LoadError> {
        let mut reason = String::from("no name given");
        for &name in names {
            // SAFETY: the initialisers that run are those of the vendor's library of that name; as in any program
            // linked against it, they are trusted to be sound.
            match unsafe { libloading::Library::new(name) } {
                Ok(library) => {
                    return Ok(Loader { name: name.to_owned(), install, library: Box::leak(Box::new(library)) });
                }
                // What the dynamic loader says is the cause of what this error says.
                Err(error) => reason = error.source().map_or_else(|| error.to_string(), ToString::to_string),
            }
        }
        Err(LoadError::Library { library: names.join(" or "), reason, install })
    }

    /// Opens the first of `names` that is in a folder.
    ///
    /// # Errors
    /// As [`Loader::open`].
    pub fn open_in(folder: &Path, names: &[&str], install: &'static str) -> Result<Self, LoadError> {
        let paths: Vec<String> = names.iter().map(|name| folder.join(name).to_string_lossy().into_owned()).collect();
        Self::open(&paths.iter().map(String::as_str).collect::<Vec<_>>(), install)
    }

    /// The address of an exported function.
    ///
    /// # Safety
    /// `F` must be the type of a pointer to the function of that name.
    pub unsafe fn function<F: Copy + 'static>(&self, symbol: &'static str) -> Result<F, LoadError> {
        let missing = || LoadError::Symbol { library: self.name.clone(), symbol, install: self.install };
        // SAFETY: the caller vouches for the type.
        unsafe { self.library.get::<F>(symbol.as_bytes()) }.map(|f| *f).map_err(|_| missing())
    }
}

/// Fills the table from `libibverbs.so.1` and `libmlx5.so.1`.
///
/// # Errors
/// [`LoadError`] names the library or the function that is missing.
pub fn load() -> Result<VerbsApi, LoadError> {
    let verbs = Loader::open(&["libibverbs.so.1"], INSTALL)?;
    let mlx5 = Loader::open(&["libmlx5.so.1"], INSTALL)?;
    VerbsApi::from_libraries(&verbs, &mlx5)
}

/// The same from a folder, such as that of the emulator's libraries.
///
/// # Errors
/// As [`load`].
pub fn load_from(folder: &Path) -> Result<VerbsApi, LoadError> {
    let verbs = Loader::open_in(folder, &["libibverbs.so.1"], INSTALL)?;
    let mlx5 = Loader::open_in(folder, &["libmlx5.so.1"], INSTALL)?;
    VerbsApi::from_libraries(&verbs, &mlx5)
}

const INSTALL: &str = "install rdma-core (Debian: libibverbs1 and ibverbs-providers) or DOCA";
