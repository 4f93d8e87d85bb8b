//! Images that cannot be used: refused by the host library with a typed error before the device sees them, or by
//! `cargo xtask verify` before anybody does.

use emu_machine::Config;
use flexcast_abi::{ABI_HASH, ABI_VERSION};
use flexcast_lab::tput::TputError;
use flexcast_lab::tput::plan::Params;
use flexcast_tests::code::{self, FADD_D, FLW, RET, reg};
use flexcast_tests::tree::build_tool;
use flexcast_tests::{assert_mentions, image_bytes, run};
use flexio::{AbiExpectation, Affinity, Application, Error, EventHandler, ImageError, Process, ProtectionDomain};

fn good() -> Vec<u8> {
    code::image(&[RET], &[RET])
}

/// What loading these bytes gives, as a host program sees it.
#[track_caller]
fn refused(elf: &[u8], abi: Option<AbiExpectation>) -> (Error, ImageError) {
    let provider = code::cards(Config::default());
    let error = Application::load(&provider, "spoilt", elf, abi).expect_err("the image must be refused");
    let Error::Image { image, source } = &error else { panic!("not an image error: {error}") };
    assert_eq!(image, "spoilt");
    let source = source.clone();
    (error, source)
}

#[test]
fn not_an_elf() {
    for (bytes, start) in [(&b"#!/bin/sh\n"[..], "[23, 21, 2f, 62]"), (&b""[..], "[]")] {
        let (error, source) = refused(bytes, None);
        assert!(matches!(source, ImageError::NotElf { .. }), "{source}");
        assert_mentions(&error, &["spoilt", "not an ELF file", start, "7f 45 4c 46", "cargo xtask build"]);
    }
}

#[test]
fn thirty_two_bits() {
    let mut elf = good();
    elf[4] = 1;
    let (error, source) = refused(&elf, None);
    assert_eq!(source, ImageError::Not64Bit { class: 1 });
    assert_mentions(&error, &["ELF class 1", "not 64-bit", "riscv64imac"]);
}

#[test]
fn another_machine() {
    let host = std::fs::read(std::env::current_exe().expect("the path of this program")).expect("this program");
    let (error, source) = refused(&host, None);
    assert!(matches!(source, ImageError::WrongMachine { .. }), "{source}");
    assert_mentions(&error, &["not RISC-V (243)", "host program"]);
    let mut elf = good();
    elf[18..20].copy_from_slice(&183_u16.to_le_bytes());
    assert!(matches!(refused(&elf, None).1, ImageError::WrongMachine { machine: 183, .. }));
}

#[test]
fn what_only_start_up_code_could_serve() {
    use flexcast_image::testing::section;
    for (name, kind, flags, named) in [
        (".tdata", 1, 0x403, "thread-local variables in .tdata"),
        (".init_array", 14, 3, "constructors in .init_array (handler)"),
    ] {
        let mut elf = code::elf(&[RET], &[RET]);
        let first = elf.symbols.iter().find(|symbol| symbol.0 == "handler").expect("a function").1;
        elf.sections.push(section(name, kind, flags, 0x8800_0000, first.to_le_bytes().to_vec()));
        let (error, source) = refused(&elf.bytes(), None);
        assert!(matches!(source, ImageError::Unserved { .. }), "{source}");
        assert_mentions(&error, &["spoilt", named]);
    }
}

#[test]
fn truncated() {
    let elf = image_bytes("allgather");
    for len in [63, 64, 1000, elf.len() / 2, elf.len() - 1] {
        let (error, source) = refused(&elf[..len], None);
        assert!(matches!(source, ImageError::Truncated { have, .. } if have == len as u64), "{len}: {source}");
        assert_mentions(&error, &["truncated", &len.to_string(), "copy the image again"]);
    }
}

#[test]
fn unknown_entry_and_entry_of_the_other_kind() {
    code::with_process(Config::default(), &good(), |process| {
        let error = process.call_by_name("pang", 0).expect_err("no such RPC");
        assert!(matches!(&error, Error::Image { source: ImageError::UnknownEntry { name, .. }, .. } if name == "pang"));
        assert_mentions(&error, &["no entry `pang`", "handler", "ping"]);
        let error = process.call_by_name("handler", 0).expect_err("a handler is not called");
        assert!(matches!(&error, Error::Image { source: ImageError::WrongEntryKind { .. }, .. }), "{error}");
        assert_mentions(&error, &["`handler` is an event handler", "not an RPC"]);
        let error = EventHandler::new(process, "ping", 0, Affinity::Any).expect_err("an RPC is not triggered");
        assert_mentions(&error, &["`ping` is an RPC", "not an event handler"]);
        assert_eq!(process.call_by_name("ping", 7).expect("the process has taken no harm"), 7);
    });
}

