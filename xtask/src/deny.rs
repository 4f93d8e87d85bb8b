use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::tidy::dependencies;
use crate::{process, status, workspace};

/// Hold the crates of others to deny.toml with cargo-deny: licences, sources, doubled crates, advisories.
///
/// What needs neither cargo-deny nor a network is checked first, as by `cargo xtask tidy`.
#[derive(clap::Args)]
pub(crate) struct Deny {}

/// What does not hold for one workspace may be needed by another; `cargo xtask tidy` reports entries that none needs.
const OF_ANOTHER_WORKSPACE: [&str; 8] = [
    "--allow",
    "unmatched-skip",
    "--allow",
    "license-not-encountered",
    "--allow",
    "license-exception-not-encountered",
    "--allow",
    "advisory-not-detected",
];

impl Deny {
    pub(crate) fn run(&self) -> Result<()> {
        let findings = dependencies::check(workspace::root())?;
        findings.iter().for_each(|finding| status::error(finding));
        if !findings.is_empty() {
            bail!("{} things do not fit deny.toml", findings.len());
        }
        if process::find("cargo-deny").is_none() {
            status::warn(
                "skipped, because cargo-deny is not installed (cargo install --locked cargo-deny): advisories, yanked \
                 crates",
            );
            return Ok(());
        }
        for manifest in dependencies::WORKSPACES {
            process::run(
                deny(manifest).args(["check"]).args(OF_ANOTHER_WORKSPACE).args(["bans", "licenses", "sources"]),
            )?;
        }
        if let Some(reason) = no_database()? {
            status::warn(format_args!(
                "skipped, because the RustSec advisory database cannot be fetched: advisories, yanked crates ({reason})"
            ));
            return Ok(());
        }
        for manifest in dependencies::WORKSPACES {
            process::run(deny(manifest).args(["check"]).args(OF_ANOTHER_WORKSPACE).arg("advisories"))?;
        }
        Ok(())
    }
}

/// cargo-deny for a workspace; it finds deny.toml in the root.
fn deny(manifest: &str) -> Command {
    let mut command = Command::new("cargo-deny");
    command.args(["--locked", "--all-features", "--manifest-path", manifest]).current_dir(workspace::root());
    command
}

/// Why there is no advisory database.
fn no_database() -> Result<Option<String>> {
    let mut command = deny(dependencies::WORKSPACES[0]);
    command.args(["fetch", "db"]).stdin(Stdio::null()).env("GIT_TERMINAL_PROMPT", "0");
    let output = command.output().with_context(|| process::line(&command))?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let last = text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
    Ok((!output.status.success()).then(|| last.trim().to_owned()))
}
