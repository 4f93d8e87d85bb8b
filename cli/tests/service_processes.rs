//! `flexcast service demo`: daemons and ranks as processes of their own on emulated cards that they share; to whom
//! a death is reported, and that nothing is left.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use flexcast_lab::service::processes::{Kind, ProcessReport};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::processes::libraries;

use crate::harness::is_long;

/// Longest that anything here may take; it is far less.
const BOUND: Duration = Duration::from_secs(120);

fn demo(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_flexcast"));
    command.args(["service", "demo", "--libs"]).arg(libraries()).args(args).stdin(Stdio::null());
    command
}

fn report(args: &[&str]) -> ProcessReport {
    let Output { status, stdout, stderr } = demo(args).arg("--json").output().expect("the tool starts");
    let (text, said) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    assert!(status.success(), "{said}{text}");
    serde_json::from_str(&text).expect("a document")
}

/// All bytes of three jobs are right, and to each rank it is reported who has died.
fn check(report: &ProcessReport, hosts: u32, ranks_per_host: u32) {
    let (ranks, processes) = (hosts * ranks_per_host, report.service_processes);
    let numbers: Vec<u32> = report.jobs.iter().map(|job| job.number).collect();
    assert_eq!(numbers, [1, 2, 3]);
    for job in &report.jobs {
        assert_eq!(job.collectives.len(), 4, "{job:?}");
        for one in &job.collectives {
            assert_eq!((one.calls, one.right), (u64::from(2 * ranks), u64::from(2 * ranks)), "{one:?}");
            let copies_by_ranks = one.op.to_string() == "Iallgatherv" && ranks_per_host > 1;
            assert!(copies_by_ranks || one.library_calls == 0, "{one:?}");
        }
    }
    assert!(report.held_up.is_right, "{:?}", report.held_up);
    let [rank, daemon] = &report.deaths[..] else { panic!("{:?}", report.deaths) };
    // Two collectives were under way; both are reported to all ranks but the one that was killed.
    let notified: Vec<u32> = rank.notices.iter().map(|notice| notice.rank).collect();
    assert_eq!(notified, (0..ranks - 1).flat_map(|rank| [rank; 2]).collect::<Vec<_>>());
    for notice in &rank.notices {
        assert!(matches!(notice.kind, Kind::Died | Kind::Failed), "{notice:?}");
        assert_eq!(
            (notice.names_rank, notice.names_process, notice.is_right),
            (Some(ranks - 1), None, true),
            "{notice:?}"
        );
        assert_eq!((notice.session.as_deref(), notice.after_ms.is_some()), (None, notice.rank != 0), "{notice:?}");
    }
    assert_eq!(daemon.notices.len() as u32, 2 * ranks, "the ranks of its host, too");
    for notice in &daemon.notices {
        let expected = if notice.host == hosts - 1 { Kind::Gone } else { Kind::Died };
        assert_eq!((notice.kind, notice.is_right), (expected, true), "{notice:?}");
        if expected == Kind::Gone {
            assert_eq!(notice.session.as_deref(), Some("died"), "{notice:?}");
        } else {
            let dead = (hosts - 1) * processes..hosts * processes;
            assert!(notice.names_process.is_some_and(|process| dead.contains(&process)), "{notice:?}");
        }
    }
}

#[test]
fn deaths_of_processes_are_reported_by_name_and_later_jobs_succeed() {
    check(&report(&[]), 2, 2);
}

/// One service process on each host, and one host alone.
#[test]
fn other_shapes_do_the_same() {
    check(&report(&["--hosts", "3", "--ranks-per-host", "1", "--bytes", "1"]), 3, 1);
    if is_long() {
        check(&report(&["--hosts", "1", "--ranks-per-host", "3", "--bytes", "100000"]), 1, 3);
    }
}

