//! Filling a function table from an installed shared library.

use std::error::Error as _;
use std::io::Read as _;
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
    #[error("{library} has no function {symbol}{}: it is of another release than these bindings; {install}",
        since.map_or_else(String::new, |since| format!(", which came with release {since}")))]
    Symbol {
        /// File name of the library.
        library: String,
        /// The function it lacks.
        symbol: &'static str,
        /// The first release with it, where that is known.
        since: Option<&'static str>,
        /// What would provide it.
        install: &'static str,
    },
    /// The library's structures are not those of the bindings.
    #[error(
        "{library} is of {found}; the structures of this program are those of {needed}. Build it with the feature \
         `sdk` against the headers of that library, or install release {needed}"
    )]
    Release {
        /// File name of the library.
        library: String,
        /// What it is, and how that is known.
        found: String,
        /// Release of the bindings.
        needed: &'static str,
    },
}

flexcast_error::debug_as_display!(LoadError);

impl LoadError {
    /// The same error, with the first release that has the missing function.
    #[must_use]
    pub fn since(mut self, release: &'static str) -> Self {
        if let Self::Symbol { since, .. } = &mut self {
            *since = Some(release);
        }
        self
    }
}

/// Class and machine of a file of the ELF format, `e_ident[EI_CLASS]` and `e_machine`: whether it is of 64 bits, and
/// for which processor. None if it is none.
fn kind(file: &Path) -> std::io::Result<Option<(u8, [u8; 2])>> {
    let mut header = Vec::new();
    std::fs::File::open(file)?.take(20).read_to_end(&mut header)?;
    Ok(header.starts_with(b"\x7FELF").then(|| Some((*header.get(4)?, *header.last_chunk()?))).flatten())
}

/// Why the library of this name or path that the dynamic loader would find by LD_LIBRARY_PATH cannot be used, if its
/// first bytes show it.
fn unfit(name: &str) -> Option<String> {
    let path = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([Path::new("").to_owned()]);
    // A path is itself in every folder's place; a name alone is no file of the working directory.
    let file =
        folders.map(|folder| folder.join(name)).find(|file| file.parent() != Some(Path::new("")) && file.exists())?;
    let reason = match (kind(&file), kind(Path::new("/proc/self/exe"))) {
        (Err(error), _) => format!("cannot be read: {error}"),
        (Ok(None), _) => "is no shared library".to_owned(),
        (Ok(Some(its)), Ok(Some(own))) if its != own => "is for another architecture than this process".to_owned(),
        _ => return None,
    };
    Some(format!("{} {reason}", file.display()))
}

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
        // The dynamic loader passes over a file for another architecture without a word.
        let reason = names.iter().find_map(|name| unfit(name)).unwrap_or(reason);
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
        let missing = || LoadError::Symbol { library: self.name.clone(), symbol, since: None, install: self.install };
        // SAFETY: the caller vouches for the type.
        unsafe { self.library.get::<F>(symbol.as_bytes()) }.map(|f| *f).map_err(|_| missing())
    }

    /// Whether the library exports a symbol of this name.
    #[must_use]
    pub fn has(&self, symbol: &str) -> bool {
        // SAFETY: the address is only compared with null.
        unsafe { self.library.get::<*const ()>(symbol.as_bytes()) }.is_ok()
    }

    /// The error for a library that is not of the release of the bindings, `needed`.
    #[must_use]
    pub fn of_another_release(&self, found: impl Into<String>, needed: &'static str) -> LoadError {
        LoadError::Release { library: self.name.clone(), found: found.into(), needed }
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
