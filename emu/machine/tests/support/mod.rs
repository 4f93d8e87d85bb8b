//! A few RV64 encodings and images made of them.
#![allow(dead_code, missing_docs, unreachable_pub)]

pub mod weak;
pub mod wire;

use emu_machine::{Config, World};
use flexcast_image::testing::{TestElf, section};

pub const RA: u32 = 1;
pub const SP: u32 = 2;
pub const TP: u32 = 4;
pub const T0: u32 = 5;
pub const A0: u32 = 10;
pub const A1: u32 = 11;
pub const A2: u32 = 12;
pub const A3: u32 = 13;
pub const A4: u32 = 14;
pub const A7: u32 = 17;

pub const ECALL: u32 = 0x73;
pub const RET: u32 = 0x8067;
pub const SPIN: u32 = 0x6f;
pub const ILLEGAL: u32 = 0xFFFF_FFFF;

pub fn addi(rd: u32, rs: u32, value: i32) -> u32 {
    (value as u32) << 20 | rs << 15 | rd << 7 | 0x13
}
pub fn slli(rd: u32, rs: u32, by: u32) -> u32 {
    by << 20 | rs << 15 | 1 << 12 | rd << 7 | 0x13
}
pub fn add(rd: u32, a: u32, b: u32) -> u32 {
    b << 20 | a << 15 | rd << 7 | 0x33
}
pub fn lui(rd: u32, page: u32) -> u32 {
    page << 12 | rd << 7 | 0x37
}
pub fn ld(rd: u32, rs: u32, offset: i32) -> u32 {
    (offset as u32) << 20 | rs << 15 | 3 << 12 | rd << 7 | 0x03
}
pub fn sd(value: u32, rs: u32, offset: i32) -> u32 {
    let o = offset as u32 & 0xFFF;
    o >> 5 << 25 | value << 20 | rs << 15 | 3 << 12 | (o & 31) << 7 | 0x23
}

/// An image whose functions `handler`, `ping` and `ping__unpack` are the given instructions, with a page of writable
/// data at 0x80000000.
pub fn image(handler: &[u32], ping: &[u32]) -> Vec<u8> {
    // `ping__unpack(argbuf, function)` jumps to `function` with the first word of `argbuf`.
    let unpack = [addi(T0, A1, 0), ld(A0, A0, 0), 0x0002_8067];
    let mut elf = TestElf::image(&[("handler", handler), ("ping", ping), ("ping__unpack", &unpack)]);
    elf.sections.push(section(".data", 1, 3, 0x8000_0000, vec![0; 4096]));
    elf.segments.push((0x8000_0000, 4096, 6, elf.sections.len() - 1));
    elf.bytes()
}

/// A world of one card with one process of an image.
pub fn boot(elf: &[u8], config: Config) -> (World, u32) {
    let mut world = World::new(config).expect("a valid configuration");
    let process = world.create_process(0, elf).expect("a valid image");
    (world, process)
}

/// Calls `ping(argument)`.
pub fn ping(world: &mut World, process: u32, argument: u64) -> Result<u64, emu_machine::MachineError> {
    let image = &world.card(0)?.process(process)?.image;
    let (function, unpack) = (image.symbol("ping").unwrap(), image.symbol("ping__unpack").unwrap());
    let arguments = world.heap_alloc(0, process, 8)?;
    world.write_memory(0, process, arguments, &argument.to_le_bytes())?;
    let result = world.process_call(0, process, function, unpack, arguments);
    world.heap_free(0, process, arguments)?;
    result
}
