mod differences;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{new_file, process, status, workspace};

/// Regenerate the committed bindings of the -sys crates from their headers.
#[derive(clap::Args)]
pub(crate) struct Bindgen {
    /// Only compare; fail where the committed bindings differ.
    #[arg(long)]
    check: bool,
    /// Print how the headers of an installed FlexIO SDK differ from ours, and change nothing. The folder is that which
    /// holds `include/libflexio`, such as /opt/mellanox/flexio.
    #[arg(long, value_name = "DIR", conflicts_with = "check")]
    sdk: Option<PathBuf>,
}

/// Crates with a feature `generate` whose build script writes bindings.rs to its OUT_DIR.
const CRATES: [&str; 3] = ["flexio-sys", "verbs-sys", "doca-sys"];

/// Fails where the committed bindings are not those of their headers.
pub(crate) fn check() -> Result<()> {
    Bindgen { check: true, sdk: None }.run()
}

impl Bindgen {
    pub(crate) fn run(&self) -> Result<()> {
        if let Some(sdk) = &self.sdk {
            return compare(sdk);
        }
        let mut different = Vec::new();
        for name in CRATES {
            status::say("Generating", name);
            let generated = generate(name, "generate", None)?;
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

/// Prints how the structures and constants of an installed SDK differ from the committed ones.
fn compare(sdk: &Path) -> Result<()> {
    let include = sdk.join("include");
    let header = include.join("libflexio/flexio.h");
    if !header.is_file() {
        bail!("{} is missing: name the folder of a FlexIO SDK, such as /opt/mellanox/flexio", header.display());
    }
    let include = include.canonicalize().with_context(|| format!("{}", include.display()))?;
    status::say("Generating", header.display());
    let theirs = generate("flexio-sys", "sdk", Some(&include))?;
    let ours = workspace::root().join("host/flexio-sys/src/bindings.rs");
    let read = |path: &Path| std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()));
    let found = differences::between(&read(&ours)?, &read(&theirs)?)?;
    for line in &found.lines {
        status::print(format_args!("{line}"))?;
    }
    status::print(format_args!("{}", found.verdict()))
}

/// Has the crate's build script write its bindings with a feature of it, and finds them. The crate itself need not
/// compile with them.
fn generate(name: &str, feature: &str, include: Option<&Path>) -> Result<PathBuf> {
    let mut command = workspace::cargo();
    command.args(["build", "--package", name, "--features", feature, "--message-format=json-render-diagnostics"]);
    // A folder of its own: cargo locks it while other steps build.
    command.arg("--target-dir").arg(workspace::target_dir()?.join("bindgen"));
    if let Some(include) = include {
        command.env("DOCA_INCLUDE", include);
    }
    let output = command.output().with_context(|| format!("starting `{}`", process::line(&command)))?;
    for message in cargo_metadata::Message::parse_stream(output.stdout.as_slice()) {
        if let cargo_metadata::Message::BuildScriptExecuted(script) = message?
            && script.package_id.repr.contains(name)
        {
            return Ok(script.out_dir.into_std_path_buf().join("bindings.rs"));
        }
    }
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let needs = "bindgen needs libclang: apt-get install libclang-dev, or set LIBCLANG_PATH";
    let needs = if text.contains("Unable to find libclang") { needs } else { "" };
    bail!("{name} wrote no bindings. {needs}\n{text}")
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