/// Without `flexcast-service` in its folder the program is the daemon itself. Here it is alone in a folder.
#[test]
fn the_program_alone_is_enough() {
    let folder = tempfile::tempdir().expect("a folder");
    let program = folder.path().join("flexcast");
    std::fs::copy(env!("CARGO_BIN_EXE_flexcast"), &program).expect("a copy");
    let output = Command::new(&program)
        .args(["service", "demo", "--json", "--hosts", "2", "--ranks-per-host", "1", "--libs"])
        .arg(libraries())
        .output();
    let output = output.expect("the tool starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let report: ProcessReport = serde_json::from_slice(&output.stdout).expect("a document");
    assert_eq!(report.daemon, "flexcast");
    check(&report, 2, 1);
}

/// In a folder without anything, and without libraries of the emulator anywhere, the processes have the emulator of
/// the program.
#[test]
fn in_an_empty_folder_the_program_is_enough() {
    let folder = tempfile::tempdir().expect("a folder");
    let (bin, empty) = (folder.path().join("bin"), folder.path().join("empty"));
    for folder in [&bin, &empty] {
        std::fs::create_dir(folder).expect("a folder");
    }
    let program = bin.join("flexcast");
    std::fs::copy(env!("CARGO_BIN_EXE_flexcast"), &program).expect("a copy");
    let mut command = Command::new(&program);
    command.args(["service", "demo", "--json"]).current_dir(&empty).env_remove("LD_LIBRARY_PATH");
    let output = command.output().expect("the tool starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    check(&serde_json::from_slice(&output.stdout).expect("a document"), 2, 2);
    assert_eq!(std::fs::read_dir(&empty).expect("the folder").count(), 0, "nothing is left");
}

/// Processes whose parent is this one.
fn children_of(parent: u32) -> Vec<u32> {
    let about = |entry: std::fs::DirEntry| {
        let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
        let text = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        let of: u32 = text.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        (of == parent).then_some(pid)
    };
    std::fs::read_dir("/proc").expect("processes").flatten().filter_map(about).collect()
}

fn is_over(pid: u32) -> bool {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // Gone, or dead and not yet reaped by its new parent.
    text.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    crate::processes::until(what, BOUND, || is_so().then_some(()));
}

/// A demonstration in whose first job ranks are at work.
fn begun() -> (Child, Vec<u32>) {
    let mut child = demo(&[]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("the tool starts");
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let first = lines.next().expect("a line").expect("text");
    assert!(first.contains("job 1"), "{first}");
    // Read on, so that nobody waits for it.
    std::thread::spawn(move || lines.for_each(drop));
    let mut children = Vec::new();
    until("two daemons and four ranks", || {
        children = children_of(child.id());
        children.len() == 6
    });
    (child, children)
}

/// Whether it is asked to end or killed, nobody that it has started is left.
#[test]
fn nobody_outlives_a_demonstration_that_is_cut_off() {
    for (signal, code) in [(Signal::SIGINT, Some(130)), (Signal::SIGTERM, Some(143)), (Signal::SIGKILL, None)] {
        let (mut child, children) = begun();
        // Twice, as `timeout` does: to the process, and to its group.
        for _ in 0..2 {
            kill(Pid::from_raw(child.id() as i32), signal).expect("it runs, or is not waited for yet");
        }
        let status = child.wait().expect("a child");
        assert_eq!(status.code(), code, "{status}");
        until("the end of all processes", || children.iter().all(|pid| is_over(*pid)));
    }
}

#[test]
fn shapes_that_cannot_be_are_refused() {
    for (args, words) in [
        (&["--hosts", "0"][..], ["'0' for '--hosts", "1 to 8"]),
        (&["--ranks-per-host", "9"], ["'9' for '--ranks-per-host", "1 to 8"]),
        (&["--bytes", "1048577"], ["1048577", "1 to 1048576"]),
        (
            &["--hosts", "8", "--ranks-per-host", "8", "--bytes", "100000"],
            ["--bytes is 100000", "at most 40281 with 64 ranks"],
        ),
        (&["--hosts", "1", "--ranks-per-host", "1"], ["--ranks-per-host is 1", "at least 2"]),
    ] {
        let output = demo(args).output().expect("the tool starts");
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && words.iter().all(|word| text.contains(word)), "{args:?}: {text}");
    }
    // What only the demonstration starts does not run by hand.
    let output = Command::new(env!("CARGO_BIN_EXE_flexcast")).args(["service", "demo-rank", "--parent", "1"]).output();
    let text = String::from_utf8_lossy(&output.expect("the tool starts").stderr).into_owned();
    assert!(text.contains("run `flexcast service demo`"), "{text}");
}
