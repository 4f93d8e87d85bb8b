//! Authenticated session of one connection: a handshake of mutual challenge and response under a shared secret, and the
//! keys that it gives.
//!
//! | Message | From | Contents |
//! |---|---|---|
//! | hello | the dialling side | version, scope, who dials, who is meant, a fresh nonce |
//! | challenge | the listening side | a fresh nonce, a tag |
//! | proof | the dialling side | a tag |
//! | verdict | the listening side | whether it takes the connection, a tag |
//!
//! 1. Whoever dials sends a hello ([`Dialling::new`]).
//! 2. The listening side answers by a challenge ([`Listening::new`]). Its tag proves that it knows the secret, and that
//!    it has seen this hello.
//! 3. Whoever dials checks the tag, and answers by a proof ([`Dialling::answer`]).
//! 4. The listening side checks the proof ([`Listening::check`]), decides, and says so ([`Proven::accept`],
//!    [`Proven::refuse`]).
//! 5. Whoever dials checks the verdict ([`Confirming::conclude`]). From here on both have a [`Session`] with a key for
//!    each direction.
//!
//! A tag is a keyed hash of what it is for and of the transcript: the whole hello and the nonce of the challenge. So a
//! tag serves for one message of one connection. A copy of it has no effect on another connection, in the other
//! direction, for another rank, communicator or version. The keys of a session follow from the transcript, too: bytes
//! that are tagged under them belong to this connection.
//!
//! [`greeting`] is what queue pairs begin with instead, over which each side sends one message.
//!
//! There is no IO, no clock and no source of random numbers here: nonces are arguments, and have to be fresh random
//! bytes of the operating system.

pub mod greeting;
mod keyed;
mod origin;
#[cfg(not(target_os = "none"))]
mod tagged;
mod wire;

use thiserror::Error;

#[cfg(feature = "keyed-hash")]
pub use keyed::keyed_hash;
pub use keyed::{KeyedHash, Secret, TAG_BYTES};
pub use origin::origin;
#[cfg(not(target_os = "none"))]
pub use tagged::MessageTags;
pub use wire::{CHALLENGE_BYTES, HELLO_BYTES, PROOF_BYTES, VERDICT_BYTES};

pub(crate) use keyed::is_same;
use wire::{Challenge, Hello, Verdict};

/// Version of the handshake, and of the keys that follow from it.
pub const VERSION: u32 = 1;

/// Bytes of a nonce.
pub const NONCE_BYTES: usize = 32;

/// Fresh random bytes of one side.
pub type Nonce = [u8; NONCE_BYTES];

/// Key of one direction of a session.
pub type Key = [u8; TAG_BYTES];

/// Kind of a party to a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum Role {
    /// A rank of a communicator.
    Rank = 1,
    /// An aggregator of sparse arrays that is no rank.
    Aggregator = 2,
    /// A service process.
    ServiceProcess = 3,
    /// A queue pair of somebody who has no other number, by its own.
    QueuePair = 4,
}

impl Role {
    const fn of_code(code: u32) -> Option<Self> {
        match code {
            1 => Some(Self::Rank),
            2 => Some(Self::Aggregator),
            3 => Some(Self::ServiceProcess),
            4 => Some(Self::QueuePair),
            _ => None,
        }
    }
}

/// Who is at an end of a connection: its role, and its number among those of the scope that have this role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Party {
    /// What it is.
    pub role: Role,
    /// Which one.
    pub number: u64,
}

impl Party {
    /// A rank.
    #[must_use]
    pub const fn rank(number: u32) -> Self {
        Self { role: Role::Rank, number: number as u64 }
    }

    /// An aggregator that is no rank.
    #[must_use]
    pub const fn aggregator(number: u32) -> Self {
        Self { role: Role::Aggregator, number: number as u64 }
    }
}

impl core::fmt::Display for Party {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let role = match self.role {
            Role::Rank => "rank",
            Role::Aggregator => "aggregator",
            Role::ServiceProcess => "service process",
            Role::QueuePair => "queue pair",
        };
        write!(f, "{role} {}", self.number)
    }
}

