//! Connections of the TCP store, to rank 0 and to another rank, with a secret and without.
//!
//! The first byte says to whom, or which part of the protocol. Checked: rank 0 holds little of strangers and takes
//! nobody for a rank who has not the secret; a rank takes no answer of a rank 0 that has not; errors name a rank or an
//! address, and no text of others reaches a terminal raw; what is decoded is what encoding makes of it; and an
//! encrypted connection gives what was sent into it, or an error.

use flexcast::bootstrap::store::hostile;

const RANK_0: u8 = 0;
const RANK_1: u8 = 1;
const FRAMES: u8 = 2;
const RECORDS: u8 = 3;
const KINDS: u8 = 4;

/// Handles one input.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % KINDS {
        RANK_1 => hostile::rank_1(rest),
        FRAMES => hostile::frames(rest),
        RECORDS => hostile::records(rest),
        _ => drop(hostile::rank_0(rest)),
    }
}

/// A meeting that ends well, with a secret and without, and one of each message.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    // What a connection of rank 0 does: its number, what, and operands.
    let step = |number: u8, what: u8, rest: &[u8]| [&[number | what << 2][..], rest].concat();
    let steps = |secret: u8, steps: &[Vec<u8>]| [&[RANK_0, secret][..], &steps.concat()].concat();
    let of = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    let mut hello = b"FXCSTORE".to_vec();
    hello.extend([2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 0]);
    hello.extend(b"job");
    let encrypted = [&hello[..], &[1], &[7; 48]].concat();
    hello.push(0);
    let frame =
        |what: u8, body: &[u8]| [&b"FXCF"[..], &[what, 0, 0, 0, 0, 0, 0, 0, body.len() as u8, 0, 0, 0], body].concat();
    let encrypted_rank = |number: u8| [step(number, 3, &[number + 1, 3]), step(number, 4, &[])].concat();
    let contribution = |number: u8| step(number, 5, &[1, 1, number]);
    let collected = [&b"FXCF\x04\x01\0\0\x01\0\0\0\x0F\0\0\0"[..], b"x\x01\0\0\0a\x01\0\0\0b\x01\0\0\0c"].concat();
    vec![
        ("meeting", steps(0, &[step(0, 2, &[1, 3]), step(1, 2, &[2, 3]), contribution(0), contribution(1)])),
        ("meeting-encrypted", steps(1, &[encrypted_rank(0), encrypted_rank(1), contribution(0), contribution(1)])),
        (
            "replayed",
            steps(1, &[step(0, 0, &[encrypted.len() as u8]), encrypted.clone(), step(0, 0, &[4, 34, 0, 1, 2])]),
        ),
        ("without-the-secret", steps(1, &[step(0, 2, &[1, 3]), step(1, 7, &[])])),
        ("refused", steps(0, &[step(0, 2, &[2, 3]), step(0, 6, &[])])),
        ("twice", steps(0, &[step(0, 2, &[1, 3]), step(1, 2, &[1, 3])])),
        ("answers", [&[RANK_1, 0][..], &frame(1, &[]), &frame(2, &[]), &collected].concat()),
        ("answer-encrypted", [&[RANK_1, 1][..], &frame(6, &[9; 48]), &[34, 0], &[5; 34]].concat()),
        ("turned-away", [&[RANK_1, 1][..], &frame(8, &[1])].concat()),
        ("failed", [&[RANK_1, 0][..], &frame(5, b"rank 1 \x1b[2J came twice")].concat()),
        ("hello", of(FRAMES, &hello)),
        ("hello-encrypted", of(FRAMES, &encrypted)),
        ("contribution", of(FRAMES, b"FXCF\x03\x01\0\0\x01\0\0\0\x04\0\0\0tbody")),
        ("collected", of(FRAMES, b"\x01\0\0\0a\0\0\0\0\x02\0\0\0bc")),
        ("records", of(RECORDS, &[0, 3, 1, 2, 3, 1, 0, 3, 40, 2, 200, 3, 255])),
    ]
}
