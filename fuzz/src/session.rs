//! Connections that somebody else has between their two ends: the handshake, and frames behind it.
//!
//! The first byte says which. Checked: a handshake succeeds on both sides, with one another's keys, if no byte of it
//! was changed, and on neither side that a change has reached; what is received of frames is a beginning of what was
//! sent.

use flexcast_mesh::hostile;
use flexcast_proto::session::{Dialling, Listening, Party, Refusal, Secret, TAG_BYTES};

use crate::input::{Input, Script};

const FRAMES: u8 = 0;
const HANDSHAKE: u8 = 1;
const MESSAGES: usize = 4;
const SCOPE: u64 = 7;

/// Handles one input.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % 2 {
        FRAMES => hostile::connection(rest),
        _ => handshake(rest),
    }
}

/// A keyed hash that is no secret to anybody who searches for it: what is changed here is changed blindly.
fn hash(secret: &Secret, message: &[u8]) -> [u8; TAG_BYTES] {
    let mut state: [u64; 4] = core::array::from_fn(|at| at as u64 + 1);
    for byte in secret.bytes().iter().chain(message) {
        for at in 0..4 {
            let mixed = state[at] ^ state[(at + 1) % 4].rotate_left(23) ^ u64::from(*byte);
            state[at] = mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        }
    }
    let mut tag = [0; TAG_BYTES];
    tag.chunks_exact_mut(8).zip(state).for_each(|(to, word)| to.copy_from_slice(&word.to_le_bytes()));
    tag
}

/// Both sides of a handshake, with messages that are changed as the input says: for each of the four a number of
/// changes, each of a place and a value.
fn handshake(data: &[u8]) {
    let mut input = Input::new(data);
    let refuses = input.u8() % 4 == 1;
    let mut changed = [false; MESSAGES];
    let mut on_way = |number: usize, bytes: &mut [u8]| {
        let before = bytes.to_vec();
        for _ in 0..input.u8() % 4 {
            let (at, value) = (usize::from(input.u8()) % bytes.len(), input.u8());
            bytes[at] ^= value;
        }
        changed[number] = before != bytes;
    };
    let secret = Secret::new([3; TAG_BYTES]);
    let (one, two) = (Party::rank(1), Party::rank(2));
    let dialling = Dialling::new(SCOPE, one, two, [1; 32]);
    let mut hello = dialling.hello();
    on_way(0, &mut hello);
    let Ok((listening, mut challenge)) = Listening::new((SCOPE, two), &hello, [2; 32], &secret, &hash) else { return };
    on_way(1, &mut challenge);
    let Ok((confirming, mut proof)) = dialling.answer(&challenge, &secret, &hash) else { return };
    on_way(2, &mut proof);
    let Ok(proven) = listening.check(&proof, &secret, &hash) else { return };
    assert_eq!(proven.peer(), one, "nobody proves to be another one");
    let (mut verdict, theirs) = if refuses {
        (proven.refuse(Refusal::Duplicate, &secret, &hash), None)
    } else {
        let (verdict, session) = proven.accept(&secret, &hash);
        (verdict, Some(session))
    };
    on_way(3, &mut verdict);
    let own = confirming.conclude(&verdict, &secret, &hash);
    assert_eq!(own.is_ok(), changed == [false; MESSAGES] && !refuses, "{changed:?}");
    if let (Ok(own), Some(theirs)) = (own, theirs) {
        assert_eq!((own.peer, theirs.peer, &own.send, &own.receive), (two, one, &theirs.receive, &theirs.send));
    }
}

/// Undisturbed ones, and one of each kind of change.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let of = |kind: u8, bytes: &[u8]| Script::new().bytes(&[kind]).bytes(bytes).done();
    // A control message, a request, data, a message in a fragment of its own, and the end.
    let frames = [5, 0, 1, 9, 1, 1, 0, 2, 1, 50, 0x83, 1, 0, 4, 0, 0];
    let with = |changes: &[u8]| [&frames[..], changes].concat();
    vec![
        ("frames", of(FRAMES, &with(&[0, 255]))),
        ("flipped", of(FRAMES, &with(&[1, 0, 0, 40, 0, 3]))),
        ("cut", of(FRAMES, &with(&[1, 1, 0, 28, 9, 1]))),
        ("repeated", of(FRAMES, &with(&[1, 2, 0, 0, 37, 200]))),
        ("inserted", of(FRAMES, &with(&[1, 3, 0, 37, 28, 0]))),
        ("reversed", of(FRAMES, &with(&[1, 4, 0, 0, 90, 5]))),
        ("handshake", of(HANDSHAKE, &[0])),
        ("refused", of(HANDSHAKE, &[1])),
        ("hello", of(HANDSHAKE, &[0, 1, 50, 1])),
        ("challenge", of(HANDSHAKE, &[0, 0, 1, 40, 1])),
        ("proof", of(HANDSHAKE, &[0, 0, 0, 1, 3, 0x80])),
        ("verdict", of(HANDSHAKE, &[0, 0, 0, 0, 1, 0, 1])),
    ]
}
