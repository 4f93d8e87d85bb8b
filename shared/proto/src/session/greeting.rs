//! The first message on a queue pair: who sends it, for whom, and the proof that both know one another from one
//! meeting.
//!
//! A card delivers whatever comes to the number of a queue pair. The number may be of somebody else, or have been used
//! by a former job. So each side draws a nonce when it makes its queue pairs, and announces it with their numbers where
//! sides meet. The nonces of two sides, which are never sent again, are together the key of the tag in a greeting. So
//! there is a key for each pair of sides and for each start of them.
//!
//! The tag covers the queue pairs of both sides as the sender knows them. Whoever takes a greeting knows from it that
//! the sender is the one that was meant, that the sender meant this side, and that the other queue pairs between the
//! two, over which no greeting goes, are connected with one another.
//!
//! Two kinds of connections need no greeting, because what would be its tag is in all that goes over them: in their
//! messages ([`Greeting::message_numbers`]), or in the numbers of packets ([`Greeting::first_packets`]).
//!
//! There is no IO, no clock and no source of random numbers here.

use thiserror::Error;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::keyed::{KeyedHash, Secret, TAG_BYTES, is_same};
use super::{Party, Role, VERSION};

const MAGIC: [u8; 4] = *b"FXQP";
/// Bytes of the nonce of a side.
pub const SIDE_NONCE_BYTES: usize = 16;
/// Queue pairs of a side that a greeting covers at most.
pub const MOST_QUEUE_PAIRS: usize = 4;
/// Bytes of a greeting: `FXQP`, the version, roles and numbers of who sends and who is meant, the scope, a tag.
pub const GREETING_BYTES: usize = size_of::<GreetingBytes>();
/// Packet numbers have 24 bits.
const PSN_MASK: u32 = 0xFF_FFFF;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct GreetingBytes {
    magic: [u8; 4],
    version: u8,
    from_role: u8,
    to_role: u8,
    reserved: u8,
    from: U32,
    to: U32,
    scope: U64,
    tag: [u8; TAG_BYTES],
}

/// What a tag covers.
#[derive(Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct Covered {
    purpose: U32,
    version: U32,
    scope: U64,
    sides: [CoveredSide; 2],
}

#[derive(Clone, Copy, IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct CoveredSide {
    role: U32,
    number: U32,
    address: [u8; 16],
    queue_pairs: [U32; MOST_QUEUE_PAIRS],
}

/// What a keyed hash is for.
#[derive(Clone, Copy)]
enum Purpose {
    Greeting = 1,
    FirstPacket = 2,
    Messages = 3,
}

/// Somebody who was not meant is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Stranger {
    /// What it sends first is no greeting.
    #[error("it says something else before its greeting")]
    Foreign,
    /// It has another version.
    #[error("it greets in version {theirs}, this side in version {VERSION}: run one build on all sides")]
    Version {
        /// Theirs.
        theirs: u32,
    },
    /// It is of another communicator.
    #[error("it is of communicator {theirs:#x}, this side of {own:#x}")]
    Scope {
        /// Theirs.
        theirs: u64,
        /// This side's.
        own: u64,
    },
    /// It is somebody else, or wants somebody else.
    #[error("it says that it is {from}, and wants {to}")]
    Party {
        /// Who it says it is.
        from: Party,
        /// Who it wants to reach.
        to: Party,
    },
    /// It does not know the nonces and queue pairs of both sides.
    #[error("it is of another start, or its queue pairs are not those that were announced")]
    Unknown,
}

/// One of two sides between which there are queue pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Side {
    /// Who it is. Its number has 32 bits.
    pub party: Party,
    /// Its nonce: random bytes of the operating system, drawn when it made its queue pairs.
    pub nonce: [u8; SIDE_NONCE_BYTES],
    /// Address of its port.
    pub address: [u8; 16],
    /// Its queue pairs for the other side, in an order that both sides keep; 0 for those that there are not.
    pub queue_pairs: [u32; MOST_QUEUE_PAIRS],
}

impl Side {
    fn covered(&self) -> CoveredSide {
        CoveredSide {
            role: (self.party.role as u32).into(),
            number: (self.party.number as u32).into(),
            address: self.address,
            queue_pairs: self.queue_pairs.map(U32::new),
        }
    }
}

/// What a side knows of itself and of the other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Greeting {
    /// Number of the communicator, alike on both sides; 0 where there is none.
    pub scope: u64,
    /// This side.
    pub own: Side,
    /// The other side, as it announced itself.
    pub peer: Side,
}

impl Greeting {
    /// The tag of what `from` sends to `to`.
    fn tag(&self, purpose: Purpose, [from, to]: [&Side; 2], hash: &impl KeyedHash) -> [u8; TAG_BYTES] {
        let mut key = [0; 2 * SIDE_NONCE_BYTES];
        let (first, second) = key.split_at_mut(SIDE_NONCE_BYTES);
        first.copy_from_slice(&from.nonce);
        second.copy_from_slice(&to.nonce);
        let covered = Covered {
            purpose: (purpose as u32).into(),
            version: VERSION.into(),
            scope: self.scope.into(),
            sides: [from.covered(), to.covered()],
        };
        hash.tag(&Secret::new(key), covered.as_bytes())
    }

