use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};

use crate::{new_file, process, status, workspace};

/// Regenerate the committed bindings of the -sys crates from their headers.
#[derive(clap::Args)]
pub(crate) struct Bindgen {
    /// Only compare; fail where the committed bindings differ.
    #[arg(long)]
    check: bool,
}

/// Crates with a feature `generate` whose build script writes bindings.rs to its OUT_DIR.
const CRATES: [&str; 3] = ["flexio-sys", "verbs-sys", "doca-sys"];

impl Bindgen {
    pub(crate) fn run(&self) -> Result<()> {
        let mut different = Vec::new();
        for name in CRATES {
            status::say("Generating", name);
            let generated = generate(name)?;
            let committed = workspace::root().join("host").join(name).join("src/bindings.rs");
            let new =
                std::fs::read_to_string(&generated).with_context(|| format!("reading {}", generated.display()))?;
            let old = std::fs::read_to_string(&committed).unwrap_or_default();
            if new == old {
                continue;
            }
            if self.check {
                different.push(format!("host/{name}/src/bindings.rs{}", first_difference(&old, &new)));
            } else {
                new_file::write(&committed, new).with_context(|| format!("writing {}", committed.display()))?;
                status::say("Wrote", committed.display());
            }
        }
        if !different.is_empty() {
            bail!("bindings differ from their headers; run `cargo xtask bindgen`:\n  {}", different.join("\n  "));
        }
        Ok(())
    }
}

/// Builds the crate with its feature and finds what its build script wrote.
fn generate(name: &str) -> Result<PathBuf> {
    let mut command = workspace::cargo();
    command.args(["build", "--package", name, "--features", "generate", "--message-format=json-render-diagnostics"]);
    let messages = process::capture(&mut command)
        .with_context(|| "bindgen needs libclang: apt-get install libclang-dev, or set LIBCLANG_PATH")?;
    for message in cargo_metadata::Message::parse_stream(messages.as_bytes()) {
        if let cargo_metadata::Message::BuildScriptExecuted(script) = message?
            && script.package_id.repr.contains(name)
        {
            return Ok(script.out_dir.into_std_path_buf().join("bindings.rs"));
        }
    }
    bail!("{name} has no build script; see host/verbs-sys/build.rs for one")
}

fn first_difference(old: &str, new: &str) -> String {
    let line = old.lines().zip(new.lines()).position(|(a, b)| a != b);
    let line = line.unwrap_or_else(|| old.lines().count().min(new.lines().count()));
    let text = |source: &str| source.lines().nth(line).unwrap_or("(end of file)").to_owned();
    format!(":{}\n    - {}\n    + {}", line + 1, text(old), text(new))
}

#[cfg(test)]
mod tests {
    use super::first_difference;

    #[test]
    fn the_first_different_line_is_shown() {
        assert_eq!(first_difference("a\nb\nc\n", "a\nx\nc\n"), ":2\n    - b\n    + x");
        assert_eq!(first_difference("a\n", "a\nb\n"), ":2\n    - (end of file)\n    + b");
    }
}
