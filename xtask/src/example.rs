use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::toolchain::Toolchain;
use crate::{build, emu_libs, install, process, status, workspace};

/// Build an example and start it as so many processes, each with an emulated card of its own; all cards are in one
/// network.
#[derive(clap::Args)]
pub(crate) struct Example {
    /// Which example: `allgather`.
    name: String,
    /// Processes.
    #[arg(long, default_value_t = 4, value_name = "N")]
    ranks: u16,
    /// The program in C, linked with libflexcast.so, instead of the one in Rust.
    #[arg(long)]
    c: bool,
    /// Cargo profile of libraries and program.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Only build, and print what to start: folder of the emulator's libraries, image, program and command-line tool, a
    /// line each.
    #[arg(long)]
    build_only: bool,
}

const EXAMPLES: [&str; 1] = ["allgather"];
/// Most processes on one computer; more would wait for one another rather than run.
const MOST_RANKS: u16 = 64;
/// Longest run, of which setting up takes the most.
const BOUND: Duration = Duration::from_secs(300);

/// What an example needs.
pub(crate) struct Built {
    libraries: PathBuf,
    image: PathBuf,
    program: PathBuf,
    tool: PathBuf,
}

impl Built {
    /// In the order in which `--build-only` prints them: folder of the emulator's libraries, image, program,
    /// command-line tool.
    pub(crate) fn paths(&self) -> [&Path; 4] {
        [&self.libraries, &self.image, &self.program, &self.tool]
    }
}

impl Example {
    pub(crate) fn run(&self) -> Result<()> {
        if !EXAMPLES.contains(&&*self.name) {
            bail!("no example `{}`; there are: {}", self.name, EXAMPLES.join(", "));
        }
        if self.ranks == 0 || self.ranks > MOST_RANKS {
            bail!("--ranks {}: must be 1 to {MOST_RANKS}", self.ranks);
        }
        let built = build(&self.name, &self.profile, self.c)?;
        if self.build_only {
            for path in built.paths() {
                status::print(format_args!("{}", path.display()))?;
            }
            return Ok(());
        }
        status::say("Starting", format_args!("{} processes of {}", self.ranks, built.program.display()));
        run(&built, self.ranks)
    }
}

/// Builds an example in Rust or in C, and what it needs. `profile` is cargo's.
pub(crate) fn build(name: &str, profile: &str, c: bool) -> Result<Built> {
    build::build(&Toolchain::load("emu")?, &workspace::images()?)?;
    let image = workspace::image_dir("emu").join("allgather.elf");
    let libraries = emu_libs::build_host(profile)?;
    let folder = workspace::target_dir()?.join(workspace::profile_folder(profile));
    let cargo = |package: &str, what: &[&str]| process::run(&mut workspace::cargo_build(profile, package, what));
    cargo("flexcast-cli", &["--bin", "flexcast"])?;
    let program = if c {
        let mut prefix = workspace::root().join("target/capi");
        if profile != "release" {
            prefix.push(profile);
        }
        install::install(&prefix, profile, &Toolchain::load("emu")?)?;
        let program = folder.join("examples").join(format!("{name}-c"));
        let compiler = emu_libs::compiler("the example", process::find)?;
        std::fs::create_dir_all(folder.join("examples"))?;
        let root = workspace::root();
        let mut command = Command::new(compiler);
        command.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]);
        command.arg(prefix.join("include"));
        command.arg(root.join("examples/c").join(format!("{name}.c"))).arg("-o").arg(&program);
        // The program finds libflexcast.so where it was installed; libflexio.so and the others are found as those of a
        // DOCA are.
        let lib = prefix.join("lib");
        command.arg("-L").arg(&lib).arg("-lflexcast").arg(format!("-Wl,-rpath,{}", lib.display()));
        process::run(&mut command)?;
        program
    } else {
        cargo("flexcast", &["--example", name])?;
        folder.join("examples").join(name)
    };
    Ok(Built { libraries, image, program, tool: folder.join("flexcast") })
}

/// Children that do not outlive this program's interest in them.
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn run(built: &Built, ranks: u16) -> Result<()> {
    let udp = free_udp_ports(ranks)?;
    let tcp = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).context("a TCP port")?.port();
    let mut children = Running(Vec::new());
    for rank in 0..ranks {
        let mut command = Command::new(&built.tool);
        command.args(["emu", "exec", "--rank", &rank.to_string(), "--of", &ranks.to_string()]);
        command.args(["--port-base", &udp.to_string(), "--libs"]).arg(&built.libraries).arg("--");
        command.arg(&built.program).arg(&built.image);
        command.env("FLEXCAST_RANK", rank.to_string()).env("FLEXCAST_SIZE", ranks.to_string());
        command.env("FLEXCAST_STORE", format!("127.0.0.1:{tcp}")).env("FLEXCAST_JOB", std::process::id().to_string());
        children.0.push(command.spawn().with_context(|| format!("starting {}", process::line(&command)))?);
    }
    let start = Instant::now();
    let mut failed = Vec::new();
    for (rank, child) in children.0.iter_mut().enumerate() {
        let status = loop {
            match child.try_wait()? {
                Some(status) => break status,
                None if start.elapsed() > BOUND => bail!("rank {rank} still runs after {} s", BOUND.as_secs()),
                None => thread::sleep(Duration::from_millis(5)),
            }
        };
        if !status.success() {
            failed.push(format!("rank {rank}: {status}"));
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    status::say("Finished", format_args!("in {:.2} s", start.elapsed().as_secs_f64()));
    Ok(())
}

/// The first of so many UDP ports in a row that nobody uses now.
pub(crate) fn free_udp_ports(count: u16) -> Result<u16> {
    let bind = |port: u16| UdpSocket::bind(("127.0.0.1", port)).ok();
    let first = || bind(0).and_then(|socket| socket.local_addr().ok()).map(|address| address.port());
    let found = (0..100)
        .filter_map(|_| first())
        .find(|first| (0..count).all(|more| first.checked_add(more).and_then(bind).is_some()));
    found.with_context(|| format!("no {count} free UDP ports in a row"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(name: &str, ranks: u16) -> String {
        let example = Example { name: name.to_owned(), ranks, c: false, profile: "dev".to_owned(), build_only: true };
        example.run().expect_err("refused").to_string()
    }

    #[test]
    fn what_cannot_be_started_is_reported_before_anything_is_built() {
        assert!(refusal("toaster", 4).contains("there are: allgather"));
        assert!(refusal("allgather", 0).contains("1 to 64"));
        assert!(refusal("allgather", 65).contains("1 to 64"));
    }
}
