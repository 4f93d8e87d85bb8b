//! Network input of a rank whose datapath is `udp`: messages of bootstrap, connection information, datagrams, frames on
//! connections, and the words and bytes of memory that two ranks share.
//!
//! The first byte says which. Checked: what is accepted is what it says when it is encoded again; what is refused names
//! a rank; and a rank whose peers know the key and send anything ends its operations in time, well or with a typed
//! error, and gives their buffers back.

use flexcast::bootstrap::{CallbackExchange, Exchange, Subgroup, split};
use flexcast::hostile;

use crate::input::{Input, Script};

const PEERS: u8 = 0;
const CONNECT_INFOS: u8 = 1;
const DATAGRAM: u8 = 2;
const EXCHANGE: u8 = 4;
const KINDS: u8 = 8;

/// Handles one input.
pub fn run(data: &[u8]) {
    let Some((kind, rest)) = data.split_first() else { return };
    match kind % KINDS {
        CONNECT_INFOS => hostile::connect_infos(rest),
        DATAGRAM => hostile::datagram(rest),
        EXCHANGE => exchange(rest),
        // The most there is to find.
        _ => hostile::peers(rest),
    }
}

/// An exchange over a callback of the application that gives back the own bytes, and anything for the other ranks.
fn exchange(data: &[u8]) {
    let mut input = Input::new(data);
    let mut exchange = CallbackExchange::new(1, 3, |send: &[u8], receive: &mut [u8]| {
        for (rank, theirs) in receive.chunks_exact_mut(send.len().max(1)).enumerate() {
            theirs.copy_from_slice(send);
            if rank != 1 {
                for _ in 0..input.u8() % 4 {
                    let (at, value) = (usize::from(input.u8()), input.u8());
                    if let Some(byte) = theirs.get_mut(at) {
                        *byte = value;
                    }
                }
            }
        }
        Ok(())
    })
    .expect("rank 1 of 3");
    for turn in 0..4 {
        let refused = match turn {
            0 => exchange
                .exchange("connection information", data)
                .map(|all| assert!(all.len() == 3 && all[1] == data))
                .err(),
            1 => split(&mut exchange, Some(1), 7).map(drop).err(),
            2 => Subgroup::new(&mut exchange, vec![1, 2])
                .expect("ranks of the parent")
                .exchange("x", b"own")
                .map(drop)
                .err(),
            _ => exchange.exchange("", &[]).map(drop).err(),
        };
        if let Some(error) = refused {
            let text = error.to_string();
            assert!(text.contains("rank ") || text.contains("bytes"), "{text}");
            return;
        }
    }
}

/// One of each kind, and what peers do in an operation of each.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let peers = |operation: u8, deeds: &[u8]| Script::new().bytes(&[PEERS, 0, 0, operation, 200]).bytes(deeds).done();
    // A control message of operation 1: 48 bytes behind a beginning that is right.
    let message = |peer: u8, kind: u8, rest: [u8; 28]| [&[peer << 7 | 4, kind, 1][..], &rest, &[0]].concat();
    let mut barrier = [0; 28];
    // Allgather by multicast.
    barrier[..3].copy_from_slice(&[0, 2, 0]);
    let datagram = |peer: u8, kind: u8, number: u8, eighths: u8| vec![peer << 7 | 8, kind, 1, number, eighths];
    let frame =
        |peer: u8, kind: u8, contents: &[u8]| [&[peer << 7 | 1, kind, 1, contents.len() as u8][..], contents].concat();
    let frames = |frames: &[Vec<u8>]| frames.concat();
    let of = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    let header = [&[1, 1, 0, 2, 0x56, 0x78, 0x9A, 0xBC, 0, 0, 0, 1, 0, 0, 0, 5][..], &[0; 8], b"chunk"].concat();
    vec![
        ("silent", peers(3, &[])),
        ("barrier", peers(3, &frames(&[message(0, 1, barrier), message(1, 1, barrier)]))),
        (
            "multicast",
            peers(
                3,
                &frames(&[message(0, 1, barrier), message(1, 1, barrier), datagram(0, 0, 0, 25), datagram(1, 1, 1, 0)]),
            ),
        ),
        ("acknowledged", peers(0x10, &frames(&[message(0, 1, barrier), datagram(0, 2, 1, 0), datagram(1, 2, 1, 0)]))),
        ("failed", peers(13, &message(1, 6, [1; 28]))),
        (
            "fetched",
            peers(
                3,
                &frames(&[
                    message(0, 1, barrier),
                    message(0, 3, [1; 28]),
                    frame(0, 2, &[0; 20]),
                    frame(0, 3, &[0; 13]),
                ]),
            ),
        ),
        ("transfers", peers(9, &frames(&[frame(0, 5, &[0; 44]), frame(1, 5, &[1; 60])]))),
        ("reduction", peers(6, &frames(&[frame(0, 5, &[0; 40]), vec![0x80], frame(1, 4, &[])]))),
        ("positions", peers(6, &[13, 0, 16, 0, 0, 0, 13, 0x81, 1, 0, 0, 0x80, 14, 0x8E])),
        ("connect-infos", of(CONNECT_INFOS, &[2, 4, 9, 20, 1, 0, 0, 1, 5, 3, 0, 1, 99])),
        ("tuning", of(CONNECT_INFOS, &[0, 0, 16, 1, 0, 0, 0, 2, 0, 0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
        ("datagram", of(DATAGRAM, &header)),
        ("exchange", of(EXCHANGE, &[0, 0, 1, 16, 9, 0])),
    ]
}
