//! The collective library as `cargo xtask install` leaves it for programs in C: built with what pkg-config says, found
//! by its name, with versions, in whatever folder it is.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use flexcast_tests::examples::{Rank, compiler, declared_functions, free_tcp_port};
use flexcast_tests::harness::skipped;
use flexcast_tests::libs::libraries;
use flexcast_tests::tree::xtask;
use flexcast_tests::{image_bytes, workspace_root};
use object::read::elf::{Dyn as _, ElfFile64, FileHeader as _, SectionHeader as _, Sym as _};
use object::{LittleEndian, elf};

/// Longest that the program may take; it needs seconds.
const BOUND: Duration = Duration::from_secs(120);
const STRICT: [&str; 6] = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Wredundant-decls", "-Werror"];

/// What programs of version 1 of the interface are linked with.
const VERSION_1: [&str; 45] = [
    "flexcast_abi_version",
    "flexcast_bootstrap_allgather",
    "flexcast_bootstrap_callback",
    "flexcast_bootstrap_environment",
    "flexcast_bootstrap_free",
    "flexcast_bootstrap_rank",
    "flexcast_bootstrap_store",
    "flexcast_bootstrap_tcp",
    "flexcast_buffer_invalidate",
    "flexcast_cancel",
    "flexcast_endpoint_close",
    "flexcast_endpoint_datapath",
    "flexcast_endpoint_open",
    "flexcast_endpoint_open_begin",
    "flexcast_endpoint_options_default",
    "flexcast_endpoint_test",
    "flexcast_comm_endpoint",
    "flexcast_comm_control",
    "flexcast_comm_create",
    "flexcast_comm_create_begin",
    "flexcast_comm_event_fd",
    "flexcast_comm_free",
    "flexcast_comm_rank",
    "flexcast_comm_split",
    "flexcast_comm_split_begin",
    "flexcast_comm_stats",
    "flexcast_comm_test",
    "flexcast_config_default",
    "flexcast_config_set",
    "flexcast_init",
    "flexcast_last_error",
    "flexcast_log",
    "flexcast_post",
    "flexcast_prepare",
    "flexcast_progress",
    "flexcast_progress_for",
    "flexcast_register",
    "flexcast_request_free",
    "flexcast_request_report",
    "flexcast_start",
    "flexcast_strerror",
    "flexcast_test",
    "flexcast_version",
    "flexcast_wait",
    "flexcast_wait_for",
];

/// What pkg-config says of the library installed below `prefix`; `None` where there is no pkg-config.
fn pkg_config(prefix: &Path, ask: &[&str]) -> Option<Vec<String>> {
    let mut command = Command::new("pkg-config");
    command.args(ask).arg("flexcast").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig"));
    let Ok(output) = command.output() else {
        skipped("pkg-config is not installed (Debian: pkg-config)");
        return None;
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8(output.stdout).expect("a text").split_whitespace().map(str::to_owned).collect())
}

/// Compiles a program with what pkg-config says, and `more`.
fn build(prefix: &Path, compiler: &str, source: &str, more: &[String]) -> Option<PathBuf> {
    let flags = pkg_config(prefix, &["--cflags", "--libs"])?;
    let program = prefix.join("program");
    let mut command = Command::new(compiler);
    command.args(STRICT).arg(workspace_root().join(source)).arg("-o").arg(&program).args(flags).args(more);
    let output = command.output().expect("the compiler starts");
    assert!(output.status.success(), "{source}:\n{}", String::from_utf8_lossy(&output.stderr));
    Some(program)
}

/// The name that programs keep of the library, and what it exports with which version.
fn exports(library: &Path) -> (String, BTreeSet<(String, String)>) {
    let bytes = std::fs::read(library).expect("the library");
    let file = ElfFile64::<LittleEndian>::parse(&*bytes).expect("an ELF");
    let (header, endian) = (file.elf_header(), LittleEndian);
    let sections = header.sections(endian, &*bytes).expect("sections");
    let (dynamic, strings) = sections
        .iter()
        .find_map(|section| section.dynamic(endian, &*bytes).expect("a dynamic section"))
        .expect("a dynamic section");
    let strings = sections.strings(endian, &*bytes, strings).expect("strings");
    let soname = dynamic.iter().find(|entry| entry.d_tag(endian) == elf::DT_SONAME).expect("a soname");
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("a name");
    let soname = text(strings.get(u32::try_from(soname.d_val(endian)).expect("an offset")).expect("a string"));
    let symbols = sections.symbols(endian, &*bytes, elf::SHT_DYNSYM).expect("dynamic symbols");
    let versions = sections.versions(endian, &*bytes).expect("versions").expect("there are versions");
    let exported = symbols
        .enumerate()
        .filter(|(_, symbol)| symbol.is_definition(endian, symbols.strings()) && symbol.st_bind() != elf::STB_LOCAL);
    let named = exported.map(|(index, symbol)| {
        let name = text(symbol.name(endian, symbols.strings()).expect("a name"));
        let version = versions.version(versions.version_index(endian, index).into()).expect("a version");
        (name, text(version.expect("a version of its own").name()))
    });
    (soname, named.collect())
}

