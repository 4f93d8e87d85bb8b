//! Placement of blocks and order of multicasts by the caller: displacements of an Allgatherv, chains by rack and by
//! table.

use emu_config::Machine;
use flexcast::{Allgather, Buffer, ChainMapping, Error, Pending};
use flexcast_tests::assert_mentions;
use flexcast_tests::communicators::{
    Under, check, config, connect, contribution, drive, gather, with_cards, with_machine,
};

/// Blocks where the caller wants them, with loss, so that some are fetched from where a neighbour has them.
#[test]
fn blocks_lie_where_displacements_say_and_gaps_stay() {
    const COUNTS: [u64; 3] = [10_000, 0, 30_001];
    const DISPLACEMENTS: [u64; 3] = [30_101, u64::MAX, 50];
    const LEN: usize = 41_000;
    let mut recovered = 0;
    let machine = Machine { loss_ppm: Some(80_000), ..Machine::default() }.config_of(3).expect("a switch");
    with_machine(machine, |provider, cards| {
        let communicators = connect(cards.iter(), &config());
        for seed in 0..6 {
            let mut all = Vec::new();
            for (rank, communicator) in communicators.iter().enumerate() {
                let own = contribution(seed, rank, COUNTS[rank] as usize);
                let mut receive = cards[rank].buffer(LEN).expect("a buffer");
                receive.write(0, &[0xEE; LEN]).expect("written");
                let request = if seed % 2 == 0 {
                    let mut send = cards[rank].buffer(own.len()).expect("a buffer");
                    send.write(0, &own).expect("written");
                    communicator.post(Allgather::counts(&COUNTS).displs(&DISPLACEMENTS).buffers(send, receive))
                } else {
                    if !own.is_empty() {
                        receive.write(DISPLACEMENTS[rank] as usize, &own).expect("written");
                    }
                    communicator.post(Allgather::counts(&COUNTS).displs(&DISPLACEMENTS).in_place(receive))
                };
                let request = request.expect("accepted");
                all.push(Under::new(communicator, request));
            }
            drive(provider, &mut all, |_, _| {});
            let mut expected = vec![0xEE; LEN];
            for rank in [0, 2] {
                let at = DISPLACEMENTS[rank] as usize;
                expected[at..at + COUNTS[rank] as usize].copy_from_slice(&contribution(
                    seed,
                    rank,
                    COUNTS[rank] as usize,
                ));
            }
            for one in &all {
                let done = one.done.as_ref().expect("driven to its end").as_ref().expect("success");
                recovered += done.report.recovered_chunks;
                assert_eq!(done.report.foreign_bytes, 40_001 - COUNTS[one.communicator.rank() as usize]);
                let got = done.receive.to_vec().expect("read");
                assert!(got == expected, "rank {}", one.communicator.rank());
            }
        }
    });
    assert!(recovered > 3, "{recovered} chunks are fetched from where a neighbour has them");
}

#[test]
fn displacements_that_do_not_fit_or_differ_are_refused() {
    with_cards(2, |provider, cards| {
        let mut communicators = connect(cards.iter(), &config());
        let buffer = |rank: usize, len| cards[rank].buffer(len).expect("a buffer");
        let refused = |displacements: &[u64], words: &[&str]| {
            let (send, receive) = (buffer(0, 30), buffer(0, 100));
            let refused =
                communicators[0].post(Allgather::counts(&[30, 50]).displs(displacements).buffers(send, receive));
            let refused = refused.expect_err("they do not fit");
            assert!(matches!(refused.error, Error::Argument { .. }), "{}", refused.error);
            assert_mentions(&refused.error, words);
            assert_eq!(refused.receive.as_ref().map(Buffer::len), Some(100));
        };
        refused(&[0], &["allgatherv", "1 displacements for 2 ranks"]);
        refused(&[0, 29], &["ranks 0 and 1 overlap", "ends at 30", "begins at 29"]);
        refused(&[0, 51], &["rank 1, 50 bytes at 51", "beyond the receive buffer of 100 bytes"]);
        refused(&[u64::MAX, 0], &["rank 0", "beyond"]);
        // With blocks one behind the other it is the same operation as without displacements; else it is another.
        for (displacements, alike) in [([0, 30], true), ([50, 0], false)] {
            let (first, second) = communicators.split_at_mut(1);
            let request =
                first[0].post(Allgather::counts(&[30, 50]).buffers(buffer(0, 30), buffer(0, 80))).expect("accepted");
            let mut all = vec![Under::new(&first[0], request)];
            let request = second[0]
                .post(Allgather::counts(&[30, 50]).displs(&displacements).buffers(buffer(1, 50), buffer(1, 90)))
                .expect("accepted");
            all.push(Under::new(&second[0], request));
            drive(provider, &mut all, |_, _| {});
            for one in &all {
                match one.done.as_ref().expect("driven to its end").as_ref().map_err(|failed| &failed.error) {
                    Ok(_) => assert!(alike),
                    Err(error) => {
                        assert!(!alike, "{error}");
                        assert_mentions(error, &["compare their calls"]);
                    }
                }
            }
        }
    });
}

