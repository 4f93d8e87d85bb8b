//! Image `allgather` on an emulated card: its send worker multicasts the blocks of several roots, which come back to
//! receive contexts of the same card (UC: over a connection that goes round inside it), go to their places, and are
//! accounted for; on strong and weak memory. And what a chunk costs, exactly, on a ring that never runs empty.

mod case;
mod run;

use emu_machine::MemoryModel;
use flexcast_abi::{ReceiveStatus, Transport};
use flexcast_tests::compiled_as_recorded;

use case::{BATCH, CHUNK, Case, LOG_RING, seeds};
use run::run;

const BOTH: [Transport; 2] = [Transport::Uc, Transport::Ud];

#[test]
fn image_allgather_brings_blocks_of_all_roots_to_their_places() {
    for transport in BOTH {
        for memory in std::iter::once(MemoryModel::Strong).chain((0..seeds()).map(MemoryModel::weak)) {
            for (bytes, by_rows, own) in [
                (vec![70 * 1024; 3], false, None),
                (vec![70 * 1024 - 100; 3], false, Some(1)),
                (vec![100_000, 0, 1, 70_000, 1024], true, Some(2)),
                // More than a ring, so that entries of short chunks are used again.
                (vec![300 * 1024 - 100; if memory == MemoryModel::Strong { 5 } else { 1 }], false, None),
            ] {
                let case = Case { own, memory, ..Case::new(transport, &bytes, by_rows) };
                let outcome = run(&case);
                let status = ReceiveStatus::from_raw(outcome.report.progress.status);
                assert_eq!((outcome.complete, status), (true, Ok(ReceiveStatus::Complete)), "{transport:?} {memory:?}");
                assert!(outcome.right_bytes, "{transport:?} {memory:?} {bytes:?}");
                let expected = case.chunks() - own.map_or(0, |own| case.chunks_of(own));
                assert_eq!(outcome.report.statistics.accepted, u64::from(expected));
                assert_eq!(outcome.send.posted, u64::from(expected));
            }
        }
    }
}

#[test]
fn image_allgather_reports_at_the_cutoff_what_is_missing() {
    for transport in BOTH {
        for silent in [vec![1], vec![0, 1, 2]] {
            let case = Case { silent: silent.clone(), ..Case::new(transport, &[5 * 1024 - 1; 3], false) };
            let outcome = run(&case);
            assert!(!outcome.complete && outcome.right_bytes);
            // Five bits per root, the last one of each set beforehand; and an edge each.
            let there: Vec<bool> = (0..3).map(|root| !silent.contains(&root)).collect();
            let bits = (0..3).fold(0, |bits, root| bits | (if there[root] { 0b11111 } else { 0b10000 }) << (5 * root));
            let tails = (0..3).fold(0, |tails, root| tails | u64::from(there[root]) << root);
            assert_eq!(outcome.words, [bits, tails], "{transport:?}, silent {silent:?}");
        }
    }
}

#[test]
fn image_allgather_is_frozen_when_it_answers_the_cutoff() {
    for transport in BOTH {
        let mut partly = 0;
        for memory in std::iter::once(MemoryModel::Strong).chain((0..seeds()).map(MemoryModel::weak)) {
            for hurry in [0, 64, 128, 192] {
                let case = Case { memory, hurry: Some(hurry), ..Case::new(transport, &[256 * 1024; 2], false) };
                let outcome = run(&case);
                assert!(outcome.right_bytes, "{transport:?} {memory:?} after {hurry} chunks");
                let accepted = outcome.report.statistics.accepted;
                partly += u32::from(accepted > 256 && accepted < 512);
            }
        }
        assert!(partly > 0, "{transport:?}: no cutoff came in the middle");
    }
}

/// The number of a chunk says that it belongs here, its length that it does not: read too early, the length would be
/// that of the entry's completion before.
#[test]
fn image_allgather_refuses_a_chunk_of_the_wrong_length_in_a_run() {
    for transport in BOTH {
        for (memory, batch) in std::iter::once((MemoryModel::Strong, BATCH))
            .chain((0..2 * seeds()).map(|seed| (MemoryModel::weak(seed), if seed % 2 == 0 { 2 } else { 8 })))
        {
            // The first root's chunks fill the ring with completions of the right length.
            let bytes = [u64::from(CHUNK) << LOG_RING, u64::from(CHUNK) * 300];
            let case = Case { stutters: Some(1), batch, memory, ..Case::new(transport, &bytes, true) };
            let outcome = run(&case);
            let statistics = outcome.report.statistics;
            assert!(outcome.complete && outcome.right_bytes, "{transport:?} {memory:?}");
            let short = case.parts(1).len() as u64 - 1;
            assert_eq!((statistics.wrong_length, statistics.duplicates), (short, 0), "{transport:?} {memory:?}");
        }
    }
}

