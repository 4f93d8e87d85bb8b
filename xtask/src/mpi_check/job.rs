//! Jobs under an MPI: processes of a program by its launcher, with a bound.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail};

use super::{Kind, Mpi};
use crate::process;

/// Longest run of a job, in seconds.
const BOUND: u32 = 900;

/// A job: processes of a program, with variables of their own.
pub(super) struct Job<'a> {
    pub(super) mpi: &'a Mpi,
    pub(super) ranks: u16,
    pub(super) variables: Vec<(&'static str, String)>,
}

pub(super) struct Ended {
    pub(super) success: bool,
    pub(super) stdout: String,
    pub(super) stderr: String,
    pub(super) line: String,
}

impl<'a> Job<'a> {
    pub(super) fn new(mpi: &'a Mpi, ranks: u16) -> Self {
        Self { mpi, ranks, variables: Vec::new() }
    }

    pub(super) fn set(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    pub(super) fn run(&self, program: &Path, arguments: &[&str]) -> Result<Ended> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", &BOUND.to_string()]).arg(&self.mpi.launcher);
        self.mpi.environment(&mut command);
        if self.mpi.kind == Kind::Openmpi {
            command.args(["--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "--mca", "btl", "self,vader,tcp"]);
        }
        command.args(["-n", &self.ranks.to_string()]);
        for (name, value) in &self.variables {
            match self.mpi.kind {
                Kind::Openmpi => command.arg("-x").arg(format!("{name}={value}")),
                _ => command.args(["-genv", name, value]),
            };
        }
        command.arg(program).args(arguments);
        let output = command.stdin(Stdio::null()).output().with_context(|| process::line(&command))?;
        Ok(Ended {
            success: output.status.success(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
            line: process::line(&command),
        })
    }
}

impl Ended {
    pub(super) fn expect(self) -> Result<Self> {
        if self.success {
            return Ok(self);
        }
        let tail: Vec<&str> = self.stderr.lines().rev().take(20).collect();
        let tail: Vec<&str> = tail.into_iter().rev().collect();
        bail!("failed: {}\n{}", self.line, tail.join("\n"))
    }
}
