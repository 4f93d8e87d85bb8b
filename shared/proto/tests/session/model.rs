//! Every order of handshakes between two honest parties and an attacker who has the network, by a model checker.
//!
//! The attacker reads, keeps, drops, replays, reorders and reflects all that is sent, opens connections to either
//! party, and puts messages together out of any part that it has seen. It cannot make tags. No party ever believes that
//! it talks to another one that does not take part in this very connection. A side that repeats its nonce breaks that,
//! and the checker finds it: so the model can fail.

use std::collections::BTreeSet;

use flexcast_proto::session::{
    CHALLENGE_BYTES, Confirming, Dialling, HELLO_BYTES, Listening, Nonce, PROOF_BYTES, Party, Secret, Session,
    TAG_BYTES, VERDICT_BYTES,
};
use stateright::{Checker as _, Model, Property};

use crate::support::keyed::hash;

const SCOPE: u64 = 5;
const ALICE: Party = Party::rank(0);
const BOB: Party = Party::rank(1);
/// Where a hello has its nonce: at its end.
const HELLO_NONCE_AT: usize = HELLO_BYTES - size_of::<Nonce>();
const ATTACKERS_NONCE: Nonce = [0xEE; 32];

fn secret() -> Secret {
    Secret::new([7; 32])
}

/// A side of a connection, whose other side is whatever the attacker makes it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Side {
    /// Has sent its hello.
    Dialling(Dialling),
    /// Has sent its proof.
    Confirming(Confirming),
    /// Waits for a hello.
    Idle,
    /// Has sent its challenge.
    Listening(Listening),
    /// Believes that it talks to somebody.
    Believes(Session),
    Closed,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct End {
    own: Party,
    side: Side,
    /// The hello that it has sent or taken, and the challenge: both sides of one connection have the same.
    hello: Option<Vec<u8>>,
    challenge: Option<Vec<u8>>,
    /// It has proven who it is.
    proven: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    ends: Vec<End>,
    /// What the attacker has read. Of hellos the whole, of all else the parts.
    hellos: BTreeSet<Vec<u8>>,
    nonces: BTreeSet<Nonce>,
    tags: BTreeSet<[u8; TAG_BYTES]>,
    refused: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Deliver {
    end: usize,
    bytes: Vec<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    None,
    /// The listening side always has the same nonce.
    Listening,
    /// The dialling side does.
    Dialling,
}

/// Connections that are dialled, as (who, whom), and those that are awaited.
#[derive(Clone, Debug)]
struct Network {
    dials: Vec<(Party, Party)>,
    listens: Vec<Party>,
    flaw: Flaw,
}

impl Network {
    fn nonce(&self, end: usize) -> Nonce {
        let is_dialling = end < self.dials.len();
        match self.flaw {
            Flaw::Listening if !is_dialling => [0x77; 32],
            Flaw::Dialling if is_dialling => [0x66; 32],
            _ => [end as u8 + 1; 32],
        }
    }

    /// Hellos that the attacker can make for a party.
    fn hellos(&self, state: &State, to: Party) -> Vec<Vec<u8>> {
        let mut all: BTreeSet<Vec<u8>> = state.hellos.clone();
        for from in [ALICE, BOB] {
            let nonces = state.nonces.iter().chain([&ATTACKERS_NONCE]);
            all.extend(nonces.map(|nonce| Dialling::new(SCOPE, from, to, *nonce).hello().to_vec()));
        }
        all.into_iter().collect()
    }
}

impl State {
    /// The attacker reads a hello.
    fn read_hello(&mut self, hello: &[u8]) {
        self.nonces.insert(hello[HELLO_NONCE_AT..].try_into().unwrap());
        self.hellos.insert(hello.to_vec());
    }

    /// The attacker reads a message that ends in a tag.
    fn read_tag(&mut self, bytes: &[u8]) {
        self.tags.insert(bytes[bytes.len() - TAG_BYTES..].try_into().unwrap());
    }

    fn believers(&self, dials: usize) -> [Vec<&End>; 2] {
        let believes = |end: &&End| matches!(end.side, Side::Believes(_));
        let (dialling, listening) = self.ends.split_at(dials);
        [dialling.iter().filter(believes).collect(), listening.iter().filter(believes).collect()]
    }

    /// Whether each side that believes something has one other side, and no other has the same, whose connection is
    /// this one.
    fn agrees(&self, dials: usize) -> bool {
        let (dialling, listening) = self.ends.split_at(dials);
        let is_one = |end: &End, others: &[End], of_own_kind: &[End]| {
            let Side::Believes(session) = &end.side else { return true };
            let connection = (&end.hello, &end.challenge);
            let fits = |other: &&End| (&other.hello, &other.challenge) == connection && other.own == session.peer;
            // Whoever dials has proven itself; it may have been given a wrong verdict since. Whoever listens believes.
            let takes_part = |other: &&End| match &other.side {
                Side::Believes(theirs) => {
                    theirs.peer == end.own && theirs.send == session.receive && theirs.receive == session.send
                }
                _ => other.proven,
            };
            let partners = others.iter().filter(fits).filter(takes_part).count();
            let doubles = of_own_kind.iter().filter(|other| {
                matches!(other.side, Side::Believes(_)) && (&other.hello, &other.challenge) == connection
            });
            partners == 1 && doubles.count() == 1
        };
        dialling.iter().all(|end| is_one(end, listening, dialling))
            && listening.iter().all(|end| is_one(end, dialling, listening))
    }
}

impl Model for Network {
    type State = State;
    type Action = Deliver;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            ends: Vec::new(),
            hellos: BTreeSet::new(),
            nonces: BTreeSet::new(),
            tags: BTreeSet::new(),
            refused: false,
        };
        for (number, (own, peer)) in self.dials.iter().enumerate() {
            let dialling = Dialling::new(SCOPE, *own, *peer, self.nonce(number));
            let hello = dialling.hello().to_vec();
            state.read_hello(&hello);
            let side = Side::Dialling(dialling);
            state.ends.push(End { own: *own, side, hello: Some(hello), challenge: None, proven: false });
        }
        state.ends.extend(self.listens.iter().map(|own| End {
            own: *own,
            side: Side::Idle,
            hello: None,
            challenge: None,
            proven: false,
        }));
        vec![state]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Deliver>) {
        for (number, end) in state.ends.iter().enumerate() {
            let tags = || state.tags.iter().map(|tag| tag.to_vec());
            let messages: Vec<Vec<u8>> = match &end.side {
                Side::Idle => self.hellos(state, end.own),
                Side::Dialling(_) => {
                    let nonces: Vec<&Nonce> = state.nonces.iter().chain([&ATTACKERS_NONCE]).collect();
                    tags().flat_map(|tag| nonces.iter().map(move |nonce| [&nonce[..], &tag].concat())).collect()
                }
                Side::Listening(_) => tags().collect(),
                Side::Confirming(_) => {
                    tags().flat_map(|tag| [0_u32, 1].map(|code| [&code.to_le_bytes()[..], &tag].concat())).collect()
                }
                Side::Believes(_) | Side::Closed => Vec::new(),
            };
            actions.extend(messages.into_iter().map(|bytes| Deliver { end: number, bytes }));
        }
    }

    fn next_state(&self, before: &State, Deliver { end: number, bytes }: Deliver) -> Option<State> {
        let mut state = before.clone();
        let end = &mut state.ends[number];
        let (secret, own) = (secret(), end.own);
        let fixed = "an action has as many bytes as the message";
        let side = match end.side.clone() {
            Side::Idle => {
                let hello: [u8; HELLO_BYTES] = bytes.clone().try_into().expect(fixed);
                match Listening::new((SCOPE, own), &hello, self.nonce(number), &secret, &hash) {
                    Ok((listening, challenge)) => {
                        (end.hello, end.challenge) = (Some(bytes), Some(challenge.to_vec()));
                        state.read_hello(&hello);
                        state.read_tag(&challenge);
                        state.nonces.insert(challenge[..size_of::<Nonce>()].try_into().unwrap());
                        Side::Listening(listening)
                    }
                    Err(_) => Side::Closed,
                }
            }
            Side::Dialling(dialling) => {
                let challenge: [u8; CHALLENGE_BYTES] = bytes.clone().try_into().expect(fixed);
                match dialling.answer(&challenge, &secret, &hash) {
                    Ok((confirming, proof)) => {
                        (end.challenge, end.proven) = (Some(bytes), true);
                        state.read_tag(&proof);
                        Side::Confirming(confirming)
                    }
                    Err(_) => Side::Closed,
                }
            }
            Side::Listening(listening) => {
                let proof: [u8; PROOF_BYTES] = bytes.try_into().expect(fixed);
                match listening.check(&proof, &secret, &hash) {
                    Ok(proven) => {
                        let (verdict, session) = proven.accept(&secret, &hash);
                        state.read_tag(&verdict);
                        Side::Believes(session)
                    }
                    Err(_) => Side::Closed,
                }
            }
            Side::Confirming(confirming) => {
                let verdict: [u8; VERDICT_BYTES] = bytes.try_into().expect(fixed);
                match confirming.conclude(&verdict, &secret, &hash) {
                    Ok(session) => Side::Believes(session),
                    Err(_) => Side::Closed,
                }
            }
            Side::Believes(_) | Side::Closed => return None,
        };
        state.refused |= side == Side::Closed;
        state.ends[number].side = side;
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("whoever believes has a partner of its own", |model: &Self, state: &State| {
                state.agrees(model.dials.len())
            }),
            Property::sometimes("both sides believe", |model: &Self, state: &State| {
                let [dialling, listening] = state.believers(model.dials.len());
                !dialling.is_empty() && !listening.is_empty()
            }),
            Property::sometimes("an attack is refused", |_, state: &State| state.refused),
        ]
    }
}

