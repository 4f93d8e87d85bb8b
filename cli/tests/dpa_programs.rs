//! Programs for the DPA as others write them: built by the driver `flexcast dpacc` against the SDK that it writes, and
//! run on the emulated card with something at the free end of its cable. Without compilers these tests are skipped, and
//! say so on stderr.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use std::time::Duration;

use crate::harness::{installed, skipped};
use crate::processes::{libraries, until};

/// Longest that a program may run; it needs a second or two.
const BOUND: Duration = Duration::from_secs(120);

const HOST_COMPILER: (&str, &str) = ("gcc", "gcc");
const DEVICE_COMPILER: (&str, &str) = ("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf");

fn flexcast_command() -> Command {
    Command::new(env!("CARGO_BIN_EXE_flexcast"))
}

fn workspace_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dpa_programs").join(name);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

fn execute(command: &mut Command) -> (bool, String) {
    let output = command.output().expect("it starts");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn succeeds(command: &mut Command) -> String {
    let (success, text) = execute(command);
    assert!(success, "{text}");
    text
}

/// Runs a command, which is ended if it does not end within the bound.
fn execute_within_bound(command: &mut Command, folder: &Path) -> (Option<i32>, String) {
    let file = |name: &str| File::create(folder.join(name)).expect("a file for the output");
    let mut child = command.stdout(file("stdout")).stderr(file("stderr")).spawn().expect("it starts");
    let text = || ["stdout", "stderr"].map(|name| read_lossy(&folder.join(name))).concat();
    let ended = catch_unwind(AssertUnwindSafe(|| {
        until("the end of the program", BOUND, || child.try_wait().expect("a child"))
    }));
    let status = ended.unwrap_or_else(|_| {
        let _ = child.kill();
        let _ = child.wait();
        panic!("still running after {BOUND:?}:\n{}", text())
    });
    (status.code(), text())
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).expect("the output")).into_owned()
}

/// The SDK, written once for all programs.
fn sdk() -> &'static Path {
    static SDK: OnceLock<PathBuf> = OnceLock::new();
    SDK.get_or_init(|| {
        let sdk = scratch("sdk");
        succeeds(flexcast_command().args(["dpacc", "--emu-libs"]).arg(libraries()).arg("--sdk").arg(&sdk));
        sdk
    })
}

/// The reflector as most tests run it, built once.
fn reflector() -> Option<&'static Path> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    BUILT.get_or_init(|| build("reflector", "_shared", "", &[])).as_deref()
}

