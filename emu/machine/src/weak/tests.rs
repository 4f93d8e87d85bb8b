//! Litmus tests: what may be seen out of order, and what may not.

use super::*;

const A: u64 = 0x1_0000_0000;
const B: u64 = A + 64;

/// Orders of many seeds, for "sometimes" and "never".
fn orders() -> impl Iterator<Item = Order> {
    (0..200).map(|seed| Order::new(seed, (0, 1), 40_000))
}

fn visible_first(order: &mut Order) -> u64 {
    order.take_due(u64::MAX)[0].addr
}

#[test]
fn stores_pass_one_another_unless_a_fence_orders_them() {
    let run = |fence: Option<(u8, u8)>| {
        orders()
            .filter_map(|mut order| {
                order.store(A, 8, 1, 100, 0);
                if let Some((predecessor, successor)) = fence {
                    order.fence(predecessor, successor, 105);
                }
                order.store(B, 8, 1, 110, 0);
                (visible_first(&mut order) == B).then_some(())
            })
            .count()
    };
    assert!(run(None) > 20);
    assert!(run(Some((bits::R, bits::R))) > 20, "a read fence orders no stores");
    assert!(run(Some((bits::O, bits::O))) > 20, "nor does one of the device's");
    assert_eq!(run(Some((bits::W, bits::W))), 0);
    assert_eq!(run(Some((bits::O | bits::W, bits::O | bits::W))), 0);
}

#[test]
fn stores_to_the_same_bytes_keep_their_order_and_are_seen_by_their_thread() {
    for mut order in orders() {
        order.store(A, 8, 0x1111_1111_1111_1111, 0, 0);
        order.store(A + 4, 4, 0x2222_2222, 5, 0);
        let mut bytes = [0; 8];
        order.load(A, &mut bytes);
        assert_eq!(u64::from_le_bytes(bytes), 0x2222_2222_1111_1111);
        let due = order.take_due(u64::MAX);
        assert_eq!((due[0].width, due[1].width), (8, 4));
    }
}

#[test]
fn a_changed_byte_may_be_read_old_until_seen_new_or_fenced() {
    let (mut old_first, mut new_first) = (0, 0);
    for mut order in orders() {
        order.remember(A, &[7]);
        let mut bytes = [9, 9];
        order.load(A, &mut bytes);
        assert_eq!(bytes[1], 9, "only what has changed can be old");
        if bytes[0] == 7 {
            old_first += 1;
        } else {
            new_first += 1;
            for _ in 0..20 {
                let mut again = [9];
                order.load(A, &mut again);
                assert_eq!(again, [9], "a byte seen new stays new");
            }
        }
        order.remember(A, &[9]);
        order.fence(bits::R, bits::R, 0);
        let mut fenced = [10];
        order.load(A, &mut fenced);
        assert_eq!(fenced, [10]);
    }
    assert!(old_first > 50 && new_first > 50, "{old_first} {new_first}");
}

#[test]
fn fences_demand_what_their_sets_say() {
    let mut order = Order::new(1, (0, 1), 100);
    let all = |order: &mut Order, p, s| {
        let UpTo { stores, lines } = order.fence(p, s, 0);
        (stores != 0, lines != 0)
    };
    use bits::{I, O, R, W};
    assert_eq!(all(&mut order, R, R), (false, false));
    assert_eq!(all(&mut order, W, W), (false, false));
    assert_eq!(all(&mut order, R | W, R | W), (true, false));
    assert_eq!(all(&mut order, O | W, O | W), (false, false));
    assert_eq!(all(&mut order, I | R, I | R), (false, false));
    assert_eq!(all(&mut order, I | O | R | W, I | O | R | W), (true, true));
    order.store(A, 8, 1, 0, 0);
    assert_eq!(order.before_device().stores, 0, "fenced before the store");
    order.fence(W, W, 0);
    order.fence(O, O, 0);
    assert_eq!(order.before_device().stores, 0, "w,w says nothing of the device, o,o nothing of memory");
    order.fence(O | W, O | W, 0);
    assert_eq!(order.before_device().stores, 1);
}

#[test]
fn lines_of_one_writeback_arrive_in_any_order_those_of_two_in_theirs() {
    let first_to_arrive = |between: bool| {
        orders()
            .map(|mut order| {
                order.store_window(0x1000, &[1], 0, 0, |_| Some([0; 64]));
                if between {
                    order.fence(bits::O, bits::O, 5);
                }
                order.store_window(0x1040, &[2], 10, 0, |_| Some([0; 64]));
                order.fence(bits::O, bits::O, 20);
                order.take_arrived(u64::MAX)[0].line
            })
            .collect::<std::collections::BTreeSet<_>>()
    };
    assert_eq!(first_to_arrive(false).len(), 2);
    // A line may leave by itself before its writeback, but not the second one before the first's.
    assert_eq!(first_to_arrive(true).into_iter().collect::<Vec<_>>(), [0x1000]);
}

#[test]
fn memory_stored_after_a_writeback_is_seen_after_its_lines() {
    for mut order in orders() {
        order.store_window(0x1000, &[1], 0, 0, |_| Some([0; 64]));
        order.fence(bits::O | bits::W, bits::O | bits::W, 5);
        order.store(A, 8, 1, 6, 0);
        let arrives = order.gathered[0].arrives_cycles.unwrap();
        assert!(order.take_due(arrives.saturating_sub(1)).is_empty());
        assert_eq!(order.atomic(B, 8, false, false).lines, 1);
    }
}

#[test]
fn window_lines_wait_for_a_writeback_and_copies_for_an_invalidation() {
    for mut order in orders() {
        order.store_window(0x1008, &[1; 8], 0, 0, |_| Some([0xEE; 64]));
        order.store_window(0x1010, &[2; 8], 0, 0, |_| unreachable!("the line is there"));
        let mut out = [0; 8];
        assert!(order.load_window(0x1008, &mut out, |_| Some([0xEE; 64])));
        assert_eq!(out, [1; 8]);
        assert!(order.load_window(0x1000, &mut out, |_| unreachable!("a copy is there")));
        assert_eq!(out, [0xEE; 8]);
        assert!(order.gathered.iter().all(|line| line.sequence.is_none()));
        order.fence(bits::O, bits::O, 0);
        let lines = order.take_lines_up_to(u64::MAX);
        assert_eq!((lines.len(), lines[0].line, lines[0].mask), (1, 0x1000, 0xFFFF00));
        assert_eq!((lines[0].bytes[7], lines[0].bytes[8], lines[0].bytes[0x17]), (0xEE, 1, 2));
        order.fence(bits::I, bits::I, 0);
        assert!(order.load_window(0x1000, &mut out, |_| Some([0xDD; 64])));
        assert_eq!(out, [0xDD; 8]);
    }
}
