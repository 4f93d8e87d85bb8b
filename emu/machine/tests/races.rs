//! The race detector: each kind of race is reported with both accesses, and nothing else is.

use std::collections::BTreeSet;

use crate::support;
use emu_machine::nic::{Access, MkeyAttr, Space};
use emu_machine::{Agent, Config, MemoryModel, Race, RaceKind};
use support::weak::*;
use support::*;

/// Of the one race that is expected: kind, and the function of the firmware that is to blame.
#[track_caller]
fn blamed(races: &[Race]) -> (RaceKind, &str) {
    let [race] = races else { panic!("{races:#?}") };
    let Agent::Thread { symbol: Some((name, _)), pc, .. } = &race.second.agent else { panic!("{race}") };
    assert!(*pc >= 0x4000_0000 && race.second.at_ps > 0, "{race}");
    (race.kind, name)
}

#[test]
fn entries_changed_under_the_card_are_reported_with_both_accesses() {
    let fenced = [fence(O | W, O | W)];
    assert_eq!(nop(1, &fenced, &[]).1, vec![]);
    let (_, races) = nop(1, &fenced, &[sd(0, T0, 8), fence(R | W, R | W)]);
    assert_eq!(blamed(&races), (RaceKind::OwnedByCard, "ping"));
    let Agent::Card { qpn: Some(_), entry: Some(0) } = races[0].first.agent else { panic!("{}", races[0]) };
    assert_eq!((races[0].first.addr, races[0].second.addr), (RING, RING + 8));
    assert!(races[0].first.at_ps <= races[0].second.at_ps);
}

#[test]
fn a_source_overwritten_by_the_card_is_reported_with_both_entries() {
    let run = |source: u64| {
        let program = code(&[
            &[addi(S0, A0, 0), ld(A0, S0, 0), addi(A7, 0, 6), ECALL],
            &[ld(A2, TP, 8), ld(A1, S0, 8), sd(A1, A2, 0x1C0), RET],
        ]);
        let (mut world, process) = boot(&image(&[RET], &program), Config { memory: MemoryModel::Strong, ..config(1) });
        let qpn = queue_pair(&mut world, process);
        let outbox = world.create_outbox(0, process).unwrap();
        let card = world.card(0).unwrap();
        let pd = card.nic.query_qp(qpn).unwrap().attr.pd;
        let attr =
            MkeyAttr { pd, space: Space::Dpa(process), start: RING, len: 8192, access: Access::LOCAL_WRITE, offset: 0 };
        let key = card.nic.create_mkey(attr).unwrap();
        // A datagram: control segment, address vector, one data segment in the second block; no completion asked for.
        // Then a NOP that asks for one: its completion entry goes to the start of the completion ring.
        let mut ring = [0; 192];
        for (at, word) in [(0, 0x0A), (4, qpn << 8 | 5), (64, 64), (68, key), (72, 1), (76, source as u32)] {
            ring[at..at + 4].copy_from_slice(&u32::to_be_bytes(word));
        }
        for (at, word) in [(128, 2 << 8), (132, qpn << 8 | 1), (136, 8)] {
            ring[at..at + 4].copy_from_slice(&u32::to_be_bytes(word));
        }
        world.write_memory(0, process, RING, &ring).unwrap();
        let words = [u64::from(outbox), u64::from(qpn) << 32 | 3];
        world.write_memory(0, process, DATA, &words.map(u64::to_le_bytes).concat()).unwrap();
        ping(&mut world, process, DATA).unwrap();
        while world.step() {}
        world.take_races()
    };
    assert_eq!(run(RING + 6144), vec![]);
    let races = run(RING + 2048);
    let [race] = &races[..] else { panic!("{races:#?}") };
    assert_eq!(race.kind, RaceKind::OverwrittenSource, "{race}");
    let Agent::Card { qpn: Some(_), entry: Some(0) } = race.first.agent else { panic!("{race}") };
    assert!(matches!(race.second.agent, Agent::Card { .. }) && race.second.addr == RING + 2048, "{race}");
    assert!(race.first.at_ps < race.second.at_ps, "{race}");
}

#[test]
fn stores_to_released_memory_are_reported_strong_or_weak() {
    for memory in [MemoryModel::Strong, MemoryModel::weak(1)] {
        let program = [sd(A0, A0, 0), fence(R | W, R | W), RET];
        let (mut world, process) = boot(&image(&[RET], &program), Config { memory, ..config(1) });
        let addr = world.heap_alloc(0, process, 256).unwrap();
        ping(&mut world, process, addr).unwrap();
        assert_eq!(world.take_races(), vec![]);
        world.heap_free(0, process, addr).unwrap();
        // The argument of the call goes elsewhere.
        let kept = world.heap_alloc(0, process, 64).unwrap();
        assert_eq!(kept, addr);
        ping(&mut world, process, addr + 128).unwrap();
        let races = world.take_races();
        assert_eq!(blamed(&races), (RaceKind::ReleasedMemory, "ping"));
        assert_eq!(races[0].first.agent, Agent::Host);
    }
}

