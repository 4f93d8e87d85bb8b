//! Refused work: whatever the card does not execute completes in error, and no opcode is passed over in silence.

use crate::common;
use common::*;
use emu_nic::{Transport, syndrome, vendor, wqe_opcode};

/// Opcodes that some queue pair executes.
const EXECUTED: [u8; 11] = [
    wqe_opcode::NOP,
    wqe_opcode::SEND_INVAL,
    wqe_opcode::RDMA_WRITE,
    wqe_opcode::RDMA_WRITE_IMM,
    wqe_opcode::SEND,
    wqe_opcode::SEND_IMM,
    wqe_opcode::RDMA_READ,
    wqe_opcode::ATOMIC_CS,
    wqe_opcode::ATOMIC_FA,
    wqe_opcode::LOCAL_INVAL,
    wqe_opcode::UMR,
];

/// Syndrome, vendor syndrome and opcode of the one completion, an error, of a WQE on a queue pair of its own.
fn fails(world: &mut World, transport: Transport, opcode: u8) -> (u8, u8, u8) {
    let (mut a, _) = world.pair(&Setup::new(transport));
    world.post(&mut a.qp, &Wqe::new(opcode));
    world.run();
    let cqes = world.poll_all(&mut a.scq);
    assert_eq!(cqes.len(), 1, "{transport}: {opcode:#x}");
    assert_eq!(cqes[0].opcode, 13, "{transport}: {opcode:#x}");
    (cqes[0].syndrome, cqes[0].vendor, cqes[0].send_opcode)
}

#[test]
fn every_opcode_that_is_not_executed_completes_in_error() {
    let refused: Vec<u8> = (0..=0xFF).filter(|opcode| !EXECUTED.contains(opcode)).collect();
    for opcodes in refused.chunks(32) {
        for transport in [Transport::Rc, Transport::Uc, Transport::Ud] {
            let mut world = World::new();
            for &opcode in opcodes {
                let expected = (syndrome::LOCAL_QP_OPERATION, vendor::OPCODE, opcode);
                assert_eq!(fails(&mut world, transport, opcode), expected, "{opcode:#x} on {transport}");
            }
        }
    }
}

#[test]
fn opcodes_of_reliable_connections_are_refused_elsewhere() {
    use wqe_opcode::{ATOMIC_CS, ATOMIC_FA, LOCAL_INVAL, RDMA_READ, RDMA_WRITE, RDMA_WRITE_IMM, SEND_INVAL, UMR};
    let mut world = World::new();
    for opcode in [RDMA_READ, ATOMIC_CS, ATOMIC_FA, SEND_INVAL] {
        assert_eq!(fails(&mut world, Transport::Uc, opcode).1, vendor::OPCODE, "{opcode:#x}");
    }
    for opcode in [RDMA_READ, ATOMIC_CS, ATOMIC_FA, SEND_INVAL, RDMA_WRITE, RDMA_WRITE_IMM, LOCAL_INVAL, UMR] {
        assert_eq!(fails(&mut world, Transport::Ud, opcode).1, vendor::OPCODE, "{opcode:#x}");
    }
}
