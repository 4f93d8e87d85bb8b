//! Datagrams of sparse AllReduce as bytes: the format is pinned, each has one encoding, and all other bytes are
//! refused.

use flexcast_proto::sparse::{
    HEADER_BYTES, Kind, MAX_DATAGRAM_BYTES, ParameterError, Parameters, SENTINEL, SparseCodec, SparseWireError, Votes,
    VotesError, split,
};
use proptest::prelude::*;

const WIDTH: u32 = 3;

fn parameters() -> Parameters {
    Parameters::new(4, 256, WIDTH, 4).unwrap()
}

fn codec() -> SparseCodec {
    SparseCodec::new(parameters(), 0x1122_3344_5566_7788, 9).unwrap()
}

/// The datagram of this kind, with its blocks.
fn encode(kind: Kind, iteration: u32, blocks: &[u8], votes: &Votes) -> Vec<u8> {
    let mut bytes = codec().header(kind, iteration).to_vec();
    if let Kind::Contribution { .. } | Kind::Answer { .. } = kind {
        bytes.extend(blocks);
        bytes.extend(&votes.to_bytes()[..parameters().index_bytes() as usize]);
    }
    bytes
}

fn votes(indices: [u32; 3]) -> Votes {
    Votes::read(parameters(), indices).unwrap()
}

#[test]
fn the_format_is_pinned() {
    let kind = Kind::Contribution { rank: 2, displacement: 0b101, blocks: 1 };
    let bytes = encode(kind, 0x0102_0304, &[7; 256], &votes([5, 0x0A0B_0C0D, SENTINEL]));
    let header = [
        b'F', b'X', b'S', b'A', 1, 1, 1, 3, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 9, 0, 0, 0, 4, 3, 2, 1, 2,
        0, 0, 0, 5, 0, 0, 0,
    ];
    assert_eq!(bytes[..HEADER_BYTES], header);
    assert_eq!(bytes[HEADER_BYTES..][..256], [7; 256]);
    assert_eq!(bytes[HEADER_BYTES + 256..], [5, 0, 0, 0, 0x0D, 0x0C, 0x0B, 0x0A, 255, 255, 255, 255]);
    assert_eq!(bytes.len() as u32, HEADER_BYTES as u32 + parameters().message_bytes(1));
    for (kind, code) in [(Kind::Answer { blocks: 0 }, 2), (Kind::Waiting { rank: 3 }, 3), (Kind::Failed { rank: 3 }, 4)]
    {
        assert_eq!(codec().header(kind, 0)[5], code);
    }
    assert_eq!(codec().header(Kind::Failed { rank: 3 }, 0).len(), 32);
}

#[test]
fn what_is_malformed_is_reported() {
    let good = encode(Kind::Contribution { rank: 2, displacement: 1, blocks: 2 }, 1, &[1; 512], &votes([5, 6, 7]));
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        codec().decode(&bytes).map(|_| ())
    };
    let field = |field, found, expected| Err(SparseWireError::Field { field, found, expected });
    assert_eq!(codec().decode(&[]), Err(SparseWireError::Length { found: 0, expected: 32 }));
    assert_eq!(codec().decode(&good[..31]), Err(SparseWireError::Length { found: 31, expected: 32 }));
    assert_eq!(codec().decode(&good[..500]), Err(SparseWireError::Length { found: 468, expected: 524 }));
    assert_eq!(with(0, b'G'), Err(SparseWireError::Magic { found: *b"GXSA" }));
    assert_eq!(with(4, 2), Err(SparseWireError::Version { found: 2 }));
    assert_eq!(with(5, 0), Err(SparseWireError::Kind { found: 0 }));
    assert_eq!(with(5, 5), Err(SparseWireError::Kind { found: 5 }));
    assert_eq!(with(6, 4), field("number of blocks", 4, 3));
    assert_eq!(with(6, 1), Err(SparseWireError::Length { found: 524, expected: 268 }));
    assert_eq!(with(7, 16), field("number of indices", 16, 3));
    assert_eq!(with(7, 0), field("number of indices", 0, 3));
    assert_eq!(with(8, 0), Err(SparseWireError::Job { found: 0x1122_3344_5566_7700, expected: 0x1122_3344_5566_7788 }));
    assert_eq!(with(16, 8), Err(SparseWireError::Shard { found: 8, expected: 9 }));
    assert_eq!(with(24, 4), Err(SparseWireError::Rank { found: 4, workers: 4 }));
    let order = VotesError::Order { index: 6, place: 1, before: 8 };
    assert_eq!(with(HEADER_BYTES + 512, 8), Err(SparseWireError::Votes(order)));
    // An answer, a notice and a failure have no rank, no displacement, no blocks.
    assert_eq!(with(5, 2), field("rank", 2, 0));
    assert_eq!(with(5, 3), field("number of indices", 3, 0));
    let mut notice = codec().header(Kind::Waiting { rank: 1 }, 0).to_vec();
    notice[28] = 1;
    assert_eq!(codec().decode(&notice), Err(SparseWireError::Field { field: "displacement", found: 1, expected: 0 }));
    notice[28] = 0;
    notice.push(0);
    assert_eq!(codec().decode(&notice), Err(SparseWireError::Length { found: 33, expected: 32 }));
    assert_eq!(
        with(8, 0).unwrap_err().to_string(),
        "datagram of job 0x1122334455667700, but this is job 0x1122334455667788: late ones of former jobs are to be \
         dropped"
    );
}

