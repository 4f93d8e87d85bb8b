//! Checks that no compiler makes: the shape of the repository and what its documents promise.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{status, workspace};

mod arrows;
mod cycles;
pub(crate) mod dependencies;
mod documents;
mod files;
mod headers;
mod modules;
mod rooms;
mod sources;
mod vocabulary;
mod widths;

pub(crate) use files::Findings;
use files::read;

/// Check dependency arrows, import cycles, rooms of large crates, crates of others (deny.toml), lengths of files,
/// widths of lines, the list of unsafe files, modules of test programs, module headers, ids of requirements and what
/// the documents promise.
#[derive(Default, clap::Args)]
pub(crate) struct Tidy {
    /// Print rooms and arrows of the large crates instead.
    #[arg(long)]
    figures: bool,
}

impl Tidy {
    pub(crate) fn run(&self) -> Result<()> {
        let root = workspace::root();
        let files = source_files(root)?;
        if self.figures {
            let lines = rooms::figures(root)?;
            return lines.into_iter().try_for_each(|line| status::print(format_args!("{line}")));
        }
        let architecture = read(&root.join("ARCHITECTURE.md"))?;
        let checks: [(&str, Findings); 15] = [
            ("dependency arrows", arrows::check(root)?),
            ("import cycles", cycles::check(root)?),
            ("rooms of large crates", rooms::check(root)?),
            ("crates of others", dependencies::check(root)?),
            ("file lengths", sources::lengths(root, &files)?),
            ("unsafe files", sources::unsafe_files(root, &files, &architecture)?),
            ("modules of test programs", sources::test_modules(root, &files)?),
            ("walk of ARCHITECTURE.md", documents::walk(root, &architecture)),
            ("module headers", headers::check(root, &files)?),
            ("words", sources::words(root, &files)?),
            ("vocabulary", vocabulary::check(root, &files)?),
            ("widths of lines", widths::check(root, &files)?),
            ("ids of requirements", sources::ids(root, &files)),
            ("folder table", documents::folders(root, &read(&root.join("README.md"))?)?),
            ("specification", documents::specification(root, &read(&root.join("SPECIFICATION.md"))?)),
        ];
        let mut count = 0;
        for (name, findings) in &checks {
            for finding in findings {
                status::error(&format!("{name}: {finding}"));
            }
            count += findings.len();
        }
        if count > 0 {
            bail!("tidy found {count} things");
        }
        status::print(format_args!("{:>12}  {} checks of {} files", "tidy", checks.len(), files.len()))?;
        Ok(())
    }
}

/// All files that people write, sorted, relative to `root`; without build products and hidden folders.
fn source_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).with_context(|| format!("reading {}", folder.display()))? {
            let path = entry?.path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() {
                if name != "target" && (!name.starts_with('.') || name == ".ci" || name == ".cargo") {
                    folders.push(path);
                }
            } else if let Ok(relative) = path.strip_prefix(root) {
                files.push(relative.to_owned());
            }
        }
    }
    files.sort();
    Ok(files)
}
