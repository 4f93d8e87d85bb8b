//! Published rule of acknowledgement, and why blocks are acknowledged one by one here. The published rule (a rank
//! serves its neighbour once it holds everything) is played here literally, to show that it hangs, and for which
//! losses; the crate's rule is played on the same losses and never does.

use flexcast_proto::{Handshake, PieceSet, Pieces, RankInfo, RankSet, Recover, Recovery};
use std::collections::VecDeque;

/// All ways to lose whole blocks: bit (receiver x contributor), except a rank's own block.
fn patterns(ranks: u32) -> impl Iterator<Item = Vec<RankSet>> {
    let pairs: Vec<(u32, u32)> = (0..ranks)
        .flat_map(|rank| (0..ranks).filter(move |&block| block != rank).map(move |block| (rank, block)))
        .collect();
    (0u32..1 << pairs.len()).map(move |bits| {
        let mut lost = vec![RankSet::EMPTY; ranks as usize];
        for (index, &(rank, block)) in pairs.iter().enumerate() {
            if bits >> index & 1 == 1 {
                lost[rank as usize].insert(block);
            }
        }
        lost
    })
}

/// Whether everyone gets everything when a rank waits until its left neighbour is complete.
fn published_rule_ends(lost: &[RankSet]) -> bool {
    let ranks = lost.len();
    let mut complete: Vec<bool> = lost.iter().map(RankSet::is_empty).collect();
    for _ in 0..ranks {
        for rank in 0..ranks {
            complete[rank] |= complete[(rank + ranks - 1) % ranks];
        }
    }
    complete.iter().all(|complete| *complete)
}

/// Plays the crate's rule, with `choose` to pick who acts next. Gives the messages sent: fetches and finals, and
/// between them how many pieces are acknowledged.
fn play(lost: &[RankSet], mut choose: impl FnMut(usize) -> usize) -> (u32, u32, u32) {
    enum Message {
        Fetch(RankSet, bool),
        Acknowledge(PieceSet),
        Final,
    }
    let ranks = lost.len() as u32;
    let places: Vec<RankInfo> = (0..ranks).map(|rank| RankInfo::new(rank, ranks).unwrap()).collect();
    let mut all: Vec<(Recovery, Handshake)> = places
        .iter()
        .zip(lost)
        .map(|(&place, lost)| {
            let mut recovery = Recovery::new(place, Pieces::new(RankSet::below(ranks), 1));
            recovery.delivered(&RankSet::below(ranks).without(lost));
            recovery.cut_off();
            (recovery, Handshake::new(place))
        })
        .collect();
    let mut wires: Vec<VecDeque<(u32, Message)>> = (0..ranks).map(|_| VecDeque::new()).collect();
    let (mut fetches, mut acknowledgements, mut finals, mut quiet) = (0, 0, 0, 0);
    while quiet < 64 * ranks {
        quiet += 1;
        let rank = choose(ranks as usize);
        if let Some((to, message)) = wires[rank].pop_front() {
            quiet = 0;
            let (recovery, handshake) = &mut all[to as usize];
            match message {
                Message::Fetch(pieces, last) => recovery.handle_fetch(rank as u32, &pieces, last).unwrap(),
                Message::Acknowledge(pieces) => recovery.handle_acknowledgement(rank as u32, &pieces).unwrap(),
                Message::Final => handshake.handle_final(rank as u32).unwrap(),
            }
        }
        let actor = choose(ranks as usize);
        let action = all[actor].0.poll();
        match action {
            Some(Recover::Fetch { to, pieces, last }) => {
                fetches += 1;
                wires[actor].push_back((to, Message::Fetch(pieces, last)));
            }
            Some(Recover::Acknowledge { to, pieces }) => {
                acknowledgements += pieces.len();
                wires[actor].push_back((to, Message::Acknowledge(pieces)));
            }
            Some(Recover::Read { from, pieces }) => {
                let (source, handshake) = &all[from as usize];
                assert!(source.missing().and(&pieces).is_empty(), "rank {actor} reads what rank {from} lacks");
                assert!(!handshake.is_released(), "rank {actor} reads from rank {from}, which has released its buffer");
                pieces.iter().for_each(|piece| all[actor].0.read(piece));
            }
            None => {}
        }
        let (recovery, handshake) = &mut all[actor];
        if recovery.is_complete() {
            handshake.complete();
        }
        if let Some(to) = handshake.poll() {
            finals += 1;
            wires[actor].push_back((to, Message::Final));
        }
        if action.is_some() {
            quiet = 0;
        }
    }
    for (rank, (recovery, handshake)) in all.iter().enumerate() {
        assert!(recovery.is_complete(), "rank {rank} misses {:?} of {lost:?}", recovery.missing());
        assert!(handshake.is_released(), "rank {rank} waits for rank {:?}", handshake.waiting_for());
        assert!(!recovery.owes() && recovery.waiting_for().is_none());
    }
    (fetches, acknowledgements, finals)
}

