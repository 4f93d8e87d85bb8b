use anyhow::Result;

use crate::{process, status, test, tidy, workspace};

/// All that CI runs: tidy, test, documentation.
#[derive(clap::Args)]
pub(crate) struct Ci {}

impl Ci {
    pub(crate) fn run(&self) -> Result<()> {
        tidy::Tidy::default().run()?;
        test::Test::all().run()?;
        status::say("Step", "documentation");
        let mut doc = workspace::cargo();
        doc.args(["doc", "--workspace", "--no-deps"]).env("RUSTDOCFLAGS", "--deny warnings");
        process::run(&mut doc)
    }
}
