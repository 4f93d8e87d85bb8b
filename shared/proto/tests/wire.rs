//! Control messages as bytes: there and back, each malformed one refused with what is wrong, and nothing panics.

use flexcast_proto::wire::{FIXED_BYTES, FIXED_WORDS, MAX_BYTES, VERSION, address, communicator_of};
use flexcast_proto::{
    Algorithm, Availability, Body, Cause, Codec, Control, Failure, FailureCode, Kind, MAX_RANKS, Message, PieceSet,
    Summary, WaitedFor, WireError,
};
use proptest::prelude::*;
use proptest::sample::select;

const COMMUNICATOR: u64 = 0x1122_3344_5566_7788;
const HERE: Availability = Availability { address: 0x0102_0304_0506_0708, rkey: 0x0a0b_0c0d };
const CODEC: Codec = Codec::new(COMMUNICATOR, 188);

fn encode(body: Body) -> Vec<u8> {
    CODEC.encode(&Message { operation: 0xfeed_f00d, body }, HERE).as_bytes().to_vec()
}

fn summary() -> Summary {
    Summary {
        kind: Kind::Broadcast,
        root: 187,
        amount: 4096,
        chunk_bytes: 2048,
        chains: 3,
        algorithm: Algorithm::Linear,
    }
}

fn failed(cause: Cause) -> Body {
    Body::Failed { failure: Failure { failed_rank: 3, detecting_rank: 2, cause }, calls: None }
}

/// Bytes of a header and then of a body, and zeros.
fn layout(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = b"FXCM".to_vec();
    bytes.extend([4, kind, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x0d, 0xf0, 0xed, 0xfe]);
    bytes.extend(body);
    bytes.resize(bytes.len().max(48), 0);
    bytes
}

/// What every byte is, so that another release reads the same.
#[test]
fn the_format_is_pinned() {
    let barrier = [[5, 1, 3, 0], [187, 0, 0, 0], [0, 16, 0, 0], [0; 4], [0, 8, 0, 0], [3, 0, 0, 0]].concat();
    assert_eq!(encode(Body::Barrier { round: 5, summary: summary() }), layout(1, &barrier));
    assert_eq!(encode(Body::Activate), layout(2, &[]));
    assert_eq!(encode(Body::Final), layout(5, &[]));
    for (cause, codes) in [
        (Cause::Silent(WaitedFor::Block), [1, 4, 0, 0]),
        (Cause::Cancelled, [2, 0, 0, 0]),
        (Cause::Disagrees, [3, 0, 0, 0]),
        (Cause::Device(FailureCode::ProcessDied), [4, 0, 0x05, 0x20]),
        (Cause::Connection(FailureCode::RetriesExceeded), [5, 0, 12, 0]),
        (Cause::Aggregator(3), [6, 0, 3, 0]),
        (Cause::Contribution, [7, 0, 0, 0]),
    ] {
        assert_eq!(encode(failed(cause)), layout(6, &[[3, 0, 0, 0], [2, 0, 0, 0], codes].concat()));
    }
    let failure = Failure { failed_rank: 3, detecting_rank: 2, cause: Cause::Disagrees };
    let calls = Some([summary(), Summary::between_pairs(Kind::Reduce, 4, 8, 0x1_0005, Algorithm::Sparse)]);
    let first = [[1, 3, 0, 0], [187, 0, 0, 0], [0, 16, 0, 0], [0; 4], [0, 8, 0, 0], [3, 0, 0, 0]].concat();
    let second = [[5, 10, 0, 0], [4, 0, 0, 0], [8, 0, 0, 0], [0; 4], [5, 0, 1, 0], [1, 0, 0, 0]].concat();
    let ranks = [[3, 0, 0, 0], [2, 0, 0, 0], [3, 0, 0, 0]].concat();
    assert_eq!(encode(Body::Failed { failure, calls }), layout(6, &[ranks, first, second].concat()));
    let pieces = [0, 9, 64, 127].into_iter().collect();
    let words = [[2, 0, 0, 0].as_slice(), &[1, 2, 0, 0, 0, 0, 0, 0], &[1, 0, 0, 0, 0, 0, 0, 0x80]].concat();
    assert_eq!(encode(Body::Fetch { pieces, last: true }), layout(3, &words)[..40]);
    assert_eq!(encode(Body::Fetch { pieces, last: false }), layout(7, &words)[..40]);
    let here = [0x0d, 0x0c, 0x0b, 0x0a, 0, 0, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1];
    assert_eq!(encode(Body::Acknowledge { pieces }), layout(4, &[&here, &words[..]].concat())[..56]);
    let lengths = [Body::Fetch { pieces: PieceSet::EMPTY, last: true }, Body::Acknowledge { pieces: PieceSet::EMPTY }];
    assert_eq!(lengths.map(|body| encode(body).len()), [24, 40]);
    let pieces = PieceSet::below(MAX_RANKS);
    let length = |body| Codec::new(1, 2).encode(&Message { operation: 1, body }, HERE).as_bytes().len();
    assert_eq!((length(Body::Fetch { pieces, last: false }), length(Body::Acknowledge { pieces })), (152, 168));
    assert_eq!((MAX_BYTES, FIXED_BYTES, VERSION), (168, 48, 4));
}

