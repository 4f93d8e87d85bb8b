//! Commands of README.md and docs/observe.md: each of their console blocks is run as it stands there, and what is shown
//! of its output is compared. Of docs/service.md, docs/simulate.md and docs/timing.md those commands are run of which
//! some output is shown. The program is the one that `cargo install --locked --path cli` installs, and it runs in
//! folders that hold nothing.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use flexcast_tests::harness::{LONG_TESTS, is_long, skipped};
use flexcast_tests::transcript::{Shown, compare, shown};
use flexcast_tests::tree::{copied_tree, xtask};
use flexcast_tests::{compiled_as_recorded, workspace_root};

/// How a command is run.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// In the root of the repository.
    InTheRepository,
    /// On a copy of what images are built from, since it changes that.
    OnACopy,
    /// By the installed program, in a folder that its document's commands have to themselves.
    Installed,
    /// Not here: why not, and who runs it.
    NotHere(&'static str),
}

/// The commands of README.md.
const README: [(&str, Way); 9] = [
    ("cargo xtask demo", Way::InTheRepository),
    ("cargo xtask new hello && cargo xtask run hello --call measure 1000", Way::OnACopy),
    ("cargo xtask test", Way::NotHere("it is what runs this test")),
    ("cargo install --locked --path cli", Way::InTheRepository),
    ("flexcast tput --transport ud --threads 4", Way::Installed),
    (
        "flexcast sim --topology fat-tree-188 --ranks 188 --bytes 4096",
        Way::NotHere("docs/simulate.md shows what comes out, and that is run"),
    ),
    ("flexcast service demo", Way::Installed),
    ("flexcast plan --link 400 --transport ud --ranks 188 --buffer 8388608", Way::Installed),
    (
        "export FLEXCAST_SIZE=4 FLEXCAST_STORE=127.0.0.1:4711 FLEXCAST_INTERFACE=lo; \
         for r in 0 1 2 3; do FLEXCAST_RANK=$r flexcast perf --sizes 64:1M & done; wait",
        Way::Installed,
    ),
];

/// Those of docs/observe.md.
const OBSERVE: [(&str, Way); 9] = [
    ("flexcast trace -o trace.json tput --transport ud --threads 2 --bytes 400000", Way::Installed),
    ("flexcast trace -o allgather.json sim --ranks 8 --bytes 65536 --model m2", Way::Installed),
    ("flexcast tput --transport ud --threads 2 --bytes 400000 --state state.json", Way::Installed),
    ("flexcast ps -t state.json", Way::Installed),
    ("flexcast stats -p 1 state.json", Way::Installed),
    ("flexcast tput --core-dir cores", Way::Installed),
    (
        "gdb-multiarch target/device/emu/allgather.elf cores/mlx5_0.001.core -ex 'info threads' -ex backtrace",
        Way::NotHere("nothing has died; gdb reads a core file in tests/tests/firmware/core_dump.rs"),
    ),
    (
        "flexcast tput --threads 2 --gdb",
        Way::NotHere("it waits for gdb, which comes in cli/tests/gdb.rs: gdb_breaks_steps_and_goes_on"),
    ),
    (
        "gdb-multiarch target/device/emu/allgather.elf -ex 'target remote :1981' -ex 'info threads'",
        Way::NotHere("it is the other side of the command above"),
    ),
];

/// Those of docs/service.md of which output is shown.
const SERVICE: [(&str, Way); 4] = [
    ("flexcast demo", Way::Installed),
    ("cat /etc/flexcast/service.toml", Way::NotHere("the file is the user's")),
    (
        "flexcast-service --config /etc/flexcast/service.toml --check",
        Way::NotHere("no card has that name here; host/service/tests/daemon.rs checks configurations"),
    ),
    (
        "flexcast service demo --hosts 2 --ranks-per-host 2",
        Way::NotHere("its times are measured; cli/tests/service_processes.rs runs it"),
    ),
];