fn network(dials: &[(Party, Party)], listens: &[Party], flaw: Flaw) -> Network {
    Network { dials: dials.to_vec(), listens: listens.to_vec(), flaw }
}

#[test]
fn no_party_believes_in_a_connection_that_the_other_does_not_take_part_in() {
    // One honest connection and two of the attacker; each dials the other; one dials twice.
    for (dials, listens) in [
        (&[(ALICE, BOB)][..], &[BOB, BOB, ALICE][..]),
        (&[(ALICE, BOB), (BOB, ALICE)], &[BOB, ALICE]),
        (&[(ALICE, BOB), (ALICE, BOB)], &[BOB, BOB]),
    ] {
        let checker = network(dials, listens, Flaw::None).checker().threads(2).spawn_dfs().join();
        checker.assert_properties();
        let states = checker.unique_state_count();
        assert!(states > 500, "{states} states");
    }
}

#[test]
fn a_side_that_repeats_its_nonce_is_deceived_and_the_checker_finds_it() {
    for (dials, listens, flaw) in [
        (&[(ALICE, BOB)][..], &[BOB, BOB][..], Flaw::Listening),
        (&[(ALICE, BOB), (ALICE, BOB)], &[BOB], Flaw::Dialling),
    ] {
        let checker = network(dials, listens, flaw).checker().threads(2).spawn_dfs().join();
        let found = checker.discovery("whoever believes has a partner of its own");
        assert!(found.is_some(), "{flaw:?}");
    }
}
