//! Our headers of the vendor's interfaces against what is public of the vendor's: names, types, values and offsets, for
//! each generation of the device interface (`tests/vendor/headers.toml`).

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use flexcast_tests::harness::installed;
use flexcast_tests::workspace_root;
use serde::Deserialize;

const DEVICE_COMPILER: (&str, &str) = ("riscv64-unknown-elf-gcc", "gcc-riscv64-unknown-elf");
const HOST_COMPILER: (&str, &str) = ("gcc", "gcc");

#[derive(Deserialize)]
struct Table {
    device: Side,
    host: Side,
}

/// What one side's headers have.
#[derive(Deserialize)]
struct Side {
    headers: Vec<String>,
    versions: Vec<String>,
    macros: Vec<String>,
    functions: Vec<Function>,
    constants: Vec<Constant>,
    layouts: Vec<Layout>,
}

#[derive(Deserialize)]
struct Function {
    name: String,
    r#type: String,
    #[serde(flatten)]
    when: When,
}

#[derive(Deserialize)]
struct Constant {
    name: String,
    value: i64,
    #[serde(flatten)]
    when: When,
}

#[derive(Deserialize)]
struct Layout {
    r#type: String,
    bytes: u64,
    members: BTreeMap<String, u64>,
    #[serde(flatten)]
    when: When,
}

/// Versions that have a name: from `since` on, before `until`.
#[derive(Deserialize)]
struct When {
    since: Option<String>,
    until: Option<String>,
}

impl When {
    fn holds(&self, version: &str) -> bool {
        let number = |version: &str| -> Vec<u32> { version.split('.').map(|part| part.parse().unwrap()).collect() };
        let version = number(version);
        self.since.as_deref().is_none_or(|since| version >= number(since))
            && self.until.as_deref().is_none_or(|until| version < number(until))
    }
}

fn table() -> Table {
    let text = std::fs::read_to_string(workspace_root().join("tests/vendor/headers.toml")).expect("the table");
    toml::from_str(&text).expect("a valid table")
}

