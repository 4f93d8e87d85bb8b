//! Files that checks read, and findings.

use std::path::Path;

use anyhow::{Context as _, Result};

/// What a check found; empty where all is well.
pub(crate) type Findings = Vec<String>;

/// The text of a file.
pub(super) fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))
}

/// Whether a file has this extension.
pub(super) fn is(path: &Path, extension: &str) -> bool {
    path.extension().is_some_and(|found| found == extension)
}