fn next(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*state >> 33) as usize
}

#[test]
fn the_published_rule_hangs_when_every_rank_misses_something() {
    let mut hangs = 0;
    for lost in patterns(4) {
        let everyone_misses = lost.iter().all(|lost| !lost.is_empty());
        assert_eq!(published_rule_ends(&lost), !everyone_misses, "{lost:?}");
        hangs += u32::from(everyone_misses);
    }
    assert_eq!(hangs, 2401, "of 4096 patterns with four ranks");
}

#[test]
fn every_loss_among_up_to_four_ranks_is_recovered() {
    for ranks in 1..=4 {
        for (number, lost) in patterns(ranks).enumerate() {
            let losers = lost.iter().filter(|lost| !lost.is_empty()).count() as u32;
            let blocks: u32 = lost.iter().map(RankSet::len).sum();
            let expected = (losers, blocks, if ranks == 1 { 0 } else { ranks });
            let mut turn = 0;
            let around = |count: usize| {
                turn += 1;
                turn / 2 % count
            };
            assert_eq!(play(&lost, around), expected, "{lost:?} in order");
            let mut state = number as u64;
            assert_eq!(play(&lost, |count| next(&mut state) % count), expected, "{lost:?} in an order of chance");
        }
    }
}

#[test]
fn losses_of_chance_among_up_to_64_ranks_are_recovered() {
    let mut state = 1;
    for round in 0..300 {
        let ranks = 2 + next(&mut state) as u32 % 63;
        let rarity = [1, 2, 5, 40][round % 4];
        let lost: Vec<RankSet> = (0..ranks)
            .map(|rank| (0..ranks).filter(|&block| block != rank && next(&mut state).is_multiple_of(rarity)).collect())
            .collect();
        play(&lost, |count| next(&mut state) % count);
    }
}

/// Broadcast: one block, and the root ends every chain.
#[test]
fn a_broadcast_ends_at_its_root() {
    let place = |rank| RankInfo::new(rank, 3).unwrap();
    let pieces = Pieces::new(RankSet::of(1), 1);
    let block = pieces.all();
    let mut root = Recovery::new(place(1), pieces);
    assert!(!root.is_complete());
    root.delivered_block(1);
    assert!(root.is_complete());
    root.cut_off();
    assert_eq!(root.poll(), None, "a rank that has everything asks for nothing");
    let mut leaf = Recovery::new(place(2), pieces);
    leaf.cut_off();
    leaf.cut_off();
    assert_eq!(leaf.poll(), Some(Recover::Fetch { to: 1, pieces: block, last: true }));
    assert_eq!((leaf.poll(), leaf.waiting_for()), (None, Some(1)));
    root.handle_fetch(2, &block, true).unwrap();
    assert_eq!((root.poll(), root.poll()), (Some(Recover::Acknowledge { to: 2, pieces: block }), None));
    leaf.handle_acknowledgement(1, &block).unwrap();
    // The chunks came late, after all.
    leaf.delivered_block(1);
    assert_eq!((leaf.poll(), leaf.is_complete()), (None, true));
}

