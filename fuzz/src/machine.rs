//! Emulated machine for fuzz targets.

use emu_machine::World;
use flexcast_image::testing::TestElf;

/// `ret`.
pub const RET: u32 = 0x0000_8067;

/// An image with an RPC `ping(x)` that gives x + 5, and its addresses: function, unpack function.
#[must_use]
pub fn ping_image() -> (Vec<u8>, u64, u64) {
    const ADDI_A0_A0_5: u32 = 0x0055_0513;
    // mv t0, a1; jr t0: the argument is passed as it is.
    const UNPACK: [u32; 2] = [0x0005_8293, 0x0002_8067];
    let elf = TestElf::image(&[("ping", &[ADDI_A0_A0_5, RET]), ("ping__unpack", &UNPACK)]);
    let addr = |name: &str| elf.symbols.iter().find(|symbol| symbol.0 == name).map_or(0, |symbol| symbol.1);
    (elf.bytes(), addr("ping"), addr("ping__unpack"))
}

/// The card takes a new process and its call comes back.
pub fn assert_calls(world: &mut World, card: usize) {
    let (elf, ping, unpack) = ping_image();
    let process = world.create_process(card, &elf).expect("a new process");
    let answer = world.process_call(card, process, ping, unpack, 37).expect("its call comes back");
    assert_eq!(answer, 42);
    world.destroy_process(card, process).expect("it is alive");
}
