//! Programs in C, compiled by gcc against our headers and linked to the emulator's `libflexio.so`, and what that
//! library exports. Without a C compiler these tests are skipped, and say so on stderr.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use flexcast_lab::pingpong::ping;
use flexcast_lab::tput::run::bring_up;
use flexcast_tests::examples::compiler;
use flexcast_tests::harness::{installed, skipped};
use flexcast_tests::libs::{libraries, wait_for};
use flexcast_tests::{image_bytes, image_path, workspace_root};
use flexio::{AbiExpectation, Application, Process, ProtectionDomain, Provider};
use object::{Object as _, ObjectSymbol as _};

/// Longest that a program may take; it needs a fraction of a second.
const PROGRAM_BOUND: Duration = Duration::from_secs(60);

/// Headers of the ABIs, and what their functions begin with.
const HEADERS: [(&str, &str); 5] = [
    ("host/flexio-sys/include/libflexio/flexio.h", "flexio_"),
    ("host/verbs-sys/include/infiniband/verbs.h", "ibv_"),
    ("host/verbs-sys/include/infiniband/mlx5dv.h", "mlx5dv_"),
    ("host/doca-sys/include/doca_dev.h", "doca_"),
    ("emu/libflexio/include/flexcast_emu.h", "flexcast_emu_"),
];

const INCLUDES: [&str; 4] =
    ["host/flexio-sys/include", "host/verbs-sys/include", "host/doca-sys/include", "emu/libflexio/include"];

/// A folder for the products of one test.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("c_client").join(name);
    std::fs::create_dir_all(&folder).expect("the folder can be made");
    folder
}

fn compile(compiler: &str, name: &str, more: &[&str]) -> PathBuf {
    compile_to(compiler, name, name, more)
}

/// Compiles into a folder of its own, for a test that runs concurrently with others of the same program.
fn compile_to(compiler: &str, name: &str, folder: &str, more: &[&str]) -> PathBuf {
    let root = workspace_root();
    let program = scratch(folder).join(name);
    let mut command = Command::new(compiler);
    command.args(["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    command.args(INCLUDES.iter().map(|folder| format!("-I{}", root.join(folder).display())));
    command.arg(root.join("tests/c").join(format!("{name}.c"))).arg("-L").arg(libraries()).args(more);
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{name}.c:\n{}", String::from_utf8_lossy(&output.stderr));
    program
}

/// Runs a program on the emulator's libraries; stdout and stderr.
fn run(program: &Path, arguments: &[&str]) -> (ExitStatus, String, String) {
    let folder = program.parent().expect("a program lies in a folder");
    let [out, err] = ["stdout", "stderr"].map(|name| folder.join(name));
    let file = |path: &Path| File::create(path).expect("a file for the output");
    let mut child = Command::new(program)
        .args(arguments)
        .env("LD_LIBRARY_PATH", libraries())
        .current_dir(folder)
        .stdin(Stdio::null())
        .stdout(file(&out))
        .stderr(file(&err))
        .spawn()
        .expect("the program starts");
    let status = wait_for(&mut child, PROGRAM_BOUND);
    let status = status.unwrap_or_else(|| panic!("{} still runs after {PROGRAM_BOUND:?}", program.display()));
    let read = |path: &Path| String::from_utf8_lossy(&std::fs::read(path).expect("the output")).into_owned();
    (status, read(&out), read(&err))
}

/// Compiles `tests/c/<name>.c`, runs it twice, and compares what it prints with `tests/c/<name>.txt`; what it explained
/// on stderr.
fn golden(name: &str, libraries: &[&str], arguments: &[&str]) -> Option<String> {
    let program = compile(compiler()?, name, libraries);
    let recorded = workspace_root().join("tests/c").join(format!("{name}.txt"));
    let (status, printed, explained) = run(&program, arguments);
    assert!(status.success(), "{name}: {status}\n{explained}{printed}");
    let expected = std::fs::read_to_string(&recorded).unwrap_or_default();
    assert!(printed == expected, "{name} printed something else than {}:\n{printed}", recorded.display());
    assert_eq!(run(&program, arguments).1, expected, "a second run prints the same");
    Some(explained)
}

#[test]
fn a_program_for_flexio_runs_from_opening_to_closing() {
    let image = image_path("pingpong");
    let hash = format!("{:x}", flexcast_abi::ABI_HASH);
    let arguments = [image.to_str().expect("a path in UTF-8"), &hash];
    let libraries = ["-lflexio", "-libverbs", "-lmlx5", "-ldoca_common"];
    if let Some(explained) = golden("pingpong", &libraries, &arguments) {
        assert_eq!(explained, "", "nothing was refused");
    }
}

/// A program that knows nothing of it is inspected, by environment variables.
#[test]
fn the_environment_asks_for_state_and_timeline() {
    let image = image_path("pingpong");
    let hash = format!("{:x}", flexcast_abi::ABI_HASH);
    let libraries_used = ["-lflexio", "-libverbs", "-lmlx5", "-ldoca_common"];
    let Some(compiler) = compiler() else { return };
    let program = compile_to(compiler, "pingpong", "inspected", &libraries_used);
    let folder = program.parent().expect("a folder");
    let [state, trace] = ["state.json", "trace.json"].map(|name| folder.join(name));
    let run = |every: &str| {
        let mut command = Command::new(&program);
        command.arg(&image).arg(&hash).env("LD_LIBRARY_PATH", libraries()).stdin(Stdio::null());
        command.env("FLEXCAST_STATE", &state).env("FLEXCAST_TRACE", &trace).env("FLEXCAST_STATE_EVERY", every);
        command.output().expect("the program starts")
    };
    let output = run("10");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let state = emu_observe::state::State::read(&state).expect("a state file");
    let process = &state.cards[0].processes[0];
    assert!(!process.program.is_empty() && process.threads.iter().any(|thread| thread.executions > 0), "{state:?}");
    let trace: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&trace).expect("a timeline")).expect("one JSON value");
    let counts = &trace["otherData"]["summary"]["counts"];
    assert!(counts["activations"].as_u64() > Some(0) && counts["completion entries"].as_u64() > Some(0), "{counts}");
    let refused = run("soon");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("FLEXCAST_STATE_EVERY is `soon`"));
}

