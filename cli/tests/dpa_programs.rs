//! Programs for the DPA as others write them: built by the driver `flexcast dpacc` against the SDK that it writes, and
//! run on the emulated card with something at the free end of its cable. Without compilers these tests are skipped, and
//! say so on stderr.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use crate::harness::installed;
use crate::processes::libraries;

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

/// Builds `tests/c/dpa/NAME_*.c`; `None` without compilers.
fn build(name: &str, variant: &str, device_options: &str) -> Option<PathBuf> {
    let both = [HOST_COMPILER, DEVICE_COMPILER].into_iter().all(|(program, package)| installed(program, package));
    if !both {
        return None;
    }
    let (folder, sources) = (scratch(&format!("{name}{variant}")), workspace_root().join("tests/c/dpa"));
    let sdk = folder.join("sdk");
    succeeds(flexcast_command().args(["dpacc", "--emu-libs"]).arg(libraries()).arg("--sdk").arg(&sdk));
    let archive = folder.join("device.a");
    let driver = Command::new(sdk.join("bin/dpacc"))
        .arg(sources.join(format!("{name}_device.c")))
        .arg(format!("-devicecc-options=-Wall,-Wextra,-DFLEXIO_DEV_ALLOW_EXPERIMENTAL_API{device_options}"))
        .args(["-flto", &format!("--app-name={name}"), "-o"])
        .arg(&archive)
        .output()
        .expect("the driver starts");
    assert!(driver.status.success(), "{}", String::from_utf8_lossy(&driver.stderr));
    let program = folder.join(name);
    let mut compile = Command::new(HOST_COMPILER.0);
    compile.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-I"]).arg(sdk.join("include"));
    compile.arg("-I").arg(workspace_root().join("host/verbs-sys/include"));
    compile.arg("-DDOCA_ALLOW_EXPERIMENTAL_API").arg(sources.join(format!("{name}_host.c"))).arg(&archive);
    compile.arg("-o").arg(&program).arg("-L").arg(sdk.join("lib"));
    let doca = ["-ldoca_common", "-ldoca_dpa", "-ldoca_rdma", "-ldoca_argp"];
    succeeds(compile.args(["-lflexio", "-libverbs", "-lmlx5"]).args(doca));
    Some(program)
}

/// Runs a program on a machine of this description.
fn run(program: &Path, machine: &str, arguments: &[&str]) -> (bool, String) {
    let file = program.with_extension("toml");
    std::fs::write(&file, machine).expect("the machine file");
    let mut command = flexcast_command();
    command.args(["emu", "exec", "--libs"]).arg(libraries()).arg("--machine").arg(&file).arg("--").arg(program);
    execute(command.args(arguments))
}

/// Both generations of the device interface; frames without a VLAN tag by IPv4, and with one by IPv6.
#[test]
fn a_reflector_of_each_generation_sends_every_frame_back() {
    for (variant, options, traffic, noticed) in [
        ("", "", "frame_bytes = 64", "40 frames: 0 with a VLAN tag, 0 with a wrong checksum"),
        (
            "_context_first",
            ",-DCONTEXT_FIRST",
            "frame_bytes = 1518\nvlan = 7\nips = [\"2001:db8::1\", \"2001:db8::2\"]",
            "40 frames: 40 with a VLAN tag, 0 with a wrong checksum",
        ),
    ] {
        let Some(program) = build("reflector", variant, options) else { return };
        let report = program.with_extension("json");
        let machine = format!(
            "[generator]\nframes = 40\nin_flight = 4\n{traffic}\nmacs = [\"02:00:00:00:00:01\", \
             \"02:00:00:00:00:77\"]\nreport = {report:?}\n"
        );
        let (success, text) = run(&program, &machine, &["40"]);
        assert!(success, "{text}");
        assert!(text.contains(noticed), "{text}");
        assert!(text.contains("the reflector ends well"), "{text}");
        let report: serde_json::Value =
            serde_json::from_str(&std::fs::read_to_string(&report).expect("the report")).expect("JSON");
        let count = |name: &str| report[name].as_u64().unwrap_or(u64::MAX);
        assert_eq!(["sent", "returned", "lost", "others"].map(count), [40, 40, 0, 0], "{report}");
    }
}

/// A part of the program for DOCA DPA, on the machine of a file where one is named; `None` without compilers.
fn doca_on(machine: Option<&Path>, arguments: &[&str]) -> Option<(bool, String)> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let program = BUILT.get_or_init(|| build("doca", "", "")).as_ref()?;
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
        "flexio_resources_create: files of execution units are not emulated",
        "doca_dpa_dev_rdma_post_send: there is no connection of this number\n",
        "doca_sync_event_wait_gt: process 1 has stopped",
    ] {
        assert!(text.contains(reason), "{reason}: {text}");
    }
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