/// A rank that lacks one piece of a block passes the others on at once.
#[test]
fn pieces_of_a_block_are_acknowledged_as_they_come() {
    let place = |rank| RankInfo::new(rank, 3).unwrap();
    let pieces = Pieces::new(RankSet::of(0), 4);
    let set = |pieces: &[u32]| pieces.iter().copied().collect::<PieceSet>();
    let mut middle = Recovery::new(place(1), pieces);
    middle.delivered(&set(&[0, 3]));
    middle.cut_off();
    middle.handle_fetch(2, &set(&[0, 1]), true).unwrap();
    assert_eq!(middle.poll(), Some(Recover::Fetch { to: 0, pieces: set(&[1, 2]), last: true }));
    assert_eq!(middle.poll(), Some(Recover::Acknowledge { to: 2, pieces: set(&[0]) }));
    assert_eq!(middle.poll(), None);
    middle.handle_acknowledgement(0, &set(&[1, 2])).unwrap();
    assert_eq!((middle.poll(), middle.poll()), (Some(Recover::Read { from: 0, pieces: set(&[1, 2]) }), None));
    middle.read(1);
    assert_eq!((middle.poll(), middle.poll()), (Some(Recover::Acknowledge { to: 2, pieces: set(&[1]) }), None));
    assert!(!middle.is_complete() && middle.is_reading() && !middle.owes());
    middle.read(2);
    assert_eq!((middle.poll(), middle.is_complete()), (None, true));
}

/// What is known to be lost is asked for while multicast goes on, and not once more at its end.
#[test]
fn lost_pieces_are_asked_for_once() {
    let set = |pieces: &[u32]| pieces.iter().copied().collect::<PieceSet>();
    let fetch = |pieces: &[u32], last| Some(Recover::Fetch { to: 1, pieces: set(pieces), last });
    let rank = |each| Recovery::new(RankInfo::new(2, 3).unwrap(), Pieces::new(RankSet::of(0), each));
    let mut leaf = rank(6);
    leaf.delivered(&set(&[0]));
    assert_eq!(leaf.lost(&set(&[0, 1, 2]), false), fetch(&[1, 2], false));
    assert_eq!(leaf.lost(&set(&[1, 3]), false), fetch(&[3], false));
    leaf.handle_acknowledgement(1, &set(&[1])).unwrap();
    assert_eq!(leaf.poll(), Some(Recover::Read { from: 1, pieces: set(&[1]) }));
    leaf.handle_acknowledgement(1, &set(&[2])).unwrap();
    leaf.cut_off();
    assert_eq!(leaf.poll(), fetch(&[4, 5], true));
    assert_eq!(leaf.poll(), Some(Recover::Read { from: 1, pieces: set(&[2]) }));
    assert_eq!(leaf.lost(&set(&[4]), false), None);
    assert_eq!((leaf.poll(), leaf.has_fetched(), leaf.waiting_for()), (None, true, Some(1)));
    let mut all = rank(1);
    assert_eq!(all.lost(&set(&[0]), false), fetch(&[0], false));
    all.cut_off();
    assert_eq!((all.poll(), all.has_fetched()), (None, true), "nothing is left to ask for");
    let mut over = rank(3);
    assert_eq!(over.lost(&set(&[1]), true), fetch(&[1], true));
    over.cut_off();
    assert_eq!((over.poll(), over.has_fetched()), (None, true), "the others are on their way to their places");
}

#[test]
fn messages_that_cannot_be_are_refused() {
    use flexcast_proto::RecoveryError;
    let mut rank = Recovery::new(RankInfo::new(0, 3).unwrap(), Pieces::new(RankSet::below(3), 1));
    assert_eq!(rank.handle_fetch(2, &RankSet::of(0), true), Err(RecoveryError::NotRight { from: 2, right: 1 }));
    assert_eq!(rank.handle_fetch(1, &RankSet::of(3), true), Err(RecoveryError::UnknownPiece { from: 1, piece: 3 }));
    let one = RankSet::of(1);
    assert_eq!(rank.handle_acknowledgement(1, &one), Err(RecoveryError::NotLeft { from: 1, left: 2 }));
    assert_eq!(rank.handle_acknowledgement(2, &one), Err(RecoveryError::NotAwaited { from: 2, piece: 1 }));
    rank.handle_fetch(1, &RankSet::of(0), false).unwrap();
    assert_eq!(rank.handle_fetch(1, &RankSet::of(0), true), Err(RecoveryError::AskedTwice { from: 1, piece: 0 }));
    rank.handle_fetch(1, &RankSet::of(2), true).unwrap();
    assert_eq!(rank.handle_fetch(1, &RankSet::of(1), false), Err(RecoveryError::SecondFetch { from: 1 }));
}