#[test]
fn what_is_wrong_or_absent_is_refused_with_a_reason() {
    let image = image_path("pingpong");
    let Some(explained) = golden("refusals", &["-lflexio"], &[image.to_str().expect("a path in UTF-8")]) else {
        return;
    };
    for reason in [
        "flexio_process_call: 0x0 is not a live process",
        "flexio_rq_create: wq_ring_qmem: 256 bytes at 0x0 are not memory of the process",
        "flexio_cmdq_create: workers is 0",
        "flexio_coredump_create: `no/such/folder/core.001.core` cannot be written",
        "flexio_process_error_handler_set: error handlers on the device are not emulated",
        "flexio_resources_create: files of dpa-resource-mgmt are not read",
        "flexio_version_set: version 24.4.0 after flexio_process_create",
        "flexio_process_create: programmable congestion control is not emulated",
        "flexio_uar_extend: extending a UAR to another function is not emulated",
        "affinity type 2",
        "make UD and UC ones with mlx5dv_devx_obj_create",
        "the image has no symbol no_such_rpc",
        "the DPA heap has no 268435457 bytes left",
        "execution unit 999 is reserved or absent",
        "objects of the process still exist (2): destroy them first",
        "processes of the application still exist (1): destroy them first",
    ] {
        assert!(explained.contains(reason), "no {reason:?} in\n{explained}");
    }
}