#[test]
fn another_abi() {
    let elf = image_bytes("allgather");
    let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH ^ 1 };
    let (error, source) = refused(&elf, Some(abi));
    assert_eq!(source, ImageError::AbiHash { found: ABI_HASH, wanted: ABI_HASH ^ 1 });
    let [found, wanted] = [ABI_HASH, ABI_HASH ^ 1].map(|hash| format!("{hash:#018x}"));
    assert_mentions(&error, &[&found, &wanted, "rebuild both from one source"]);

    let abi = AbiExpectation { version: ABI_VERSION + 1, hash: ABI_HASH };
    let (error, source) = refused(&elf, Some(abi));
    assert!(matches!(source, ImageError::AbiVersion { .. }), "{source}");
    assert_mentions(&error, &["ABI version", &(ABI_VERSION + 1).to_string(), "rebuild the older one"]);
}

/// The harness itself checks: an image of another build does not get as far as a process.
#[test]
fn the_harness_refuses_another_abi() {
    let mut elf = image_bytes("allgather");
    // Magic, two versions, hash.
    let is_note = |bytes: &[u8]| bytes.starts_with(b"FLXCAST\0") && bytes.ends_with(&ABI_HASH.to_le_bytes());
    let note = elf.windows(24).position(is_note).expect("an ABI note");
    elf[note + 16] ^= 0xFF;
    let error = run::tput_elf("old", elf, Params::default(), 4096).expect_err("another ABI");
    let TputError::Collective(flexcast::Error::Flexio(Error::Image { image, source: ImageError::AbiHash { .. } })) =
        &error
    else {
        panic!("not an ABI error: {error}")
    };
    assert_eq!(image, "old");
    // The real one still runs on this thread afterwards.
    assert!(run::tput(Params::default(), 4096).expect("the run succeeds").report.digest_ok);
}

/// `cargo xtask verify --file` on an image with these instructions in its RPC.
fn verify(ping: &[u32]) -> (bool, String) {
    let mut elf = code::elf(&[RET], ping);
    let hash = flexcast_image::testing::note(ABI_VERSION, ABI_VERSION, ABI_HASH);
    elf.section_mut(".note.flexcast").bytes = hash;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("float.elf");
    std::fs::write(&path, elf.bytes()).expect("writable");
    let output = build_tool().args(["verify", "--file"]).arg(&path).output().expect("cargo starts");
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    (output.status.success(), text)
}

#[test]
fn floating_point_instructions_fail_verification() {
    let (passed, text) = verify(&[RET]);
    assert!(passed, "the same image without them passes:\n{text}");
    let (passed, text) = verify(&[FADD_D, FLW, RET]);
    assert!(!passed, "{text}");
    for word in
        ["FAILED instructions", "D instruction", "ping+0x0", "F instruction `flw`", "ping+0x4", "float.elf", "1 failed"]
    {
        assert!(text.contains(word), "{word:?} is not in:\n{text}");
    }
}

/// What slips through without verification ends as a crash, not as a wrong result.
#[test]
fn floating_point_instructions_trap_on_the_device() {
    for insn in [FADD_D, FLW] {
        code::with_process(Config::default(), &code::image(&[RET], &[insn, RET]), |process| {
            let error = process.call_by_name("ping", code::DATA).expect_err("a trap");
            assert!(matches!(error, Error::DeviceFault { .. }), "{error}");
            assert_mentions(&error, &["illegal instruction", &format!("{insn:#018x}"), "ping+0x0"]);
        });
    }
}

/// Two processes of two applications on one card: the broken one takes nothing with it.
#[test]
fn a_refused_image_leaves_the_others_alone() {
    let provider = code::cards(Config::default());
    let elf = code::image(&[RET], &[code::addi(reg::A0, reg::A0, 1), RET]);
    let application = Application::load(&provider, "tiny", &elf, None).expect("a valid image");
    let device = provider.open("mlx5_0").expect("the first card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let process = Process::new(&application, &pd).expect("a process");
    assert!(Application::load(&provider, "spoilt", &elf[..100], None).is_err());
    assert_eq!(process.call_by_name("ping", 1).expect("still there"), 2);
}
