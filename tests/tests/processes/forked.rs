//! Programs in C that fork, that destroy what they have not acknowledged, and what the C libraries print of refused
//! calls. Without a C compiler these tests are skipped, and say so on stderr.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flexcast_tests::examples::compiler;
use flexcast_tests::harness::skipped;
use flexcast_tests::libs::libraries;
use flexcast_tests::workspace_root;

const INCLUDES: [&str; 4] =
    ["host/flexio-sys/include", "host/verbs-sys/include", "host/doca-sys/include", "emu/libflexio/include"];

/// Compiles a program of `tests/c` for the emulator's libraries.
fn compile(name: &str) -> Option<PathBuf> {
    compile_with(name, &INCLUDES)
}

/// The same with headers of these folders alone, before the system's.
fn compile_with(name: &str, includes: &[&str]) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("forked");
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    let (root, program) = (workspace_root(), folder.join(name));
    let mut command = Command::new(compiler()?);
    command.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    command.args(includes.iter().map(|folder| format!("-I{}", root.join(folder).display())));
    command.arg(root.join("tests/c").join(format!("{name}.c"))).arg("-L").arg(libraries());
    command.args(["-lflexio", "-libverbs", "-lmlx5", "-ldoca_common", "-lpthread"]);
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{name}.c:\n{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// Runs a program for at most a minute.
fn run(program: &Path, machine: &str, log: Option<&str>) -> Output {
    run_with(program, &[], machine, log)
}

/// The same with arguments.
fn run_with(program: &Path, arguments: &[&str], machine: &str, log: Option<&str>) -> Output {
    let mut command = Command::new("timeout");
    command
        .args(["60"])
        .arg(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", libraries())
        .env("FLEXCAST_MACHINE", machine);
    command.env_remove("FLEXCAST_LOG").envs(log.map(|level| ("FLEXCAST_LOG", level)));
    command.stdin(Stdio::null()).output().expect("the program starts")
}

const ALONE: &str = "toml:cards = 2";
/// A machine that a thread keeps going, joined to nobody.
const BRIDGED: &str = "toml:[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:9\"\n";

#[test]
fn a_forked_child_is_refused_at_once_and_may_execute_another_program() {
    let Some(program) = compile("fork") else { return };
    for machine in [ALONE, BRIDGED] {
        let output = run(&program, machine, None);
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("fork: all as promised"), "{machine}: {text}");
        assert!(text.contains("flexcast-emu: ibv_get_device_list: the process was forked"), "{text}");
    }
}

#[test]
fn the_reason_of_a_refused_call_is_printed_once() {
    let Some(program) = compile("refused") else { return };
    let lines = |log: Option<&str>| {
        let output = run(&program, ALONE, log);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{text}");
        text.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for level in [None, Some("error"), Some("warn")] {
        let lines = lines(level);
        let of = |call: &str| {
            lines.iter().filter(|line| line.starts_with(&format!("flexcast-emu: {call}: "))).collect::<Vec<_>>()
        };
        let create = of("ibv_create_qp");
        assert!(create.len() == 1 && create[0].contains("70000") && create[0].contains("32768"), "{lines:?}");
        assert_eq!(of("ibv_modify_qp").len(), 1, "{lines:?}");
        assert_eq!(of("flexio_event_handler_destroy").len(), 1, "{lines:?}");
        assert_eq!(of("doca_dev_open").len(), 1, "{lines:?}");
        assert_eq!(of("ibv_get_async_event").len(), 0, "nothing has come, as the program expects: {lines:?}");
        assert_eq!(lines.len(), 4, "{lines:?}");
    }
    assert!(lines(Some("off")).is_empty());
    assert!(lines(Some("debug")).len() > 300, "each call is logged");
    let wrong = lines(Some("loud"));
    assert!(wrong[0].contains("FLEXCAST_LOG is `loud`") && wrong.len() == 5, "{wrong:?}");
}

/// The manual page ibv_get_cq_event(3) has destroying wait; what it waits for is said after a few seconds.
#[test]
fn a_completion_queue_waits_for_the_acknowledgement_of_its_events() {
    let Some(program) = compile("unacknowledged") else { return };
    for (machine, milliseconds, reported) in [(ALONE, "200", false), (BRIDGED, "200", false), (ALONE, "3500", true)] {
        let output = run_with(&program, &[milliseconds], machine, None);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{machine}: {said}");
        let line =
            "flexcast-emu: ibv_destroy_cq: has waited 3 s for the acknowledgement of 1 events of completion queue ";
        assert_eq!(said.contains(line) && said.contains("(ibv_ack_cq_events)"), reported, "{machine}: {said}");
    }
}

/// The same source with the project's header, and with rdma-core's where that is installed.
#[test]
fn extended_completion_queues_are_polled_by_several_threads() {
    let theirs = Path::new("/usr/include/infiniband/verbs.h").exists();
    for includes in [Some(&INCLUDES[..]), theirs.then_some(&[][..])].into_iter().flatten() {
        let Some(program) = compile_with("extended_cq", includes) else { return };
        let output = run(&program, "toml:cards = 1", None);
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("all as promised"), "{text}");
    }
}

/// As above.
#[test]
fn queue_pairs_take_receives_from_a_shared_queue() {
    let theirs = Path::new("/usr/include/infiniband/verbs.h").exists();
    for includes in [Some(&INCLUDES[..]), theirs.then_some(&[][..])].into_iter().flatten() {
        let Some(program) = compile_with("srq", includes) else { return };
        let output = run(&program, "toml:cards = 1", None);
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("all as promised"), "{text}");
    }
}

#[test]
fn regions_windows_and_memory_on_the_card_are_what_the_manual_pages_say() {
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        skipped("rdma-core's headers are not installed (Debian: libibverbs-dev)");
        return;
    }
    let Some(program) = compile_with("regions", &[]) else { return };
    let output = run(&program, "toml:cards = 1", None);
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("all as promised"), "{text}");
}

/// Programs that were compiled with rdma-core's header: its inline functions answer by themselves where an operation
/// table has no function, and nobody learns why.
#[test]
fn every_call_that_is_not_emulated_says_so() {
    if !Path::new("/usr/include/infiniband/verbs.h").is_file() {
        skipped("rdma-core's headers are not installed (Debian: libibverbs-dev)");
        return;
    }
    let Some(program) = compile_with("unsupported", &[]) else { return };
    let output = run(&program, ALONE, None);
    let (text, said) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{said}");
    assert_eq!(text.lines().count(), 22, "{text}");
    for line in text.lines() {
        let (call, error) = line.split_once(' ').expect("a name and a number");
        assert_eq!(error, "95", "{call} is not supported, EOPNOTSUPP");
        let begin = format!("flexcast-emu: {call}: ");
        let lines: Vec<_> = said.lines().filter_map(|line| line.strip_prefix(&begin)).collect();
        assert!(lines.len() == 1 && !lines[0].is_empty(), "{call}: {said}");
    }
}
