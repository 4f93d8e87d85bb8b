//! Lists in parts: in any order, doubled, missing, of other lists, and within bounds.

use flexcast_proto::MAX_RANKS;
use flexcast_proto::service::alltoallv_call;
use flexcast_proto::service::wire::{
    Assembler, AssemblyError, Body, GroupHead, Head, OpStart, Packet, StartHead, Whole, decode,
};
use flexcast_proto::service::{Blocks, Call, ContextId, Datatype};
use proptest::prelude::*;

use super::samples::{CONTEXT, allgatherv, alltoallv, any_group, any_start, bytes_of};

/// What a connection would bring.
fn messages(start: &OpStart) -> Vec<Vec<u8>> {
    start.packets().map(|packet| bytes_of(&packet.unwrap())).collect()
}

fn add(assembler: &mut Assembler<StartHead>, bytes: &[u8]) -> Result<Option<OpStart>, AssemblyError> {
    let Packet { context, body: Body::Start(part) } = decode(bytes).unwrap() else { panic!("a call") };
    assembler.add(context, part)
}

#[test]
fn a_call_of_1024_ranks_comes_in_order_and_out_of_order() {
    let start = alltoallv(CONTEXT, 1, 1024);
    let mut parts = messages(&start);
    assert_eq!(parts.len(), 9);
    for _ in 0..2 {
        let mut assembler = Assembler::new(MAX_RANKS);
        let (last, first) = parts.split_last().unwrap();
        for (number, part) in (1..).zip(first) {
            assert_eq!(add(&mut assembler, part), Ok(None));
            assert_eq!(assembler.missing(), 9 - number);
        }
        assert_eq!(add(&mut assembler, last), Ok(Some(start.clone())));
        assert_eq!((assembler.missing(), assembler.held_bytes()), (0, 0));
        parts.reverse();
    }
}

/// The call that comes out is the one that counts and displacements make without a message between.
#[test]
fn the_call_of_a_message_is_the_call_of_the_rank() {
    let start = alltoallv(CONTEXT, 1, 3);
    let datatype = Datatype { size_bytes: 8, extent_bytes: 8 };
    let send = Blocks { address: 0x1000, key: 0x51, datatype, counts: &[1, 2, 3], displs: &[100, 101, 102] };
    let receive = Blocks {
        address: 0x2000,
        key: 0x52,
        datatype,
        counts: &[10_000, 10_001, 10_002],
        displs: &[10_000 << 14, 10_001 << 14, 10_002 << 14],
    };
    assert_eq!(start.call(), alltoallv_call(3, Some(&send), &receive));
    let in_place = allgatherv(CONTEXT, 1, 3, None).call().unwrap();
    let Call::Allgatherv { send, receive, .. } = in_place else { panic!("an Allgatherv") };
    assert_eq!((send, receive.len()), (receive[1], 3));
}

#[test]
fn parts_that_do_not_belong_are_refused_and_change_nothing() {
    let (start, other) = (alltoallv(CONTEXT, 1, 300), alltoallv(CONTEXT, 2, 300));
    let later = alltoallv(ContextId { collective: CONTEXT.collective + 1, ..CONTEXT }, 1, 300);
    let same_rank = allgatherv(CONTEXT, 1, 300, None);
    let (parts, other, later, differing) = (messages(&start), messages(&other), messages(&later), messages(&same_rank));
    let mut assembler = Assembler::new(MAX_RANKS);
    assert_eq!((parts.len(), add(&mut assembler, &parts[2])), (3, Ok(None)));
    assert_eq!(add(&mut assembler, &parts[2]), Err(AssemblyError::Twice { index: 2 }));
    assert_eq!(add(&mut assembler, &differing[1]), Err(AssemblyError::Differs { index: 1 }));
    for part in [&other[0], &later[0]] {
        let error = add(&mut assembler, part).unwrap_err();
        assert!(matches!(error, AssemblyError::Busy { other_rank: 1, .. }), "{error}");
    }
    let error = add(&mut assembler, &later[0]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a list of rank 1 for collective 2695938257 of group 16909060 begins before that of rank 1 for collective \
         2695938256 of group 16909060 is whole: send one after the other"
    );
    assert_eq!((assembler.missing(), add(&mut assembler, &parts[0])), (2, Ok(None)));
    assert_eq!(add(&mut assembler, &parts[1]), Ok(Some(start)));
    // One part too many.
    assert_eq!(add(&mut assembler, &parts[1]), Err(AssemblyError::Complete { index: 1 }));
    assert_eq!(add(&mut assembler, &later[1]), Ok(None));
    assembler.clear();
    assert_eq!((assembler.held_bytes(), add(&mut assembler, &later[1])), (0, Ok(None)));
}

/// No message makes an assembler take more than the list that it announces, and that is checked before.
#[test]
fn memory_is_bounded_by_what_was_checked() {
    let start = alltoallv(CONTEXT, 1, 1024);
    let parts = messages(&start);
    let mut small = Assembler::new(64);
    assert_eq!(add(&mut small, &parts[0]), Err(AssemblyError::Ranks { found: 1024, limit: 64 }));
    assert_eq!(small.held_bytes(), 0);
    let mut assembler = Assembler::new(u32::MAX);
    assert_eq!(add(&mut assembler, &parts[8]), Ok(None));
    assert_eq!(assembler.held_bytes(), 2 * 1024 * 16);
    let largest = MAX_RANKS as usize * size_of::<<GroupHead as Head>::Entry>();
    assert_eq!((largest, StartHead::PART_ENTRIES, GroupHead::PART_ENTRIES), (32 << 10, 250, 126));
}

/// Puts parts together in an order, with some of them twice.
fn assemble<H: Head>(whole: &Whole<H>, order: &[usize], doubled: &[bool]) -> Result<Option<Whole<H>>, TestCaseError> {
    let parts: Vec<_> = whole.parts().map(Result::unwrap).collect();
    let mut assembler = Assembler::new(MAX_RANKS);
    let mut result = None;
    for (number, (index, twice)) in order.iter().zip(doubled).enumerate() {
        let part = parts[index % parts.len()];
        result = assembler.add(whole.context(), part).unwrap();
        prop_assert_eq!(result.is_some(), number + 1 == parts.len());
        prop_assert!(assembler.held_bytes() <= size_of_val(whole.entries()));
        if *twice {
            let (held, missing) = (assembler.held_bytes(), assembler.missing());
            let error = assembler.add(whole.context(), part).unwrap_err();
            let is_reported = matches!(error, AssemblyError::Twice { .. } | AssemblyError::Complete { .. });
            prop_assert!(is_reported);
            prop_assert_eq!((assembler.held_bytes(), assembler.missing()), (held, missing));
        }
    }
    Ok(result)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 200 }))]

    #[test]
    fn lists_come_in_any_order(
        start in any_start(), group in any_group(), keys in any::<[u32; 8]>(), doubled in any::<[bool; 8]>(),
    ) {
        let order = |parts: usize| {
            let mut order: Vec<usize> = (0..parts).collect();
            order.sort_by_key(|index| keys[*index]);
            order
        };
        let calls = order(start.parts().count());
        prop_assert_eq!(assemble(&start, &calls, &doubled)?, Some(start.clone()));
        prop_assert!(start.call().is_ok());
        // One missing: never whole.
        prop_assert_eq!(assemble(&start, &calls[1..], &doubled)?, None);
        let groups = order(group.parts().count());
        prop_assert_eq!(assemble(&group, &groups, &doubled)?, Some(group.clone()));
    }
}
