//! Greeting of a connection of a service process: the handshake of [`crate::session`], in messages of this format.
//!
//! 1. Who connects sends a [`Hello`] with fresh random bytes ([`Connecting::new`]).
//! 2. The service process answers by a [`Challenge`] with random bytes of its own and a tag ([`Accepting::new`]).
//! 3. Who connects checks that tag, and answers by a [`Proof`] ([`Connecting::answer`]).
//! 4. The service process checks the proof ([`Accepting::check`]). It takes the connection by a proof of its own
//!    ([`Accepted::accept`]), or not ([`Rejection`](super::Rejection)). Who connects says
//!    [`Rejection::Secret`](super::Rejection::Secret) where the tag of the challenge is wrong, so that the service
//!    process can count it; it learns nothing by that.
//! 5. Who connects checks that proof ([`Confirming::conclude`]). From here on both sides have a [`Session`], and each
//!    message on the connection has a tag of it behind it ([`MessageTags`](crate::session::MessageTags)), of
//!    [`TAG_BYTES`].
//! 6. The service process says WELCOME. Both sides send a [`Link`](super::Link), who connects first, and connect their
//!    queue pairs. A HEARTBEAT of each side says that it has.
//!
//! The scope of the handshake is a keyed hash of the whole hello: so its tags, and those of all later messages, are of
//! what the hello says, too. Messages on queue pairs have no tags.

use alloc::vec::Vec;

use thiserror::Error;

use super::connection::{Challenge, Hello, Proof, Role, TAG_BYTES};
use super::error::FormatError;
use super::{Body, Packet, encode};
use crate::service::message::ContextId;
use crate::session::{self, Dialling, HandshakeError, Listening, Party, Proven};
pub use crate::session::{KeyedHash, Secret, Session};

/// A greeting that fails. The connection is to be ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HelloError {
    /// The tag is not the one that the secret makes.
    #[error("the other side does not know the secret: give service processes and programs the same")]
    Tag,
    /// Both sides have sent the same random bytes.
    #[error("the other side repeats the random bytes that it was sent: nonces are drawn afresh by each side")]
    Nonce,
    /// A message that cannot be sent.
    #[error(transparent)]
    Format(#[from] FormatError),
}

impl From<HandshakeError> for HelloError {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Nonce => Self::Nonce,
            // All else of a handshake follows from the hello on both sides, and differs only if their secrets do.
            _ => Self::Tag,
        }
    }
}

/// Whoever is connected to.
const PROCESS: Party = Party { role: session::Role::ServiceProcess, number: 0 };
/// Code of the verdict that takes a connection: others go by messages.
const ACCEPTED: [u8; 4] = [0; 4];

/// The handshake that begins with a hello.
fn dialling(secret: &Secret, hello: &Hello, hash: &impl KeyedHash) -> Result<(u64, Dialling), FormatError> {
    let mut message = Vec::from(b"FXSPcall");
    let context = ContextId { group: 0, collective: 0 };
    encode(&Packet { context, body: Body::Hello(*hello) }, &mut message)?;
    let [a, b, c, d, e, f, g, h, ..] = hash.tag(secret, &message);
    let scope = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let role = match hello.role {
        Role::Rank => session::Role::Rank,
        Role::Process { .. } => session::Role::ServiceProcess,
    };
    // Which one it is is part of the scope.
    Ok((scope, Dialling::new(scope, Party { role, number: 1 }, PROCESS, hello.nonce)))
}

/// The greeting as who connects sees it.
#[derive(Debug)]
pub struct Connecting {
    secret: Secret,
    hello: Hello,
}

/// The same, once it has sent its proof.
#[derive(Debug)]
pub struct Confirming {
    secret: Secret,
    confirming: session::Confirming,
}

/// The greeting as the service process sees it.
#[derive(Debug)]
pub struct Accepting {
    secret: Secret,
    hello: Hello,
    listening: Listening,
}

/// The same, once it knows who connects.
#[derive(Debug)]
pub struct Accepted {
    secret: Secret,
    hello: Hello,
    proven: Proven,
}

impl Connecting {
    /// Begins a greeting. `epoch`: a number that was drawn when this side started. `nonce`: fresh random bytes of the
    /// operating system.
    #[must_use]
    pub const fn new(secret: Secret, role: Role, epoch: u64, nonce: [u8; TAG_BYTES]) -> Self {
        Self { secret, hello: Hello { role, epoch, nonce } }
    }

    /// What to send first.
    #[must_use]
    pub const fn hello(&self) -> Hello {
        self.hello
    }

    /// Checks the service process, and gives the answer to its challenge. There is one try.
    ///
    /// # Errors
    /// It does not know the secret, or has sent back the own nonce; or the own role has no bytes.
    pub fn answer(self, challenge: &Challenge, hash: &impl KeyedHash) -> Result<(Confirming, Proof), HelloError> {
        let Self { secret, hello } = self;
        let (_, dialling) = dialling(&secret, &hello, hash)?;
        let (confirming, tag) = dialling.answer(&zerocopy::transmute!(*challenge), &secret, hash)?;
        Ok((Confirming { secret, confirming }, Proof { tag }))
    }
}

impl Confirming {
    /// Checks the proof of the service process that takes the connection. There is one try.
    ///
    /// # Errors
    /// It comes from somebody else, or was changed on the way.
    pub fn conclude(self, proof: &Proof, hash: &impl KeyedHash) -> Result<Session, HelloError> {
        let mut verdict = [0; session::VERDICT_BYTES];
        let (code, tag) = verdict.split_at_mut(ACCEPTED.len());
        code.copy_from_slice(&ACCEPTED);
        tag.copy_from_slice(&proof.tag);
        Ok(self.confirming.conclude(&verdict, &self.secret, hash)?)
    }
}

impl Accepting {
    /// Takes a hello; the challenge to answer it with. `nonce`: fresh random bytes of the operating system.
    ///
    /// # Errors
    /// The nonce is that of the hello, or the hello has no bytes.
    pub fn new(
        secret: &Secret,
        hello: Hello,
        nonce: [u8; TAG_BYTES],
        hash: &impl KeyedHash,
    ) -> Result<(Self, Challenge), HelloError> {
        let (scope, dialling) = dialling(secret, &hello, hash)?;
        let (listening, challenge) = Listening::new((scope, PROCESS), &dialling.hello(), nonce, secret, hash)?;
        Ok((Self { secret: secret.clone(), hello, listening }, zerocopy::transmute!(challenge)))
    }

    /// Checks who connects: what its hello says is true of whoever knows the secret. There is one try.
    ///
    /// # Errors
    /// It does not know the secret.
    pub fn check(self, proof: &Proof, hash: &impl KeyedHash) -> Result<Accepted, HelloError> {
        let Self { secret, hello, listening } = self;
        let proven = listening.check(&proof.tag, &secret, hash)?;
        Ok(Accepted { secret, hello, proven })
    }
}

impl Accepted {
    /// Who connects.
    #[must_use]
    pub const fn hello(&self) -> Hello {
        self.hello
    }

    /// Takes the connection: what to send, and the session.
    #[must_use]
    pub fn accept(self, hash: &impl KeyedHash) -> (Proof, Session) {
        let (verdict, session) = self.proven.accept(&self.secret, hash);
        let mut tag = [0; TAG_BYTES];
        tag.copy_from_slice(&verdict[ACCEPTED.len()..]);
        (Proof { tag }, session)
    }
}
