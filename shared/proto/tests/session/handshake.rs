//! Handshake of a connection: who knows the secret is known by name, and no message that is changed, copied or sent
//! back has any effect.

use flexcast_proto::session::{
    Dialling, HandshakeError, KeyedHash as _, Listening, Party, Refusal, Role, Secret, Session, VERSION,
};
use proptest::prelude::*;

use crate::support::keyed::hash;

const SCOPE: u64 = 0x77_1234;

fn secret() -> Secret {
    Secret::new([9; 32])
}

/// A handshake of rank 3 with rank 1, in which something happens to each message on its way: both sides' sessions, or
/// what went wrong first.
fn shake(
    mut on_way: impl FnMut(usize, &mut [u8]),
    refusal: Option<Refusal>,
) -> Result<(Session, Session), HandshakeError> {
    let dialling = Dialling::new(SCOPE, Party::rank(3), Party::rank(1), [1; 32]);
    let mut hello = dialling.hello();
    on_way(0, &mut hello);
    let (listening, mut challenge) = Listening::new((SCOPE, Party::rank(1)), &hello, [2; 32], &secret(), &hash)?;
    on_way(1, &mut challenge);
    let (confirming, mut proof) = dialling.answer(&challenge, &secret(), &hash)?;
    on_way(2, &mut proof);
    let proven = listening.check(&proof, &secret(), &hash)?;
    assert_eq!(proven.peer(), Party::rank(3));
    let (mut verdict, theirs) = match refusal {
        None => {
            let (verdict, session) = proven.accept(&secret(), &hash);
            (verdict, Some(session))
        }
        Some(refusal) => (proven.refuse(refusal, &secret(), &hash), None),
    };
    on_way(3, &mut verdict);
    let own = confirming.conclude(&verdict, &secret(), &hash)?;
    Ok((own, theirs.expect("a refused connection is never concluded")))
}

#[test]
fn both_sides_know_one_another_and_have_a_key_for_each_direction() {
    let (dialling, listening) = shake(|_, _| {}, None).unwrap();
    assert_eq!((dialling.peer, listening.peer), (Party::rank(1), Party::rank(3)));
    assert_eq!((dialling.send, dialling.receive), (listening.receive, listening.send));
    assert_ne!(dialling.send, dialling.receive);
}

#[test]
fn a_refusal_says_why() {
    for refusal in [Refusal::Duplicate, Refusal::Unknown] {
        assert_eq!(shake(|_, _| {}, Some(refusal)), Err(HandshakeError::Refused(refusal)));
    }
}

#[test]
fn hellos_that_do_not_fit_are_refused_with_what_does_not() {
    let listen = |change: fn(&mut [u8])| {
        let mut hello = Dialling::new(SCOPE, Party::rank(3), Party::rank(1), [1; 32]).hello();
        change(&mut hello);
        Listening::new((SCOPE, Party::rank(1)), &hello, [2; 32], &secret(), &hash).map(drop).unwrap_err()
    };
    assert_eq!(listen(|hello| hello[0] = b'G'), HandshakeError::Foreign);
    assert_eq!(listen(|hello| hello[4] = 9), HandshakeError::Version { theirs: 9 });
    assert_ne!(VERSION, 9);
    assert_eq!(listen(|hello| hello[8] ^= 1), HandshakeError::Scope { theirs: SCOPE ^ 1, own: SCOPE });
    // Another role than there is, another receiver, and the receiver itself.
    assert_eq!(listen(|hello| hello[16] = 99), HandshakeError::Foreign);
    let party = |from, to| HandshakeError::Party { from, to };
    assert_eq!(listen(|hello| hello[32] = 2), party(Party::rank(3), Party::rank(2)));
    assert_eq!(listen(|hello| hello[20] = 2), party(Party::rank(3), Party::aggregator(1)));
    assert_eq!(listen(|hello| hello[24] = 1), party(Party::rank(1), Party::rank(1)));
    assert_eq!(listen(|hello| hello[40..].fill(2)), HandshakeError::Nonce);
    let text = party(Party::rank(3), Party { role: Role::ServiceProcess, number: 2 }).to_string();
    assert_eq!(text, "it says that it is rank 3, and wants service process 2");
}

#[test]
fn who_does_not_know_the_secret_is_found_by_either_side() {
    let other = Secret::new([8; 32]);
    let dialling = || Dialling::new(SCOPE, Party::rank(3), Party::rank(1), [1; 32]);
    let listening =
        |secret: &Secret| Listening::new((SCOPE, Party::rank(1)), &dialling().hello(), [2; 32], secret, &hash).unwrap();
    let (_, challenge) = listening(&other);
    assert_eq!(dialling().answer(&challenge, &secret(), &hash).map(drop), Err(HandshakeError::Tag));
    let (side, challenge) = listening(&secret());
    assert_eq!(dialling().answer(&challenge, &other, &hash).map(drop), Err(HandshakeError::Tag));
    assert_eq!(side.check(&hash.tag(&other, b"anything"), &secret(), &hash).map(drop), Err(HandshakeError::Tag));
    let repeated = [[1; 32], [0; 32]].concat().try_into().unwrap();
    assert_eq!(dialling().answer(&repeated, &secret(), &hash).map(drop), Err(HandshakeError::Nonce));
}

proptest! {
    #[test]
    fn any_changed_bit_of_any_message_ends_the_handshake(message in 0_usize..4, bit: prop::sample::Index) {
        let result = shake(|number, bytes| {
            if number == message {
                let bit = bit.index(8 * bytes.len());
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }, None);
        prop_assert!(result.is_err(), "{result:?}");
    }
}