/// Both sides of the program `app` that docs/porting.md shows.
fn of_the_guide() -> [(&'static str, String); 2] {
    let guide = std::fs::read_to_string(workspace_root().join("docs/porting.md")).expect("the guide");
    [("app_device.c", "/* device.c */"), ("app_host.c", "/* host.c */")].map(|(file, begin)| {
        let (_, code) = guide.split_once(begin).expect("the program");
        (file, code.split("```").next().unwrap_or_default().to_owned())
    })
}

/// Builds `tests/c/dpa/NAME_*.c`; `None` without compilers. Sources and temporary files are at places that have to be
/// quoted.
fn build(name: &str, variant: &str, device_options: &str, host_options: &[&str]) -> Option<PathBuf> {
    let both = [HOST_COMPILER, DEVICE_COMPILER].into_iter().all(|(program, package)| installed(program, package));
    if !both {
        return None;
    }
    let folder = scratch(&format!("{name}{variant}"));
    let (sources, temporary) = (folder.join("it's a source"), folder.join("\"the\\temporary\" files"));
    for folder in [&sources, &temporary] {
        std::fs::create_dir_all(folder).expect("the folder can be made");
    }
    for entry in std::fs::read_dir(workspace_root().join("tests/c/dpa")).expect("the sources") {
        let entry = entry.expect("a source");
        std::fs::copy(entry.path(), sources.join(entry.file_name())).expect("a copy");
    }
    for (file, code) in of_the_guide() {
        std::fs::write(sources.join(file), code).expect("the guide's program");
    }
    let sdk = sdk();
    let archive = folder.join("device.a");
    let driver = Command::new(sdk.join("bin/dpacc"))
        .arg(sources.join(format!("{name}_device.c")))
        .arg(format!("-devicecc-options=-Wall,-Wextra,-DFLEXIO_DEV_ALLOW_EXPERIMENTAL_API{device_options}"))
        .args(["-flto", &format!("--app-name={name}"), "-o"])
        .arg(&archive)
        .env("TMPDIR", &temporary)
        .output()
        .expect("the driver starts");
    assert!(driver.status.success(), "{}", String::from_utf8_lossy(&driver.stderr));
    let program = folder.join(name);
    let host = ["c", "cpp"].map(|language| sources.join(format!("{name}_host.{language}")));
    let host = host.iter().find(|source| source.exists()).expect("the host's source");
    // gcc takes the language from the name of the file; C++ has a library of its own.
    let is_cpp = host.extension().is_some_and(|language| language == "cpp");
    let (standard, library) = if is_cpp { ("-std=gnu++17", "-lstdc++") } else { ("-std=gnu11", "-lc") };
    let mut compile = Command::new(HOST_COMPILER.0);
    compile
        .args([standard, "-O1", "-Wall", "-Wextra", "-Werror"])
        .args(host_options)
        .arg("-I")
        .arg(sdk.join("include"));
    compile.arg("-I").arg(workspace_root().join("host/verbs-sys/include"));
    compile.arg("-DDOCA_ALLOW_EXPERIMENTAL_API").arg(host).arg(&archive).arg("-o").arg(&program);
    compile.arg("-L").arg(sdk.join("lib"));
    if name == "doca" {
        compile.args(["-ldoca_common", "-ldoca_dpa", "-ldoca_rdma", "-ldoca_argp"]);
    }
    succeeds(compile.args(["-lflexio", "-libverbs", "-lmlx5", library]));
    Some(program)
}

/// Runs a program on a machine of this description: its exit code, and what it printed.
fn run(program: &Path, machine: &str, arguments: &[&str]) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("machine.toml");
    std::fs::write(&file, machine).expect("the machine file");
    let mut command = flexcast_command();
    command.args(["emu", "exec", "--libs"]).arg(libraries()).arg("--machine").arg(&file).arg("--").arg(program);
    execute_within_bound(command.args(arguments), folder.path())
}

/// Sends frames to the reflector through a tap device, and counts those that come back.
const THROUGH_TAP: &str = r#"
import socket, sys, time
name, wanted, end = sys.argv[1], int(sys.argv[2]), time.time() + 60
ours, reflector = bytes.fromhex('020000000001'), bytes.fromhex('020000000077')
while True:
    try:
        tap = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88B5))
        tap.bind((name, 0))
        break
    except OSError:
        if time.time() > end:
            sys.exit('no interface ' + name)
        time.sleep(0.02)
returned = 0
def receive(seconds):
    global returned
    tap.settimeout(seconds)
    try:
        frame = tap.recv(2000)
    except (TimeoutError, OSError):
        return False
    returned += frame[:6] == ours and frame[6:12] == reflector
    return True
def send():
    try:
        tap.send(reflector + ours + bytes.fromhex('88b5') + bytes(46))
    except OSError:
        time.sleep(0.02)
# Until the steering rule is there, frames are dropped. Those under way then come back.
while returned == 0 and time.time() < end:
    send()
    receive(0.05)
while receive(0.3):
    pass
while returned < wanted and time.time() < end:
    send()
    if not receive(5):
        break
print(returned)
"#;

/// Whether this user may make tap devices.
fn may_tap() -> bool {
    let made = Command::new("ip").args(["tuntap", "add", "dev", "fcprobe", "mode", "tap"]).output();
    let made = made.is_ok_and(|output| output.status.success());
    if made {
        succeeds(Command::new("ip").args(["tuntap", "del", "dev", "fcprobe", "mode", "tap"]));
    } else {
        skipped("no tap device can be made here: it needs `ip` and the right to administer networks");
    }
    made
}

