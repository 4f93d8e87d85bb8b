//! Workers whose arrays are in the memory of accelerators, together with workers whose arrays are the processor's.
#![allow(unsafe_code)] // Memory of other devices is given by its address.

use std::os::fd::AsFd as _;

use emu_machine::fabric::{Fault, FaultEvent};
use emu_provider::emulated;
use flexcast::p2p::sparse::{Config, Error, Party, Settings, Worker};
use flexcast_tests::assert_mentions;
use flexcast_tests::device_memory::{Device, DeviceArrays, DeviceMemory, Traffic};
use flexcast_tests::sparse_world::{OnDevices, World, contributions, on};
use flexio::{Access, Bound, PeerRegion, ProtectionDomain};

use super::{SUM, hasty, messages};

/// Bytes of blocks that some array has, as far as they are in the array: what an accelerator writes in place.
fn used(arrays: &[Vec<u8>], block_bytes: usize) -> u64 {
    let bytes = arrays[0].len();
    let is_used = |start: &usize| {
        let range = *start..bytes.min(start + block_bytes);
        arrays.iter().any(|array| array[range.clone()].iter().any(|byte| *byte != 0))
    };
    (0..bytes).step_by(block_bytes).filter(is_used).map(|start| (bytes - start).min(block_bytes) as u64).sum()
}

#[test]
fn every_size_and_pattern_with_each_byte_read_and_written_once() {
    // Workers, those with accelerators, polls of their programs, aggregators, shards of each, bytes of a block, blocks
    // per message.
    for (workers, staged, polls, aggregators, each, block_bytes, blocks) in [
        (1, 1, 0, 1, 1, 256, 1),
        (2, 1, 3, 1, 2, 256, 16),
        (3, 3, 1, 2, 1, 512, 3),
        (4, 1, 0, 1, 1, 1024, 29),
        (6, 3, 40, 3, 2, 256, 5),
    ] {
        let settings = Settings::new(workers, aggregators, each, block_bytes, blocks).expect("settings");
        let devices = OnDevices { workers: staged, bytes: 81 << 10, polls };
        let mut world = World::with_devices(settings, Vec::new(), Config::default(), devices);
        for (elements, zeros) in
            [(0, 0), (1, 0), (127, 50), (1009, 100), (4099, 0), (4096, 50), (7919, 90), (20_011, 97), (104, 0)]
        {
            let bytes = 4 * elements;
            let arrays = contributions(workers, bytes, (block_bytes, zeros), 7 + elements as u64);
            let (call, in_place) = (world.call(bytes, SUM), elements % 2 == 0);
            let before = world.statistics().0;
            let traffic = world.gets(call, &arrays, in_place);
            // Each byte is read once, and each byte of the result written once; in place, blocks that nobody has are
            // not written.
            let written = if in_place { used(&arrays, block_bytes as usize) } else { bytes as u64 };
            assert_eq!(traffic, vec![Traffic { read: bytes as u64, written }; staged as usize], "{elements} {zeros}");
            let expected = if elements > 0 { messages(&settings, &call, &arrays) } else { 0 };
            for (now, before) in world.statistics().0.iter().zip(before) {
                assert_eq!(now.sent_messages - before.sent_messages, expected, "{workers} {elements} {zeros}");
                assert_eq!(now.received_messages - before.received_messages, expected);
            }
        }
        // In addition to the indices a message is two pieces of a ring at most, or a piece of an accelerator's buffer
        // for each block.
        let all = world.statistics().0;
        let (ours, theirs) = all.split_at((workers - staged) as usize);
        assert!(ours.iter().all(|one| one.most_pieces <= 3));
        assert!(theirs.iter().all(|one| (2..=u64::from(blocks) + 1).contains(&one.most_pieces)));
        assert!(theirs.iter().all(|one| one.block_memory_bytes == 81 << 10));
    }
}

#[test]
fn pieces_are_one_more_than_blocks_at_most_and_neighbours_are_one() {
    let settings = Settings::new(2, 1, 1, 256, 16).expect("settings");
    for (step, pieces) in [(1, 2), (2, 17), (3, 17)] {
        let devices = OnDevices { workers: 2, bytes: 64 << 10, polls: 0 };
        let mut world = World::with_devices(settings, Vec::new(), Config::default(), devices);
        let array: Vec<u8> = (0..64 << 10).map(|at| u8::from((at / 256) % step == 0)).collect();
        world.gets(world.call(64 << 10, SUM), &[array.clone(), array], true);
        let all = world.statistics().0;
        assert!(all.iter().all(|one| one.most_pieces == pieces), "every block number {step}: {all:?}");
    }
}

#[test]
fn every_type_and_operator_that_zeros_do_not_change() {
    let settings = Settings::new(3, 2, 1, 256, 4).expect("settings");
    let devices = OnDevices { workers: 2, bytes: 8192, polls: 1 };
    super::every_type_and_operator(&mut World::with_devices(settings, Vec::new(), Config::default(), devices));
}

#[test]
fn losses_cost_time_and_no_bytes() {
    let faults = [Fault::Drop { ppm: 20_000 }, Fault::Corrupt { ppm: 10_000 }, Fault::Duplicate { ppm: 10_000 }];
    let faults = faults.map(|fault| FaultEvent::on("*", fault)).to_vec();
    let settings = Settings::new(4, 2, 1, 1024, 8).expect("settings");
    let devices = OnDevices { workers: 2, bytes: 241 << 10, polls: 2 };
    let mut world =
        World::with_devices(settings, faults, Config { bound: Config::default().bound, ..hasty() }, devices);
    for (seed, zeros) in [(1, 0), (2, 50), (3, 90)] {
        let arrays = contributions(4, 60_013 * 4, (1024, zeros), seed);
        world.gets(world.call(60_013 * 4, SUM), &arrays, seed == 2);
    }
}

