//! Programs for the DPA as others write them: built by the driver `flexcast dpacc` against the SDK that it writes, and
//! run on the emulated card with something at the free end of its cable. Without compilers these tests are skipped, and
//! say so on stderr.

use std::path::{Path, PathBuf};
use std::process::Command;

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
fn build(name: &str, variant: &str, device_options: &str, host_options: &[&str]) -> Option<PathBuf> {
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
    compile
        .args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror"])
        .args(host_options)
        .arg("-I")
        .arg(sdk.join("include"));
    compile.arg("-I").arg(workspace_root().join("host/verbs-sys/include"));
    compile.arg(sources.join(format!("{name}_host.c"))).arg(&archive).arg("-o").arg(&program);
    succeeds(compile.arg("-L").arg(sdk.join("lib")).args(["-lflexio", "-libverbs", "-lmlx5"]));
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