/// Builds the example as a project that finds the library by CMake; nothing where there is no CMake.
fn with_cmake(prefix: &Path, scratch: &Path) {
    let project = scratch.join("project");
    std::fs::create_dir(&project).expect("a folder");
    let example = workspace_root().join("examples/c/allgather.c");
    let text = format!(
        "cmake_minimum_required(VERSION 3.16)\nproject(program C)\nfind_package(Flexcast {} REQUIRED)\n\
         foreach(kind flexcast flexcast-static)\n  add_executable(with-${{kind}} \
         {})\n  target_link_libraries(with-${{kind}} Flexcast::${{kind}})\nendforeach()\nmessage(\"firmware \
         ${{Flexcast_FIRMWARE}}\")\n",
        env!("CARGO_PKG_VERSION"),
        example.display()
    );
    std::fs::write(project.join("CMakeLists.txt"), text).expect("a file");
    let build = project.join("build");
    let cmake = |arguments: &[&std::ffi::OsStr]| {
        let mut command = Command::new("cmake");
        command.args(arguments).env("CMAKE_PREFIX_PATH", prefix);
        command.output()
    };
    let Ok(output) = cmake(&["-S".as_ref(), project.as_ref(), "-B".as_ref(), build.as_ref()]) else {
        skipped("cmake is not installed (Debian: cmake)");
        return;
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    let firmware = prefix.join("share/flexcast/allgather.elf");
    assert!(output.status.success() && stderr.contains(&format!("firmware {}", firmware.display())), "{stderr}");
    let output = cmake(&["--build".as_ref(), build.as_ref()]).expect("as above");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    for name in ["with-flexcast", "with-flexcast-static"] {
        let output = Command::new(build.join(name)).args(["one", "two"]).output().expect("it starts");
        assert!(String::from_utf8_lossy(&output.stderr).starts_with("usage: "), "{output:?}");
    }
}

#[test]
fn a_program_is_built_with_pkg_config_and_runs_wherever_the_folder_is() {
    let Some(compiler) = compiler() else { return };
    let scratch = tempfile::tempdir().expect("a folder");
    let prefix = scratch.path().join("first");
    let path = prefix.to_str().expect("a path in UTF-8");
    let output = xtask(&workspace_root(), &["install", "--prefix", path, "--profile", "dev"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

    // What is there: no more, no less; the firmware is the one of this tree.
    let lib = prefix.join("lib");
    let names = |folder: &Path| -> BTreeSet<String> {
        let entries = std::fs::read_dir(folder).expect("a folder");
        entries.map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned()).collect()
    };
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!(names(&prefix), set(&["include", "lib", "share"]));
    assert_eq!(names(&lib), set(&["cmake", "libflexcast.a", "libflexcast.so", "libflexcast.so.1", "pkgconfig"]));
    assert_eq!(std::fs::read_link(lib.join("libflexcast.so")).expect("a link"), Path::new("libflexcast.so.1"));
    let header = workspace_root().join("host/capi/include/flexcast.h");
    assert!(std::fs::read(prefix.join("include/flexcast.h")).ok() == std::fs::read(&header).ok());
    for image in ["allgather", "sparse"] {
        let installed = prefix.join(format!("share/flexcast/{image}.elf"));
        assert!(std::fs::read(installed).ok() == Some(image_bytes(image)), "{image}");
    }

    // The name, and every function of the header with a version.
    let (soname, exported) = exports(&lib.join("libflexcast.so.1"));
    assert_eq!(soname, "libflexcast.so.1");
    let declared = declared_functions(&std::fs::read_to_string(&header).expect("the header"));
    assert_eq!(
        declared.into_iter().collect::<BTreeSet<_>>(),
        set(&VERSION_1),
        "a function of version 1 is gone, or another is of no version"
    );
    let mut wanted: BTreeSet<_> = VERSION_1.iter().map(|name| ((*name).to_owned(), "FLEXCAST_1".to_owned())).collect();
    // The nodes themselves.
    wanted.extend(exported.iter().filter(|(name, _)| name.starts_with("FLEXCAST_")).cloned());
    assert_eq!(exported, wanted);

    // Two programs in another place than where it was installed.
    let moved = scratch.path().join("second");
    std::fs::rename(&prefix, &moved).expect("moved");
    let Some(firmware) = pkg_config(&moved, &["--variable=firmware"]) else { return };
    let [firmware] = &*firmware else { panic!("{firmware:?}") };
    let sparse = pkg_config(&moved, &["--variable=sparse_firmware"]).expect("as above");
    assert!(Path::new(&sparse[0]).is_file(), "{sparse:?}");
    let version = pkg_config(&moved, &["--modversion"]).expect("as above");
    assert_eq!(version, [env!("CARGO_PKG_VERSION")]);
    for (source, said) in [
        ("examples/c/allgather.c", "allgather of 100003 bytes per rank equal"),
        ("examples/c/smallest.c", " of 2 has gathered 0 to 1\n"),
    ] {
        let example = build(&moved, compiler, source, &[]).expect("as above");
        // Over Ethernet it needs no firmware.
        let store = format!("127.0.0.1:{}", free_tcp_port());
        let start = |rank: &str| {
            let mut command = Command::new(&example);
            command.env("FLEXCAST_RANK", rank).env("FLEXCAST_SIZE", "2").env("FLEXCAST_STORE", &store);
            command.env("FLEXCAST_INTERFACE", "lo").env("LD_LIBRARY_PATH", moved.join("lib"));
            Rank::start(&mut command, scratch.path(), &format!("example-{rank}"))
        };
        for mut rank in ["0", "1"].map(start) {
            let (success, text) = rank.end(BOUND);
            assert!(success && text.contains(said), "{text}");
        }
    }
    let program = build(&moved, compiler, "tests/c/capi.c", &["-lpthread".to_owned()]).expect("as above");
    let run = |program: &Path, name: &str, search: &Path| {
        let mut command = Command::new(program);
        command.arg(firmware).arg(libraries()).env("LD_LIBRARY_PATH", search);
        if name == "sparse" {
            // A card for each of its ranks; over the interface arrays are scanned for zeros, whatever is expected to be
            // faster.
            command.env("FLEXCAST_MACHINE", "toml:network.topology = \"switch-3\"");
            let tuning = scratch.path().join("tuning.toml");
            std::fs::write(&tuning, "sparse_from_bytes = 65536\n").expect("written");
            command.env("FLEXCAST_TUNING", tuning);
        }
        let (success, text) = Rank::start(&mut command, scratch.path(), name).end(BOUND);
        assert!(success && text.contains("all as promised"), "{text}");
    };
    run(&program, "shared", &moved.join("lib"));
    for name in ["stages", "version1", "sparse"] {
        let program =
            build(&moved, compiler, &format!("tests/c/{name}.c"), &["-lpthread".to_owned()]).expect("as above");
        run(&program, name, &moved.join("lib"));
    }
    with_cmake(&moved, scratch.path());

    // The same with the archive: nothing of the library is searched for when it runs.
    std::fs::remove_file(moved.join("lib/libflexcast.so")).expect("removed");
    let system = pkg_config(&moved, &["--libs", "--static"]).expect("as above");
    let more: Vec<String> = ["-lpthread".to_owned()].into_iter().chain(system).collect();
    let program = build(&moved, compiler, "tests/c/capi.c", &more).expect("as above");
    run(&program, "static", Path::new(""));
}

/// The program that the documents show is the one that is compiled and run.
#[test]
fn the_smallest_program_is_the_one_of_the_documents() {
    let read = |path: &str| std::fs::read_to_string(workspace_root().join(path)).expect("a file");
    let (_, program) = read("examples/c/smallest.c")
        .split_once("*/\n#include")
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .expect("a comment");
    assert!(
        read("docs/embed.md").contains(&format!("```c\n#include{program}```")),
        "docs/embed.md shows another program"
    );
}
