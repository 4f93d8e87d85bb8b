//! Messages of the handshake as bytes, all of one length each, little-endian.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{HandshakeError, NONCE_BYTES, Nonce, Party, Refusal, Role, TAG_BYTES, VERSION};

const MAGIC: [u8; 4] = *b"FXHS";

/// Code of a verdict that takes the connection.
pub(super) const ACCEPTED: u32 = 0;
const DUPLICATE: u32 = 1;
const UNKNOWN: u32 = 2;

/// Bytes of a hello: `FXHS`, the version, the scope, role of who dials, role of who is meant, number of who dials,
/// number of who is meant, nonce.
pub const HELLO_BYTES: usize = size_of::<HelloBytes>();
/// Bytes of a challenge: nonce, tag.
pub const CHALLENGE_BYTES: usize = NONCE_BYTES + TAG_BYTES;
/// Bytes of a proof: a tag.
pub const PROOF_BYTES: usize = TAG_BYTES;
/// Bytes of a verdict: 0 if the connection is taken, otherwise why not; a tag.
pub const VERDICT_BYTES: usize = 4 + TAG_BYTES;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct HelloBytes {
    magic: [u8; 4],
    version: U32,
    scope: U64,
    from_role: U32,
    to_role: U32,
    from: U64,
    to: U64,
    nonce: Nonce,
}

/// What whoever dials says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Hello {
    pub(super) scope: u64,
    pub(super) from: Party,
    pub(super) to: Party,
    pub(super) nonce: Nonce,
}

impl Hello {
    pub(super) fn encode(&self) -> [u8; HELLO_BYTES] {
        let Self { scope, from, to, nonce } = self;
        zerocopy::transmute!(HelloBytes {
            magic: MAGIC,
            version: VERSION.into(),
            scope: (*scope).into(),
            from_role: (from.role as u32).into(),
            to_role: (to.role as u32).into(),
            from: from.number.into(),
            to: to.number.into(),
            nonce: *nonce,
        })
    }

    pub(super) fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Self, HandshakeError> {
        let hello: HelloBytes = zerocopy::transmute!(*bytes);
        if hello.magic != MAGIC {
            return Err(HandshakeError::Foreign);
        }
        if hello.version.get() != VERSION {
            return Err(HandshakeError::Version { theirs: hello.version.get() });
        }
        let party = |role: U32, number: U64| {
            Role::of_code(role.get()).map(|role| Party { role, number: number.get() }).ok_or(HandshakeError::Foreign)
        };
        let (from, to) = (party(hello.from_role, hello.from)?, party(hello.to_role, hello.to)?);
        Ok(Self { scope: hello.scope.get(), from, to, nonce: hello.nonce })
    }
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub(super) struct Challenge {
    pub(super) nonce: Nonce,
    pub(super) tag: [u8; TAG_BYTES],
}

impl Challenge {
    pub(super) fn encode(self) -> [u8; CHALLENGE_BYTES] {
        zerocopy::transmute!(self)
    }

    pub(super) fn decode(bytes: &[u8; CHALLENGE_BYTES]) -> Self {
        zerocopy::transmute!(*bytes)
    }
}

pub(super) struct Verdict {
    pub(super) code: u32,
    pub(super) tag: [u8; TAG_BYTES],
}

#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct VerdictBytes {
    code: U32,
    tag: [u8; TAG_BYTES],
}

impl Verdict {
    pub(super) fn encode(self) -> [u8; VERDICT_BYTES] {
        zerocopy::transmute!(VerdictBytes { code: self.code.into(), tag: self.tag })
    }

    pub(super) fn decode(bytes: &[u8; VERDICT_BYTES]) -> Self {
        let VerdictBytes { code, tag } = zerocopy::transmute!(*bytes);
        Self { code: code.get(), tag }
    }
}

/// Code of a verdict that does not take the connection.
pub(super) const fn code(refusal: Refusal) -> u32 {
    match refusal {
        Refusal::Duplicate => DUPLICATE,
        Refusal::Unknown => UNKNOWN,
    }
}

/// What the code of a verdict says: `Some(None)` that the connection is taken. None: there is no such code.
pub(super) const fn refusal(code: u32) -> Option<Option<Refusal>> {
    match code {
        ACCEPTED => Some(None),
        DUPLICATE => Some(Some(Refusal::Duplicate)),
        UNKNOWN => Some(Some(Refusal::Unknown)),
        _ => None,
    }
}
