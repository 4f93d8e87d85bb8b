//! `flexcast compare` that is cut off: no namespace is left, and without permission it says so.

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};

use crate::harness::skipped;

/// Longest that anything here may take; it is far less.
const BOUND: Duration = Duration::from_secs(60);

fn flexcast(args: &[&str], folder: &std::path::Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast"));
    command.arg("compare").args(args).arg("--out").arg(folder).stdin(Stdio::null());
    command
}

/// Namespaces of the comparison that the process `owner` makes.
fn namespaces(owner: u32) -> Vec<String> {
    let output = Command::new("ip").args(["netns", "list"]).output().expect("`ip` starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let names = text.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| name.starts_with(&format!("flexcast-compare-{owner}-"))).map(str::to_owned).collect()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < BOUND, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether namespaces can be made here; else a line says why not.
fn can_run() -> bool {
    let probe = format!("flexcast-probe-{}", std::process::id());
    let ip = |words: &[&str]| Command::new("ip").args(words).output().is_ok_and(|output| output.status.success());
    let can = Uid::effective().is_root() && ip(&["netns", "add", &probe]) && ip(&["netns", "exec", &probe, "true"]);
    ip(&["netns", "delete", &probe]);
    if !can {
        skipped("network namespaces are not permitted (root and `ip` are needed)");
    }
    can
}

/// A comparison that measures for longer than this test takes, with its two hosts and their switch made.
fn begun(folder: &std::path::Path, stderr: Stdio) -> Child {
    let args = ["--systems", "flexcast", "--ops", "bcast", "--sizes", "1M", "--ranks", "2", "--repetitions", "10000"];
    let child = flexcast(&args, folder).stdout(Stdio::null()).stderr(stderr).spawn().expect("the tool starts");
    until("two hosts and a switch", || namespaces(child.id()).len() == 3);
    child
}

#[test]
fn no_namespace_is_left_by_signals_however_many_come() {
    if !can_run() {
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    for (signal, code) in [(Signal::SIGTERM, 143), (Signal::SIGHUP, 129)] {
        let mut child = begun(folder.path(), Stdio::null());
        // Twice, as `timeout` does: to the process, and to its group.
        for _ in 0..2 {
            kill(Pid::from_raw(child.id().cast_signed()), signal).expect("it runs, or is not waited for yet");
        }
        assert_eq!(child.wait().expect("a child").code(), Some(code));
        assert_eq!(namespaces(child.id()), [] as [String; 0], "{signal}");
    }
    // What it says goes to a pipe that nobody reads any more: `flexcast compare 2>&1 | head -1`.
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let mut child = begun(folder.path(), writer.into());
    drop(reader);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGPIPE).expect("it runs");
    assert_eq!(child.wait().expect("a child").code(), Some(141));
    assert_eq!(namespaces(child.id()), [] as [String; 0]);
    // A killed one can remove nothing: the next one does.
    let mut child = begun(folder.path(), Stdio::null());
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL).expect("it runs");
    child.wait().expect("a child");
    assert_eq!(namespaces(child.id()).len(), 3);
    let mut next = begun(folder.path(), Stdio::null());
    assert_eq!(namespaces(child.id()), [] as [String; 0], "removed by the next one");
    kill(Pid::from_raw(next.id().cast_signed()), Signal::SIGTERM).expect("it runs");
    next.wait().expect("a child");
    assert_eq!(namespaces(next.id()), [] as [String; 0]);
}

/// Where namespaces are not permitted the last line says that the exit code is no answer, and `--require` makes it one.
#[test]
fn without_permission_it_ends_well_unless_it_is_required() {
    let folder = tempfile::tempdir().expect("a folder");
    let said = |args: &[&str]| {
        let mut command = flexcast(args, folder.path());
        if Uid::effective().is_root() {
            // The same without the right to make any.
            let own = command.get_args().map(ToOwned::to_owned).collect::<Vec<_>>();
            let program = command.get_program().to_owned();
            command = Command::new("setpriv");
            command.args(["--bounding-set", "-sys_admin", "--inh-caps", "-sys_admin"]).arg(program).args(own);
        }
        let Output { status, stderr, .. } = command.output().ok()?;
        Some((status.code(), String::from_utf8_lossy(&stderr).into_owned()))
    };
    let Some((code, text)) = said(&[]).filter(|(_, text)| text.contains("skipped: ")) else {
        return skipped("the right to make namespaces cannot be given up (`setpriv`)");
    };
    assert_eq!(code, Some(0), "{text}");
    assert!(text.lines().next_back().is_some_and(|line| line.contains("exit code is 0") && line.contains("--require")));
    let (code, text) = said(&["--require"]).expect("it has started before");
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("error: "), "{text}");
}