    /// What this side sends before anything else.
    #[must_use]
    pub fn say(&self, hash: &impl KeyedHash) -> [u8; GREETING_BYTES] {
        let Self { scope, own, peer } = self;
        zerocopy::transmute!(GreetingBytes {
            magic: MAGIC,
            version: VERSION as u8,
            from_role: own.party.role as u8,
            to_role: peer.party.role as u8,
            reserved: 0,
            from: (own.party.number as u32).into(),
            to: (peer.party.number as u32).into(),
            scope: (*scope).into(),
            tag: self.tag(Purpose::Greeting, [own, peer], hash),
        })
    }

    /// Checks the first message of the other side.
    ///
    /// # Errors
    /// It is no greeting, or one of another version, of another scope, of somebody else or for somebody else. Or its
    /// sender is not from the same meeting, or knows other queue pairs ([`Stranger::Unknown`]).
    pub fn check(&self, message: &[u8], hash: &impl KeyedHash) -> Result<(), Stranger> {
        let said = GreetingBytes::ref_from_bytes(message).map_err(|_| Stranger::Foreign)?;
        if said.magic != MAGIC || said.reserved != 0 {
            return Err(Stranger::Foreign);
        }
        if u32::from(said.version) != VERSION {
            return Err(Stranger::Version { theirs: said.version.into() });
        }
        let party = |role: u8, number: U32| {
            let role = Role::of_code(role.into()).ok_or(Stranger::Foreign)?;
            Ok(Party { role, number: number.get().into() })
        };
        let (from, to) = (party(said.from_role, said.from)?, party(said.to_role, said.to)?);
        if said.scope.get() != self.scope {
            return Err(Stranger::Scope { theirs: said.scope.get(), own: self.scope });
        }
        if (from, to) != (self.peer.party, self.own.party) {
            return Err(Stranger::Party { from, to });
        }
        let is_right = is_same(&self.tag(Purpose::Greeting, [&self.peer, &self.own], hash), &said.tag);
        if is_right { Ok(()) } else { Err(Stranger::Unknown) }
    }

    /// Numbers that all messages of this side and of the other one carry, for connections whose messages have room for
    /// one. Who does not know what a greeting's tag covers does not know them: such connections need no greeting.
    #[must_use]
    pub fn message_numbers(&self, hash: &impl KeyedHash) -> [u64; 2] {
        let number = |sides| {
            let [a, b, c, d, e, f, g, h, ..] = self.tag(Purpose::Messages, sides, hash);
            u64::from_le_bytes([a, b, c, d, e, f, g, h])
        };
        [number([&self.own, &self.peer]), number([&self.peer, &self.own])]
    }

    /// Numbers of the first packets of this side and of the other one, for reliable connections over which no greeting
    /// can go: cards take no packet of another number. They follow from what a greeting's tag covers.
    #[must_use]
    pub fn first_packets(&self, hash: &impl KeyedHash) -> [u32; 2] {
        let number = |sides| {
            let [a, b, c, ..] = self.tag(Purpose::FirstPacket, sides, hash);
            u32::from_le_bytes([a, b, c, 0]) & PSN_MASK
        };
        [number([&self.own, &self.peer]), number([&self.peer, &self.own])]
    }
}

/// A connection's greetings, as far as they have come.
#[derive(Clone, Copy, Debug)]
pub struct Acquaintance {
    greeting: Greeting,
    said: bool,
    received: bool,
}

impl Acquaintance {
    /// Before any.
    #[must_use]
    pub const fn new(greeting: Greeting) -> Self {
        Self { greeting, said: false, received: false }
    }

    /// What is to be sent before anything else; none if it has been asked for before.
    pub fn say(&mut self, hash: &impl KeyedHash) -> Option<[u8; GREETING_BYTES]> {
        let is_new = !core::mem::replace(&mut self.said, true);
        is_new.then(|| self.greeting.say(hash))
    }

    /// Whether both greetings are out: this side's is said, and the other's has come.
    #[must_use]
    pub const fn is_over(&self) -> bool {
        self.said && self.received
    }