/// A handshake that fails. Nothing that has come on this connection counts, and it is to be closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Error)]
pub enum HandshakeError {
    /// The bytes are no message of this handshake.
    #[error("it does not speak this protocol")]
    Foreign,
    /// The other side has another version.
    #[error("it speaks version {theirs} of the handshake, this side version {VERSION}: run one build on all sides")]
    Version {
        /// Theirs.
        theirs: u32,
    },
    /// It is of another communicator or job.
    #[error("it is of {theirs:#x}, this side of {own:#x}")]
    Scope {
        /// Theirs.
        theirs: u64,
        /// This side's.
        own: u64,
    },
    /// It wants to reach somebody else, or says that it is this side itself.
    #[error("it says that it is {from}, and wants {to}")]
    Party {
        /// Who it says it is.
        from: Party,
        /// Who it wants to reach.
        to: Party,
    },
    /// Both nonces are the same.
    #[error("it repeats the nonce that it was sent")]
    Nonce,
    /// A tag is not the one that the secret makes of this connection.
    #[error("it does not know the secret, or what it has sent was changed on the way")]
    Tag,
    /// The other side knows the secret, and does not take the connection.
    #[error("it refuses the connection ({0})")]
    Refused(Refusal),
}

/// Why a listening side does not take the connection of a party that it knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// That party is connected already.
    Duplicate,
    /// There is no such party.
    Unknown,
}

impl core::fmt::Display for Refusal {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::Duplicate => "somebody with this number is connected already",
            Self::Unknown => "there is nobody with this number",
        })
    }
}

/// A connection whose two ends have proven who they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    /// Who is at the other end.
    pub peer: Party,
    /// Key of what this side sends.
    pub send: Key,
    /// Key of what the peer sends.
    pub receive: Key,
}

/// What the tags and keys of a connection are made of.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Transcript {
    hello: Hello,
    nonce: Nonce,
}

/// What a keyed hash of a transcript is for.
#[derive(Clone, Copy)]
enum Purpose {
    Challenge,
    Proof,
    Verdict(u32),
    /// Key of what the dialling side sends.
    DiallingKey,
    /// Key of what the listening side sends.
    ListeningKey,
}

const PURPOSE_BYTES: usize = 8;
const MESSAGE_BYTES: usize = PURPOSE_BYTES + HELLO_BYTES + NONCE_BYTES;

impl Transcript {
    fn tag(&self, purpose: Purpose, secret: &Secret, hash: &impl KeyedHash) -> [u8; TAG_BYTES] {
        let (number, detail) = match purpose {
            Purpose::Challenge => (1, 0),
            Purpose::Proof => (2, 0),
            Purpose::Verdict(code) => (3, code),
            Purpose::DiallingKey => (4, 0),
            Purpose::ListeningKey => (5, 0),
        };
        let mut message = [0; MESSAGE_BYTES];
        let (start, rest) = message.split_at_mut(PURPOSE_BYTES);
        start[..4].copy_from_slice(&u32::to_le_bytes(number));
        start[4..].copy_from_slice(&u32::to_le_bytes(detail));
        let (hello, nonce) = rest.split_at_mut(HELLO_BYTES);
        hello.copy_from_slice(&self.hello.encode());
        nonce.copy_from_slice(&self.nonce);
        hash.tag(secret, &message)
    }

    fn session(&self, dials: bool, secret: &Secret, hash: &impl KeyedHash) -> Session {
        let [dialling, listening] =
            [Purpose::DiallingKey, Purpose::ListeningKey].map(|purpose| self.tag(purpose, secret, hash));
        if dials {
            Session { peer: self.hello.to, send: dialling, receive: listening }
        } else {
            Session { peer: self.hello.from, send: listening, receive: dialling }
        }
    }
}

/// The dialling side, which has sent its hello and waits for a challenge.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Dialling(Hello);

impl Dialling {
    /// Begins a handshake of `own` with `peer`. `scope`: number of the communicator or job, alike on both sides.
    /// `nonce`: fresh random bytes of the operating system.
    #[must_use]
    pub const fn new(scope: u64, own: Party, peer: Party, nonce: Nonce) -> Self {
        Self(Hello { scope, from: own, to: peer, nonce })
    }

    /// What to send first.
    #[must_use]
    pub fn hello(&self) -> [u8; HELLO_BYTES] {
        self.0.encode()
    }

