//! A C program for verbs, started several times: each process has cards of its own, and all cards are in one network.
//!
//! Without a C compiler the test says on stderr that it skips.

use std::fs::File;
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use flexcast_tests::examples::{allgather, compiler};
use flexcast_tests::libs::{libraries, wait_for};
use flexcast_tests::workspace_root;

/// Longest that the programs may take; they need a second or two.
const BOUND: Duration = Duration::from_secs(120);

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mesh").join(name);
    // What an earlier run has left would be taken for what the ranks say.
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

/// The program; `None` without a C compiler.
fn program(folder: &Path) -> Option<PathBuf> {
    let compiler = compiler()?;
    let (root, program) = (workspace_root(), folder.join("mesh"));
    let output = Command::new(compiler)
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(format!("-I{}", root.join("host/verbs-sys/include").display()))
        .arg(root.join("tests/c/mesh.c"))
        .arg("-L")
        .arg(libraries())
        .arg("-libverbs")
        .output()
        .expect("the compiler starts");
    assert!(output.status.success(), "mesh.c:\n{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// The first of so many UDP ports in a row that nobody uses now.
fn free_ports(count: u16) -> u16 {
    let bind = |port: u16| UdpSocket::bind(("127.0.0.1", port)).ok();
    let first = || bind(0).and_then(|socket| socket.local_addr().ok()).map(|address| address.port());
    (0..100)
        .filter_map(|_| first())
        .find(|first| (0..count).all(|more| first.checked_add(more).and_then(bind).is_some()))
        .expect("ports in a row")
}

/// A child that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// `flexcast emu exec --rank I --of N`, as many times as there are ranks.
fn mesh(name: &str, ranks: u16, more: &[&str]) {
    let folder = scratch(name);
    let Some(program) = program(&folder) else { return };
    let (example, port) = (allgather(false), free_ports(ranks).to_string());
    let output = |rank: u16| folder.join(format!("rank-{rank}.txt"));
    let start = |rank: u16| {
        let file = File::create(output(rank)).expect("a file for the output");
        let (number, of) = (rank.to_string(), ranks.to_string());
        let child = Command::new(&example.tool)
            .args(["emu", "exec", "--rank", &number, "--of", &of, "--port-base", &port, "--libs"])
            .arg(&example.libraries)
            .args(more)
            .arg("--")
            .args([program.as_os_str(), number.as_ref(), of.as_ref(), folder.as_ref()])
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("the same file"))
            .stderr(file)
            .current_dir(workspace_root())
            .spawn();
        Running(child.expect("the tool starts"))
    };
    let mut children: Vec<Running> = (0..ranks).map(start).collect();
    let ends: Vec<_> = children.iter_mut().map(|child| wait_for(&mut child.0, BOUND)).collect();
    for (rank, end) in (0..ranks).zip(&ends) {
        let text = String::from_utf8_lossy(&std::fs::read(output(rank)).expect("the output")).into_owned();
        assert!(end.is_some_and(|status| status.success()), "{ends:?}; rank {rank}: {text}");
        assert!(text.contains(&format!("rank {rank} of {ranks}: all arrived")), "{text}");
    }
}

#[test]
fn three_processes_multicast_and_write_to_one_another() {
    mesh("three", 3, &[]);
}

#[test]
fn four_processes_multicast_and_write_to_one_another() {
    mesh("four", 4, &[]);
}

/// The second card of each process is idle; the first ones are joined through its switch.
#[test]
fn processes_of_two_cards_are_joined_at_their_switches() {
    mesh("two-cards", 3, &["--cards", "2"]);
}
