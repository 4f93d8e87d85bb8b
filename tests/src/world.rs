//! The calling thread's emulated machine, seen from outside: its events, and the memory of the only process on card 0.
//! Every function panics where there is no such thing.
#![allow(clippy::missing_panics_doc)]

use emu_machine::{World, layout, with_world};
use flexio::{DevAddr, DeviceBuffer, Outbox, Process};

use crate::code::{RET, add, addi, image, ld, reg, rtos, sd};

/// Does something with the machine.
pub fn world<R>(f: impl FnOnce(&mut World) -> R) -> R {
    with_world(f).expect("this thread's machine")
}

/// Lets the machine run until nothing is under way.
pub fn settle() {
    world(|world| while world.step() {});
}

/// Lets the machine run event by event until what is awaited has come.
pub fn step_until(what: &str, mut done: impl FnMut() -> bool) {
    while !done() {
        assert!(world(World::step), "nothing happens any more, and not yet: {what}");
    }
}

/// The only process of card 0.
#[must_use]
pub fn process_id() -> u32 {
    world(|world| *world.card(0).expect("a card").processes.keys().next().expect("a process"))
}

/// Writes memory of that process.
pub fn put(addr: DevAddr, bytes: &[u8]) {
    let id = process_id();
    world(|world| world.write_memory(0, id, addr.get(), bytes)).expect("device memory");
}

/// Reads memory of that process.
#[must_use]
pub fn get<const N: usize>(addr: DevAddr) -> [u8; N] {
    let mut bytes = [0; N];
    get_into(addr, &mut bytes);
    bytes
}

/// The same into a slice.
pub fn get_into(addr: DevAddr, bytes: &mut [u8]) {
    let id = process_id();
    world(|world| world.peek_memory(0, id, addr.get(), bytes)).expect("device memory");
}

/// An image whose RPC `ping` rings the doorbell that a block of three words names: outbox, register, value. For
/// [`ring`].
#[must_use]
pub fn doorbell_program() -> Vec<u8> {
    let mut code = vec![addi(reg::S0, reg::A0, 0), ld(reg::A0, reg::S0, 0)];
    code.extend(rtos(layout::call::OUTBOX_CONFIG));
    code.extend([
        ld(reg::T0, reg::TP, layout::context::OUTBOX_BASE as i32),
        ld(reg::T1, reg::S0, 8),
        add(reg::T0, reg::T0, reg::T1),
        ld(reg::A2, reg::S0, 16),
        sd(reg::A2, reg::T0, 0),
        RET,
    ]);
    image(&[RET], &code)
}

/// Rings a doorbell from the device, and lets the machine settle.
pub fn ring(process: &Process, outbox: &Outbox, register: u64, value: u64) {
    let mut block = Vec::new();
    for word in [u64::from(outbox.id()), register, value] {
        block.extend_from_slice(&word.to_le_bytes());
    }
    let block = DeviceBuffer::from_bytes(process, &block).expect("a device buffer");
    assert_eq!(
        process.call_by_name("ping", block.addr().get()).expect("the call returns"),
        0,
        "the outbox was selected"
    );
    settle();
}
