//! The queue pair of general services: number 1 of a port, and otherwise as any other of its transport.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;

#[test]
fn datagrams_to_number_1_reach_it_once_it_is_there() {
    const QKEY: u32 = 0x8001_0000;
    let mut world = World::new();
    let setup = Setup { modify: QpModify { qkey: Some(QKEY), ..QpModify::default() }, ..Setup::new(Transport::Ud) };
    let (mut sender, mut receiver) = (world.end(0, &setup), world.end(1, &setup));
    world.connect(&sender.qp, (1, GSI_QPN), &setup.modify);
    let av = || Av { qkey: QKEY, ..Av::to(1, GSI_QPN) };
    let message = || Wqe::new(SEND).inline(b"request").to(av());
    world.post(&mut sender.qp, &message());
    world.run();
    assert_eq!(world.nics[1].counters().qp_drops, 1, "nobody is there");

    // With the rings of another one, which stays in RESET.
    let attr = world.nics[1].query_qp(receiver.qp.qpn).unwrap().attr;
    assert_eq!(world.nics[1].create_gsi_qp(attr), Ok(GSI_QPN));
    assert_eq!(world.nics[1].create_gsi_qp(attr), Err(NicError::QpTaken { qpn: GSI_QPN }));
    let rc = QpAttr { transport: Transport::Rc, ..attr };
    assert_eq!(world.nics[1].create_gsi_qp(rc), Err(NicError::GsiTransport { transport: Transport::Rc }));
    assert_eq!(world.nics[1].queue_pairs(0).next(), Some(GSI_QPN));
    for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
        let modify = QpModify { next_state: Some(state), qkey: Some(QKEY), sq_psn: Some(0), ..QpModify::default() };
        world.modify(1, GSI_QPN, &modify).unwrap();
    }
    let (addr, lkey) = world.buffer(1, receiver.qp.pd, Space::Host, 256);
    world.receive(&mut receiver.qp, &[(addr, 256, lkey)]);
    world.post(&mut sender.qp, &message());
    world.run();
    assert_eq!(world.poll_all(&mut receiver.rcq).len(), 1);
    assert_eq!(world.nics[1].query_qp(GSI_QPN).unwrap().rq_counter, 1);

    // It goes, and may be made again.
    world.nics[1].destroy_qp(GSI_QPN).unwrap();
    assert_eq!(world.nics[1].query_qp(GSI_QPN), Err(NicError::UnknownQp { qpn: GSI_QPN }));
    assert_eq!(world.nics[1].create_gsi_qp(attr), Ok(GSI_QPN));
}