/// Functions that a header declares: names before a parenthesis, outside comments, macros and inline bodies.
/// The example in C, host and device side, as its README runs it.
#[test]
fn the_example_in_c_answers() {
    let Some(compiler) = compiler() else { return };
    if !installed("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf") || !installed("make", "make") {
        return;
    }
    let out = scratch("example");
    let output = Command::new("make")
        .args(["-B", "all"])
        .args([format!("CC={compiler}"), format!("LIBS={}", libraries().display()), format!("OUT={}", out.display())])
        .current_dir(workspace_root().join("examples/c"))
        .output()
        .expect("make starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let device = out.join("device.elf");
    let (status, printed, explained) = run(&out.join("host"), &[&device.to_string_lossy(), "ab", "", "xyz"]);
    assert!(status.success(), "{status}\n{explained}{printed}");
    let lines: Vec<&str> = printed.lines().collect();
    assert!(lines[0].starts_with("checksum: 8 receives of 256 bytes on queue pair 0x"), "{printed}");
    assert_eq!(lines[1..], ["\"ab\": 195", "\"\": 0", "\"xyz\": 363"]);
}

fn declared(header: &str, prefix: &str) -> BTreeSet<String> {
    let mut text = String::new();
    let mut rest = header;
    while let Some((before, comment)) = rest.split_once("/*") {
        text.push_str(before);
        rest = comment.split_once("*/").map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    let mut inline = false;
    let mut names = BTreeSet::new();
    for line in text.lines() {
        inline |= line.starts_with("static inline");
        if !inline && !line.starts_with('#') && !line.starts_with("typedef") {
            for (at, _) in line.match_indices('(') {
                let name = line[..at].rsplit(|c: char| !c.is_ascii_alphanumeric() && c != '_').next().unwrap_or("");
                names.extend(name.starts_with(prefix).then(|| name.to_owned()));
            }
        }
        inline &= line != "}";
    }
    names
}

/// Names of the functions that a shared library exports.
fn exported(library: &Path) -> BTreeSet<String> {
    let bytes = std::fs::read(library).expect("the library can be read");
    let library = object::File::parse(&*bytes).expect("an ELF");
    library
        .dynamic_symbols()
        .filter(|symbol| symbol.is_definition() && symbol.is_global())
        .map(|symbol| symbol.name().expect("a name").to_owned())
        .collect()
}

#[test]
fn the_library_exports_what_the_headers_declare_and_nothing_else() {
    if compiler().is_none() {
        return;
    }
    let exported = exported(&libraries().join("libflexio.so"));
    for (header, prefix) in HEADERS {
        let text = std::fs::read_to_string(workspace_root().join(header)).expect("the header");
        let declared = declared(&text, prefix);
        assert!(declared.len() > 1, "{header} declares {declared:?}");
        let missing: Vec<_> = declared.difference(&exported).collect();
        assert!(missing.is_empty(), "libflexio.so lacks functions of {header}: {missing:?}");
    }
    // Verbs are exported as rdma-core has them: each name that is more than the headers declare is listed with its
    // version.
    let versions = std::fs::read_to_string(workspace_root().join("emu/libflexio/link.map")).expect("the list");
    let listed: BTreeSet<&str> = versions.split([' ', '\t', '\n', ';']).collect();
    let foreign: Vec<_> = exported
        .iter()
        .filter(|name| !HEADERS.iter().any(|(_, prefix)| name.starts_with(prefix)) && !listed.contains(name.as_str()))
        .collect();
    assert!(foreign.is_empty(), "libflexio.so exports {foreign:?}");
}

#[test]
fn the_headers_declare_everything_once_for_c_and_cpp() {
    let root = workspace_root();
    for (header, _) in HEADERS {
        let name = header.split_once("/include/").expect("a header in an include folder").1;
        let source = scratch("headers").join(format!("{}.c", name.replace('/', "-")));
        std::fs::write(&source, format!("#include <{name}>\nint main(void) {{ return 0; }}\n")).expect("written");
        for (compiler, language) in [("gcc", ["-xc", "-std=c11"]), ("g++", ["-xc++", "-std=c++11"])] {
            let mut command = Command::new(compiler);
            command.args(["-Wall", "-Wextra", "-Wredundant-decls", "-Werror", "-fsyntax-only"]).args(language);
            command.args(INCLUDES.iter().map(|folder| format!("-I{}", root.join(folder).display()))).arg(&source);
            match command.output() {
                Ok(output) => assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr)),
                Err(_) => skipped(format_args!("{compiler} is not installed (Debian: {compiler})")),
            }
        }
    }
}

#[test]
fn every_name_of_the_library_is_the_same_file() {
    if compiler().is_none() {
        return;
    }
    let folder = libraries();
    let library = folder.join("libflexio.so").canonicalize().expect("the library");
    for name in ["libflexio.so.2", "libibverbs.so", "libibverbs.so.1", "libmlx5.so.1", "libdoca_common.so.2"] {
        assert_eq!(folder.join(name).canonicalize().expect(name), library);
    }
}

/// What `the_system_provider_…` runs in a process of its own, whose dynamic loader finds the library.
#[test]
#[ignore = "needs a process whose loader finds the library: cargo test -p flexcast-tests --test outside \
    c_client::the_system_provider starts it"]
fn pings_through_the_system_provider() {
    let provider = Provider::system().expect("the libraries are on the search path");
    let abi = AbiExpectation { version: flexcast_abi::ABI_VERSION, hash: flexcast_abi::ABI_HASH };
    let elf = image_bytes("pingpong");
    let application = Application::load(&provider, "pingpong", &elf, Some(abi)).expect("the image loads");
    let [server, client] = ["mlx5_0", "mlx5_1"].map(|name| provider.open(name).expect("the card opens"));
    let pd = ProtectionDomain::new(&server).expect("a protection domain");
    let process = Process::new(&application, &pd).expect("a process");
    bring_up(&process).expect("the image answers");
    let pong = ping(&process, &client, &[b"one", &[7; 1000]]).expect("the pings are answered");
    assert!(pong.equal && provider.relax().is_virtual(), "the libraries' cards have the time of the emulator");
    process.check().expect("the process is healthy");
}

#[test]
fn the_system_provider_runs_on_the_library() {
    if compiler().is_none() {
        return;
    }
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "c_client::pings_through_the_system_provider", "--ignored"])
        .env("LD_LIBRARY_PATH", libraries())
        .output()
        .expect("this program starts again");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn declarations_are_reported_from_other_text() {
    let header = "/* ibv_comment(x) */\n#define ibv_macro(x) ibv_other(x)\ntypedef void (ibv_type)(void);\n\
                  static inline int ibv_inline(int a)\n{\n\treturn ibv_called(a);\n}\n\
                  int *ibv_one(int a,\n\tint (*callback)(int));\nvoid ibv_two(void);\n";
    assert_eq!(declared(header, "ibv_").into_iter().collect::<Vec<_>>(), ["ibv_one", "ibv_two"]);
}
