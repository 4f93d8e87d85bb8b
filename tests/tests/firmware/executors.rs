//! The receive datapath on synthetic queues under three executors: the emulated DPA (image `synthetic`), this
//! emulator's hart as a bare machine, and QEMU. Results, the memory left behind and instructions retired must be the
//! same.

use std::path::PathBuf;
use std::process::Command;

use emu_hart::bare::{self, Board, Options, Outcome, Program, Streams};
use flexcast_abi::rpc::RUN;
use flexcast_abi::{ABI_HASH, ABI_VERSION, ContextMemory, DeviceAddress, ReceiveContext, ReceiveThread};
use flexcast_image::Image;
use flexcast_tests::code::cards;
use flexcast_tests::harness::skipped;
use flexcast_tests::image_bytes;
use flexcast_tests::tree::build_tool;
use flexio::LogDecoder;
use flexio::{
    AbiExpectation, Access, Application, DeviceBuffer, HostBuffer, MemoryRegion, MsgLevel, MsgStream, Outbox, Process,
    ProtectionDomain, Window,
};
use zerocopy::IntoBytes as _;

/// Transports, batches and kinds of arrival.
const SCENARIOS: usize = 2 * 4 * 5;

/// The bare program, built.
fn virt_elf() -> PathBuf {
    let output = build_tool().args(["virt", "--build"]).output().expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

/// Lines of the image on the emulated DPA.
fn on_the_dpa() -> Vec<String> {
    let elf = image_bytes("synthetic");
    let provider = cards(emu_machine::Config::default());
    let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
    let application = Application::load(&provider, "synthetic", &elf, Some(abi)).expect("a valid image");
    let device = provider.open("mlx5_0").expect("the first card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let process = Process::new(&application, &pd).expect("a process");
    let outbox = Outbox::new(&process).expect("an outbox");
    let window = Window::new(&process).expect("a window");
    let host =
        MemoryRegion::register(&pd, HostBuffer::zeroed(4096).expect("memory"), Access::LOCAL_WRITE).expect("a key");
    let (thread_bytes, context_bytes) = (size_of::<ReceiveThread>() as u64, size_of::<ReceiveContext>() as u64);
    let memory = DeviceBuffer::zeroed(&process, thread_bytes + context_bytes).expect("device memory");
    let thread = ReceiveThread {
        outbox_id: outbox.id(),
        window_id: window.id(),
        window_mkey: host.lkey(),
        contexts: ContextMemory::new(DeviceAddress::new(memory.addr().get() + thread_bytes), 1),
        ..Default::default()
    };
    let context =
        ReceiveContext { flag_host: host.addr().get(), report_host: host.addr().get() + 64, ..Default::default() };
    memory.write(0, thread.as_bytes()).expect("a copy");
    memory.write(thread_bytes, context.as_bytes()).expect("a copy");
    let mut stream = MsgStream::new(&process, MsgLevel::Debug).expect("a message stream");
    assert_eq!(process.call(&RUN, memory.context_at(0).expect("in range")).expect("the image runs"), 0);
    let decoder = LogDecoder::new(&elf).expect("log strings");
    let lines = stream.lines().expect("lines");
    lines.iter().map(|line| decoder.line(line).trim_start_matches("info").trim().to_owned()).collect()
}

/// Lines of the bare program on this emulator's hart.
fn on_the_hart(elf: &[u8]) -> Vec<String> {
    let image = Image::parse_bare(elf).expect("a program");
    let program = Program {
        segments: image.segments().iter().map(|s| (s.vaddr, s.bytes.as_slice(), s.mem_size)).collect(),
        entry: image.entry(),
        ..Program::default()
    };
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let options = Options { board: Board::Virt, instructions: 100_000_000, ..Options::default() };
    let report = bare::run(&program, &options, &mut Streams { out: &mut out, err: &mut err, trace: None });
    assert_eq!(report.expect("a program that can be run").outcome, Outcome::Exit(0));
    String::from_utf8(out).expect("text").lines().map(str::to_owned).collect()
}

/// Lines of the bare program under QEMU; `None` where it is not installed.
fn under_qemu(elf: &std::path::Path) -> Option<Vec<String>> {
    let output = Command::new("timeout")
        .args(["60", "qemu-system-riscv64", "-machine", "virt", "-bios", "none", "-nographic", "-icount", "shift=0"])
        .arg("-kernel")
        .arg(elf)
        .stdin(std::process::Stdio::null())
        .output()
        .expect("timeout (coreutils) can be started");
    // 127: timeout found no such program.
    if output.status.code() == Some(127) {
        return None;
    }
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

#[test]
fn three_executors_agree_on_results_and_instructions() {
    let virt = virt_elf();
    let hart = on_the_hart(&std::fs::read(&virt).expect("the program"));
    assert_eq!(hart.len(), SCENARIOS, "{hart:#?}");
    for line in &hart {
        // Everything was received, and 730 messages more where they disturb.
        let wanted = if line.contains("disturbed") { "cqes 2778 left 0 status 2" } else { "cqes 2048 left 0 status 2" };
        assert!(line.contains(wanted), "{line}");
    }
    assert_eq!(on_the_dpa(), hart, "the emulated DPA against the bare hart");
    match under_qemu(&virt) {
        Some(qemu) => assert_eq!(qemu, hart, "QEMU against the bare hart"),
        None => skipped("qemu-system-riscv64 is not installed (Debian: qemu-system-misc)"),
    }
}
