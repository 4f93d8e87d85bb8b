//! Encrypted connection: a handshake under the pre-shared secret, and records.
//!
//! The handshake is `NNpsk0` of the Noise framework: both ends prove that they have the secret, over keys that are of
//! this connection alone. Who records a connection cannot read it later with the secret, and cannot use its messages in
//! another one. The hello, which goes in clear, is bound to it as the prologue.

use snow::{Builder, HandshakeState, TransportState};

use super::Secret;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_SHA256";

/// Bytes of either message of the handshake: a public key, and the tag of an empty payload.
pub(super) const HANDSHAKE_BYTES: usize = 48;
/// Bytes of a tag.
const TAG_BYTES: usize = 16;
/// Before each record: the bytes that follow, little-endian.
const LENGTH_BYTES: usize = 2;
/// Most bytes of a record's contents: what a message of the framework has room for.
pub(super) const MOST_RECORD_BYTES: usize = u16::MAX as usize - TAG_BYTES;
/// Most bytes of a record on the connection.
const MOST_SEALED_BYTES: usize = LENGTH_BYTES + u16::MAX as usize;

fn builder<'a>(secret: &'a Secret, prologue: &'a [u8]) -> Result<Builder<'a>, snow::Error> {
    Builder::new(PATTERN.parse()?).psk(0, secret.key())?.prologue(prologue)
}

/// The end that connects, after its first message.
pub(super) struct Opening(HandshakeState);

impl Opening {
    /// Begins, bound to the hello `prologue`. Gives the first message, too.
    pub(super) fn new(secret: &Secret, prologue: &[u8]) -> Result<(Self, [u8; HANDSHAKE_BYTES]), snow::Error> {
        let mut state = builder(secret, prologue)?.build_initiator()?;
        let mut message = [0; HANDSHAKE_BYTES];
        state.write_message(&[], &mut message)?;
        Ok((Self(state), message))
    }

    /// Takes the answer. None: whoever gave it does not have the secret.
    pub(super) fn finish(mut self, answer: &[u8]) -> Option<Channel> {
        self.0.read_message(answer, &mut []).ok()?;
        self.0.into_transport_mode().ok().map(Channel::new)
    }
}

/// Answers the first message of a handshake. None: whoever sent it does not have the secret, or its hello was changed
/// on the way.
pub(super) fn answer(secret: &Secret, prologue: &[u8], message: &[u8]) -> Option<([u8; HANDSHAKE_BYTES], Channel)> {
    let mut state = builder(secret, prologue).ok()?.build_responder().ok()?;
    state.read_message(message, &mut []).ok()?;
    let mut answer = [0; HANDSHAKE_BYTES];
    state.write_message(&[], &mut answer).ok()?;
    Some((answer, Channel::new(state.into_transport_mode().ok()?)))
}

/// An encrypted connection: what goes out is sealed in records, what comes in is opened.
pub(super) struct Channel {
    state: TransportState,
    /// What has come of a record that is not whole yet.
    sealed: Vec<u8>,
}

impl Channel {
    fn new(state: TransportState) -> Self {
        Self { state, sealed: Vec::new() }
    }

    /// Appends one record with up to [`MOST_RECORD_BYTES`] of `plain`, from its beginning, to `wire`. Returns how many
    /// bytes it took.
    pub(super) fn seal(&mut self, plain: &[u8], wire: &mut Vec<u8>) -> Result<usize, String> {
        let taken = plain.len().min(MOST_RECORD_BYTES);
        let sealed = taken + TAG_BYTES;
        wire.extend((sealed as u16).to_le_bytes());
        let at = wire.len();
        wire.resize(at + sealed, 0);
        match self.state.write_message(&plain[..taken], &mut wire[at..]) {
            Ok(_) => Ok(taken),
            Err(error) => Err(format!("nothing more can be encrypted: {error}")),
        }
    }

