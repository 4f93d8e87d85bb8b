//! State machines of the greeting: challenge and response of both sides under a secret of 256 bits.
//!
//! 1. Who connects sends a [`Hello`] with fresh random bytes ([`Connecting::new`]).
//! 2. The service process answers by a [`Challenge`] with random bytes of its own and a tag ([`Accepting::new`]).
//! 3. Who connects checks that tag, and answers by a [`Proof`] ([`Connecting::answer`]).
//! 4. The service process checks the proof ([`Accepting::check`]), and says that it takes the connection ([`Welcome`](super::Welcome)) or not
//!    ([`Rejection`](super::Rejection)). Who connects says [`Rejection::Secret`](super::Rejection::Secret) where the tag of the challenge is wrong, so
//!    that the service process can count it; it learns nothing by that.
//! 5. Both sides send a [`Link`](super::Link), who connects first, and connect their queue pairs. A HEARTBEAT of each side says that it has.
//!
//! A tag is a keyed hash of the side that makes it, the whole hello and the bytes of the challenge. So neither side's tag serves as the
//! other's, and none serves a second time.
//!
//! This says who is at the other end when a connection begins. Messages after it have no tags: a connection has to be one that nobody else can write
//! to, such as a reliable queue pair or TCP in a network that is trusted.

use thiserror::Error;

use super::connection::{Challenge, Hello, Proof, Role, TAG_BYTES};
use super::error::FormatError;
use super::{Body, Packet, encode};
use crate::service::message::ContextId;
use crate::session::is_same;
pub use crate::session::{KeyedHash, Secret};
use alloc::vec::Vec;

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

const CONNECTING: &[u8; 8] = b"FXSPconn";
const ACCEPTING: &[u8; 8] = b"FXSPaccp";

/// The greeting as who connects sees it.
#[derive(Debug)]
pub struct Connecting {
    secret: Secret,
    hello: Hello,
}

/// The greeting as the service process sees it.
#[derive(Debug)]
pub struct Accepting {
    /// What is expected.
    tag: [u8; TAG_BYTES],
    hello: Hello,
}

impl Connecting {
    /// Begins a greeting. `epoch`: a number that was drawn when this side started. `nonce`: fresh random bytes of the operating system.
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
    pub fn answer(self, challenge: &Challenge, hash: &impl KeyedHash) -> Result<Proof, HelloError> {
        if challenge.nonce == self.hello.nonce {
            return Err(HelloError::Nonce);
        }
        let expected = tag(ACCEPTING, &self.secret, &self.hello, &challenge.nonce, hash)?;
        if !is_same(&expected, &challenge.tag) {
            return Err(HelloError::Tag);
        }
        Ok(Proof { tag: tag(CONNECTING, &self.secret, &self.hello, &challenge.nonce, hash)? })
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
        if nonce == hello.nonce {
            return Err(HelloError::Nonce);
        }
        let own = tag(ACCEPTING, secret, &hello, &nonce, hash)?;
        let expected = tag(CONNECTING, secret, &hello, &nonce, hash)?;
        Ok((Self { tag: expected, hello }, Challenge { nonce, tag: own }))
    }

    /// Checks who connects: what its hello says is true of whoever knows the secret. There is one try.
    ///
    /// # Errors
    /// It does not know the secret.
    pub fn check(self, proof: &Proof) -> Result<Hello, HelloError> {
        if is_same(&self.tag, &proof.tag) { Ok(self.hello) } else { Err(HelloError::Tag) }
    }
}

/// The tag of one side.
fn tag(
    side: &[u8; 8],
    secret: &Secret,
    hello: &Hello,
    nonce: &[u8; TAG_BYTES],
    hash: &impl KeyedHash,
) -> Result<[u8; TAG_BYTES], FormatError> {
    let mut message = Vec::from(side);
    let context = ContextId { group: 0, collective: 0 };
    encode(&Packet { context, body: Body::Hello(*hello) }, &mut message)?;
    message.extend(nonce);
    Ok(hash.tag(secret, &message))
}
