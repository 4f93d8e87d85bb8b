//! The guide on writing firmware: its code is what is compiled here, and works on an emulated card.

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;

use emu_machine::{Config, MemoryModel};
use flexcast_abi::{ABI_HASH, ABI_VERSION, CompletionQueueMemory, DeviceAddress, HostLine, Layout, Queue};
use flexcast_image::ImageError;
use flexcast_tests::code::cards;
use flexcast_tests::tree::{copied_tree, xtask};
use flexcast_tests::world::settle;
use flexcast_tests::{chain, workspace_root};
use flexio::{
    AbiExpectation, Access, Affinity, Application, ContextAddress, CqTarget, DeviceBuffer, DpaCompletionQueue,
    EventHandler, HostBuffer, MemoryRegion, Outbox, Process, ProtectionDomain, Rpc, Window,
};
use zerocopy::{FromBytes as _, IntoBytes as _};

#[path = "../../guide/host.rs"]
mod host;

use crate::shared::{Answer, Job, Watch};

const WEAK: MemoryModel = MemoryModel::Weak { seed: 7, longest_delay_cycles: 1000 };

/// The guide's image, built in a copy of the tree.
fn elf() -> &'static [u8] {
    static ELF: OnceLock<Vec<u8>> = OnceLock::new();
    ELF.get_or_init(|| {
        let scratch = copied_tree();
        let root = scratch.path();
        let run = |args: &[&str]| {
            let output = xtask(root, args);
            let text = [&output.stdout[..], &output.stderr].map(String::from_utf8_lossy).concat();
            assert!(output.status.success(), "{args:?}: {text}");
        };
        run(&["new", "sum"]);
        let (image, guide) = (root.join("device/images/sum"), workspace_root().join("tests/guide"));
        fs::copy(guide.join("firmware.rs"), image.join("src/main.rs")).expect("the firmware");
        fs::copy(guide.join("shared.rs"), image.join("src/shared.rs")).expect("what both share");
        let manifest = fs::read_to_string(image.join("image.toml")).expect("image.toml");
        let manifest = manifest
            .replace("event_handlers = []", "event_handlers = [\"watch\"]")
            .replace("[\"bring_up\", \"measure\"]", "[\"bring_up\", \"sum\", \"wake\"]");
        fs::write(image.join("image.toml"), manifest).expect("writable");
        run(&["verify", "sum"]);
        fs::read(root.join("target/device/emu/sum.elf")).expect("the image")
    })
}

/// A block of the guide between a line that names it and the end of the block.
fn block(guide: &str, name: &str) -> String {
    let start = guide.find(&format!("`{name}`:\n\n```rust\n")).unwrap_or_else(|| panic!("no block {name}"));
    let text = &guide[start..];
    let text = &text[text.find("```rust\n").expect("its start") + 8..];
    text[..text.find("```\n").expect("its end")].to_owned()
}

#[test]
fn the_guide_shows_what_is_compiled_here() {
    let guide = fs::read_to_string(workspace_root().join("docs/firmware.md")).expect("the guide");
    for (name, file) in [
        ("device/images/sum/src/shared.rs", "shared.rs"),
        ("device/images/sum/src/main.rs", "firmware.rs"),
        ("host program", "host.rs"),
    ] {
        let path: PathBuf = workspace_root().join("tests/guide").join(file);
        assert!(
            block(&guide, name) == fs::read_to_string(path).expect("a file"),
            "{name} differs from tests/guide/{file}"
        );
    }
}

#[test]
fn firmware_reads_host_memory_through_a_window() {
    for memory in [MemoryModel::Strong, WEAK] {
        let provider = cards(Config { memory, ..Config::default() });
        for count in [0u64, 1, 7, 8, 1000] {
            let numbers: Vec<u64> = (0..count).map(|number| number.wrapping_mul(0x9E37_79B9_7F4A_7C15)).collect();
            let answer = host::sum(&provider, elf(), &numbers).expect("an answer");
            let sum = numbers.iter().fold(0, |sum: u64, number| sum.wrapping_add(*number));
            let largest = numbers.iter().copied().max().unwrap_or(0);
            assert_eq!(answer, Answer { sum, largest, done: 1, ..Answer::default() }, "{count} numbers, {memory:?}");
        }
    }
}