/// Those of docs/simulate.md of which output is shown.
const SIMULATE: [(&str, Way); 6] = [
    ("flexcast sim --topology fat-tree-188 --ranks 188 --bytes 4096", Way::Installed),
    ("flexcast sim --ranks 64 --bytes 65536", Way::Installed),
    ("flexcast sim --ranks 64 --bytes 65536 --queues shared", Way::Installed),
    (
        "flexcast sim --control service --op alltoallv --ranks 16 --ranks-per-card 4 --service-processes 2 --bytes 4096",
        Way::Installed,
    ),
    (
        "flexcast sim --control service --op allgather --delivery flat --ranks 128 --ranks-per-card 8 --bytes 1024",
        Way::Installed,
    ),
    ("flexcast soak --first 1 --seeds 40", Way::Installed),
];

/// Those of docs/timing.md.
const TIMING: [(&str, Way); 1] = [(
    "flexcast calibrate --quick",
    Way::NotHere("cli/tests/calibrate.rs holds the calibration; docs/calibration.md is made of it"),
)];

/// The installed program's folder. Except in long tests, the program that tests are built with stands for the installed
/// one: nothing is compiled anew.
fn installed() -> &'static Path {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    PLACE.get_or_init(|| {
        if !is_long() {
            return Path::new(env!("CARGO_TARGET_TMPDIR")).join("../debug").canonicalize().expect("the tests' folder");
        }
        let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("installed");
        let output = in_the_repository("cargo install --locked --path cli", &place);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && place.join("bin/flexcast").is_file(), "{stderr}");
        place.join("bin")
    })
}

/// A command line; what it builds of the command-line tool is the one of the tests, which others run meanwhile from the
/// same place.
fn shell(command: &str) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", command]).env("FLEXCAST_CLI_PROFILE", "dev");
    shell
}

/// Settings of the release profile that build the program sooner. It does and prints the same; the firmware that it
/// holds is built as ever.
const QUICK: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "0"),
];

/// Runs a command line in the repository; what it installs goes below `place`, and is built in a folder of its own.
fn in_the_repository(command: &str, place: &Path) -> Output {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("release");
    let mut shell = shell(command);
    shell.current_dir(workspace_root()).env("CARGO_INSTALL_ROOT", place).envs(QUICK);
    if command.starts_with("cargo install") {
        shell.env("CARGO_TARGET_DIR", &target).env("FLEXCAST_XTASK", built_xtask());
    }
    shell.output().expect("a shell")
}

/// The build tool, built.
fn built_xtask() -> PathBuf {
    let built = xtask(&workspace_root(), &["--help"]);
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("../debug/xtask").canonicalize().expect("the build tool")
}

/// Runs a command line of the installed program in `folder`.
fn by_the_installed(command: &str, folder: &Path) -> Output {
    let path = std::env::var("PATH").expect("a search path");
    let path = format!("{}:{path}", installed().display());
    shell(command).current_dir(folder).env("PATH", path).output().expect("a shell")
}

fn run(command: &str, way: Way, folder: &Path) -> Option<Output> {
    match way {
        Way::InTheRepository if !is_long() => match command.strip_prefix("cargo xtask ") {
            Some(same) => {
                let images = workspace_root().join("target/device/emu");
                Some(by_the_installed(&format!("flexcast {same} --images {}", images.display()), folder))
            }
            None => {
                eprintln!("not run: `{command}`: {LONG_TESTS} is not set");
                None
            }
        },
        Way::InTheRepository => Some(in_the_repository(command, &folder.join("place"))),
        Way::OnACopy => {
            let copy = copied_tree();
            let mut shell = shell(command);
            shell.current_dir(workspace_root()).env("FLEXCAST_ROOT", copy.path());
            Some(shell.output().expect("a shell"))
        }
        Way::Installed => Some(by_the_installed(command, folder)),
        Way::NotHere(why) => {
            eprintln!("not run: `{command}`: {why}");
            None
        }
    }
}

/// Runs every command of a document. One that the table lacks, or has and the document does not, fails.
fn all_run(document: &str, table: &[(&str, Way)]) {
    let text = std::fs::read_to_string(workspace_root().join(document)).expect(document);
    run_all(document, shown(&text), table);
}

/// Runs those commands of a document of which some output is shown.
fn all_shown_run(document: &str, table: &[(&str, Way)]) {
    let text = std::fs::read_to_string(workspace_root().join(document)).expect(document);
    run_all(document, shown(&text).into_iter().filter(|shown| !shown.output.is_empty()).collect(), table);
}