/// Changes a message and gives what decoding says.
fn refused(body: Body, change: impl FnOnce(&mut Vec<u8>)) -> (WireError, String) {
    let mut bytes = encode(body);
    change(&mut bytes);
    let error = CODEC.decode(&bytes).unwrap_err();
    (error, error.to_string())
}

#[test]
fn what_is_malformed_is_reported() {
    let barrier = Body::Barrier { round: 0, summary: summary() };
    let fetch = Body::Fetch { pieces: PieceSet::of(65), last: true };
    let held = Body::Acknowledge { pieces: PieceSet::of(65) };
    let silent = failed(Cause::Silent(WaitedFor::Final));
    type Change = fn(&mut Vec<u8>);
    let cases: [(Body, Change, &str); 25] = [
        (barrier, |b| b.truncate(19), "control message of 19 bytes: this kind has 20"),
        (barrier, |b| b.truncate(47), "control message of 47 bytes: this kind has 48"),
        (barrier, |b| b.push(0), "control message of 49 bytes: this kind has 48"),
        (Body::Final, |b| b.truncate(20), "control message of 20 bytes: this kind has 48"),
        (
            barrier,
            |b| b[..4].copy_from_slice(b"GET "),
            "control message begins with [47, 45, 54, 20] instead of [46, 58, 43, 4d]: whatever sent it is no rank of \
             this library",
        ),
        (
            barrier,
            |b| b[4] = 9,
            "control message of version 9, but this rank speaks version 4: run the same release on all ranks",
        ),
        (barrier, |b| b[5] = 8, "kind 8 in a control message: codes run from 1 to 7"),
        (barrier, |b| b[7] = 1, "byte 7 of a control message is 0x01 instead of 0x00"),
        (
            barrier,
            |b| b[8] = 0,
            "control message of communicator 0x1122334455667700 on a connection of communicator 0x1122334455667788",
        ),
        (barrier, |b| b[20] = 8, "barrier round 8 in a control message, but 188 ranks have 8"),
        (barrier, |b| b[21] = 0, "operation 0 in a control message: codes run from 1 to 3"),
        (barrier, |b| b[22] = 8, "algorithm 8 in a control message: codes run from 1 to 7"),
        (barrier, |b| b[23] = 1, "byte 23 of a control message is 0x01 instead of 0x00"),
        (barrier, |b| b[24] = 188, "root 188 in a control message, but the communicator has 188 ranks"),
        (fetch, |b| b.truncate(23), "control message of 23 bytes: this kind has 24"),
        (fetch, |b| b.truncate(39), "control message of 39 bytes: this kind has 40"),
        (fetch, |b| b[20] = 17, "set of 17 words in a control message, but a set has at most 16"),
        (fetch, |b| b[32] = 0, "byte 20 of a control message is 0x02 instead of 0x00"),
        (held, |b| b.truncate(35), "control message of 35 bytes: this kind has 40"),
        (held, |b| b.truncate(39), "control message of 39 bytes: this kind has 40"),
        (held, |b| b.truncate(55), "control message of 55 bytes: this kind has 56"),
        (held, |b| b[36] = 1, "control message of 56 bytes: this kind has 48"),
        (held, |b| b[24] = 1, "byte 24 of a control message is 0x01 instead of 0x00"),
        (silent, |b| b[29] = 6, "what was waited for, 6 in a control message: codes run from 1 to 5"),
        (failed(Cause::Cancelled), |b| b[30] = 1, "byte 30 of a control message is 0x01 instead of 0x00"),
    ];
    for (body, change, text) in cases {
        assert_eq!(refused(body, change).1, text);
    }
    let broken = failed(Cause::Connection(FailureCode::RetriesExceeded));
    assert_eq!(refused(broken, |b| b[31] = 0xFF).0, WireError::Failure { found: 0xFF0C });
    assert_eq!(refused(silent, |b| b[28] = 0).0, WireError::Code { field: "cause", found: 0, last: 7 });
    assert_eq!(refused(silent, |b| b[20] = 255).0, WireError::Rank { field: "failed_rank", found: 255, ranks: 188 });
    assert_eq!(refused(silent, |b| b[24] = 255).0, WireError::Rank { field: "detecting_rank", found: 255, ranks: 188 });
    assert_eq!(CODEC.decode(&[]), Err(WireError::Length { found: 0, expected: 20 }));
    assert_eq!(communicator_of(&encode(Body::Final)), Ok(COMMUNICATOR));
    let mut bytes = encode(Body::Final);
    address(&mut bytes, 7);
    assert_eq!(communicator_of(&bytes), Ok(7));
    address(&mut bytes, COMMUNICATOR);
    assert_eq!(bytes, encode(Body::Final));
    let mut garbage = *b"HTTP/1.1 200 OK and more";
    address(&mut garbage, 7);
    assert_eq!(&garbage, b"HTTP/1.1 200 OK and more");
    assert_eq!(communicator_of(b"HTTP/1.1 200 OK and more"), Err(WireError::Magic { found: *b"HTTP" }));
}

