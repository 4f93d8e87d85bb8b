//! Pages that commands write on demand: files of target/docs, which are not committed.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::{new_file, status, workspace};

/// Writes the page `name` and prints its path.
pub(crate) fn write(name: &str, text: String) -> Result<()> {
    let path = write_to(&workspace::root().join("target/docs"), name, text)?;
    status::print(path.display())
}

/// Writes a file to a folder, which is made if it is not there, and returns its path.
fn write_to(folder: &Path, name: &str, text: String) -> Result<PathBuf> {
    std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
    let path = folder.join(name);
    new_file::write(&path, text).with_context(|| format!("writing {}", path.display()))?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::write_to;

    #[test]
    fn pages_are_written_to_a_new_folder_and_replaced() {
        let root = tempfile::tempdir().expect("directory");
        let folder = root.path().join("target/docs");
        for text in ["first", "second"] {
            let path = write_to(&folder, "page.md", text.to_owned()).expect("writable");
            assert_eq!(path, folder.join("page.md"));
            assert_eq!(std::fs::read_to_string(&path).expect("written"), text);
        }
    }
}