/// A socket of the computer on one side, a steering rule of the card on the other.
#[test]
fn frames_of_a_tap_device_reach_the_card_and_come_back() {
    if !may_tap() {
        return;
    }
    let Some(program) = reflector() else { return };
    let name = format!("fc{}", std::process::id());
    let mut computer = Command::new("python3");
    computer.args(["-c", THROUGH_TAP, &name, "40"]).stdout(std::process::Stdio::piped());
    let computer = computer.spawn().expect("python3 starts");
    let (code, text) = run(program, &format!("[tap]\ninterface = \"{name}\"\n"), &["40"]);
    let returned = computer.wait_with_output().expect("it ends");
    assert!(code == Some(0) && text.contains("the reflector ends well"), "{text}");
    assert_eq!(String::from_utf8_lossy(&returned.stdout).trim(), "40", "{text}");
}

/// Two generations of the interface of each side; frames without a VLAN tag by IPv4, and with one by IPv6.
#[test]
fn a_reflector_of_each_generation_sends_every_frame_back() {
    for (variant, device, host, traffic, noticed) in [
        (
            "",
            "",
            ["-DRELEASE_26_4"].as_slice(),
            "frame_bytes = 64",
            "40 frames: 0 with a VLAN tag, 0 with a wrong checksum",
        ),
        (
            "_context_first",
            ",-DCONTEXT_FIRST",
            &[],
            "frame_bytes = 1518\nvlan = 7\nips = [\"2001:db8::1\", \"2001:db8::2\"]",
            "40 frames: 40 with a VLAN tag, 0 with a wrong checksum",
        ),
    ] {
        let Some(program) = build("reflector", variant, device, host) else { return };
        let report = program.with_extension("json");
        let machine = format!(
            "[generator]\nframes = 40\nin_flight = 4\n{traffic}\nmacs = [\"02:00:00:00:00:01\", \
             \"02:00:00:00:00:77\"]\nreport = {report:?}\n"
        );
        let (code, text) = run(&program, &machine, &["40"]);
        assert_eq!(code, Some(0), "{text}");
        assert!(text.contains(noticed), "{text}");
        assert!(text.contains("the reflector ends well"), "{text}");
        let report: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&report).expect("the report")).expect("JSON");
        let count = |name: &str| report[name].as_u64().unwrap_or(u64::MAX);
        assert_eq!(["sent", "returned", "lost", "others"].map(count), [40, 40, 0, 0], "{report}");
    }
}

#[test]
fn the_smallest_program_is_the_one_of_the_guide() {
    let Some(program) = build("app", "", "", &[]) else { return };
    let (code, text) = run(&program, "", &[]);
    assert_eq!((code, text.as_str()), (Some(0), "5\n"));
}