fn run_all(document: &str, commands: Vec<Shown>, table: &[(&str, Way)]) {
    let asked: Vec<&str> = commands.iter().map(|shown| shown.command.as_str()).collect();
    let known: Vec<&str> = table.iter().map(|(command, _)| *command).collect();
    assert_eq!(asked, known, "{document}: each command needs a row here, in the order of the document");
    let folder = tempfile::tempdir().expect("a folder");
    if !is_long() {
        // The program finds its images as it does in the repository.
        std::os::unix::fs::symlink(workspace_root().join("target"), folder.path().join("target")).expect("a link");
        drop(flexcast_tests::image_path("allgather"));
    }
    for (Shown { command, output: shown }, (_, way)) in commands.iter().zip(table) {
        let Some(output) = run(command, *way, folder.path()) else { continue };
        let printed = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{document}: `{command}`: {}\n{printed}{stderr}", output.status);
        assert!(!printed.is_empty() || !stderr.is_empty(), "{document}: `{command}` says nothing");
        // Emulated figures are those of the compiler that they were recorded with.
        if shown.is_empty() || !compiled_as_recorded("allgather") {
            continue;
        }
        compare(shown, &printed).unwrap_or_else(|why| panic!("{document}: `{command}`: {why}\nit printed:\n{printed}"));
    }
}

#[test]
fn every_command_of_the_readme_runs() {
    all_run("README.md", &README);
}

#[test]
fn every_command_of_the_guide_to_observation_runs() {
    all_run("docs/observe.md", &OBSERVE);
}

#[test]
fn what_the_guide_to_service_processes_shows_comes_out() {
    all_shown_run("docs/service.md", &SERVICE);
}

#[test]
fn what_the_guide_to_simulation_shows_comes_out() {
    all_shown_run("docs/simulate.md", &SIMULATE);
}

#[test]
fn what_the_guide_to_timing_shows_comes_out() {
    all_shown_run("docs/timing.md", &TIMING);
}

/// What commands load lies within the program: images, experiments, fault scripts.
#[test]
fn the_installed_program_needs_nothing_next_to_it() {
    if !is_long() {
        skipped("it compiles the program once more; `cargo xtask test --long` runs it");
        return;
    }
    let folder = tempfile::tempdir().expect("a folder");
    let said = |command: &str| {
        let output = by_the_installed(command, folder.path());
        let (said, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "`{command}`: {said}{stderr}");
        said.into_owned()
    };
    for (command, words) in [
        ("flexcast tput --bytes 65536", ["ud", "equal"]),
        ("flexcast sim --ranks 4 --bytes 4096", ["multicast", "every rank has every byte"]),
        ("flexcast reference --bytes 65536", ["uc", "published"]),
        ("flexcast run pingpong", ["bring-up", "ping 1"]),
        ("flexcast soak --seeds 1 --first 1", ["from seed 1", "every byte on every rank"]),
        ("flexcast bench --bytes 65536 --no-collectives", ["reference", "allgather"]),
        ("flexcast report --list", ["variability", "models"]),
        ("flexcast report --only models --reduced --out out", ["models: ", "page: "]),
        ("flexcast report --only variability --reduced --out out", ["variability: ", "page: "]),
    ] {
        let said = said(command);
        assert!(words.iter().all(|word| said.contains(word)), "`{command}`: {said}");
    }
    assert!(folder.path().join("out/noise/jitter.toml").is_file(), "the fault script that runs of the page name");
    // An image of a fresh build in this folder stands above the program's own, and one that is named above both.
    std::fs::create_dir_all(folder.path().join("target/device/emu")).expect("a folder");
    std::fs::write(folder.path().join("target/device/emu/allgather.elf"), "none").expect("a file");
    let refused = by_the_installed("flexcast tput --bytes 65536", folder.path());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("ELF"), "{refused:?}");
    let image = flexcast_tests::image_path("allgather");
    said(&format!("flexcast tput --bytes 65536 --image {}", image.display()));
    let unknown = by_the_installed("flexcast run nosuch", folder.path());
    let stderr = String::from_utf8_lossy(&unknown.stderr);
    assert!(["no image `nosuch`", "allgather", "./nosuch"].iter().all(|word| stderr.contains(word)), "{stderr}");
}