fn any_cause() -> impl Strategy<Value = Cause> {
    prop_oneof![
        (1u8..=5).prop_map(|raw| Cause::Silent(WaitedFor::from_raw(raw).unwrap())),
        Just(Cause::Cancelled),
        Just(Cause::Disagrees),
        select(FailureCode::ALL).prop_map(Cause::Device),
        select(FailureCode::ALL).prop_map(Cause::Connection),
        any::<u16>().prop_map(Cause::Aggregator),
        Just(Cause::Contribution),
    ]
}

fn any_calls() -> impl Strategy<Value = Option<[Summary; 2]>> {
    let call = (select(&Kind::ALL[..]), select(&Algorithm::ALL[..]), any::<u32>(), any::<u64>(), any::<[u32; 2]>());
    let call = call.prop_map(|(kind, algorithm, root, amount, [chunk_bytes, chains])| Summary {
        kind,
        root,
        amount,
        chunk_bytes,
        chains,
        algorithm,
    });
    proptest::option::of([call.clone(), call])
}

fn any_pieces() -> impl Strategy<Value = PieceSet> {
    proptest::collection::vec(0..MAX_RANKS, 0..40).prop_map(|pieces| pieces.into_iter().collect())
}

fn any_body(ranks: u32) -> impl Strategy<Value = Body> {
    let rank = 0..ranks;
    let rounds = (u32::BITS - (ranks - 1).leading_zeros()) as u8;
    let barrier = (0..rounds, (1u8..=3, 0u8..=5), rank.clone(), any::<u64>(), any::<u32>(), any::<u32>()).prop_map(
        |(round, (kind, algorithm), root, amount, chunk_bytes, chains)| {
            let algorithm = Algorithm::from_raw(algorithm).unwrap();
            let kind = Kind::from_raw(kind).unwrap();
            Body::Barrier { round, summary: Summary { kind, root, amount, chunk_bytes, chains, algorithm } }
        },
    );
    prop_oneof![
        barrier,
        Just(Body::Activate),
        (any_pieces(), any::<bool>()).prop_map(|(pieces, last)| Body::Fetch { pieces, last }),
        any_pieces().prop_map(|pieces| Body::Acknowledge { pieces }),
        Just(Body::Final),
        (rank.clone(), rank, any_cause(), any_calls()).prop_map(|(failed_rank, detecting_rank, cause, calls)| {
            Body::Failed { failure: Failure { failed_rank, detecting_rank, cause }, calls }
        }),
    ]
}