/// The guide's program in two parts: its entry is in an object, which calls a function of another.
#[test]
fn sources_are_compiled_by_calls_of_their_own_and_linked_by_a_last_one() {
    if ![HOST_COMPILER, DEVICE_COMPILER].into_iter().all(|(program, package)| installed(program, package)) {
        return;
    }
    let folder = scratch("objects");
    let [(_, device), (_, host)] = of_the_guide();
    let (own, call) = ("return left + right;", "return sum(left, right);");
    assert!(device.contains(own), "{device}");
    let calls = format!("unsigned long sum(unsigned long, unsigned long);\n{}", device.replace(own, call));
    let sum = "unsigned long sum(unsigned long, unsigned long);\nunsigned long sum(unsigned long left, unsigned long \
               right)\n{\n\treturn left + right;\n}\n";
    for (file, text) in [("calls.c", &*calls), ("sum.c", sum), ("host.c", &host), ("text.o", "no object")] {
        std::fs::write(folder.join(file), text).expect("a source");
    }
    let dpacc = |arguments: &[&str]| {
        execute(
            Command::new(sdk().join("bin/dpacc"))
                .args(arguments)
                .arg("-devicecc-options=-Wall,-Wextra,-Wmissing-prototypes,-Werror")
                .current_dir(&folder),
        )
    };
    let (success, text) = dpacc(&["-c", "calls.c", "sum.c"]);
    assert!(success && text.contains("-Werror has no effect") && !text.contains("__dpacc_unpack"), "{text}");
    let (success, text) = dpacc(&["calls.dpa.o", "sum.dpa.o", "--app-name=app", "-o", "device.a"]);
    assert!(success, "{text}");
    let mut compile = Command::new(HOST_COMPILER.0);
    compile.args(["host.c", "device.a", "-o", "app", "-I"]).arg(sdk().join("include"));
    compile.arg("-I").arg(workspace_root().join("host/verbs-sys/include")).arg("-L").arg(sdk().join("lib"));
    succeeds(compile.args(["-lflexio", "-libverbs", "-lmlx5"]).current_dir(&folder));
    let (code, text) = run(&folder.join("app"), "", &[]);
    assert_eq!((code, text.as_str()), (Some(0), "5\n"));

    succeeds(Command::new(HOST_COMPILER.0).args(["-c", "sum.c", "-o", "host.o"]).current_dir(&folder));
    for (arguments, reason) in [
        (["calls.dpa.o", "calls.dpa.o", "-o", "x.a"].as_slice(), "add is an entry of two sources"),
        (&["sum.dpa.o", "-o", "x.a"], "no entry: no function of the sources is marked"),
        (&["text.o", "-o", "x.a"], "text.o: it is no object for the DPA"),
        (&["host.o", "-o", "x.a"], "host.o: it is no object for the DPA"),
        (&["none.o", "-o", "x.a"], "reading none.o"),
        (&["-c", "calls.c", "sum.c", "-o", "x.o"], "-o names one object, and -c has 2 sources"),
        (&["-c", "calls.c", "./calls.c"], "calls.dpa.o would be the object of two sources"),
        (&["-c", "sum.dpa.o"], "-c compiles sources, and this is an object"),
        (&["-c", "sum.c", "-o", "sum.c"], "-o is sum.c, which is an input"),
    ] {
        let (success, text) = dpacc(arguments);
        assert!(!success && text.contains(reason), "{arguments:?}: {text}");
    }
}

/// A program for an SDK before 24.10, which names no version.
#[test]
fn an_sdk_of_an_older_release_has_its_interface_for_programs_that_name_none() {
    if !installed(DEVICE_COMPILER.0, DEVICE_COMPILER.1) {
        return;
    }
    let folder = scratch("older");
    let code = "#include <libflexio-dev/flexio_dev.h>\n#include <libflexio-dev/flexio_dev_queue_access.h>\n\
        __dpa_rpc__ uint64_t ring(uint64_t number)\n{\n\tstruct flexio_dev_thread_ctx *context;\n\n\
        \tflexio_dev_get_thread_ctx(&context);\n\tflexio_dev_qp_sq_ring_db(context, 1, number);\n\treturn 0;\n}\n";
    let newer = format!("#define FLEXIO_DEV_VER_USED 0x1a040000\n{}", code.replace("context, 1", "1"));
    for (file, text) in [("older.c", code), ("newer.c", &newer)] {
        std::fs::write(folder.join(file), text).expect("a source");
    }
    let older = folder.join("sdk");
    let mut write = flexcast_command();
    write.args(["dpacc", "--emu-libs"]).arg(libraries()).args(["--dev-ver", "24.7", "--sdk"]);
    succeeds(write.arg(&older));
    for (sdk, source, compiles) in
        [(&*older, "older.c", true), (&older, "newer.c", true), (sdk(), "older.c", false), (sdk(), "newer.c", true)]
    {
        let mut driver = Command::new(sdk.join("bin/dpacc"));
        let (success, text) = execute(driver.args(["-c", source]).current_dir(&folder));
        assert_eq!(success, compiles, "{} {source}: {text}", sdk.display());
    }
}