#[test]
fn a_failed_operation_leaves_the_array_as_it_was() {
    let settings = Settings::new(3, 2, 1, 256, 4).expect("settings");
    let arrays = contributions(3, 40_000, (256, 30), 3);
    // Somebody is dead from the start, or goes in the middle.
    for after in [0, 60] {
        let devices = OnDevices { workers: 2, bytes: 40 << 10, polls: 0 };
        let mut world = World::with_devices(settings, Vec::new(), hasty(), devices);
        let ends = world.end_with_death(world.call(40_000, SUM), &arrays, true, Some((Party::Worker(0), after)));
        assert!(ends.workers[1..].iter().all(Result::is_err), "{:?}", ends.workers);
        assert!(ends.arrays[1..] == arrays[1..] && ends.traffic.iter().all(|traffic| traffic.written == 0));
    }
}

#[test]
fn programs_that_do_not_end_and_impossible_calls_are_reported() {
    let settings = Settings::new(2, 1, 1, 256, 4).expect("settings");
    let devices = OnDevices { workers: 1, bytes: 4096, polls: u32::MAX };
    let mut world = World::with_devices(settings, Vec::new(), hasty(), devices);
    world.aggregators[0].set_bound(Bound::millis(5));
    world.workers[0].set_bound(Bound::millis(5));
    let (long, none) = (world.call(4100, SUM), world.call(0, SUM));
    let too_long = world.staged[0].begin(long).expect_err("no room");
    assert_mentions(&too_long, &["array's length is 4100", "at most 4096", "longer"]);
    let arrays = contributions(2, 4096, (256, 0), 3);
    let ends = world.end(world.call(4096, SUM), &arrays, true, None);
    let error = ends.workers[1].as_ref().expect_err("its scan is not over");
    assert!(matches!(error, Error::AcceleratorTimeout { .. }), "{error}");
    assert_mentions(error, &["for the accelerator", "raise the bound"]);
    assert!(matches!(world.staged[0].begin(none), Err(Error::Failed)));

    let provider = emulated(on(1, Vec::new())).expect("a machine");
    let domain = ProtectionDomain::new(&provider.open("mlx5_0").expect("a card")).expect("a domain");
    let staged = |bytes, blocks| {
        let settings = Settings::new(1, 1, 1, 256, blocks).expect("settings");
        Worker::staged(Device::new(&domain, bytes, 0), settings, 0, Config::default()).map(drop)
    };
    staged(4096, 29).expect("as many pieces as the card takes");
    assert_mentions(&staged(4096, 30).expect_err("one more"), &["blocks per message is 30", "at most 29", "30 pieces"]);
    assert_mentions(&staged(255, 4).expect_err("short"), &["buffer is 255", "at least 256"]);
    let (pending, _) =
        Worker::staged(Device::new(&domain, 4096, 0), Settings::new(1, 1, 1, 256, 4).expect("settings"), 0, hasty())
            .expect("prepared");
    let missing = pending.connect(&[] as &[Vec<u8>]).expect_err("no aggregators");
    assert_mentions(&missing, &["aggregator 0", "missing"]);

    // SAFETY: the emulated card refuses it; nothing is registered.
    let refused = unsafe {
        let null = std::fs::File::open("/dev/null").expect("a file");
        PeerRegion::by_dma_buf(&domain, null.as_fd(), 0, (1 << 20, 4096), Access::LOCAL_WRITE).map(drop)
    };
    assert_mentions(
        &refused.expect_err("no dma-buf"),
        &["ibv_reg_dmabuf_mr", "4096 bytes at 0x100000", "nvidia-peermem"],
    );
    // SAFETY: refused before anything is called.
    let nothing = unsafe { PeerRegion::by_address(&domain, 1 << 20, 0, Access::LOCAL_WRITE).map(drop) };
    assert_mentions(&nothing.expect_err("no bytes"), &["length of a memory region is 0"]);
}

#[test]
fn a_shorter_array_than_the_operation_is_refused() {
    let settings = Settings::new(1, 1, 1, 256, 4).expect("settings");
    let devices = OnDevices { workers: 1, bytes: 4096, polls: 0 };
    let mut world = World::with_devices(settings, Vec::new(), hasty(), devices);
    let call = world.call(512, SUM);
    world.staged[0].begin(call).expect("begun");
    let mut short = DeviceArrays { send: None, receive: DeviceMemory::new(&[1; 500]) };
    let error = world.staged[0].progress(&mut short).expect_err("short");
    assert_mentions(&error, &["array's length is 500", "512"]);
    // That has changed nothing.
    let mut whole = DeviceArrays { send: None, receive: DeviceMemory::new(&[1; 512]) };
    world.aggregators[0].begin(call).expect("begun");
    while !world.staged[0].is_complete() {
        world.staged[0].progress(&mut whole).expect("goes on");
        world.aggregators[0].progress().expect("goes on");
        world.provider.relax().relax();
    }
    assert_eq!(whole.receive.to_vec(), [1; 512]);
    assert_eq!(whole.traffic(), Traffic { read: 512, written: 512 });
}
