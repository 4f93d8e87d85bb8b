//! Notices of the emulated machine to a program in C that does not ask: a DPA process has died, a race for memory. On
//! stderr, in the state file, by core dumps and the error descriptor. Without a C compiler these tests are skipped, and
//! say so on stderr.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use emu_observe::state::State;
use flexcast_cli::tables;
use flexcast_tests::code::{ILLEGAL, RET, addi, image, reg, rtos};
use flexcast_tests::examples::compiler;
use flexcast_tests::libs::{libraries, wait_for};
use flexcast_tests::workspace_root;

const BOUND: Duration = Duration::from_secs(60);
/// RTOS call: activates an event handler.
const ACTIVATE: u64 = 11;

/// `tests/c/trouble.c`, compiled into a folder.
fn program(folder: &Path) -> Option<PathBuf> {
    let compiler = compiler()?;
    let root = workspace_root();
    let program = folder.join("trouble");
    let includes =
        ["host/flexio-sys/include", "host/verbs-sys/include", "host/doca-sys/include", "emu/libflexio/include"];
    let output = Command::new(compiler)
        .args(["-std=c11", "-D_POSIX_C_SOURCE=200809L", "-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .args(includes.map(|folder| format!("-I{}", root.join(folder).display())))
        .arg(root.join("tests/c/trouble.c"))
        .arg("-L")
        .arg(libraries())
        .args(["-lflexio", "-libverbs"])
        .output()
        .expect("the compiler starts");
    assert!(output.status.success(), "trouble.c:\n{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

struct Ended {
    stdout: String,
    stderr: String,
    state: State,
}

/// Runs the program on a machine, with environment variables that name files; whether it ended well, and what it wrote
/// on stdout and stderr.
fn run_with(program: &Path, what: &str, machine: &str, variables: &[(&str, &Path)]) -> (bool, String, String) {
    let folder = program.parent().expect("a folder");
    // A handler that executes for a while before it dies, so that the call has returned by then.
    let mut handler = vec![addi(reg::A3, reg::A3, 1); 400];
    handler.push(ILLEGAL);
    let [number, call] = rtos(ACTIVATE);
    let elf = folder.join("trouble.elf");
    std::fs::write(&elf, image(&handler, &[number, call, RET])).expect("written");
    let output = |name: &str| folder.join(name);
    let file = |name: &str| std::fs::File::create(output(name)).expect("a file");
    let mut child = Command::new(program)
        .args([elf.as_os_str(), what.as_ref()])
        .env("LD_LIBRARY_PATH", libraries())
        .env("FLEXCAST_MACHINE", format!("toml:{machine}"))
        .env("FLEXCAST_STATE_EVERY", "3600000000")
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(file("stdout"))
        .stderr(file("stderr"))
        .spawn()
        .expect("the program starts");
    let status = wait_for(&mut child, BOUND).unwrap_or_else(|| panic!("{what} still runs after {BOUND:?}"));
    let read = |name: &str| std::fs::read_to_string(output(name)).expect("text");
    (status.success(), read("stdout"), read("stderr"))
}

/// Runs the program on a machine, with a state file that is written anew once in an hour of virtual time.
fn run(program: &Path, what: &str, machine: &str) -> Ended {
    let folder = program.parent().expect("a folder");
    let (state, races) = (folder.join("state.json"), folder.join("races"));
    let mut variables = vec![("FLEXCAST_STATE", &*state), ("FLEXCAST_CORE_DIR", folder)];
    if machine.contains("detect_races") {
        variables.push(("FLEXCAST_RACES", &races));
    }
    let (success, stdout, stderr) = run_with(program, what, machine, &variables);
    assert!(success, "{what}:\n{stderr}{stdout}");
    Ended { stdout, stderr, state: State::read(&state).expect("a state") }
}

/// The host polls its memory, or sleeps while the machine runs by itself: it never learns of the death by a call.
#[test]
fn a_death_is_reported_when_it_happens() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path()) else { return };
    let driven = "[bridge]\nlisten = \"127.0.0.1:0\"\npeer = \"127.0.0.1:9\"";
    for (what, machine) in [("poll", "cards = 1"), ("sleep", driven)] {
        let Ended { stdout, stderr, state } = run(&program, what, machine);
        assert!(stdout.contains("signalled"), "{what}: {stdout}");
        let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("flexcast: ")).collect();
        let [line] = lines[..] else { panic!("{what}: one line is to say it:\n{stderr}") };
        let parts = ["DPA process 1 (trouble) of mlx5_0 has died", "illegal instruction", "pc 0x", "(handler+0x640)"];
        for part in parts.into_iter().chain(["thread 1"]) {
            assert!(line.contains(part), "{what}: {part:?} is not in {line}");
        }
        let process = &state.cards[0].processes[0];
        assert_eq!(process.status, "crashed", "{what}: written at once");
        let remarks = tables::remarks(&state);
        assert!(
            remarks.len() == 1 && remarks[0].contains("PROCESS_1 of mlx5_0, crashed: illegal instruction"),
            "{remarks:?}"
        );
        let dump = std::fs::read(folder.path().join("mlx5_0.001.core")).expect("a dump");
        assert_eq!(dump[..4], *b"\x7FELF");
        let report = std::fs::read_to_string(folder.path().join("mlx5_0.001.crash")).expect("a report");
        assert!(report.contains("cause     illegal instruction"), "{report}");
        for kind in ["core", "crash"] {
            std::fs::remove_file(folder.path().join(format!("mlx5_0.001.{kind}"))).expect("removed");
        }
    }
}

#[test]
fn races_are_reported_when_they_are_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path()) else { return };
    let kind = "memory was written after its release";
    let Ended { stdout, stderr, state } = run(&program, "race", "detect_races = true");
    assert!(stdout.contains("raced"), "{stdout}");
    // Three, all alike: reported once, and counted.
    assert_eq!(stderr.matches(kind).count(), 1, "{stderr}");
    assert!(stderr.contains(&format!("flexcast: race: {kind}\n  first   the host gave back")), "{stderr}");
    assert!(stderr.ends_with("flexcast: 3 races for memory in all, repetitions included\n"), "{stderr}");
    let file = std::fs::read_to_string(folder.path().join("races")).expect("the file of races");
    assert!(file.starts_with(kind) && file.lines().count() == 3, "{file}");
    let races = state.races.as_ref().expect("it has searched for them");
    assert_eq!((races.count, races.reports.len()), (3, 1));
    assert_eq!(tables::remarks(&state), ["3 races for memory (--json lists the accesses)"]);
    // Nothing is reported to a program that does not ask for it.
    let Ended { stderr, state, .. } = run(&program, "race", "cards = 1");
    assert_eq!((&*stderr, state.races), ("", None));
}

