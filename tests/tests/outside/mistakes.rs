//! Device programs with the mistakes that beginners make, in C: what a card would swallow is explained by a sentence
//! on stderr, in the state file and in the timeline. Without compilers for host and card these tests are skipped, and
//! say so on stderr.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use emu_observe::state::State;
use flexcast_tests::examples::compiler;
use flexcast_tests::libs::libraries;
use flexcast_tests::workspace_root;

use crate::c_device::build;

/// Host program and image, built once; `None` without a compiler.
fn programs() -> Option<&'static (PathBuf, PathBuf)> {
    static BUILT: OnceLock<Option<(PathBuf, PathBuf)>> = OnceLock::new();
    let build = || {
        let image = build("mistakes_device", &[])?;
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mistakes");
        std::fs::create_dir_all(&folder).expect("a folder");
        let (host, elf) = (folder.join("host"), folder.join("device.elf"));
        std::fs::write(&elf, image).expect("written");
        let mut command = Command::new(compiler()?);
        command.current_dir(workspace_root()).args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror"]);
        command.args(["-Ihost/flexio-sys/include", "-Ihost/verbs-sys/include", "-Iemu/libflexio/include"]);
        command.args(["tests/c/mistakes_host.c", "-o"]).arg(&host).arg("-L").arg(libraries());
        let output = command.args(["-lflexio", "-libverbs"]).output().expect("the compiler starts");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some((host, elf))
    };
    BUILT.get_or_init(build).as_ref()
}

/// What a run leaves behind.
struct Run {
    output: Output,
    stderr: String,
    state: State,
    trace: String,
}

impl Run {
    /// Runs with a mistake: `arguments` are handlers, messages, log2 of the completion queue's entries, messages in
    /// flight.
    fn new(mistake: &str, arguments: [u32; 4], machine: &str, milliseconds: u32) -> Option<Self> {
        let (host, elf) = programs()?;
        let folder = tempfile::tempdir().expect("a folder");
        let [state, trace] = ["state.json", "trace.json"].map(|name| folder.path().join(name));
        let mut command = Command::new(host);
        command.arg(elf).arg(mistake).args(arguments.map(|number| number.to_string())).arg(milliseconds.to_string());
        command.env("LD_LIBRARY_PATH", libraries()).env("FLEXCAST_MACHINE", format!("toml:{machine}"));
        command.env("FLEXCAST_STATE", &state).env("FLEXCAST_TRACE", &trace);
        let output = command.output().expect("the program starts");
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        let state = State::read(&state).unwrap_or_else(|error| panic!("{error}\n{stderr}"));
        let trace = std::fs::read_to_string(&trace).expect("a timeline");
        Some(Run { output, stderr, state, trace })
    }

    /// Stderr, state and timeline have one sentence with all of these.
    #[track_caller]
    fn explains(&self, parts: &[&str]) {
        let has = |line: &str| parts.iter().all(|part| line.contains(part));
        let Run { stderr, state, trace, .. } = self;
        assert!(stderr.lines().any(has), "{parts:?} are not in a line of stderr:\n{stderr}");
        let causes = state.cards.iter().flat_map(|card| &card.processes).filter_map(|process| process.cause.as_ref());
        let sentences: Vec<&String> = causes.chain(&state.diagnoses).collect();
        assert!(sentences.iter().any(|line| has(line)), "{parts:?} are not in the state: {sentences:?}");
        let what = parts[0];
        assert!(trace.contains(what), "{what:?} is not in the timeline");
    }
}

/// The machine says so after 20 ms of card time in the place of a second, and the program waits for 30.
const SOON: &str = "stuck_ms = 20";