/// Programs in the manner of others: a command queue with workers, a micro-benchmark of memory, copies through a window
/// by a host in C++, and frames that are printed.
#[test]
fn small_programs_of_each_kind_end_well() {
    let frames = "[generator]\nframes = 8\nin_flight = 8\nframe_bytes = 100\n";
    for (name, machine, arguments, prints) in [
        ("tasks", "", [].as_slice(), ["the tasks end well"].as_slice()),
        ("walker", "[timing]\nmodel = \"m2\"\n", &[], &["3000 steps of ", "the walker ends well"]),
        ("copier", "", &[], &["copied 1000 bytes of the host", "and one line for stream 1", "the copier ends well"]),
        ("printer", frames, &["8"], &["96 bytes to port 4001", "the printer ends well"]),
    ] {
        let Some(program) = build(name, "", "", &[]) else { return };
        let (code, text) = run(&program, machine, arguments);
        assert_eq!(code, Some(0), "{name}: {text}");
        for part in prints {
            assert!(text.contains(part), "{name}: no {part:?} in\n{text}");
        }
        if name == "printer" {
            assert_eq!(text.matches("bytes to port").count(), 8, "{text}");
        }
    }
}

/// Stores that are seen late and out of order, by several seeds, and no race for memory: users copy this program. More
/// frames than the receive ring has entries, as many in flight.
#[test]
fn the_reflector_needs_no_luck_with_memory() {
    let Some(program) = reflector() else { return };
    for seed in 1..5 {
        let machine = format!(
            "detect_races = true\n[memory]\nmodel = \"weak\"\nseed = {seed}\n[generator]\nframes = 100\nin_flight = \
             16\nmacs = [\"02:00:00:00:00:01\", \"02:00:00:00:00:77\"]\n"
        );
        let (code, text) = run(program, &machine, &["100"]);
        assert_eq!(code, Some(0), "seed {seed}: {text}");
        assert!(text.contains("100 frames: 0 with a VLAN tag, 0 with a wrong checksum"), "seed {seed}: {text}");
        assert!(!text.contains("has dropped"), "seed {seed}: {text}");
    }
}

/// A part of the program for DOCA DPA, on the machine of a file where one is named; `None` without compilers.
fn doca_on(machine: Option<&Path>, arguments: &[&str]) -> Option<(bool, String)> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let program = BUILT.get_or_init(|| build("doca", "", "", &[])).as_ref()?;
    // Parts may run at the same time: each has a machine of its own.
    let mut command = flexcast_command();
    command.args(["emu", "exec", "--libs"]).arg(libraries());
    if let Some(machine) = machine {
        command.arg("--machine").arg(machine);
    }
    Some(execute(command.arg("--").arg(program).args(arguments)))
}

fn doca(arguments: &[&str]) -> Option<(bool, String)> {
    doca_on(None, arguments)
}

#[test]
fn kernels_of_doca_are_called_and_launched_with_events_before_and_behind() {
    let Some((success, text)) = doca(&["calls"]) else { return };
    assert!(success && text.contains("the program ends well"), "{text}");
    assert!(text.contains("an error of add_up\n") && !text.contains("nobody reads this"), "{text}");
}

#[test]
fn messages_over_two_connections_start_a_thread_of_doca_and_that_another() {
    let Some((success, text)) = doca(&["rdma"]) else { return };
    assert!(success && text.contains("the program ends well"), "{text}");
}

/// The device library has its fences, and what the host orders is no race.
#[test]
fn kernels_of_doca_run_without_races_on_weak_memory() {
    let machine = scratch("doca_weak").join("machine.toml");
    std::fs::write(&machine, "detect_races = true\n[memory]\nmodel = \"weak\"\nseed = 1\n").expect("the machine file");
    for part in ["calls", "rdma"] {
        let Some((success, text)) = doca_on(Some(&machine), &[part]) else { return };
        assert!(success && text.contains("the program ends well") && !text.contains("race:"), "{text}");
    }
}

