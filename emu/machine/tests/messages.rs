//! Messages of firmware whose host does not listen.

use crate::support;
use emu_machine::Config;
use support::*;

/// A stream holds what a buffer of a card may, and then refuses.
#[test]
fn a_stream_nobody_reads_is_bounded() {
    const MSG: i32 = 9;
    // ping(n): sends a message of one byte n times and gives what the last attempt gave; a4 counts down.
    let ping = [
        addi(A4, A0, 0),
        addi(A0, 0, 0),
        addi(A1, 0, 1),
        addi(A2, SP, -16),
        addi(A3, 0, 1),
        addi(A7, 0, MSG),
        ECALL,
        addi(A4, A4, -1),
        // bnez a4, -28
        0xFE07_12E3,
        RET,
    ];
    let config = Config { cards: 1, heap_bytes: 4096, ..Config::default() };
    let (mut world, process) = boot(&image(&[RET], &ping), config);
    world.create_stream(0, process, 5).unwrap();
    assert_eq!(self::ping(&mut world, process, 16_384).unwrap(), 0);
    assert_eq!(self::ping(&mut world, process, 5).unwrap(), 1, "refused");
    assert_eq!(world.take_stream_messages(0, process, 0).unwrap().len(), 16_384);
    assert_eq!(self::ping(&mut world, process, 1).unwrap(), 0);
}
