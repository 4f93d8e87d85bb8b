//! Times of connection management. Messages carry them as codes: 4.096 us times 2 to the power of the code.

const UNIT_PS: u64 = 4_096_000;
/// Largest code, of 5 bits.
const MAX_CODE: u8 = 31;

/// In what time an answer should come, 537 ms. Linux gives 4.3 s (code 20): kernels of a busy network need longer than
/// emulated cards, whose time stands still while one of them is not scheduled.
pub(crate) const RESPONSE_TIMEOUT: u8 = 17;
/// How often a message is repeated, as Linux does it.
pub(crate) const MAX_RETRIES: u8 = 15;
/// The same for a DREQ: a process that has ended takes its kernel with it here, and nobody answers.
pub(crate) const DREQ_RETRIES: u8 = 4;
/// How much longer an MRA asks for: 69 s, as Linux does it.
pub(crate) const MRA_TIMEOUT: u8 = 24;
/// How long a packet may be on its way: 67 ms.
pub(crate) const PACKET_LIFETIME: u8 = 14;
/// How long a card takes to acknowledge: 268 ms, the `local_ca_ack_delay` of the emulated card.
pub(crate) const ACK_DELAY: u8 = 16;
/// After what time a packet without acknowledgement is repeated: 268 ms.
pub const ACK_TIMEOUT: u8 = 16;
/// There and back.
const ROUND_TRIP_PS: u64 = 2 * code_ps(PACKET_LIFETIME);
/// How long the numbers of a connection that has ended are kept, so that a request which comes late is not taken for a
/// new one: as long as it takes to be repeated twice.
pub(crate) const TIME_WAIT_PS: u64 = 2 * response_ps(RESPONSE_TIMEOUT);

/// The time of a code in picoseconds.
pub(crate) const fn code_ps(code: u8) -> u64 {
    UNIT_PS << if code > MAX_CODE { MAX_CODE } else { code }
}

/// In what time the answer has come, if the other end takes the time of a code for it.
pub(crate) const fn response_ps(code: u8) -> u64 {
    code_ps(code) + ROUND_TRIP_PS
}

/// A time that others ask for: neither a busy loop (4 ms) nor longer than programs wait (17 s).
pub(crate) fn sensible(code: u8) -> u8 {
    code.clamp(10, 22)
}

/// After what time nobody repeats a message any more.
pub(crate) const fn given_up_ps() -> u64 {
    (MAX_RETRIES as u64 + 1) * response_ps(RESPONSE_TIMEOUT)
}
