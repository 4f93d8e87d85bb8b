//! Greeting: both sides know the secret, or one of them learns that the other does not.

use flexcast_proto::service::ContextId;
use flexcast_proto::service::wire::{
    Accepting, Body, Challenge, Connecting, Hello, HelloError, Packet, Proof, Role, Secret, decode,
};
use proptest::prelude::*;

use super::samples::{bytes_of, endpoint, nonce};
use crate::support::keyed::hash;

fn client(secret: [u8; 32]) -> Connecting {
    Connecting::new(Secret::new(secret), Role::Process { listens: endpoint(1, 4791) }, 7, nonce(1))
}

/// A greeting between two secrets, in which something happens to each message on its way. What the service process
/// knows then.
fn greet(
    secrets: [[u8; 32]; 2],
    on_hello: impl FnOnce(&mut Hello),
    on_challenge: impl FnOnce(&mut Challenge),
    on_proof: impl FnOnce(&mut Proof),
    on_verdict: impl FnOnce(&mut Proof),
) -> Result<Hello, HelloError> {
    let [connecting, accepting] = secrets;
    let client = client(connecting);
    let mut hello = client.hello();
    on_hello(&mut hello);
    let (server, mut challenge) = Accepting::new(&Secret::new(accepting), hello, nonce(100), &hash)?;
    on_challenge(&mut challenge);
    let (client, mut proof) = client.answer(&challenge, &hash)?;
    on_proof(&mut proof);
    let accepted = server.check(&proof, &hash)?;
    let hello = accepted.hello();
    let (mut verdict, theirs) = accepted.accept(&hash);
    on_verdict(&mut verdict);
    let own = client.conclude(&verdict, &hash)?;
    assert_eq!((own.send, own.receive), (theirs.receive, theirs.send));
    assert_ne!(own.send, own.receive);
    Ok(hello)
}

#[test]
fn who_knows_the_secret_is_taken_by_its_hello() {
    let hello = greet([nonce(9); 2], |_| {}, |_| {}, |_| {}, |_| {}).unwrap();
    assert_eq!(hello, client(nonce(9)).hello());
    // The messages go there and back.
    let context = ContextId { group: 0, collective: 0 };
    let bytes = bytes_of(&Packet { context, body: Body::Hello(hello) });
    assert_eq!(decode(&bytes).unwrap().body, Body::Hello(hello));
}

#[test]
fn secrets_are_not_shown() {
    let text = format!("{:?}", client([0xab; 32]));
    assert!(text.contains("Secret(..)") && !text.contains("171"), "{text}");
}

/// The tag of a service process is none of who connects, and neither is one of another greeting.
#[test]
fn tags_are_of_one_side_and_one_greeting() {
    let secret = Secret::new(nonce(9));
    let hello = client(nonce(9)).hello();
    let (server, challenge) = Accepting::new(&secret, hello, nonce(100), &hash).unwrap();
    // Sent back to who has made it.
    assert_eq!(server.check(&Proof { tag: challenge.tag }, &hash).err(), Some(HelloError::Tag));
    // Said again to another challenge.
    let (_, first) = Accepting::new(&secret, hello, nonce(100), &hash).unwrap();
    let (_, proof) = client(nonce(9)).answer(&first, &hash).unwrap();
    let (server, _) = Accepting::new(&secret, hello, nonce(101), &hash).unwrap();
    assert_eq!(server.check(&proof, &hash).err(), Some(HelloError::Tag));
    // The nonces of both sides differ.
    let repeated = Challenge { nonce: hello.nonce, tag: challenge.tag };
    assert_eq!(client(nonce(9)).answer(&repeated, &hash).err(), Some(HelloError::Nonce));
    assert_eq!(Accepting::new(&secret, hello, hello.nonce, &hash).err(), Some(HelloError::Nonce));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 500 }))]

    /// One bit of any message, or of one of the secrets, is another.
    #[test]
    fn one_bit_is_enough_to_be_refused(what in 0u8..7, bit in 0usize..256, secret: [u8; 32]) {
        let flip = |bytes: &mut [u8; 32]| bytes[bit / 8] ^= 1 << (bit % 8);
        let mut other = secret;
        if what == 0 {
            flip(&mut other);
        }
        let result = greet(
            [secret, other],
            |hello| match what {
                1 => flip(&mut hello.nonce),
                2 => hello.epoch ^= 1 << (bit % 64),
                _ => {}
            },
            |challenge| match what {
                3 => flip(&mut challenge.nonce),
                4 => flip(&mut challenge.tag),
                _ => {}
            },
            |proof| {
                if what == 5 {
                    flip(&mut proof.tag);
                }
            },
            |verdict| {
                if what == 6 {
                    flip(&mut verdict.tag);
                }
            },
        );
        prop_assert_eq!(result, Err(HelloError::Tag));
    }
}
