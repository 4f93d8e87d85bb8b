//! Format of the messages: bytes pinned, round trips, refusals of everything else.

use flexcast_proto::service::wire::{
    Body, FormatError, HEADER_BYTES, MAX_BYTES, Packet, Refused, TaskParts, VERSION, decode, encode, length_of,
};
use flexcast_proto::service::{ContextId, Message, Part, Refusal, Region};
use proptest::prelude::*;

use super::samples::{
    CONTEXT, REGION, all, allgatherv, alltoallv, any_context, any_group, any_packet, any_start, any_task, bytes_of,
    is_encoding, task,
};

const GOLDEN: &str = include_str!("golden.txt");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What every byte of every kind is, so that another release reads the same. A change of the format is another
/// [`VERSION`]; then the lines that this test prints go into `golden.txt`.
#[test]
fn the_bytes_of_every_kind_are_pinned() {
    let found: String = all().iter().map(|(name, bytes)| format!("{name}: {}\n", hex(bytes))).collect();
    assert!(found == GOLDEN, "the bytes of messages have changed; golden.txt would be\n{found}");
    let mut kinds: Vec<u8> = all().iter().map(|(_, bytes)| bytes[5]).collect();
    kinds.sort_unstable();
    kinds.dedup();
    assert_eq!((kinds, VERSION), ((1..=39).collect(), 3), "a message of each kind");
}

/// Against the table in the documentation, by hand.
#[test]
fn the_bytes_are_those_of_the_table() {
    let message = Message::Ready { source: 3, target: 4, region: REGION };
    let header = |kind, length| {
        [&b"FXSP"[..], &[VERSION, kind], &u16::to_le_bytes(length), &[4, 3, 2, 1, 0xd0, 0xc0, 0xb0, 0xa0]].concat()
    };
    let ready = [
        &header(28, 52)[..],
        &[1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0],
        &[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0x10, 0, 0, 0, 0, 0, 0, 0xcc, 0xbb, 0xaa, 0x99],
    ];
    assert_eq!(bytes_of(&Packet { context: CONTEXT, body: Body::Process { from: 1, to: 2, message } }), ready.concat());
    let number = |number: u64| number.to_le_bytes();
    let start = alltoallv(CONTEXT, 1, 2);
    let expected = [
        &header(21, 84 + 4 * 16)[..],
        &[1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0],
        &[number(0x2000), number(8), number(8)].concat(),
        &[0x52, 0, 0, 0],
        &[number(0x1000), number(8), number(8)].concat(),
        &[0x51, 0, 0, 0],
        &[1, 100, 2, 101, 10_000, 10_000 << 14, 10_001, 10_001 << 14].map(number).concat(),
    ];
    let packets: Vec<Vec<u8>> = start.packets().map(|packet| bytes_of(&packet.unwrap())).collect();
    assert_eq!(packets, [expected.concat()]);
    let region = |rank: u64, name: u64| [number(name << 32 | rank), number(name)].concat();
    let task = task(7, 1);
    let part = task.parts().next().unwrap().unwrap();
    let key = [7, 0, 0, 0];
    let mut expected = [&header(22, 32 + 80)[..], &[1, 2, 1, 0, 2, 0, 7, 0], &number(0x1234)].concat();
    (1..=4).for_each(|name| expected.extend([&region(7, name)[..], &key].concat()));
    assert_eq!(bytes_of(&Packet { context: CONTEXT, body: Body::Task(part) }), expected);
}

/// The size of a task object that is stated for a number of ranks is what its messages take.
#[test]
fn a_task_takes_32_bytes_a_message_and_80_a_rank() {
    for (ranks, messages) in [(1, 1), (50, 1), (51, 2), (1024, 21)] {
        let task = task(0, ranks);
        let context = CONTEXT;
        let bytes: Vec<usize> =
            task.parts().map(|part| bytes_of(&Packet { context, body: Body::Task(part.unwrap()) }).len()).collect();
        assert_eq!((bytes.len(), bytes.iter().sum::<usize>()), (messages, 32 * messages + 80 * ranks as usize));
        assert!(bytes.iter().all(|bytes| *bytes <= MAX_BYTES));
    }
}

#[test]
fn calls_of_any_size_fit_into_messages() {
    for (ranks, alltoallv_messages, allgatherv_messages) in [(1, 1, 1), (125, 1, 1), (126, 2, 1), (1024, 9, 5)] {
        for (start, messages) in [
            (alltoallv(CONTEXT, 0, ranks), alltoallv_messages),
            (allgatherv(CONTEXT, 0, ranks, None), allgatherv_messages),
        ] {
            let lengths: Vec<usize> = start.packets().map(|packet| bytes_of(&packet.unwrap()).len()).collect();
            assert_eq!(lengths.len(), messages);
            assert!(lengths.iter().all(|length| *length <= MAX_BYTES), "{lengths:?}");
        }
    }
}

