//! Sources of device images: files, the folder of fresh builds, images that a program holds.
//!
//! An image is asked for by its name. Where a folder is given, it is that folder's `NAME.elf`. Else it is the one in
//! [`BUILT`] below the current folder, where `cargo xtask build` leaves images, and if there is none, the one that the
//! program holds.

use std::path::{Path, PathBuf};

use crate::memory::{self, MemoryError};
use crate::tput::run::ImageFile;

/// An image that a program holds: its name and its ELF.
pub type Held = (&'static str, &'static [u8]);

/// Where `cargo xtask build` leaves images, below the root of the repository.
pub const BUILT: &str = "target/device/emu";

/// Copies of an image that are in memory: its file, what is read of it, and what the emulated card has of it.
const COPIES: u64 = 3;

/// An image that cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// Its file cannot be read.
    #[error("image `{}` cannot be read ({source}); build the images with `cargo xtask build`, or name another file", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Its file does not fit into memory.
    #[error(transparent)]
    Memory(MemoryError),
    /// Nobody has an image of this name.
    #[error(
        "no image `{name}`: it is not in {}, and this program holds {held}; run it in the repository after `cargo \
         xtask build`, or install it with the images in it (`cargo install --path cli`), or name a file with its \
         folder or its ending, as in ./{name} or {name}.elf",
        searched.display()
    )]
    Unknown {
        /// What was asked for.
        name: String,
        /// The folder of built images.
        searched: PathBuf,
        /// Names of the images that the program holds, or `none`.
        held: String,
    },
}

/// Where images are searched for.
#[derive(Clone, Debug)]
pub enum Images {
    /// In [`BUILT`], then among those that the program holds.
    Usual(&'static [Held]),
    /// In this folder alone.
    Folder(PathBuf),
}

impl Images {
    /// The images of `folder`, or of the usual places if there is none. `held`: what the program holds.
    #[must_use]
    pub fn of(folder: Option<&Path>, held: &'static [Held]) -> Self {
        folder.map_or(Self::Usual(held), |folder| Self::Folder(folder.to_owned()))
    }

    /// The image of this name.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn read(&self, name: &str) -> Result<ImageFile, ImageError> {
        let file = |folder: &Path| folder.join(name).with_extension("elf");
        let held = match self {
            Self::Folder(folder) => return read_file(&file(folder)),
            Self::Usual(held) => held,
        };
        let built = file(Path::new(BUILT));
        if built.is_file() {
            return read_file(&built);
        }
        if let Some((_, elf)) = held.iter().find(|(other, _)| *other == name) {
            return Ok(ImageFile { name: name.to_owned(), elf: elf.to_vec() });
        }
        let names: Vec<&str> = held.iter().map(|(name, _)| *name).collect();
        let held = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let searched = std::path::absolute(BUILT).unwrap_or_else(|_| PathBuf::from(BUILT));
        Err(ImageError::Unknown { name: name.to_owned(), searched, held })
    }

    /// The image that an option names: by its name, or as a file. What has a folder or an ending is a file.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn read_named(&self, asked: &Path) -> Result<ImageFile, ImageError> {
        match asked.to_str() {
            Some(name) if !name.is_empty() && !name.contains(['/', '.']) => self.read(name),
            _ => read_file(asked),
        }
    }
}

fn read_file(path: &Path) -> Result<ImageFile, ImageError> {
    let elf = memory::read_regular("image", path, (flexcast_files::IMAGE, COPIES)).map_err(|error| match error {
        MemoryError::File { path, source, .. } => ImageError::Unreadable { path, source },
        other => ImageError::Memory(other),
    })?;
    let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Ok(ImageFile { name, elf })
}

#[cfg(test)]
mod tests {
    use super::*;

    static HELD: [Held; 2] = [("one", b"of the program"), ("two", b"likewise")];

    #[test]
    fn a_folder_that_is_given_is_the_only_place() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("one.elf"), "of the folder").unwrap();
        let images = Images::of(Some(folder.path()), &HELD);
        assert_eq!(images.read("one").unwrap().elf, b"of the folder");
        let error = images.read("two").unwrap_err().to_string();
        assert!(error.contains("two.elf") && error.contains("cargo xtask build"), "{error}");
    }

    /// The tests run in the folder of the crate, where no images are built.
    #[test]
    fn without_a_fresh_build_the_program_has_its_own() {
        let images = Images::of(None, &HELD);
        assert_eq!(images.read_named(Path::new("two")).unwrap().elf, b"likewise");
        let error = images.read("three").unwrap_err().to_string();
        assert!(["`three`", BUILT, "one, two", "./three"].iter().all(|word| error.contains(word)), "{error}");
        let error = Images::of(None, &[]).read("three").unwrap_err().to_string();
        assert!(error.contains("holds none"), "{error}");
    }

    #[test]
    fn what_has_a_folder_or_an_ending_is_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("one");
        std::fs::write(&file, "of the file").unwrap();
        let images = Images::of(None, &HELD);
        let read = images.read_named(&file).unwrap();
        assert_eq!((read.name.as_str(), read.elf.as_slice()), ("one", b"of the file".as_slice()));
        let error = images.read_named(Path::new("one.elf")).unwrap_err().to_string();
        assert!(error.contains("`one.elf` cannot be read"), "{error}");
    }
}
