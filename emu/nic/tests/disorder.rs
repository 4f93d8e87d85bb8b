//! Packets that are lost, late and repeated: a reliable connection does everything once and in order all the same, and
//! the unreliable services lose whole messages, never parts of them.

use crate::common;
use common::*;
use emu_nic::wqe_opcode::*;
use emu_nic::*;
use proptest::prelude::*;

const SLOT: usize = 4096;
const COUNT: usize = 12;

fn setup(transport: Transport) -> Setup {
    let modify = QpModify { max_rd_atomic: Some(8), timeout: Some(5), ..QpModify::default() };
    Setup { log_sq: 7, log_rq: 6, log_cq: 8, modify, ..Setup::new(transport) }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_reliable_connection_does_everything_once(
        kinds in proptest::collection::vec((0_usize..6, 1_usize..SLOT), COUNT),
        seed in any::<u64>(),
        loss_ppm in prop_oneof![Just(0_u32), Just(20_000)],
    ) {
        let mut world = World::with(loss_ppm, seed, |_| {});
        world.disorder = Some(seed);
        let (mut a, mut b) = world.pair(&setup(Transport::Rc));
        let (here, lkey) = world.buffer(0, a.qp.pd, Space::Host, SLOT * COUNT * 2);
        let (there, rkey) = world.buffer(1, b.qp.pd, Space::Host, SLOT * (COUNT + 1));
        let (receive, receive_key) = world.buffer(1, b.qp.pd, Space::Host, SLOT * COUNT);
        let sent = pattern(SLOT * COUNT, 1);
        let stored = pattern(SLOT * COUNT, 100);
        world.mem[0].set(Space::Host, here, &sent);
        world.mem[1].set(Space::Host, there, &stored);
        let counter = there + (SLOT * COUNT) as u64;
        for slot in 0..COUNT {
            world.receive(&mut b.qp, &[(receive + (slot * SLOT) as u64, SLOT as u32, receive_key)]);
        }
        for (slot, &(kind, len)) in kinds.iter().enumerate() {
            let offset = (slot * SLOT) as u64;
            let into = here + (SLOT * COUNT) as u64 + offset;
            let wqe = match kind {
                0 => Wqe::new(SEND).data(here + offset, len, lkey),
                1 => Wqe::new(SEND_IMM).data(here + offset, len, lkey).immediate([slot as u8; 4]),
                2 => Wqe::new(RDMA_WRITE).data(here + offset, len, lkey).remote(there + offset, rkey),
                3 => Wqe::new(RDMA_WRITE_IMM).data(here + offset, len, lkey).remote(there + offset, rkey),
                4 => Wqe::new(RDMA_READ).data(into, len, lkey).remote(there + offset, rkey),
                _ => Wqe::new(ATOMIC_FA).data(into, 8, lkey).remote(counter, rkey).operands(1, 0),
            };
            world.put(&mut a.qp, &wqe);
        }
        world.mem[1].set(Space::Host, counter, &[0; 8]);
        world.ring(&a.qp);
        world.run();
        let cqes = world.poll_all(&mut a.scq);
        // Retries may run out on a link like this, but whatever completed was done, once and in order.
        let failed = cqes.iter().position(|cqe| cqe.opcode != cqe_opcode::REQUESTER);
        if let Some(at) = failed {
            prop_assert_eq!(cqes[at].syndrome, syndrome::RETRY_EXCEEDED);
        }
        let done = failed.unwrap_or(COUNT);
        prop_assert_eq!(cqes.len(), COUNT);
        let received = world.poll_all(&mut b.rcq);
        let (mut messages, mut atomics) = (0, 0_u64);
        for (slot, &(kind, len)) in kinds[..done].iter().enumerate() {
            let from = slot * SLOT;
            let into = here + (SLOT * COUNT + from) as u64;
            match kind {
                0 | 1 => {
                    prop_assert_eq!(received[messages].byte_count as usize, len);
                    let place = receive + (messages * SLOT) as u64;
                    prop_assert!(world.mem[1].get(Space::Host, place, len) == sent[from..from + len]);
                }
                2 | 3 => {
                    prop_assert!(world.mem[1].get(Space::Host, there + from as u64, len) == sent[from..from + len]);
                }
                4 => prop_assert!(world.mem[0].get(Space::Host, into, len) == stored[from..from + len]),
                _ => prop_assert_eq!(world.mem[0].get(Space::Host, into, 8), atomics.to_le_bytes()),
            }
            messages += usize::from(matches!(kind, 0 | 1 | 3));
            atomics += u64::from(kind == 5);
        }
        if failed.is_none() {
            prop_assert_eq!(received.len(), messages);
            prop_assert_eq!(world.mem[1].get(Space::Host, counter, 8), atomics.to_le_bytes());
            prop_assert_eq!(world.nics[1].counters().atomics, atomics);
        }
    }

    #[test]
    fn an_unreliable_connection_delivers_whole_messages_or_none(
        lengths in proptest::collection::vec(1_usize..SLOT, COUNT),
        seed in any::<u64>(),
    ) {
        let mut world = World::with(0, seed, |_| {});
        world.disorder = Some(seed);
        let (mut a, mut b) = world.pair(&setup(Transport::Uc));
        let (here, lkey) = world.buffer(0, a.qp.pd, Space::Host, SLOT * COUNT);
        let (receive, receive_key) = world.buffer(1, b.qp.pd, Space::Host, SLOT * COUNT);
        let sent = pattern(SLOT * COUNT, 1);
        world.mem[0].set(Space::Host, here, &sent);
        for slot in 0..COUNT {
            world.receive(&mut b.qp, &[(receive + (slot * SLOT) as u64, SLOT as u32, receive_key)]);
        }
        for (slot, &len) in lengths.iter().enumerate() {
            let wqe = Wqe::new(SEND_IMM).data(here + (slot * SLOT) as u64, len, lkey).immediate([slot as u8; 4]);
            world.put(&mut a.qp, &wqe);
        }
        world.ring(&a.qp);
        world.run();
        prop_assert_eq!(world.poll_all(&mut a.scq).len(), COUNT);
        for (place, cqe) in world.poll_all(&mut b.rcq).iter().enumerate() {
            let slot = usize::from(cqe.immediate[0]);
            prop_assert_eq!(cqe.byte_count as usize, lengths[slot]);
            let got = world.mem[1].get(Space::Host, receive + (place * SLOT) as u64, lengths[slot]);
            prop_assert!(got == sent[slot * SLOT..slot * SLOT + lengths[slot]]);
        }
    }
}