#[test]
fn a_folder_for_core_dumps_is_made() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path()) else { return };
    let cores = folder.path().join("made/deep");
    let (success, stdout, stderr) = run_with(&program, "poll", "cards = 1", &[("FLEXCAST_CORE_DIR", &cores)]);
    assert!(success && stdout.contains("signalled"), "{stdout}{stderr}");
    for kind in ["core", "crash"] {
        assert!(cores.join(format!("mlx5_0.001.{kind}")).is_file(), "{kind}");
    }
}

#[test]
fn a_place_that_cannot_be_written_is_named_with_its_variable() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path()) else { return };
    // No file can be below a file, whoever asks.
    let below = program.join("nowhere");
    for variable in ["FLEXCAST_CORE_DIR", "FLEXCAST_STATE", "FLEXCAST_TRACE"] {
        let (success, stdout, stderr) = run_with(&program, "poll", "cards = 1", &[(variable, &below)]);
        assert!(!success, "{variable}: {stdout}");
        let lines: Vec<&str> = stderr.lines().filter(|line| line.contains(variable)).collect();
        let [line] = lines[..] else { panic!("{variable}: one line is to say it:\n{stderr}") };
        for part in ["flexio_process_create", &below.display().to_string(), "Not a directory"] {
            assert!(line.contains(part), "{part:?} is not in {line}");
        }
    }
    // Races are written while the program goes on: where that fails there is a line on stderr.
    let races = [("FLEXCAST_RACES", &*below)];
    for (machine, words) in
        [("detect_races = true", "cannot be written"), ("cards = 1", "the machine detects no races")]
    {
        let (success, stdout, stderr) = run_with(&program, "race", machine, &races);
        assert!(success && stdout.contains("raced"), "{stdout}{stderr}");
        let lines: Vec<&str> = stderr.lines().filter(|line| line.starts_with("flexcast: FLEXCAST_RACES: ")).collect();
        assert!(lines.len() == 1 && lines[0].contains(words), "{machine}:\n{stderr}");
    }
}

#[test]
fn a_core_dump_that_cannot_be_written_is_a_line_when_the_process_dies() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(program) = program(folder.path()) else { return };
    let cores = folder.path().join("cores");
    // A folder has the name that the dump is to have.
    std::fs::create_dir_all(cores.join("mlx5_0.001.core")).expect("a folder");
    let (success, stdout, stderr) = run_with(&program, "poll", "cards = 1", &[("FLEXCAST_CORE_DIR", &cores)]);
    assert!(success && stdout.contains("signalled"), "{stdout}{stderr}");
    let lines: Vec<&str> = stderr.lines().filter(|line| line.contains("cannot be written")).collect();
    let [line] = lines[..] else { panic!("one line is to say it:\n{stderr}") };
    assert!(line.starts_with("flexcast: ") && line.contains("mlx5_0.001.core"), "{line}");
    assert!(cores.join("mlx5_0.001.crash").is_file(), "the report is written all the same");
}