#[test]
fn a_program_may_fork_before_it_asks_for_a_card() {
    let Some((ok, text)) = doca(&["children"]) else { return };
    assert!(ok && text.contains("the program ends well"), "{text}");
}

#[test]
fn a_kernel_that_dies_leaves_nothing_that_cannot_be_ended() {
    let Some((ok, text)) = doca(&["death"]) else { return };
    assert!(ok && text.contains("all ended"), "{text}");
}

#[test]
fn what_doca_does_not_have_and_calls_in_the_wrong_order_are_refused_with_a_reason() {
    let Some((success, text)) = doca(&["refusals"]) else { return };
    assert!(success && text.contains("all refused"), "{text}");
    for reason in [
        "doca_dpa_start: it has no application: call doca_dpa_set_app first",
        "doca_dpa_mem_alloc: the DPA context is not started",
        "doca_dpa_create: 0x0 is not a live device",
        "num_threads is 129: 1 to 128 are possible",
        "is not the key of a function registered with this application",
        "doca_sync_event_destroy: kernels that were launched with it have not ended",
        "doca_dpa_device_extend: a DPA context on a second device is not emulated",
        "doca_rdma_set_transport_type: dynamically connected transport is not emulated",
        "flexio_resources_create: files of dpa-resource-mgmt are not read",
        "doca_dpa_dev_rdma_post_send: there is no connection of this number\n",
        "doca_sync_event_wait_gt: process 1 has stopped",
    ] {
        assert!(text.contains(reason), "{reason}: {text}");
    }
}

#[test]
fn dropped_frames_are_reported_at_the_end() {
    let Some(program) = reflector() else { return };
    // To another address than the one that steering takes.
    let machine = "[generator]\nframes = 60\ngbit_per_s = 1.0\nmacs = [\"02:00:00:00:00:01\", \"02:00:00:00:00:78\"]\n";
    let (code, text) = run(program, machine, &["0"]);
    assert_eq!(code, Some(0), "{text}");
    let line = text.lines().find(|line| line.contains("mlx5_0 has dropped frames")).expect("a line");
    assert!(line.contains("for which no steering rule led to a receive queue (steering_drops)"), "{line}");
    assert_eq!(text.matches("has dropped").count(), 1, "{text}");
}

#[test]
fn log_messages_have_levels_and_command_lines_are_read_as_doca_does() {
    for (line, said) in [
        (
            &["-nm", "abc", "--number=5", "-f", "-s", "0.25", "-l", "60"][..],
            &["DOCA_SUCCESS: abc 5 1 0.25", "[DOCA][DBG][TESTS::DOCA:", "[arguments] verbose"][..],
        ),
        (&["--number", "5"], &["DOCA_ERROR_INVALID_VALUE", "-nm, --name is mandatory", "--share <value>"]),
        (&["-nm", "x", "-n", "five"], &["-n, --number five: an integer of 32 bits is needed"]),
        (&["-nm", "x", "-n", "-5"], &["DOCA_ERROR_TOO_BIG", "the program's own callback refuses"]),
        (&["-nm", "wrong"], &["DOCA_ERROR_BAD_CONFIG", "refuses the configuration"]),
        (&["-nm", "x", "--none"], &["--none is no flag of this program"]),
        (&["--version", "-nm", "x"], &["version 5"]),
        (&["--help"], &["Usage: arguments [DOCA Flags] [Program Flags]", "What it is"]),
    ] {
        let Some((success, text)) = doca(&[&["arguments"], line].concat()) else { return };
        assert!(success, "{text}");
        assert!(said.iter().all(|said| text.contains(said)), "{said:?}: {text}");
        assert!(text.contains("[WRN][TESTS::DOCA:") && text.contains("to the buffer"), "{text}");
    }
}