/// Every truncation and every change of one byte of every sample.
#[test]
fn every_truncation_and_every_change_of_a_byte_is_refused_or_a_message() {
    for (name, bytes) in all() {
        is_encoding(&bytes).unwrap();
        for length in 0..bytes.len() {
            let error = decode(&bytes[..length]).unwrap_err();
            assert!(matches!(error, FormatError::Length { found, .. } if found == length), "{name}: {error}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(matches!(decode(&longer), Err(FormatError::Length { .. })), "{name}");
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            for value in (0..=255).step_by(if cfg!(miri) { 51 } else { 1 }) {
                if value == bytes[at] {
                    continue;
                }
                changed[at] = value;
                // Either the encoding of another message, or an error with a text.
                if let Err(error) = is_encoding(&changed) {
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
}

/// What is malformed is named with value and limit.
#[test]
fn what_is_malformed_is_reported() {
    let sample = |name: &str| all().into_iter().find(|(other, _)| other == name).unwrap().1;
    type Change = fn(&mut Vec<u8>);
    let region_end =
        "18446744073709551615 bytes at 0x1122334455667788 end beyond 2^64: check the address and the length";
    let cases: [(&str, Change, &str); 27] = [
        ("link", |b| b[40..44].fill(0xFF), "queue pair 4294967295 in a service message: it is 2 to 16777215"),
        ("goodbye", |b| b.truncate(15), "service message of 15 bytes instead of 16"),
        ("goodbye", |b| b.push(0), "service message of 17 bytes instead of 16"),
        (
            "goodbye",
            |b| b[..4].copy_from_slice(b"GET "),
            "service message begins with [47, 45, 54, 20] instead of [46, 58, 53, 50]: whatever sent it is neither a \
             rank nor a service process of this library",
        ),
        (
            "goodbye",
            |b| b[4] = 4,
            "service message of version 4, but this side speaks version 3: run the same release of daemons and programs",
        ),
        ("goodbye", |b| b[5] = 40, "kind 40 in a service message: codes run from 1 to 39"),
        ("goodbye", |b| b[5] = 0, "kind 0 in a service message: codes run from 1 to 39"),
        ("goodbye", |b| b[6] = 15, "service message announces 15 bytes: a message has 16 to 4096"),
        ("goodbye", |b| b[7] = 17, "service message announces 4368 bytes: a message has 16 to 4096"),
        ("goodbye", |b| b[8] = 1, "service message of kind 7 with group 1 and collective 0: what it is not about is 0"),
        (
            "group left",
            |b| b[12] = 1,
            "service message of kind 16 with group 16909060 and collective 1: what it is not about is 0",
        ),
        ("goodbye", |b| b[5] = 26, "service message of 16 bytes instead of 20"),
        ("done", |b| b[17] = 4, "rank 1028 in a service message: it is 0 to 1023"),
        ("ready", |b| b[40..48].fill(0xff), region_end),
        ("block", |b| b[28] = 64, "forwards 64 in a service message: it is 0 to 63"),
        ("block", |b| b[52] = 3, "copies inside a host 3 in a service message: codes run from 1 to 2"),
        ("held", |b| b[55] = 1, "byte 55 of a service message is 0x01 instead of 0x00"),
        ("unreadable", |b| b[30] = 1, "byte 30 of a service message is 0x01 instead of 0x00"),
        ("read by a rank", |b| b[32] = 3, "reader 3 in a service message: codes run from 1 to 2"),
        ("hello of a rank", |b| b[16] = 3, "role 3 in a service message: codes run from 1 to 2"),
        ("hello of a process", |b| b[38..40].fill(0), "port 0 in a service message: it is 1 to 65535"),
        ("welcome", |b| b[24..28].fill(0), "heartbeat_ms 0 in a service message: it is 1 to 4294967295"),
        ("flags", |b| b[28] = 65, "65 bytes of completion flags: give 8 times a power of two, up to 2^31 flags"),
        ("key export", |b| b[40] = 16, "rights 16 in a service message: it is 0 to 15"),
        ("start", |b| b[18] = 1, "part 1 in a service message: it is 0 to 0"),
        ("start", |b| b[24..28].copy_from_slice(&[1, 4, 0, 0]), "ranks 1025 in a service message: it is 1 to 1024"),
        ("start", |b| b[24] = 2, "part 0 of a list has 6 entries instead of 4"),
    ];
    for (name, change, text) in cases {
        let mut bytes = sample(name);
        change(&mut bytes);
        assert_eq!(decode(&bytes).unwrap_err().to_string(), text, "{name}");
    }
    assert_eq!(decode(&[]), Err(FormatError::Length { found: 0, expected: HEADER_BYTES }));
    assert_eq!(length_of(&sample("ready")[..HEADER_BYTES]), Ok(52));
}

/// What has no bytes is refused as well, and leaves the bytes before it alone.
#[test]
fn what_cannot_be_encoded_is_refused() {
    let mut bytes = vec![1, 2];
    let rank = 1024;
    let wrong = Region { address: u64::MAX, key: 0, bytes: 1 };
    let context = CONTEXT;
    let refused = Refused::Process(Refusal::Limit { name: "spoons", value: 0 });
    for (body, expected) in [
        (Body::Done { rank }, FormatError::Number { field: "rank", found: 1024, least: 0, most: 1023 }),
        (Body::CallRefused { rank: 1, refused }, FormatError::Name { name: "spoons" }),
        (Body::Goodbye, FormatError::Context { kind: 7, group: context.group, collective: context.collective }),
        (
            Body::LocalData { rank: 0, source: 1, holder: 2, region: wrong },
            FormatError::Region { address: u64::MAX, bytes: 1 },
        ),
    ] {
        assert_eq!(encode(&Packet { context, body }, &mut bytes), Err(expected));
    }
    assert_eq!(bytes, [1, 2]);
    // A task of ranks that do not follow one another, of none, and of a rank that no group has.
    let descriptor = task(0, 1).parts().next().unwrap().unwrap().descriptor();
    let part = |rank| Part { rank, send: REGION, receive: REGION, flags: REGION, shared: REGION };
    assert!(TaskParts::new(descriptor, &[part(1), part(3)]).is_err());
    assert!(TaskParts::new(descriptor, &[]).is_err());
    let last = TaskParts::new(descriptor, &[part(1023), part(1024)]).unwrap();
    assert!(last.parts().any(|part| part.is_err()));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 2000 }))]

    #[test]
    fn there_and_back(packet in any_packet()) {
        let bytes = bytes_of(&packet);
        prop_assert!(bytes.len() <= MAX_BYTES);
        prop_assert_eq!(length_of(&bytes), Ok(bytes.len()));
        prop_assert_eq!(decode(&bytes), Ok(packet));
    }

    #[test]
    fn whatever_is_accepted_is_an_encoding(
        packet in any_packet(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        length in prop_oneof![Just(None), (0usize..200).prop_map(Some)],
    ) {
        let mut bytes = bytes_of(&packet);
        for (index, value) in changes {
            let at = index.index(bytes.len());
            bytes[at] = value;
        }
        bytes.resize(length.unwrap_or(bytes.len()), 0);
        let _ = is_encoding(&bytes);
    }

    /// Noise behind a header that is right.
    #[test]
    fn noise_is_refused(kind in 0u8..45, context in any_context(), body in proptest::collection::vec(any::<u8>(), 0..400)) {
        let ContextId { group, collective } = context;
        let length = (HEADER_BYTES + body.len()) as u16;
        let numbers = [group.to_le_bytes(), collective.to_le_bytes()].concat();
        let bytes = [b"FXSP", &[VERSION, kind][..], &length.to_le_bytes(), &numbers, &body].concat();
        let _ = is_encoding(&bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 100 }))]

    #[test]
    fn groups_and_calls_there_and_back(group in any_group(), start in any_start()) {
        for packet in group.packets().chain(start.packets()) {
            let packet = packet.unwrap();
            let bytes = bytes_of(&packet);
            prop_assert!(bytes.len() <= MAX_BYTES);
            prop_assert_eq!(decode(&bytes), Ok(packet));
        }
    }

    #[test]
    fn tasks_there_and_back(context in any_context(), (descriptor, parts) in any_task()) {
        let task = TaskParts::new(descriptor, &parts).unwrap();
        let mut found = Vec::new();
        for part in task.parts() {
            let bytes = bytes_of(&Packet { context, body: Body::Task(part.unwrap()) });
            let packet = decode(&bytes).unwrap();
            let Body::Task(part) = packet.body else { panic!("a task") };
            prop_assert_eq!((packet.context, part.descriptor()), (context, descriptor));
            found.extend(part.parts());
        }
        prop_assert_eq!(found, parts);
    }
}