/// A program in C that compiles if the headers have everything of a version.
fn program(side: &Side, version: &str, preamble: &str) -> String {
    let mut text = preamble.to_owned();
    for header in &side.headers {
        writeln!(text, "#include <{header}>").unwrap();
    }
    writeln!(text, "#include <stddef.h>").unwrap();
    for name in &side.macros {
        writeln!(text, "#ifndef {name}\n#error \"{name} is no macro\"\n#endif").unwrap();
    }
    for Function { name, r#type, .. } in side.functions.iter().filter(|function| function.when.holds(version)) {
        let equal = format!("__builtin_types_compatible_p(__typeof__({name}), {})", r#type);
        writeln!(text, "_Static_assert({equal}, \"{name} is {}\");", r#type).unwrap();
    }
    for Constant { name, value, .. } in side.constants.iter().filter(|constant| constant.when.holds(version)) {
        writeln!(text, "_Static_assert({name} == {value}, \"{name} is {value}\");").unwrap();
    }
    for Layout { r#type, bytes, members, .. } in side.layouts.iter().filter(|layout| layout.when.holds(version)) {
        writeln!(text, "_Static_assert(sizeof({0}) == {bytes}, \"{0} has {bytes} bytes\");", r#type).unwrap();
        for (member, offset) in members {
            let at = format!("offsetof({}, {member})", r#type);
            writeln!(text, "_Static_assert({at} == {offset}, \"{member} of {} is at {offset}\");", r#type).unwrap();
        }
    }
    text
}

/// What a compiler says of a program, every warning an error; empty if it compiles.
fn diagnostics(compiler: &str, flags: &[&str], include: &[PathBuf], program: &str) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("check.c");
    std::fs::write(&source, program).expect("a file");
    let mut command = Command::new(compiler);
    command
        .args(["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-deprecated-declarations", "-fsyntax-only"])
        .args(flags);
    command.args(include.iter().map(|folder| format!("-I{}", folder.display()))).arg(source);
    let output = command.output().expect("the compiler starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.success(), text.is_empty(), "{text}");
    text
}

const DEVICE_FLAGS: [&str; 3] = ["-ffreestanding", "-march=rv64imac_zicsr_zifencei_zbb_zbs", "-mabi=lp64"];
const ALLOWED: &str = "#define FLEXIO_DEV_ALLOW_EXPERIMENTAL_API\n";

/// The order that the vendor documents: the header of versions, the version, the other headers.
fn with_version(version: &str) -> String {
    let version = version.replace('.', ", ");
    let used = format!("#define FLEXIO_DEV_VER_USED FLEXIO_DEV_VER({version})\n");
    format!("{ALLOWED}#include <libflexio-dev/flexio_dev_ver.h>\n{used}")
}

fn device_include(headers: &Path) -> Vec<PathBuf> {
    vec![headers.to_path_buf(), headers.join("libflexio-dev")]
}

fn device(headers: &Path, side: &Side, version: &str) -> String {
    let program = program(side, version, &with_version(version));
    diagnostics(DEVICE_COMPILER.0, &DEVICE_FLAGS, &device_include(headers), &program)
}

fn device_headers() -> PathBuf {
    workspace_root().join("device/rt-emu/include")
}

#[test]
fn device_headers_are_those_of_each_generation() {
    if !installed(DEVICE_COMPILER.0, DEVICE_COMPILER.1) {
        return;
    }
    let side = table().device;
    for version in &side.versions {
        let text = device(&device_headers(), &side, version);
        assert!(text.is_empty(), "device interface {version}:\n{text}");
    }
}

#[test]
fn a_version_may_be_chosen_in_every_way_that_programs_have() {
    if !installed(DEVICE_COMPILER.0, DEVICE_COMPILER.1) {
        return;
    }
    let check = |preamble: &str, context_first: bool| {
        let arguments = if context_first { "(struct flexio_dev_thread_ctx *)0, 1, 2" } else { "1, 2" };
        let text = format!(
            "{ALLOWED}{preamble}#include <libflexio-dev/flexio_dev.h>\n\
             #include <libflexio-dev/flexio_dev_queue_access.h>\n\
             void arm(void);\nvoid arm(void)\n{{\n\tflexio_dev_cq_arm({arguments});\n}}\n"
        );
        let text = diagnostics(DEVICE_COMPILER.0, &DEVICE_FLAGS, &device_include(&device_headers()), &text);
        assert!(text.is_empty(), "{preamble}{text}");
    };
    let versions = "#include <libflexio-dev/flexio_dev_ver.h>\n";
    check("", false);
    check(&format!("{versions}#define FLEXIO_DEV_VER_USED FLEXIO_DEV_VER_LATEST\n"), false);
    check(
        &format!(
            "{versions}#ifndef FLEXIO_DEV_VER_USED\n#define FLEXIO_DEV_VER_USED FLEXIO_DEV_VER(24, 7, 0)\n#endif\n"
        ),
        true,
    );
    check(
        &format!("{versions}#undef FLEXIO_DEV_VER_USED\n#define FLEXIO_DEV_VER_USED FLEXIO_DEV_VER(24, 7, 0)\n"),
        true,
    );
    check("#include <libflexio/flexio_ver.h>\n#define FLEXIO_DEV_VER_USED FLEXIO_VER(26, 4, 0)\n", false);
    check("#define FLEXIO_DEV_VER_USED 0x18070000\n", true);
}

#[test]
fn whoever_does_not_ask_for_what_may_change_is_warned() {
    if !installed(DEVICE_COMPILER.0, DEVICE_COMPILER.1) {
        return;
    }
    let text = "#include <libflexio-dev/flexio_dev.h>\nvoid end(void);\nvoid end(void)\n{\n\
                \tflexio_dev_thread_finish();\n}\n";
    let flags = [DEVICE_FLAGS.as_slice(), &["-Wno-error=deprecated-declarations"]].concat();
    let mut command = Command::new(DEVICE_COMPILER.0);
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("check.c");
    std::fs::write(&source, text).expect("a file");
    command.args(["-fsyntax-only", "-Wall"]).args(flags).arg(format!("-I{}", device_headers().display())).arg(source);
    let output = command.output().expect("the compiler starts");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success() && said.contains("Symbol is defined as experimental"), "{said}");
}

#[test]
fn the_host_header_is_the_vendors() {
    if !installed(HOST_COMPILER.0, HOST_COMPILER.1) {
        return;
    }
    let side = table().host;
    for (number, version) in side.versions.iter().enumerate() {
        let used =
            (number > 0).then(|| format!("#define FLEXIO_VER_USED FLEXIO_VER({})\n", version.replace('.', ", ")));
        let preamble = used.map(|used| format!("#include <libflexio/flexio_ver.h>\n{used}")).unwrap_or_default();
        let text = host(&host_headers(), &program(&side, version, &preamble));
        assert!(text.is_empty(), "host interface {version}:\n{text}");
    }
    // What a release no longer has is not offered to its programs.
    let used = "#include <libflexio/flexio_ver.h>\n#define FLEXIO_VER_USED FLEXIO_VER(26, 4, 0)\n";
    for name in ["flexio_app_create", "FLEXIO_LOG_DEV_SYNC_MODE_SYNC"] {
        let text = format!(
            "{used}#include <libflexio/flexio.h>\nlong use(void);\nlong use(void)\n{{\n\treturn (long){name};\n}}\n"
        );
        assert!(host(&host_headers(), &text).contains(name), "{name} is offered");
    }
}

fn host_headers() -> PathBuf {
    workspace_root().join("host/flexio-sys/include")
}

fn host(headers: &Path, program: &str) -> String {
    let include = [headers.to_path_buf(), workspace_root().join("host/verbs-sys/include")];
    diagnostics(HOST_COMPILER.0, &[], &include, program)
}

#[test]
fn a_planted_error_in_the_host_header_is_found_by_name() {
    if !installed(HOST_COMPILER.0, HOST_COMPILER.1) {
        return;
    }
    let side = table().host;
    let folder = tempfile::tempdir().expect("a folder");
    let part = folder.path().join("libflexio");
    std::fs::create_dir(&part).expect("a folder");
    for name in ["flexio.h", "flexio_ver.h"] {
        std::fs::copy(host_headers().join("libflexio").join(name), part.join(name)).expect("a copy");
    }
    let path = part.join("flexio.h");
    let text = std::fs::read_to_string(&path).expect("a header");
    for (right, wrong, said) in [
        (
            "flexio_status flexio_version_set(uint64_t",
            "flexio_status flexio_version_set(uint32_t",
            "flexio_version_set is",
        ),
        ("FLEXIO_DEV_USER_ERROR = 2", "FLEXIO_DEV_USER_ERROR = 3", "FLEXIO_DEV_USER_ERROR is 2"),
        ("\tsize_t len;\n\tint access;", "\tint access;\n\tsize_t len;", "access of struct flexio_mkey_attr"),
    ] {
        assert!(text.contains(right), "{right} is in the header");
        std::fs::write(&path, text.replace(right, wrong)).expect("a header");
        let found = host(folder.path(), &program(&side, &side.versions[0], ""));
        assert!(found.contains(said), "{wrong} is not found:\n{found}");
    }
}

#[test]
fn a_planted_error_is_found_by_name() {
    if !installed(DEVICE_COMPILER.0, DEVICE_COMPILER.1) {
        return;
    }
    let side = table().device;
    let folder = tempfile::tempdir().expect("a folder");
    for part in ["libflexio", "libflexio-dev", "libflexio-libc"] {
        std::fs::create_dir(folder.path().join(part)).expect("a folder");
        for entry in std::fs::read_dir(device_headers().join(part)).expect("headers") {
            let entry = entry.expect("a header");
            std::fs::copy(entry.path(), folder.path().join(part).join(entry.file_name())).expect("a copy");
        }
    }
    for (header, right, wrong, said) in [
        (
            "flexio_dev.h",
            "void flexio_dev_event_handler_activate(",
            "int flexio_dev_event_handler_activate(",
            "activate",
        ),
        ("flexio_dev.h", "ALWAYS_PRINT 1", "ALWAYS_PRINT 7", "FLEXIO_MSG_DEV_ALWAYS_PRINT is 1"),
        (
            "flexio_dev_queue_types.h",
            "__be16 csum_ok;\n\tuint8_t rsvd22[2];",
            "uint8_t rsvd22[2];\n\t__be16 csum_ok;",
            "csum_ok of",
        ),
        ("flexio_dev_endianity.h", "#define be64_to_cpu", "#define be64_from", "be64_to_cpu"),
    ] {
        let path = folder.path().join("libflexio-dev").join(header);
        let text = std::fs::read_to_string(&path).expect("a header");
        assert!(text.contains(right), "{right} is in {header}");
        std::fs::write(&path, text.replace(right, wrong)).expect("a header");
        let found = device(folder.path(), &side, "25.1.0");
        assert!(found.contains(said), "{wrong} is not found:\n{found}");
        std::fs::write(&path, text).expect("a header");
    }
    assert_eq!(device(folder.path(), &side, "25.1.0"), "");
}

/// What the compiler says of the stand-in for the vendor's device library (`vendor_build.rs`) where it is held to the
/// table: its functions have the types of the vendor's, as they have in an object.
fn stand_in(source: &str) -> String {
    let device = table().device;
    let mut text = format!("{source}\ntypedef uint64_t flexio_uintptr_t;\n#define flexio_dev_status_t uint32_t\n");
    let mut count = 0;
    for Function { name, r#type, when } in &device.functions {
        if when.holds("25.1.0") && source.contains(&format!(" {name}(")) {
            // An enumeration is a number there.
            let expected = r#type.replace("enum flexio_window_entity", "uint32_t");
            let equal = format!("__builtin_types_compatible_p(__typeof__({name}), {expected})");
            writeln!(text, "_Static_assert({equal}, \"{name} is {expected}\");").unwrap();
            count += 1;
        }
    }
    assert!(count >= 9, "{count} functions of the stand-in are in the table");
    diagnostics(DEVICE_COMPILER.0, &DEVICE_FLAGS, &[], &text)
}

#[test]
fn the_stand_in_of_the_device_library_has_the_vendors_types() {
    if !installed(DEVICE_COMPILER.0, DEVICE_COMPILER.1) {
        return;
    }
    let source = std::fs::read_to_string(workspace_root().join("tests/vendor/flexio_dev.c")).expect("the stand-in");
    assert_eq!(stand_in(&source), "");
    let (right, wrong) = (
        "void flexio_dev_event_handler_activate(uint32_t id)\n{\n    call",
        "uint64_t flexio_dev_event_handler_activate(uint32_t id)\n{\n    return call",
    );
    assert!(source.contains(right));
    let found = stand_in(&source.replace(right, wrong));
    assert!(found.contains("flexio_dev_event_handler_activate is void(uint32_t)"), "{found}");
}