    /// Room for bytes that have come, before the next [`Channel::open`].
    pub(super) fn room(&self) -> usize {
        MOST_SEALED_BYTES.saturating_sub(self.sealed.len())
    }

    /// Where bytes that have come are appended.
    pub(super) fn sealed(&mut self) -> &mut Vec<u8> {
        &mut self.sealed
    }

    /// Opens all records that are whole, and appends what they hold to `plain`.
    pub(super) fn open(&mut self, plain: &mut Vec<u8>) -> Result<(), String> {
        let mut at = 0;
        while let Some((length, rest)) = self.sealed[at..].split_first_chunk::<LENGTH_BYTES>() {
            let length = usize::from(u16::from_le_bytes(*length));
            let Some(record) = rest.get(..length) else { break };
            let before = plain.len();
            plain.resize(before + length.saturating_sub(TAG_BYTES), 0);
            if let Err(error) = self.state.read_message(record, &mut plain[before..]) {
                plain.truncate(before);
                return Err(format!("a record that was changed on the way, or is not of this connection ({error})"));
            }
            at += LENGTH_BYTES + length;
        }
        self.sealed.drain(..at);
        Ok(())
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::store) fn secret(letter: u8) -> Secret {
        Secret::new(&[letter; 40]).unwrap()
    }

    pub(in crate::store) fn pair() -> (Channel, Channel) {
        let (opening, first) = Opening::new(&secret(b'a'), b"hello").unwrap();
        let (second, there) = answer(&secret(b'a'), b"hello", &first).unwrap();
        (opening.finish(&second).unwrap(), there)
    }

    #[test]
    fn ends_with_one_secret_and_one_hello_meet_and_others_do_not() {
        let (opening, first) = Opening::new(&secret(b'a'), b"hello").unwrap();
        assert!(answer(&secret(b'b'), b"hello", &first).is_none(), "another secret");
        assert!(answer(&secret(b'a'), b"hullo", &first).is_none(), "another hello");
        let (_, again) = Opening::new(&secret(b'a'), b"hello").unwrap();
        assert_ne!(first, again, "keys are of one connection");
        // Who has recorded the first message gets an answer, and nothing that it could open or seal.
        let (second, _there) = answer(&secret(b'a'), b"hello", &first).unwrap();
        let (other, _) = Opening::new(&secret(b'a'), b"hello").unwrap();
        assert!(other.finish(&second).is_none(), "the answer is to another connection");
        assert!(opening.finish(&second).is_some());
    }

    #[test]
    fn records_pass_in_order_and_changed_ones_do_not() {
        let (mut here, mut there) = pair();
        let text: Vec<u8> = (0..200_000u32).map(|number| number as u8).collect();
        let (mut wire, mut sent) = (Vec::new(), 0);
        while sent < text.len() {
            sent += here.seal(&text[sent..], &mut wire).unwrap();
        }
        assert!(!wire.windows(16).any(|part| part == &text[..16]), "it goes in clear");
        let mut came = Vec::new();
        for part in wire.chunks(1009) {
            there.sealed().extend(part);
            there.open(&mut came).unwrap();
        }
        assert!(came == text);
        // The same record again, and one with another bit.
        there.sealed().extend(&wire[..MOST_SEALED_BYTES]);
        assert!(there.open(&mut came).is_err());
        let (mut here, mut there) = pair();
        wire.clear();
        here.seal(b"one", &mut wire).unwrap();
        *wire.last_mut().unwrap() ^= 1;
        there.sealed().extend(&wire);
        came.clear();
        assert!(there.open(&mut came).is_err() && came.is_empty());
    }

    #[test]
    fn records_too_short_for_a_tag_are_refused() {
        for length in [0u8, 1, 15] {
            let (_, mut there) = pair();
            there.sealed().extend([length, 0]);
            there.sealed().extend(vec![0; length.into()]);
            assert!(there.open(&mut Vec::new()).is_err(), "{length}");
        }
    }
}
