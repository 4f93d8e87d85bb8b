//! Litmus programs: what weak memory lets happen for some seed without a fence, and for none with it.

use std::collections::BTreeSet;

use crate::support;
use emu_machine::World;
use support::weak::*;
use support::*;

const SEEDS: u64 = 60;
/// Runs both handlers side by side; gives the words that they left at `DATA + 512` and `DATA + 768`.
fn outcomes(one: &[u32], two: &[u32]) -> BTreeSet<(u64, u64)> {
    let elf = two_handlers(one, two);
    let run = |seed| {
        let (mut world, process) = boot(&elf, config(seed));
        let first = make_handlers(&mut world, process);
        ping(&mut world, process, first).unwrap();
        while world.step() {}
        (word(&mut world, process, DATA + 512), word(&mut world, process, DATA + 768))
    };
    (0..SEEDS).map(run).collect()
}

/// Message passing: data at 0, flag at 256, what was read plus 10 at 512.
fn message_passing(writer_fence: &[u32], reader_fence: &[u32]) -> BTreeSet<u64> {
    let writer = code(&[&[addi(A1, 0, 1), sd(A1, A0, 0)], writer_fence, &[sd(A1, A0, 256)], &RESCHEDULE]);
    // The data line is read before, too: a stale copy of it is what a reader is likely to have.
    let reader = code(&[
        &[ld(A2, A0, 0), ld(A1, A0, 256), beq(A1, 0, -4)],
        reader_fence,
        &[ld(A2, A0, 0), addi(A2, A2, 10), sd(A2, A0, 512)],
        &RESCHEDULE,
    ]);
    outcomes(&writer, &reader).into_iter().map(|(read, _)| read).collect()
}

#[test]
fn a_message_arrives_whole_only_between_two_fences() {
    let both = message_passing(&[fence(W, W)], &[fence(R, R)]);
    assert_eq!(both, BTreeSet::from([11]));
    assert_eq!(message_passing(&[fence(R | W, R | W)], &[fence(R | W, R | W)]), both);
    for (writer, reader, what) in [
        (vec![], vec![fence(R, R)], "without the writer's fence"),
        (vec![fence(W, W)], vec![], "without the reader's fence"),
        (vec![fence(R, R)], vec![fence(R, R)], "with a writer's fence of the wrong sets"),
        (vec![fence(W, W)], vec![fence(W, W)], "with a reader's fence of the wrong sets"),
        (vec![fence(O, O)], vec![fence(R, R)], "with a writer's fence of the device's sets"),
    ] {
        assert_eq!(message_passing(&writer, &reader), BTreeSet::from([10, 11]), "{what}");
    }
}

#[test]
fn releasing_and_acquiring_atomics_order_as_fences_do() {
    // Both ways through the flag word: amoadd.rl by the writer, amoadd.aq by the reader.
    let run = |release: u32, acquire: u32| {
        // Waits until the reader is at work: what an atomic releases is not delayed.
        let writer = code(&[
            &[addi(A4, 0, 500), addi(A4, A4, -1), beq(A4, 0, 8), beq(0, 0, -8)],
            &[addi(A1, 0, 1), sd(A1, A0, 0), addi(A3, A0, 256), amoadd(0, A1, A3, 0, release)],
            &RESCHEDULE,
        ]);
        let reader = code(&[
            &[ld(A2, A0, 0), addi(A3, A0, 256), amoadd(A1, 0, A3, acquire, 0), beq(A1, 0, -4)],
            &[ld(A2, A0, 0), addi(A2, A2, 10), sd(A2, A0, 512)],
            &RESCHEDULE,
        ]);
        outcomes(&writer, &reader).into_iter().map(|(read, _)| read).collect::<BTreeSet<_>>()
    };
    assert_eq!(run(1, 1), BTreeSet::from([11]));
    assert_eq!(run(0, 1), BTreeSet::from([10, 11]));
    assert_eq!(run(1, 0), BTreeSet::from([10, 11]));
}

#[test]
fn two_stores_may_both_be_missed_unless_fenced_from_the_loads() {
    let run = |between: &[u32]| {
        let half = |mine: i32, other: i32, result: i32| {
            code(&[
                &[addi(A1, 0, 1), sd(A1, A0, mine)],
                between,
                &[ld(A2, A0, other), addi(A2, A2, 10), sd(A2, A0, result)],
                &RESCHEDULE,
            ])
        };
        outcomes(&half(0, 256, 512), &half(256, 0, 768))
    };
    assert!(run(&[]).contains(&(10, 10)), "store buffering");
    assert!(run(&[fence(W, W)]).contains(&(10, 10)));
    for full in [fence(R | W, R | W), fence(W, R), fence(I | O | R | W, I | O | R | W)] {
        assert!(!run(&[full]).contains(&(10, 10)));
    }
}