#[test]
fn each_mistake_is_explained_by_thread_handler_queue_and_what_would_end_it() {
    let of: [(&str, [u32; 4], &[&str]); 15] = [
        (
            "index_never_reported",
            [1, 200, 3, 16],
            &[
                "has overrun",
                "(echo, CQ 0x",
                "8 entries",
                "last consumer index reported is 0",
                "flexio_dev_dbr_cq_set_ci",
            ],
        ),
        (
            "drains_for_ever",
            [1, 20, 6, 4],
            &[
                "it polls entry 40 of CQ 0x",
                "thread 1 (echo, CQ 0x",
                "for 20 ms of card time",
                "(echo+0x",
                "reschedule",
            ],
        ),
        (
            "returns",
            [1, 20, 6, 4],
            &["the event handler returned", "thread 1 (echo, CQ 0x", "flexio_dev_thread_reschedule"],
        ),
        (
            "never_posts_again",
            [1, 200, 6, 16],
            &[
                "RNR NAKs, no receive posted for 22 ms of card time",
                "QP 0x1902: 3",
                "(echo, CQ 0x",
                "flexio_dev_dbr_rq_inc_pi",
            ],
        ),
        (
            "never_arms_again",
            [1, 20, 6, 4],
            &["is not armed, while the thread waits", "CQ 0x4c1 of thread 1 (echo", "flexio_dev_cq_arm"],
        ),
        // Not that its index was not reported.
        ("never_arms_again", [1, 200, 3, 16], &["is not armed, while the thread waits", "flexio_dev_cq_arm"]),
        (
            "never_run",
            [1, 20, 6, 4],
            &["has 4 entries for thread 1 (echo, CQ 0x", "has never been run", "flexio_event_handler_run"],
        ),
        ("never_run", [1, 200, 3, 16], &["has never been run", "flexio_event_handler_run"]),
        (
            "unknown_key",
            [1, 20, 6, 4],
            &[
                "memory key 0x1234 does not exist",
                "QP 0x1902 of thread 1 (echo, CQ 0x",
                "send entry 0",
                "flexio_mkey_get_id",
            ],
        ),
        (
            "unknown_opcode",
            [1, 20, 6, 4],
            &[
                "opcode WAIT (0x0f, modifier 0x01) is not supported",
                "QP 0x1902 of thread 1 (echo, CQ 0x",
                "send entry 0",
            ],
        ),
        (
            "doorbell_beyond_ring",
            [1, 20, 6, 4],
            &[
                "its send doorbell says 101",
                "QP 0x1902 has failed",
                "the ring has 16 blocks of 64 bytes",
                "thread 1 (echo, CQ 0x",
                "wait for completions",
            ],
        ),
        ("deep_recursion", [1, 20, 6, 4], &["stack overflow", "(recurse+0x", "thread 1 (echo, CQ 0x", "recurse less"]),
        (
            "two_locks",
            [2, 20, 6, 4],
            &[
                "deadlock: it waits for the lock right (0x",
                "thread 1 (echo, CQ 0x",
                "thread 3 (echo) for the lock left (0x",
            ],
        ),
        (
            "one_lock",
            [1, 20, 6, 4],
            &["it tries to take the lock left (0x", "thread 1 (echo, CQ 0x", "nobody gives back"],
        ),
        (
            "spins",
            [1, 20, 6, 4],
            &["it reads the word at 0x", "thread 1 (echo, CQ 0x", "(echo+0x", "end by reschedule"],
        ),
    ];
    for (mistake, arguments, parts) in of {
        let Some(run) = Run::new(mistake, arguments, SOON, 30) else { return };
        run.explains(parts);
    }
}

/// As long as the machine waits by itself.
#[test]
fn a_receive_that_is_missing_for_a_second_is_reported() {
    let Some(run) = Run::new("never_posts_again", [1, 200, 6, 16], "", 1200) else { return };
    run.explains(&["RNR NAKs, no receive posted for 1 s of card time", "QP 0x1902: 1,"]);
}

#[test]
fn a_program_without_mistakes_is_left_alone() {
    for (lanes, machine) in [(1, SOON), (2, "stuck_ms = 20\ndetect_races = true")] {
        let Some(run) = Run::new("none", [lanes, 100, 6, 4], machine, 30) else { return };
        assert!(run.output.status.success() && run.stderr.is_empty(), "{}", run.stderr);
        assert_eq!(run.state.diagnoses, Vec::<String>::new());
    }
}

#[test]
fn threads_have_their_place_state_and_since_when() {
    let Some(run) = Run::new("spins", [1, 20, 6, 4], SOON, 30) else { return };
    let threads = &run.state.cards[0].processes[0].threads;
    let handler = threads.iter().find(|thread| thread.entry == "echo").expect("the handler");
    assert!(handler.symbol.starts_with("echo+0x") && handler.pc >= 0x4000_0000, "{handler:?}");
    // It was running until the program destroyed it, at the end of its 30 ms.
    assert_eq!(handler.state, "destroyed");
    assert!(
        handler.since_ps >= 30_000_000_000 && handler.since_ps.abs_diff(run.state.time_ps) < 1_000_000,
        "{handler:?}"
    );
}

#[test]
fn threads_without_order_are_reported_with_both_places() {
    for mistake in ["unlocked_sum", "unfenced_flag"] {
        let Some(run) = Run::new(mistake, [2, 40, 6, 4], "detect_races = true", 30) else { return };
        let Run { stderr, state, .. } = &run;
        assert!(stderr.contains("race: two threads accessed memory that nothing orders"), "{mistake}: {stderr}");
        let report = &state.races.as_ref().expect("races are detected").reports[0];
        for part in ["thread 1 of process 1 at pc 0x", "thread 3 of process 1 at pc 0x", "(echo+0x", "bytes at 0x"] {
            assert!(report.contains(part), "{mistake}: {part} is not in {report}");
        }
    }
}
