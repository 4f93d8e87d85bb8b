//! Images for a card, from source to the card's driver: built, verified and deployed with stand-ins of the vendor's
//! tools. `tests/vendor` has the sources of these: clang and lld of this machine under the vendor's names, archives
//! with the vendor's ISA attribute and custom instructions, a linker script that knows nothing of Flexcast. Without
//! clang, lld and LLVM's tools these tests are skipped, and say so on stderr.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use flexcast_image::Image;
use flexcast_image::testing::attributes;
use flexcast_tests::harness::skipped;
use flexcast_tests::libs::libraries;
use flexcast_tests::tree::{self, copied_tree};
use flexcast_tests::workspace_root;
use flexio::LogDecoder;

/// What a program for BlueField-3 says in its attributes.
const ATTRIBUTE: &str = "rv64i2p0_m2p0_a2p0_c2p0_zbb1p0_zbp0p93_zbr0p93_zbs1p0_xfenceheap1p0_xnvcc1p0_xrpfxp1p0";

const SCRIPT: &str = "doca/tools/dpa_llvm/ldscripts/dpa_linker.ld";

/// Sources and the archives that they become.
const ARCHIVES: [(&str, &str); 3] =
    [("flexio_dev", "flexio_dev"), ("libc", "flexio-libc"), ("builtins", "clang_rt.builtins-riscv64")];

/// An installation of the vendor's, and where images go that are linked with it.
struct Sdk {
    folder: PathBuf,
}