#[test]
fn a_job_of_another_layout_is_refused_before_it_is_given() {
    let provider = cards(Config::default());
    let application = Application::load(&provider, "sum", elf(), None).expect("a valid image");
    let image = application.image();
    image.expect_argument("sum", Job::HASH).expect("the same definition");
    image.expect_argument("watch", Watch::HASH).expect("the same definition");
    let other = image.expect_argument("sum", Watch::HASH).expect_err("another structure");
    assert_eq!(other, ImageError::ArgumentHash { name: "sum".to_owned(), found: Job::HASH, wanted: Watch::HASH });
    application.expect_rpc(&Rpc::<ContextAddress<Job>, u64>::new("sum")).expect("the same definition");
    application.expect_rpc(&Rpc::<ContextAddress<Watch>, u64>::new("sum")).expect_err("another structure");
    application.expect_rpc(&Rpc::<ContextAddress<Watch>, u64>::new("watch")).expect_err("an event handler");
}

/// Runs `watch` three times while the host rewrites the limit; what it reported each time, or why the process died.
fn watch(queue: impl FnOnce(&DpaCompletionQueue) -> CompletionQueueMemory) -> Result<Vec<(u64, u64)>, String> {
    let provider = cards(Config { memory: WEAK, ..Config::default() });
    let abi = AbiExpectation { version: ABI_VERSION, hash: ABI_HASH };
    let application = Application::load(&provider, "sum", elf(), Some(abi)).expect("a valid image");
    let device = provider.open("mlx5_0").expect("the first card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let process = Process::new(&application, &pd).expect("a process");
    let (window, outbox) = (Window::new(&process).expect("a window"), Outbox::new(&process).expect("an outbox"));
    let answer = HostBuffer::zeroed(size_of::<Answer>()).expect("memory");
    let answer =
        MemoryRegion::register(&pd, answer, Access::LOCAL_WRITE | Access::REMOTE_WRITE).expect("a registration");
    // The context, and behind it, outside of it, what the host rewrites.
    let memory = DeviceBuffer::zeroed(&process, size_of::<Watch>() as u64 + 64).expect("device memory");
    let line = memory.addr().offset(size_of::<Watch>() as u64);
    let cq = DpaCompletionQueue::new(&outbox, 2, CqTarget::Polled).expect("a queue");
    let context = Watch {
        queue: queue(&cq),
        limit: HostLine::new(DeviceAddress::new(line.get())),
        window_id: window.id(),
        window_mkey: answer.lkey(),
        answer: answer.addr().get(),
        activations: 0,
    };
    memory.write(0, context.as_bytes()).expect("in range");
    let handler = EventHandler::new(&process, "watch", memory.addr().get(), Affinity::Any).expect("a handler");
    handler.run(memory.addr().get()).expect("it runs");
    let mut reported = Vec::new();
    for limit in [10u64, 20, 30] {
        memory.write(size_of::<Watch>() as u64, limit.as_bytes()).expect("in range");
        let woken = process.call_by_name("wake", u64::from(handler.id())).map_err(|error| chain(&error))?;
        assert_eq!(woken, 0);
        settle();
        process.check().map_err(|error| chain(&error))?;
        let mut bytes = [0; size_of::<Answer>()];
        answer.read(0, &mut bytes).expect("in range");
        let answer = Answer::read_from_bytes(&bytes).expect("its size");
        reported.push((answer.sum, answer.largest));
    }
    Ok(reported)
}

#[test]
fn what_the_host_rewrites_is_seen_at_the_next_activation() {
    let reported = watch(|cq| {
        let (ring, record) = (DeviceAddress::new(cq.ring().get()), DeviceAddress::new(cq.doorbell_record().get()));
        Queue::new(ring, record, cq.number(), u32::from(cq.log_depth()))
    });
    assert_eq!(reported, Ok(vec![(1, 10), (2, 20), (3, 30)]));
}

#[test]
fn a_queue_that_the_host_has_not_given_ends_the_process_before_it_is_touched() {
    let death = watch(|_| CompletionQueueMemory::default()).expect_err("the process dies");
    assert!(death.contains("0x85"), "{death}");
}
