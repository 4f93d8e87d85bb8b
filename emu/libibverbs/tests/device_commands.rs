//! Device commands: those that are not emulated, and fields that are not, are refused with a status and a syndrome.
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)] // C calls on objects made in the test

mod support;

use support::*;

/// A command of 272 bytes with this opcode.
fn command(opcode: u16) -> [u8; 272] {
    let mut command = [0; 272];
    command[..2].copy_from_slice(&opcode.to_be_bytes());
    command
}

/// errno, status and syndrome of a command that makes an object, and must not.
fn refused(host: &Host, command: &[u8]) -> (i32, u8, u32) {
    let mut answer = [0_u8; 16];
    let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
    let object = unsafe { (host.api.mlx5dv_devx_obj_create)(host.context, input, command.len(), out, 16) };
    assert!(object.is_null(), "{:x?} made an object", &command[..2]);
    (errno(), answer[0], u32::from_be_bytes(answer[4..8].try_into().unwrap()))
}

const BAD_OPERATION: u8 = 0x2;
const BAD_PARAMETER: u8 = 0x3;
const UNSUPPORTED_COMMAND: u32 = 0xF1EC_0001;
const UNSUPPORTED_FIELD: u32 = 0xF1EC_0012;

#[test]
fn commands_that_are_not_emulated_are_refused() {
    let [host, _] = two_cards();
    // ALLOC_PD, CREATE_TIR, CREATE_SQ, CREATE_RQ, CREATE_UMEM, CREATE_SRQ, CREATE_EQ, and one that is none.
    for opcode in [0x800, 0x900, 0x904, 0x908, 0xA08, 0x700, 0x301, 0x9999] {
        let expected = (libc::EREMOTEIO, BAD_OPERATION, UNSUPPORTED_COMMAND);
        assert_eq!(refused(&host, &command(opcode)), expected, "{opcode:#x}");
        let mut answer = [0_u8; 16];
        let command = command(opcode);
        let (input, out) = (command.as_ptr().cast(), answer.as_mut_ptr().cast());
        let result = unsafe { (host.api.mlx5dv_devx_general_cmd)(host.context, input, command.len(), out, 16) };
        assert_eq!((result, answer[0]), (libc::EREMOTEIO, BAD_OPERATION), "{opcode:#x}");
    }
}

#[test]
fn fields_that_are_not_emulated_are_refused_by_name() {
    let [host, _] = two_cards();
    let expected = (libc::EREMOTEIO, BAD_PARAMETER, UNSUPPORTED_FIELD);
    // Byte and bits of CREATE_CQ.
    for (name, byte, bits) in [
        ("CQE size", 0x11, 0x20),
        ("collapsing", 0x11, 0x10),
        ("compression", 0x12, 0x40),
        ("moderation by time", 0x21, 1),
        ("moderation by count", 0x23, 2),
    ] {
        let mut command = command(0x400);
        command[byte] = bits;
        assert_eq!(refused(&host, &command), expected, "{name}");
    }
    let mut queue_pair = command(0x500);
    queue_pair[0x18 + 0xAC] = 1; // rq_type: shared
    assert_eq!(refused(&host, &queue_pair), expected, "a shared receive queue");
}