/// Chains by rack and by table: bytes are right, of a rack one rank multicasts at a time, and ranks must agree.
#[test]
fn ranks_of_a_rack_multicast_one_after_another() {
    const BYTES: usize = 100_000;
    with_cards(6, |provider, cards| {
        let racks = [4, 4, 9, 9, 4, 9];
        let per_rack = ChainMapping::PerRack(racks.into());
        let table = ChainMapping::Table(vec![1, 1, 0, 0, 1, 0]);
        for (seed, chain_mapping) in [(1, per_rack), (2, table)] {
            // A table has as many chains as it has; racks no more than racks.
            let chains = if seed == 1 { 5 } else { 0 };
            let communicators =
                connect(cards.iter(), &config().chain_mapping(chain_mapping).chains(chains).lookahead_chunks(Some(0)));
            let mut all: Vec<Under<'_>> = communicators
                .iter()
                .map(|communicator| {
                    let request = gather(communicator, seed, BYTES);
                    Under::new(communicator, request)
                })
                .collect();
            // Ranks 1 and 4 follow one another in their chain, and are neighbours in nothing else: 0, 2, 3 and 5,
            // and 4.
            assert_eq!(all[1].communicator.footprint().control_queue_pairs, 5);
            drive(provider, &mut all, |_, _| {});
            let mut turns: Vec<(u64, u64, u32)> = Vec::new();
            for (rank, one) in all.iter().enumerate() {
                let done = one.done.as_ref().expect("driven to its end").as_ref().expect("success");
                check(done, seed, 6, BYTES);
                let phases = done.report.phases.in_ps();
                turns.push((phases.sending_ps.expect("sent"), phases.sent_ps.expect("sent"), racks[rank]));
            }
            let overlap = |one: &(u64, u64, u32), other: &(u64, u64, u32)| one.0 < other.1 && other.0 < one.1;
            let pairs = || (0..6).flat_map(|at| (0..at).map(move |other| (at, other)));
            let together = |same: bool| {
                pairs().any(|(at, other)| (turns[at].2 == turns[other].2) == same && overlap(&turns[at], &turns[other]))
            };
            assert!(!together(true), "one of a rack at a time: {turns:?}");
            assert!(together(false), "racks side by side: {turns:?}");
        }
        let pending: Vec<Pending> = [ChainMapping::PerRack(vec![0, 1]), ChainMapping::Contiguous]
            .into_iter()
            .zip(&cards[..2])
            .zip(0..)
            .map(|((chain_mapping, card), rank)| {
                Pending::new(card, rank, 2, config().chain_mapping(chain_mapping)).expect("its part is made")
            })
            .collect();
        let infos: Vec<Vec<u8>> = pending.iter().map(Pending::connect_info).collect();
        for pending in pending {
            let error = pending.connect(&infos).expect_err("another mapping");
            assert!(matches!(error, Error::Peer { .. }), "{error}");
            assert_mentions(&error, &["chain mapping", "give all ranks one configuration"]);
        }
    });
}