#[test]
fn atomics_of_two_threads_never_lose_a_count() {
    // 100 times amoadd without any ordering.
    let count = code(&[
        &[addi(A1, 0, 1), addi(A4, 0, 100), addi(A3, A0, 512)],
        &[amoadd(0, A1, A3, 0, 0), addi(A4, A4, -1), beq(A4, 0, 8), beq(0, 0, -12)],
        &RESCHEDULE,
    ]);
    assert_eq!(outcomes(&count, &count), BTreeSet::from([(200, 0)]));
}

/// Data in the first line, a flag in the second. Whether the flag was ever seen before the data, and whether both came
/// at all.
fn through_the_window(between: &[u32], last: &[u32]) -> BTreeSet<(bool, bool)> {
    let program = code(&[&open_window(), &[addi(A2, 0, 7), sd(A2, A0, 8)], between, &[sd(A2, A0, 64)], last, &[RET]]);
    let elf = image(&[RET], &program);
    let run = |seed| {
        let (mut world, process) = boot(&elf, config(seed));
        let host = show_host(&mut world, process);
        let early = |world: &World| host_word(world, host + 64) == 7 && host_word(world, host + 8) == 0;
        ping(&mut world, process, 0).unwrap();
        let mut seen_early = early(&world);
        while world.step() {
            seen_early |= early(&world);
        }
        (seen_early, host_word(&world, host + 64) == 7)
    };
    (0..SEEDS).map(run).collect()
}

#[test]
fn windows_show_stores_only_after_a_writeback() {
    let writeback = [fence(O | W, O | W)];
    assert_eq!(through_the_window(&writeback, &writeback), BTreeSet::from([(false, true)]));
    assert_eq!(through_the_window(&[fence(O, O)], &[fence(O, O)]), BTreeSet::from([(false, true)]));
    let unordered = through_the_window(&[], &[]);
    assert!(unordered.contains(&(true, true)), "{unordered:?}");
    assert!(unordered.contains(&(false, false)), "nothing need ever come: {unordered:?}");
    assert!(through_the_window(&[fence(W, W)], &[fence(W, W)]).contains(&(false, false)), "w is not the window's");
}

#[test]
fn windows_are_read_stale_until_invalidated() {
    let run = |between: &[u32]| {
        // Reads the first line until it changes, 1000 times at most.
        let body = code(&[between, &[ld(A2, A0, 0)]]);
        let length = 4 * body.len() as i32;
        let reader = code(&[
            &open_window(),
            &[addi(A3, 0, 1000), addi(A3, A3, -1), beq(A3, 0, length + 8)],
            &body,
            &[beq(A2, 0, -length - 8), sd(A2, S0, 512)],
            &RESCHEDULE,
        ]);
        let (mut world, process) = boot(&two_handlers(&reader, &RESCHEDULE), config(1));
        let host = show_host(&mut world, process);
        let first = make_handlers(&mut world, process);
        ping(&mut world, process, first).unwrap();
        let polled_ps = world.now_ps() + 50_000_000;
        while world.now_ps() < polled_ps {
            assert!(world.step(), "the device polls");
        }
        world.host.write(host, &9u64.to_le_bytes()).unwrap();
        while world.step() {}
        assert!(world.card(0).unwrap().process(process).unwrap().crash().is_none());
        word(&mut world, process, DATA + 512)
    };
    assert_eq!(run(&[]), 0, "the copy is never read again");
    assert_eq!(run(&[fence(R, R)]), 0, "r is not the window's");
    assert_eq!(run(&[fence(I, I)]), 9);
    assert_eq!(run(&[fence(I | R, I | R)]), 9);
}

#[test]
fn a_doorbell_overtakes_its_entry_unless_fenced() {
    const DONE: u8 = 0;
    // The card finds an entry that is not one …
    const FAILED: u8 = 13;
    // … or half of one, which does not ask for a completion: the ring stays as it was.
    const NOTHING: u8 = 15;
    let all = BTreeSet::from([DONE, FAILED, NOTHING]);
    let opcodes = |between: &[u32]| (0..SEEDS).map(|seed| nop(seed, between, &[]).0).collect::<BTreeSet<_>>();
    assert_eq!(opcodes(&[fence(O | W, O | W)]), BTreeSet::from([DONE]));
    assert_eq!(opcodes(&[fence(I | O | R | W, I | O | R | W)]), BTreeSet::from([DONE]));
    assert_eq!(opcodes(&[fence(W, W)]), all, "the outbox is not memory");
    assert_eq!(opcodes(&[]), all);
}
