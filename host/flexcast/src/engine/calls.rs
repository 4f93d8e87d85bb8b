//! Calls of kinds that firmware does not know, in the signals of a barrier.
//!
//! A signal's fields for kind and algorithm have the codes that firmware knows, which is to be as short as it can be.
//! Of a collective between pairs of ranks, whose number of chains says nothing, that field has the codes of both
//! instead, and a bit that says so; the kind is that of the operation of blocks that is run for it. No such signal
//! is ever passed to a card.

use flexcast_proto::{Algorithm, Body, Kind, Message, Summary};

/// In the number of chains: the codes of kind and algorithm are there.
const CALL: u32 = 1 << 31;

/// Of a sparse AllReduce, whose root's field has its options ([`SparseOptions::code`](crate::SparseOptions)): bits of
/// its length below those, as a signal's root has to be a rank.
const LENGTH_BITS: u32 = 46;

/// Length and options in one number: blocks are multiples of 4 bytes, up to 16384, of which a message has 1 to 32.
const fn folded(amount: u64, options: u32) -> u64 {
    let (block, blocks) = ((options >> 8) / 4, (options & 0xff).wrapping_sub(1) & 0x1f);
    amount & ((1 << LENGTH_BITS) - 1) | ((block << 5 | blocks) as u64) << LENGTH_BITS
}

/// The same two again.
const fn unfolded(folded: u64) -> (u64, u32) {
    let options = (folded >> LENGTH_BITS) as u32;
    (folded & ((1 << LENGTH_BITS) - 1), (((options >> 5) * 4) << 8) | ((options & 0x1f) + 1))
}

/// A message as it goes over the network.
pub(super) fn packed(message: &Message) -> Message {
    let Body::Barrier { round, summary } = message.body else { return *message };
    let Summary { kind, algorithm, root, amount, .. } = summary;
    if matches!(kind, Kind::Broadcast | Kind::Allgather | Kind::Allgatherv) {
        return *message;
    }
    let chains = CALL | kind as u32 | (algorithm as u32) << 8;
    let (root, amount) = if algorithm == Algorithm::Sparse { (0, folded(amount, root)) } else { (root, amount) };
    let summary = Summary { kind: Kind::Allgather, root, amount, chains, algorithm: Algorithm::Multicast, ..summary };
    Message { body: Body::Barrier { round, summary }, ..*message }
}

/// The message that goes so; none if its codes name nothing.
pub(super) fn unpacked(message: Message) -> Option<Message> {
    let Body::Barrier { round, summary } = message.body else { return Some(message) };
    if summary.chains & CALL == 0 {
        return Some(message);
    }
    let [kind, algorithm, strays, _] = summary.chains.to_le_bytes();
    let (kind, algorithm) = (Kind::of_code(kind)?, Algorithm::of_code(algorithm)?);
    let Summary { root, amount, .. } = summary;
    let (amount, root) = if algorithm == Algorithm::Sparse { unfolded(amount) } else { (amount, root) };
    let summary = Summary { kind, root, amount, chains: 1, algorithm, ..summary };
    (strays == 0).then_some(Message { body: Body::Barrier { round, summary }, ..message })
}

#[cfg(test)]
mod tests {
    use flexcast_proto::wire::{Availability, Codec};

    use super::*;

    #[test]
    fn calls_of_all_kinds_come_back_from_the_network() {
        let codec = Codec::new(77, 9);
        for kind in Kind::ALL {
            for algorithm in Algorithm::ALL {
                let knows = matches!(kind, Kind::Broadcast | Kind::Allgather | Kind::Allgatherv);
                if knows && Algorithm::from_raw(algorithm as u8).is_err() {
                    continue;
                }
                let (root, amount) = match algorithm {
                    Algorithm::Sparse => (16_384 << 8 | 32, (1 << LENGTH_BITS) - 1),
                    _ => (8, u64::MAX - 3),
                };
                let summary = Summary::between_pairs(kind, root, amount, 0x4_0005, algorithm);
                let message = Message { operation: 5, body: Body::Barrier { round: 3, summary } };
                let encoded = codec.encode(&packed(&message), Availability::default());
                let decoded = codec.decode(encoded.as_bytes()).unwrap().message;
                assert_eq!(unpacked(decoded), Some(message), "{kind:?} by {algorithm:?}");
            }
        }
        let last = Message { operation: 5, body: Body::Final };
        assert_eq!((packed(&last), unpacked(last)), (last, Some(last)));
    }

    #[test]
    fn codes_that_name_nothing_are_refused() {
        for chains in [CALL, CALL | 15, CALL | 4 | 11 << 8, CALL | 4 | 1 << 16] {
            let summary = Summary { chains, ..Summary::allgather(1, 64, 1) };
            assert_eq!(
                unpacked(Message { operation: 5, body: Body::Barrier { round: 0, summary } }),
                None,
                "{chains:#x}"
            );
        }
    }
}