    /// Takes a message of the other side. Whether it is its greeting, with which nothing else is to be done.
    ///
    /// # Errors
    /// Its first message shows that somebody else is there.
    pub fn receive(&mut self, message: &[u8], hash: &impl KeyedHash) -> Result<bool, Stranger> {
        if self.received {
            return Ok(false);
        }
        self.greeting.check(message, hash)?;
        self.received = true;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// No hash that anybody should use: it only has to distinguish its inputs.
    fn hash(secret: &Secret, message: &[u8]) -> [u8; TAG_BYTES] {
        let mut words = [0x9E37_79B9_7F4A_7C15u64, 2, 3, 4];
        for (at, byte) in secret.bytes().iter().chain(message).enumerate() {
            let word = &mut words[at % 4];
            *word = (*word ^ u64::from(*byte) ^ (at as u64) << 8).wrapping_mul(0x100_0000_01B3).rotate_left(23);
        }
        words[0] ^= words[1].rotate_left(7) ^ words[2].rotate_left(19) ^ words[3].rotate_left(41);
        zerocopy::transmute!(words)
    }

    fn side(number: u32) -> Side {
        Side {
            party: Party::rank(number),
            nonce: [number as u8 + 1; SIDE_NONCE_BYTES],
            address: [number as u8; 16],
            queue_pairs: [0x100 + number, 0x200 + number, 0, 0],
        }
    }

    fn between(own: u32, peer: u32) -> Greeting {
        Greeting { scope: 7, own: side(own), peer: side(peer) }
    }

    #[test]
    fn sides_that_were_meant_know_one_another() {
        assert_eq!(GREETING_BYTES, 56);
        for (own, peer) in [(0, 1), (1, 0), (5, 3)] {
            assert_eq!(between(own, peer).check(&between(peer, own).say(&hash), &hash), Ok(()));
        }
        let [own, peer] = between(0, 1).first_packets(&hash);
        assert_eq!(between(1, 0).first_packets(&hash), [peer, own]);
        assert_ne!(own, peer);
        assert!(own.max(peer) <= PSN_MASK);
        let [own, peer] = between(0, 1).message_numbers(&hash);
        assert_eq!(between(1, 0).message_numbers(&hash), [peer, own]);
        assert_ne!(own, peer);
    }

    #[test]
    fn whoever_was_not_meant_is_refused_with_what_came() {
        let own = between(0, 1);
        let refusal = |greeting: Greeting| own.check(&greeting.say(&hash), &hash).unwrap_err();
        let party = |from, to| Stranger::Party { from: Party::rank(from), to: Party::rank(to) };
        assert_eq!(refusal(between(2, 0)), party(2, 0), "somebody else");
        assert_eq!(refusal(between(1, 2)), party(1, 2), "for somebody else");
        assert_eq!(refusal(own), party(0, 1), "the own one comes back");
        assert_eq!(refusal(Greeting { scope: 8, ..between(1, 0) }), Stranger::Scope { theirs: 8, own: 7 });
        let right = between(1, 0);
        let stale = Side { nonce: [9; SIDE_NONCE_BYTES], ..right.own };
        assert_eq!(refusal(Greeting { own: stale, ..right }), Stranger::Unknown, "of a former start");
        let stale = Side { nonce: [9; SIDE_NONCE_BYTES], ..right.peer };
        assert_eq!(refusal(Greeting { peer: stale, ..right }), Stranger::Unknown, "for a former start");
        for at in 0..MOST_QUEUE_PAIRS {
            let [mut own, mut peer] = [right.own, right.peer];
            own.queue_pairs[at] ^= 1;
            peer.queue_pairs[at] ^= 1;
            assert_eq!(refusal(Greeting { own, ..right }), Stranger::Unknown, "another queue pair of its own");
            assert_eq!(refusal(Greeting { peer, ..right }), Stranger::Unknown, "connected with another one of ours");
            let other = Greeting { own, ..right };
            assert_ne!(other.first_packets(&hash), right.first_packets(&hash));
            assert_ne!(other.message_numbers(&hash), right.message_numbers(&hash));
        }
        let elsewhere = Side { address: [9; 16], ..right.peer };
        assert_eq!(refusal(Greeting { peer: elsewhere, ..right }), Stranger::Unknown, "connected with another card");
    }

    #[test]
    fn a_greeting_comes_first_and_once() {
        let [mut one, mut other] = [Acquaintance::new(between(0, 1)), Acquaintance::new(between(1, 0))];
        assert_eq!(one.receive(b"something else", &hash), Err(Stranger::Foreign));
        assert!(one.say(&hash).is_some() && !one.is_over());
        let said = other.say(&hash).unwrap();
        assert_eq!(other.say(&hash), None);
        assert_eq!(one.receive(&said, &hash), Ok(true));
        assert!(one.is_over() && !other.is_over());
        assert_eq!(one.receive(b"something else", &hash), Ok(false));
    }

    #[test]
    fn bytes_that_are_no_greeting_are_refused() {
        let (own, right) = (between(0, 1), between(1, 0).say(&hash));
        for len in 0..GREETING_BYTES {
            assert_eq!(own.check(&right[..len], &hash), Err(Stranger::Foreign), "{len} bytes");
        }
        assert_eq!(own.check(&[0; 64], &hash), Err(Stranger::Foreign));
        for at in 0..GREETING_BYTES {
            let mut wrong = right;
            wrong[at] ^= 0x40;
            assert!(own.check(&wrong, &hash).is_err(), "byte {at}");
        }
        let mut other = right;
        other[4] = 2;
        assert_eq!(own.check(&other, &hash), Err(Stranger::Version { theirs: 2 }));
    }
}