#[test]
fn two_owners_of_a_line_are_reported_and_one_loses_its_bytes() {
    let run = |seed: u64, offset: u64| {
        // Gathers half a line, computes a while, writes back.
        let program = code(&[
            &open_window(),
            &[addi(A2, 0, 7), sd(A2, A0, 8)],
            &[addi(A3, 0, 2000), addi(A3, A3, -1), beq(A3, 0, 8), beq(0, 0, -8)],
            &[fence(O | W, O | W)],
            &RESCHEDULE,
        ]);
        let (mut world, process) = boot(&two_handlers(&program, &RESCHEDULE), config(seed));
        let host = show_host(&mut world, process);
        let first = make_handlers(&mut world, process);
        ping(&mut world, process, first).unwrap();
        let gathered_ps = world.now_ps() + 2_000_000;
        while world.now_ps() < gathered_ps {
            assert!(world.step(), "the device computes");
        }
        world.host.write(host + offset, &5u64.to_le_bytes()).unwrap();
        while world.step() {}
        assert_eq!(host_word(&world, host + 8), 7);
        let kept = host_word(&world, host + offset);
        (kept, world.take_races().into_iter().map(|race| race.kind).collect::<Vec<_>>())
    };
    // A line may also leave the cache before the host stores: not for every seed is there a race.
    assert!((0..20).all(|seed| run(seed, 64) == (5, vec![])), "another line");
    let same: BTreeSet<_> = (0..20).map(|seed| run(seed, 0)).collect();
    assert!(same.contains(&(0, vec![RaceKind::TwoOwners])), "{same:?}");
    assert!(same.iter().all(|(kept, races)| (*kept == 5) == races.is_empty()), "{same:?}");
}

#[test]
fn updates_that_one_of_two_threads_loses_are_reported() {
    let run = |memory, update: &[u32]| {
        // Both threads add 1 to a word 100 times.
        let back = -4 * (update.len() as i32 + 2);
        let program = code(&[
            &[addi(A3, 0, 100), addi(A2, 0, 1)],
            update,
            &[addi(A3, A3, -1), beq(A3, 0, 8), beq(0, 0, back)],
            &[fence(R | W, R | W)],
            &RESCHEDULE,
        ]);
        let (mut world, process) = boot(&two_handlers(&program, &program), Config { memory, ..config(1) });
        let first = make_handlers(&mut world, process);
        ping(&mut world, process, first).unwrap();
        while world.step() {}
        (word(&mut world, process, DATA + 512), world.take_races())
    };
    let plain = [addi(A4, A0, 512), ld(A1, A4, 0), addi(A1, A1, 1), sd(A1, A4, 0)];
    let atomic = [addi(A4, A0, 512), amoadd(A1, A2, A4, 0, 0)];
    for memory in [MemoryModel::Strong, MemoryModel::weak(1)] {
        let (sum, races) = run(memory, &plain);
        assert!((1..200).contains(&sum), "{sum}");
        assert!(races.iter().all(|race| race.kind == RaceKind::Unordered), "{races:#?}");
        let Some(Race { first, second, .. }) = races.first() else { panic!("{sum} of 200, and no race") };
        let whose = |access: &emu_machine::Access| match &access.agent {
            Agent::Thread { thread, symbol: Some((name, _)), .. } => (*thread, name.clone()),
            other => panic!("{other}"),
        };
        assert_ne!(whose(first), whose(second));
        assert_eq!((first.addr, second.addr, first.len), (DATA + 512, DATA + 512, 8));
        assert!(first.at_ps <= second.at_ps);
        assert_eq!(run(memory, &atomic), (200, vec![]));
    }
}

#[test]
fn looking_for_races_changes_nothing() {
    let count = |at| code(&[&[ld(A1, A0, at), addi(A1, A1, 1), sd(A1, A0, at), fence(R | W, R | W)], &RESCHEDULE]);
    let run = |memory, detect_races| {
        let config = Config { memory, detect_races, ..config(1) };
        let (mut world, process) = boot(&two_handlers(&count(512), &count(1024)), config);
        let first = make_handlers(&mut world, process);
        for _ in 0..20 {
            ping(&mut world, process, first).unwrap();
            while world.step() {}
        }
        assert_eq!(world.race_count(), 0);
        (world.trace_hash(), world.now_ps(), word(&mut world, process, DATA + 512))
    };
    for memory in [MemoryModel::Strong, MemoryModel::weak(1)] {
        assert_eq!(run(memory, true), run(memory, false));
    }
    assert_ne!(run(MemoryModel::weak(1), true).0, run(MemoryModel::weak(2), true).0, "the seed is in the trace");
}