/// What it costs, per completion or chunk, on a ring that never runs empty: 1024 chunks.
#[test]
fn instructions_per_completion_and_per_chunk_are_exact() {
    let full = u64::from(CHUNK) * 128;
    let equal = |transport| Case::new(transport, &[full; 8], false);
    let unequal: Vec<u64> = (0..8).map(|root| if root % 2 == 0 { full + 1024 } else { full - 1024 }).collect();
    let limits = limits();
    let measured = [
        ("uc", "send_uc", equal(Transport::Uc)),
        ("uc", "send_uc", Case { batch: 32, ..equal(Transport::Uc) }),
        ("ud", "send_ud", Case { batch: 32, ..Case::new(Transport::Ud, &[full * 8], false) }),
        ("ud", "send_ud", Case::new(Transport::Ud, &[full * 8], false)),
        ("ud", "send_ud", Case { pad: 4096, ..equal(Transport::Ud) }),
        ("ud_rows", "send_ud", Case { pad: 4096, ..Case::new(Transport::Ud, &unequal, true) }),
    ]
    .map(|(context, send, case)| {
        let case = Case { saturated: true, ..case };
        let outcome = run(&case);
        assert!(outcome.complete && outcome.right_bytes, "{context}");
        let statistics = outcome.report.statistics;
        let (chunks, sending) = (outcome.send.posted, outcome.send.loop_instructions);
        assert_eq!((statistics.loop_cqes, chunks), (1024, 1024));
        for (name, instructions) in [(context, statistics.loop_instructions), (send, sending)] {
            // The senders' batches are their own.
            let batch = if name == context { case.batch } else { BATCH };
            let limit = limits[&format!("{name}_batch_{batch}")];
            assert!(instructions <= limit * chunks, "{name}: {instructions} for {chunks}, {limit} each promised");
        }
        (context, statistics.loop_instructions, sending)
    });
    if compiled_as_recorded("allgather") {
        assert_eq!(measured, EXACT, "the instruction counts have changed: update the table if they should have");
    }
}

/// Kind of receive context; instructions of the receive context's loop for 1024 completions and of the posting loops
/// for 1024 chunks in 8 operations. One run and 8 runs with gaps; 8 rows.
const EXACT: [(&str, u64, u64); 6] = [
    ("uc", 13177, 18104),      // 12.87 each, 17.68 each
    ("uc", 14985, 18104),      // 14.63 each in batches of 32
    ("ud", 25609, 13891),      // 25.01 each in batches of 32 (one operation)
    ("ud", 22073, 13891),      // 21.56 each, 13.57 each (one operation)
    ("ud", 22252, 13912),      // 21.73 each, 13.59 each
    ("ud_rows", 25396, 14312), // 24.80 each, 13.98 each
];

/// Most instructions per completion or chunk that `image.toml` allows.
fn limits() -> std::collections::BTreeMap<String, u64> {
    #[derive(serde::Deserialize)]
    struct Manifest {
        instructions_per_cqe: std::collections::BTreeMap<String, u64>,
    }
    let path = flexcast_tests::workspace_root().join("device/images/allgather/image.toml");
    let text = std::fs::read_to_string(path).expect("image.toml of `allgather`");
    toml::from_str::<Manifest>(&text).expect("limits in image.toml").instructions_per_cqe
}

#[test]
fn a_context_without_work_costs_few_instructions() {
    let each = BOTH.map(|transport| {
        let case = Case::new(transport, &[1024], false);
        let [one, nine] = [0, 8].map(|idle_contexts| run(&Case { idle_contexts, ..case.clone() }).in_vain);
        assert_eq!((nine - one) % 8, 0, "every context costs the same: {one}, {nine}");
        (nine - one) / 8
    });
    assert!(each.iter().all(|each| *each <= 96), "{each:?}");
    if compiled_as_recorded("allgather") {
        assert_eq!(each, IDLE, "the instruction counts have changed: update the table if they should have");
    }
}

/// Instructions per activation and receive context that has nothing to do, UC and UD.
const IDLE: [u64; 2] = [47, 81];