#[test]
fn a_message_over_a_connection_has_the_length_of_its_blocks() {
    let mut bytes = vec![3; 256];
    bytes.extend(&votes([1, 2, SENTINEL]).to_bytes()[..12]);
    assert_eq!(split(parameters(), &bytes, 1), Ok((&[3; 256][..], votes([1, 2, SENTINEL]))));
    for blocks in [0, 2, 3] {
        assert!(matches!(split(parameters(), &bytes, blocks), Err(SparseWireError::Length { found: 268, .. })));
    }
    assert!(split(parameters(), &[], u32::MAX).is_err());
}

#[test]
fn what_fits_no_datagram_has_no_codec() {
    let large = Parameters::new(2, 16 << 10, 4, 4).unwrap();
    let error = ParameterError::Datagram { bytes: 65_584, most: MAX_DATAGRAM_BYTES, blocks: 3 };
    assert_eq!(SparseCodec::new(large, 0, 0), Err(error));
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        (0u32..4, any::<u32>(), 0u32..=3).prop_map(|(rank, displacement, blocks)| Kind::Contribution {
            rank,
            displacement,
            blocks
        }),
        (0u32..=3).prop_map(|blocks| Kind::Answer { blocks }),
        (0u32..4).prop_map(|rank| Kind::Waiting { rank }),
        (0u32..4).prop_map(|rank| Kind::Failed { rank }),
    ]
}

proptest! {
    #[test]
    fn whatever_is_encoded_is_read_and_has_no_other_encoding(
        kind in kinds(),
        iteration: u32,
        first in 0u32..100,
        fill: u8,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        cut in any::<prop::sample::Index>(),
    ) {
        let (Kind::Contribution { blocks, .. } | Kind::Answer { blocks }) = kind else {
            let bytes = encode(kind, iteration, &[], &Votes::empty(parameters()));
            let read = codec().decode(&bytes).unwrap();
            prop_assert_eq!((read.kind, read.iteration, read.blocks, read.votes), (kind, iteration, &[][..], Votes::empty(parameters())));
            return Ok(());
        };
        let (blocks, votes) = (vec![fill; 256 * blocks as usize], votes([first, first + 1, SENTINEL]));
        let mut bytes = encode(kind, iteration, &blocks, &votes);
        let read = codec().decode(&bytes).unwrap();
        prop_assert_eq!((read.kind, read.iteration, read.blocks, read.votes), (kind, iteration, &blocks[..], votes));
        // Any change is refused, or is the encoding of something else.
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(read) = codec().decode(&bytes) {
            prop_assert_eq!(encode(read.kind, read.iteration, read.blocks, &read.votes), bytes.clone());
        }
        prop_assert!(codec().decode(&bytes[..cut.index(bytes.len())]).is_err());
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600), blocks: u32) {
        let _ = split(parameters(), &bytes, blocks);
        let mut datagram = codec().header(Kind::Answer { blocks: 0 }, 0)[..24].to_vec();
        datagram.extend(&bytes);
        for bytes in [&bytes, &datagram] {
            if let Ok(read) = codec().decode(bytes) {
                prop_assert_eq!(&encode(read.kind, read.iteration, read.blocks, &read.votes), bytes);
            }
        }
    }
}
