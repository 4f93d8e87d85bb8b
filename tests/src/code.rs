//! Device images of a few hand-encoded instructions, for programs that no compiler would make.

use emu_machine::Config;
use flexcast_image::testing::{TestElf, section};
use flexio::{Application, Process, ProtectionDomain, Provider};

/// Integer registers, by their calling-convention names.
pub mod reg {
    #![allow(missing_docs, reason = "the names of the calling convention")]
    pub const RA: u32 = 1;
    pub const TP: u32 = 4;
    pub const T0: u32 = 5;
    pub const T1: u32 = 6;
    pub const S0: u32 = 8;
    pub const A0: u32 = 10;
    pub const A1: u32 = 11;
    pub const A2: u32 = 12;
    pub const A3: u32 = 13;
    pub const A4: u32 = 14;
    pub const A7: u32 = 17;
}

/// Calls the emulated runtime; the number is in `a7`.
pub const ECALL: u32 = 0x73;
/// Returns to `ra`.
pub const RET: u32 = 0x8067;
/// Jumps to itself.
pub const SPIN: u32 = 0x6f;
/// No instruction at all.
pub const ILLEGAL: u32 = 0xFFFF_FFFF;
/// `fadd.d fa0, fa0, fa1`: double precision, which the DPA does not have.
pub const FADD_D: u32 = 0x02B5_7553;
/// `flw fa0, 0(a0)`: single precision, likewise.
pub const FLW: u32 = 0x0005_2507;
/// First byte of the writable page of [`image`].
pub const DATA: u64 = 0x8000_0000;

/// `addi rd, rs, value`.
#[must_use]
pub fn addi(rd: u32, rs: u32, value: i32) -> u32 {
    value.cast_unsigned() << 20 | rs << 15 | rd << 7 | 0x13
}

/// `slli rd, rs, by`.
#[must_use]
pub fn slli(rd: u32, rs: u32, by: u32) -> u32 {
    by << 20 | rs << 15 | 1 << 12 | rd << 7 | 0x13
}

/// `add rd, a, b`.
#[must_use]
pub fn add(rd: u32, a: u32, b: u32) -> u32 {
    b << 20 | a << 15 | rd << 7 | 0x33
}

/// `ld rd, offset(rs)`.
#[must_use]
pub fn ld(rd: u32, rs: u32, offset: i32) -> u32 {
    offset.cast_unsigned() << 20 | rs << 15 | 3 << 12 | rd << 7 | 0x03
}

/// `sd value, offset(rs)`.
#[must_use]
pub fn sd(value: u32, rs: u32, offset: i32) -> u32 {
    let o = offset.cast_unsigned() & 0xFFF;
    o >> 5 << 25 | value << 20 | rs << 15 | 3 << 12 | (o & 31) << 7 | 0x23
}

/// `jalr ra, 0(rs)`.
#[must_use]
pub fn call_register(rs: u32) -> u32 {
    rs << 15 | 1 << 7 | 0x67
}

/// Calls number `number` of the runtime.
#[must_use]
pub fn rtos(number: u64) -> [u32; 2] {
    [addi(reg::A7, 0, number as i32), ECALL]
}

/// The parts of [`image`], to be spoilt one by one.
#[must_use]
pub fn elf(handler: &[u32], ping: &[u32]) -> TestElf {
    // `ping__unpack(argbuf, function)` jumps to `function` with the first word of `argbuf`.
    let unpack = [addi(reg::T0, reg::A1, 0), ld(reg::A0, reg::A0, 0), 0x0002_8067];
    let mut elf = TestElf::image(&[("handler", handler), ("ping", ping), ("ping__unpack", &unpack)]);
    elf.sections.push(section(".data", 1, 3, DATA, vec![0; 4096]));
    elf.segments.push((DATA, 4096, 6, elf.sections.len() - 1));
    elf
}

/// An image with the event handler `handler` and the RPC `ping`, made of the given instructions, and a page of writable
/// data at [`DATA`].
#[must_use]
pub fn image(handler: &[u32], ping: &[u32]) -> Vec<u8> {
    elf(handler, ping).bytes()
}

/// Two emulated cards, new, for the calling thread.
///
/// # Panics
/// The machine refuses the configuration.
#[must_use]
pub fn cards(config: Config) -> Provider {
    emu_provider::emulated(config).expect("a valid configuration")
}

/// Boots an image on the first of two new cards and calls `body` with its process.
///
/// # Panics
/// The image or the cards are refused.
pub fn with_process<R>(config: Config, elf: &[u8], body: impl FnOnce(&Process) -> R) -> R {
    let provider = cards(config);
    let application = Application::load(&provider, "tiny", elf, None).expect("a valid image");
    let device = provider.open("mlx5_0").expect("the first card");
    let pd = ProtectionDomain::new(&device).expect("a protection domain");
    let process = Process::new(&application, &pd).expect("a process");
    body(&process)
}