    /// Checks the challenge of the listening side; the proof that answers it.
    ///
    /// # Errors
    /// It comes from somebody else, or was changed on the way.
    pub fn answer(
        self,
        challenge: &[u8; CHALLENGE_BYTES],
        secret: &Secret,
        hash: &impl KeyedHash,
    ) -> Result<(Confirming, [u8; PROOF_BYTES]), HandshakeError> {
        let Challenge { nonce, tag } = Challenge::decode(challenge);
        if nonce == self.0.nonce {
            return Err(HandshakeError::Nonce);
        }
        let transcript = Transcript { hello: self.0, nonce };
        if !is_same(&transcript.tag(Purpose::Challenge, secret, hash), &tag) {
            return Err(HandshakeError::Tag);
        }
        let proof = transcript.tag(Purpose::Proof, secret, hash);
        Ok((Confirming(transcript), proof))
    }
}

/// The dialling side, which has sent its proof and waits for the verdict.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Confirming(Transcript);

impl Confirming {
    /// Checks the verdict of the listening side.
    ///
    /// # Errors
    /// It refuses the connection; or the verdict comes from somebody else, or was changed on the way.
    pub fn conclude(
        self,
        verdict: &[u8; VERDICT_BYTES],
        secret: &Secret,
        hash: &impl KeyedHash,
    ) -> Result<Session, HandshakeError> {
        let Verdict { code, tag } = Verdict::decode(verdict);
        if !is_same(&self.0.tag(Purpose::Verdict(code), secret, hash), &tag) {
            return Err(HandshakeError::Tag);
        }
        match wire::refusal(code) {
            Some(None) => Ok(self.0.session(true, secret, hash)),
            Some(Some(refusal)) => Err(HandshakeError::Refused(refusal)),
            None => Err(HandshakeError::Foreign),
        }
    }
}

/// The listening side, which has sent its challenge and waits for the proof.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Listening(Transcript);

impl Listening {
    /// Takes a hello for `own`; the challenge that answers it. `nonce`: fresh random bytes of the operating system.
    ///
    /// # Errors
    /// It is no hello, or one of another version, of another scope or for somebody else.
    pub fn new(
        (scope, own): (u64, Party),
        hello: &[u8; HELLO_BYTES],
        nonce: Nonce,
        secret: &Secret,
        hash: &impl KeyedHash,
    ) -> Result<(Self, [u8; CHALLENGE_BYTES]), HandshakeError> {
        let hello = Hello::decode(hello)?;
        if hello.scope != scope {
            return Err(HandshakeError::Scope { theirs: hello.scope, own: scope });
        }
        if hello.to != own || hello.from == own {
            return Err(HandshakeError::Party { from: hello.from, to: hello.to });
        }
        if hello.nonce == nonce {
            return Err(HandshakeError::Nonce);
        }
        let transcript = Transcript { hello, nonce };
        let tag = transcript.tag(Purpose::Challenge, secret, hash);
        Ok((Self(transcript), Challenge { nonce, tag }.encode()))
    }

    /// Who says that it dials. It has not proven that yet.
    #[must_use]
    pub const fn claims(&self) -> Party {
        self.0.hello.from
    }

    /// Checks the proof of whoever dials.
    ///
    /// # Errors
    /// It is somebody else, or the proof was changed on the way.
    pub fn check(
        self,
        proof: &[u8; PROOF_BYTES],
        secret: &Secret,
        hash: &impl KeyedHash,
    ) -> Result<Proven, HandshakeError> {
        let is_right = is_same(&self.0.tag(Purpose::Proof, secret, hash), proof);
        if is_right { Ok(Proven(self.0)) } else { Err(HandshakeError::Tag) }
    }
}

/// The listening side, which knows who dials and has not decided yet.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Proven(Transcript);

impl Proven {
    /// Who dials.
    #[must_use]
    pub const fn peer(&self) -> Party {
        self.0.hello.from
    }

    /// Takes the connection: what to send, and the session.
    #[must_use]
    pub fn accept(self, secret: &Secret, hash: &impl KeyedHash) -> ([u8; VERDICT_BYTES], Session) {
        let verdict = self.verdict(wire::ACCEPTED, secret, hash);
        (verdict, self.0.session(false, secret, hash))
    }

    /// Does not take it: what to send before the connection is closed.
    #[must_use]
    pub fn refuse(self, refusal: Refusal, secret: &Secret, hash: &impl KeyedHash) -> [u8; VERDICT_BYTES] {
        self.verdict(wire::code(refusal), secret, hash)
    }

    fn verdict(&self, code: u32, secret: &Secret, hash: &impl KeyedHash) -> [u8; VERDICT_BYTES] {
        Verdict { code, tag: self.0.tag(Purpose::Verdict(code), secret, hash) }.encode()
    }
}