impl Sdk {
    /// Makes one; `None` where this machine lacks a tool for it.
    fn new(name: &str) -> Option<Self> {
        let works = |tool: &&str| {
            Command::new(tool).arg("--version").stdout(Stdio::null()).status().is_ok_and(|status| status.success())
        };
        if let Some(tool) = ["clang", "ld.lld", "llvm-ar", "llvm-objcopy"].iter().find(|tool| !works(tool)) {
            skipped(format_args!("{tool} is not installed (Debian: clang lld llvm)"));
            return None;
        }
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("vendor_build").join(name);
        let _ = fs::remove_dir_all(&folder);
        let sdk = Self { folder };
        fs::create_dir_all(sdk.path(SCRIPT).parent().expect("a folder")).expect("the folder of the script");
        fs::create_dir_all(sdk.path("flexio/lib/bf3")).expect("the folder of the archives");
        let sources = workspace_root().join("tests/vendor");
        let tools =
            [("dpa-clang", "doca/tools/dpa-clang"), ("dpa-fatbin", "doca/tools/dpa-fatbin"), ("dpa_linker.ld", SCRIPT)];
        for (from, to) in tools {
            fs::copy(sources.join(from), sdk.path(to)).expect("a tool in its place");
        }
        sdk.archives(ATTRIBUTE);
        Some(sdk)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Compiles the archives, whose members say that they are for `attribute`.
    fn archives(&self, attribute: &str) {
        fs::write(self.path("attribute"), attributes(attribute)).expect("the attribute");
        for (source, archive) in ARCHIVES {
            let object = self.path(&format!("{source}.o"));
            let mut compile = Command::new("clang");
            compile.args(["--target=riscv64-unknown-elf", "-march=rv64imac", "-mabi=lp64", "-mcmodel=medany"]);
            compile.args(["-ffreestanding", "-O1", "-Wall", "-Wextra", "-Werror", "-c", "-o"]).arg(&object);
            run(compile.arg(workspace_root().join(format!("tests/vendor/{source}.c"))));
            let update = format!("--update-section=.riscv.attributes={}", self.path("attribute").display());
            run(Command::new("llvm-objcopy").arg(update).arg(&object));
            let archive = self.archive(archive);
            let _ = fs::remove_file(&archive);
            run(Command::new("llvm-ar").arg("rcs").arg(archive).arg(object));
        }
    }

    fn archive(&self, name: &str) -> PathBuf {
        self.path(&format!("flexio/lib/bf3/lib{name}.a"))
    }

    /// A command of the build tool on the tree at `root`, as where this is the installation of the vendor's.
    fn xtask(&self, root: &Path, args: &[&str]) -> Command {
        let mut command = tree::xtask_command(root, args);
        command.env("DOCA_DIR", self.path("doca")).env("FLEXIO_DIR", self.path("flexio"));
        command.env("FLEXCAST_IMAGE_FOLDER", self.path("images")).env_remove("LD_LIBRARY_PATH");
        command
    }

    /// The same on this tree, and what came of it.
    fn here(&self, args: &[&str]) -> Output {
        self.xtask(&workspace_root(), args).output().expect("cargo can be started")
    }

    fn product(&self, name: &str) -> Vec<u8> {
        let path = self.path("images/bf3").join(name);
        fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("the tool starts");
    assert!(output.status.success(), "{command:?}\n{}", String::from_utf8_lossy(&output.stderr));
}

/// All that a command said.
fn text(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).concat()
}

/// What a command said that must fail.
fn refused(output: &Output) -> String {
    let text = text(output);
    assert!(!output.status.success(), "{text}");
    text
}

#[test]
fn an_image_is_linked_by_the_vendors_tools_verified_and_deployed() {
    let Some(sdk) = Sdk::new("deployed") else { return };
    let deploy = ["deploy", "pingpong", "--target", "bf3", "--profile", "dev"];
    let mut with_driver = sdk.xtask(&workspace_root(), &deploy);
    let output = with_driver.env("LD_LIBRARY_PATH", libraries()).output().expect("cargo can be started");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    for part in [
        &format!("ok ISA attribute: {ATTRIBUTE}"),
        "bytes of the vendor's (libclang_rt.builtins-riscv64.a, libflexio-libc.a, libflexio_dev.a)",
        "ok loaded sections: .text, .rodata, .flexcast.entries, .note.flexcast, .note.gnu.build-id, .data, .dpa_state, .bss",
        "2048 B of stack a call",
        "0 failed, 0 unknown",
        "as the ABI demands",
    ] {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }

    let elf = sdk.product("pingpong.elf");
    let image = Image::parse(&elf).expect("an image");
    let log_section = image.section(".defmt").expect("log strings");
    assert!(!log_section.alloc && log_section.size > 1);
    assert!(image.segments().iter().all(|segment| segment.vaddr >= 0x4000_0000), "nothing is loaded at an index");
    LogDecoder::new(&elf).expect("the host reads the log strings");
    for name in ["rpc_msg_stream_cfg", "rpc_msg_stream_close", "flexio_dev_deep"] {
        assert!(image.symbol(name).is_some(), "{name} comes with the whole archive");
    }
    assert_eq!(sdk.product("pingpong.fatbin"), [b"nv-dpa-bf3,exec\n", &elf[..]].concat());

    // On the driver that the emulator's library stands in for, handlers run and logs can be read.
    let flexcast = workspace_root().join("target/debug/flexcast");
    let mut run = Command::new(flexcast);
    run.arg("run").arg(sdk.path("images/bf3/pingpong.elf")).args(["--provider", "system"]);
    let output = run.env("LD_LIBRARY_PATH", libraries()).output().expect("the tool starts");
    let said = text(&output);
    assert!(output.status.success(), "{said}");
    let logged = format!("pingpong: bring-up, ABI {:#x}", flexcast_abi::ABI_HASH);
    for part in ["ping 0: answered", "ping 1: answered", &logged] {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }

    // Without a driver the deployment ends behind the verification.
    if Path::new("/opt/mellanox/flexio").exists() {
        skipped("DOCA is installed");
        return;
    }
    let said = refused(&sdk.here(&deploy));
    assert!(said.contains("0 failed, 0 unknown") && said.contains("DOCA not installed"), "{said}");
}

#[test]
fn our_own_code_linked_with_the_vendors_is_held_to_the_rules() {
    let Some(sdk) = Sdk::new("faulty") else { return };
    let scratch = copied_tree();
    let root = scratch.path();
    let xtask = |args: &[&str]| sdk.xtask(root, args).output().expect("cargo can be started");
    let created = xtask(&["new", "faulty"]);
    assert!(created.status.success(), "{}", text(&created));
    let image = root.join("device/images/faulty");
    fs::copy(workspace_root().join("tests/vendor/faulty.rs"), image.join("src/main.rs")).expect("its source");
    let manifest = fs::read_to_string(image.join("image.toml")).expect("its description");
    let listed = manifest
        .replace("event_handlers = []", "event_handlers = [\"panics\"]")
        .replace("\"measure\"", "\"custom\", \"recurses\"");
    fs::write(image.join("image.toml"), &listed).expect("its description");

    let said = refused(&xtask(&["deploy", "faulty", "--target", "bf3"]));
    for part in [
        "FAILED instructions: CUSTOM instruction `custom-0` at 0x4",
        "FAILED loaded sections: .flexcast.extra: 16 bytes at 0x4",
        "FAILED stack: recurses: at least",
        "recursion: faulty::entries::deeper calls faulty::entries::deeper",
        "[stack.recurses] with bytes and reason",
        "FAILED no panic in event handlers: panics → core::panicking::panic_bounds_check",
        "4 failed, 0 unknown",
        "1 of 1 images fail",
    ] {
        assert!(said.contains(part), "no {part:?} in\n{said}");
    }
    assert!(!said.contains("in flexio_dev"), "the vendor's code is not accused: {said}");
    assert!(!said.contains("bring-up"), "nothing is deployed: {said}");

    // A bound that somebody answers for.
    fs::write(image.join("image.toml"), listed + "\n[stack.recurses]\nbytes = 4096\nreason = \"depth is 9 at most\"\n")
        .expect("its description");
    let said = refused(&xtask(&["verify", "faulty", "--toolchain", "bf3"]));
    assert!(said.contains("recurses 4096 B as declared (depth is 9 at most)"), "{said}");
    assert!(said.contains("3 failed, 0 unknown"), "{said}");
    // Without the link map nobody knows whose code it is.
    fs::remove_file(sdk.path("images/bf3/faulty.map")).expect("a map");
    let file = sdk.path("images/bf3/faulty.elf");
    let said = refused(&xtask(&["verify", "--toolchain", "bf3", "--file", file.to_str().expect("UTF-8")]));
    assert!(said.contains("in flexio_dev_deep") && said.contains("all code was taken for our own"), "{said}");
}

#[test]
fn an_extension_that_nobody_declared_is_refused() {
    let Some(sdk) = Sdk::new("attribute") else { return };
    sdk.archives(&format!("{ATTRIBUTE}_xmystery1p0"));
    let said = refused(&sdk.here(&["verify", "pingpong", "--toolchain", "bf3"]));
    assert!(said.contains("FAILED ISA attribute: the image needs `xmystery`"), "{said}");
    assert!(said.contains("1 failed, 0 unknown"), "{said}");
}

#[test]
fn an_installation_that_is_not_whole_is_refused() {
    let Some(sdk) = Sdk::new("incomplete") else { return };
    let build = ["build", "pingpong", "--toolchain", "bf3"];
    for missing in ["doca/tools/dpa-clang", "doca/tools/dpa-fatbin", SCRIPT, "flexio/lib/bf3/libflexio_dev.a"] {
        let away = sdk.path("away");
        fs::rename(sdk.path(missing), &away).expect("out of the way");
        let said = refused(&sdk.here(&build));
        let name = missing.rsplit('/').next().expect("a name");
        assert!(said.contains(&format!("{name}: not found at {}", sdk.path("").display())), "{said}");
        assert!(said.contains("DOCA_DIR and FLEXIO_DIR") && !said.contains("Building"), "{said}");
        fs::rename(away, sdk.path(missing)).expect("back in its place");
    }
    // One that may lie elsewhere is missed by the linker.
    fs::remove_file(sdk.archive("clang_rt.builtins-riscv64")).expect("an archive");
    let said = refused(&sdk.here(&build));
    assert!(said.contains("unable to find library -lclang_rt.builtins-riscv64"), "{said}");
    assert!(said.contains(&format!("{} -fPIE", sdk.path("doca/tools/dpa-clang").display())), "the command: {said}");
}

#[test]
fn a_tool_that_fails_is_reported_with_its_command() {
    let Some(sdk) = Sdk::new("failing") else { return };
    let clang = sdk.path("doca/tools/dpa-clang");
    fs::write(&clang, "#!/bin/sh\necho 'dpa-clang: error: no licence' >&2\nexit 3\n").expect("a tool");
    fs::set_permissions(&clang, fs::Permissions::from_mode(0o755)).expect("a program");
    let said = refused(&sdk.here(&["deploy", "pingpong", "--target", "bf3"]));
    assert!(said.contains("no licence") && said.contains("exit status: 3"), "{said}");
    assert!(said.contains(&format!("{} -fPIE", clang.display())), "{said}");
    assert!(!sdk.path("images/bf3/pingpong.elf").exists());
    // Commands for the outcome are printed without a tool being there.
    let output = sdk.here(&["build", "pingpong", "--toolchain", "bf3", "--dry-run"]);
    let said = text(&output);
    assert!(output.status.success() && said.contains("pingpong.elf: the image"), "{said}");
    assert!(said.contains("all are there"), "{said}");
}
