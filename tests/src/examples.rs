//! Built examples, and processes that are ranks of a job.

use std::fs::File;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use crate::harness::skipped;
use crate::libs::wait_for;
use crate::tree::build_tool;
use crate::workspace_root;

/// What `cargo xtask example --build-only` has built.
#[derive(Debug)]
pub struct Example {
    /// Folder of the emulator's libraries.
    pub libraries: PathBuf,
    /// The image `allgather`.
    pub image: PathBuf,
    /// The program.
    pub program: PathBuf,
    /// The command-line tool.
    pub tool: PathBuf,
}

impl Example {
    /// Where `cargo xtask install` has put `flexcast.h` and `libflexcast.so` for the example in C.
    #[must_use]
    pub fn prefix(&self) -> PathBuf {
        workspace_root().join("target/capi/dev")
    }
}

/// Name what [`allgather`] gives, in Rust and in C, where it has been built: by `cargo xtask test`, for all test
/// programs. Folder of the libraries, image, program and tool, as a search path.
pub const EXAMPLES: [&str; 2] = ["FLEXCAST_EXAMPLE", "FLEXCAST_EXAMPLE_C"];

/// The example `allgather`, in Rust or in C: what [`EXAMPLES`] name, or else built once per test program.
///
/// # Panics
/// It cannot be built; the output of the build says why.
#[must_use]
pub fn allgather(c: bool) -> &'static Example {
    static BUILT: [OnceLock<Example>; 2] = [const { OnceLock::new() }; 2];
    BUILT[usize::from(c)].get_or_init(|| {
        let example = |paths: Vec<PathBuf>| {
            let [libraries, image, program, tool] = paths.try_into().expect("four paths");
            Example { libraries, image, program, tool }
        };
        if let Some(paths) = std::env::var_os(EXAMPLES[usize::from(c)]) {
            return example(std::env::split_paths(&paths).collect());
        }
        let mut command = build_tool();
        command.args(["example", "allgather", "--build-only", "--profile", "dev"]).args(c.then_some("--c"));
        let output = command.output().expect("cargo can be started");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "cargo xtask example failed:\n{text}");
        let text = String::from_utf8(output.stdout).expect("paths in UTF-8");
        let lines: Vec<PathBuf> = text.lines().map(PathBuf::from).collect();
        example(lines[lines.len().saturating_sub(4)..].to_vec())
    })
}

/// The C compiler. Without one the running test is reported as skipped.
#[must_use]
pub fn compiler() -> Option<&'static str> {
    let works = |name: &&str| {
        Command::new(name).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let found = ["gcc", "cc"].into_iter().find(works);
    if found.is_none() {
        skipped("neither gcc nor cc is installed (Debian: gcc libc6-dev)");
    }
    found
}

/// Compiles a program of `tests/c` against `flexcast.h` and `libflexcast.so` into a folder.
///
/// # Panics
/// It does not compile.
#[must_use]
pub fn compile(compiler: &str, name: &str, folder: &Path) -> PathBuf {
    let (root, prefix, program) = (workspace_root(), allgather(true).prefix(), folder.join(name));
    let libraries = prefix.join("lib");
    let output = Command::new(compiler)
        .args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-pedantic", "-o"])
        .arg(&program)
        .arg(format!("-I{}", prefix.join("include").display()))
        .arg(root.join("tests/c").join(format!("{name}.c")))
        .arg(format!("-L{}", libraries.display()))
        .args(["-lflexcast", "-lpthread", &format!("-Wl,-rpath,{}", libraries.display())])
        .output()
        .expect("the compiler starts");
    assert!(output.status.success(), "{name}.c:\n{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// A TCP port that nobody uses now.
///
/// # Panics
/// There is none.
#[must_use]
pub fn free_tcp_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port()
}

/// The first of so many UDP ports in a row that nobody uses now.
///
/// # Panics
/// There are none.
#[must_use]
pub fn free_udp_ports(count: u16) -> u16 {
    let bind = |port: u16| UdpSocket::bind(("127.0.0.1", port)).ok();
    let first = || bind(0).and_then(|socket| socket.local_addr().ok()).map(|address| address.port());
    (0..100)
        .filter_map(|_| first())
        .find(|first| (0..count).all(|more| first.checked_add(more).and_then(bind).is_some()))
        .expect("ports in a row")
}

/// A process that does not outlive its test, and the file that it writes to.
#[derive(Debug)]
pub struct Rank {
    child: Child,
    output: PathBuf,
}

impl Rank {
    /// Starts a command whose output goes to a file of this name in `folder`.
    ///
    /// # Panics
    /// It does not start.
    #[must_use]
    pub fn start(command: &mut Command, folder: &Path, name: &str) -> Self {
        let output = folder.join(format!("{name}.txt"));
        let file = File::create(&output).expect("a file for the output");
        let child = command.stdin(Stdio::null()).stdout(file.try_clone().expect("the same file")).stderr(file).spawn();
        Self { child: child.expect("the program starts"), output }
    }

    /// Sends it a signal by its name: `STOP`, `CONT`, `KILL`. One that has ended gets none.
    ///
    /// # Panics
    /// There is no shell.
    pub fn signal(&self, name: &str) {
        let command = format!("kill -s {name} {} 2>/dev/null", self.child.id());
        let _ = Command::new("sh").args(["-c", &command]).status().expect("a shell");
    }

    /// Its number in the system.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    ///
    /// # Panics
    /// Its output cannot be read.
    #[must_use]
    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.output).expect("the output")).into_owned()
    }

    /// Whether it has ended.
    ///
    /// # Panics
    /// The system does not say.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the program can be waited for").is_some()
    }

    /// How it ended, within a bound, and what it printed.
    ///
    /// # Panics
    /// It still runs, or its output cannot be read.
    pub fn end(&mut self, bound: Duration) -> (bool, String) {
        let status = wait_for(&mut self.child, bound);
        let text = self.printed();
        let status = status.unwrap_or_else(|| panic!("still running after {bound:?}: {text}"));
        (status.success(), text)
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Functions that a header of the collective library declares, as often as it does, without those that it defines.
#[must_use]
pub fn declared_functions(header: &str) -> Vec<String> {
    let mut inline = false;
    let mut names = Vec::new();
    for line in header.lines().filter(|line| !line.trim_start().starts_with(['*', '/', '#'])) {
        inline |= line.starts_with("static inline");
        if let (false, Some((before, _))) = (inline, line.split_once('(')) {
            names.extend(before.rsplit([' ', '*']).next().map(str::to_owned));
        }
        inline &= line != "}";
    }
    names.retain(|name| name.starts_with("flexcast_"));
    names
}