fn any_message() -> impl Strategy<Value = (Codec, Message, Availability)> {
    (2..=MAX_RANKS).prop_flat_map(|ranks| {
        let codec = any::<u64>().prop_map(move |communicator| Codec::new(communicator, ranks));
        let message = (any::<u32>(), any_body(ranks)).prop_map(|(operation, body)| Message { operation, body });
        let here = (any::<u64>(), any::<u32>()).prop_map(|(address, rkey)| Availability { address, rkey });
        (codec, message, here)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 1000 }))]

    #[test]
    fn there_and_back((codec, message, here) in any_message()) {
        let bytes = codec.encode(&message, here);
        let availability = matches!(message.body, Body::Acknowledge { .. }).then_some(here);
        prop_assert_eq!(codec.decode(bytes.as_bytes()), Ok(Control { message, availability }));
        prop_assert!(bytes.as_bytes().len() <= MAX_BYTES);
    }

    /// The form that firmware uses says the same as the other, of all that it knows, and refuses what that refuses.
    #[test]
    fn short_messages_have_one_format(
        (codec, message, here) in any_message(), at in any::<prop::sample::Index>(), value: Option<u8>,
    ) {
        let known = matches!(message.body, Body::Barrier { .. } | Body::Activate | Body::Final);
        let encoded = codec.encode(&message, here);
        let words = codec.encode_short(&message);
        prop_assert_eq!(words.is_some(), known);
        if let Some(words) = words {
            let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
            prop_assert_eq!(&bytes[..], encoded.as_bytes());
            if let Some(value) = value {
                let at = at.index(bytes.len());
                bytes[at] = value;
            }
            let mut words = [0; FIXED_WORDS];
            for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            }
            let whole = codec.decode(&bytes).ok().map(|control| control.message);
            let short = |message: &Message| matches!(message.body, Body::Barrier { .. } | Body::Activate | Body::Final);
            prop_assert_eq!(codec.decode_short(&words), whole.filter(short));
        }
    }

    /// So does the form for messages with sets.
    #[test]
    fn messages_with_sets_have_one_format(
        (codec, message, here) in any_message(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        length in prop_oneof![3 => Just(None), 1 => (0usize..=MAX_BYTES).prop_map(Some)],
    ) {
        let known = |body: &Body| matches!(body, Body::Fetch { .. } | Body::Acknowledge { .. });
        let mut bytes = codec.encode(&message, here).as_bytes().to_vec();
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        bytes.resize(length.unwrap_or(bytes.len()), 0);
        let mut words = [0; MAX_BYTES.div_ceil(8)];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks(8)) {
            let mut whole = [0; 8];
            whole[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(whole);
        }
        let control = codec.decode(&bytes).ok().filter(|control| known(&control.message.body));
        prop_assert_eq!(codec.decode_set(&words, bytes.len()), control);
    }

    /// Bytes that are changed, cut off or added are refused, or they are the encoding of another message.
    #[test]
    fn whatever_is_accepted_is_an_encoding(
        (codec, message, here) in any_message(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        length in prop_oneof![Just(None), (0usize..200).prop_map(Some)],
    ) {
        let mut bytes = codec.encode(&message, here).as_bytes().to_vec();
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        bytes.resize(length.unwrap_or(bytes.len()), 0);
        if let Ok(Control { message, availability }) = codec.decode(&bytes) {
            let again = codec.encode(&message, availability.unwrap_or_default());
            prop_assert_eq!(again.as_bytes(), &bytes[..]);
        }
    }

    #[test]
    fn noise_is_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300), ranks in any::<u32>(), headed in any::<bool>(), kind in 0u8..8) {
        let mut bytes = bytes;
        if headed {
            let header = [&b"FXCM"[..], &[VERSION, kind, 0, 0], &COMMUNICATOR.to_le_bytes()].concat();
            bytes.splice(0..header.len().min(bytes.len()), header);
        }
        let codec = Codec::new(COMMUNICATOR, ranks);
        if let Ok(Control { message, availability }) = codec.decode(&bytes) {
            prop_assert!(headed);
            let again = codec.encode(&message, availability.unwrap_or_default());
            prop_assert_eq!(again.as_bytes(), &bytes[..]);
        }
    }
}
