//! Incast on the emulated fabric: many sources with blocks for one host, written at once or read a few at a time, and
//! what becomes of a concurrent flow.
//!
//! The fabric only, lossless, frame by frame. Sources are on one switch, the host that all have something for on
//! another; the link between the two is four times as fast as that of a host. A flow between two other hosts goes the
//! same way. Where all sources write at once, frames that the host's link cannot carry fill the buffers before it, one
//! switch after the other, and the flow waits with them: a tree of saturation. A host that reads has no more in flight
//! than it has asked for.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use emu_machine::fabric::{
    Destination, Fabric as _, FabricEffects, FabricError, Frame, LinkConfig, LinkError, Network, NetworkFrame, Rate,
    Topology, TopologyBuilder, TopologyError,
};

/// Bytes of a RoCEv2 frame besides its payload, on the wire.
const HEADER_BYTES: u64 = 94;
const CHUNK_BYTES: u64 = 4096;
/// Rate of the link between the switches; hosts have 200 Gbit/s.
const TRUNK_GBIT_PER_S: u64 = 800;
/// Blocks of each source.
const BLOCKS: u64 = 4;

/// What is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Incast {
    /// Sources.
    pub sources: u32,
    /// Bytes of each block; each source has four.
    pub bytes: u64,
    /// Blocks that are read at once; none where all sources write.
    pub reads: Option<u32>,
}

/// What came out. Times are virtual.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IncastOutcome {
    /// Until the host has all blocks.
    pub blocks_ps: u64,
    /// Until the concurrent flow has arrived: as many bytes as a tenth of the blocks.
    pub flow_ps: u64,
    /// The same where the flow is alone.
    pub flow_alone_ps: u64,
}

/// A run that cannot be.
#[derive(Debug, thiserror::Error)]
pub enum IncastError {
    /// Parameters.
    #[error("{what}: {value}, {limit}")]
    Parameter {
        /// Which one.
        what: &'static str,
        /// What was given.
        value: u64,
        /// What would do.
        limit: &'static str,
    },
    /// A link of it.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The topology.
    #[error(transparent)]
    Topology(#[from] TopologyError),
    /// A frame.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Frames that have not arrived: a defect of the fabric.
    #[error("{found} of {expected} frames of the blocks have arrived, and {flow} of the flow's")]
    Lost {
        /// Of the blocks.
        found: u64,
        /// Of the blocks, all.
        expected: u64,
        /// Of the flow.
        flow: u64,
    },
}

/// Hosts by their numbers: who gets the blocks, who gets the flow, who sends it; then the sources.
const RECEIVER: usize = 0;
const FLOW_TO: usize = 1;
const FLOW_FROM: usize = 2;
const SOURCES: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Block,
    /// A Read's request to a source.
    Request,
    Flow,
}

#[derive(Clone, Debug)]
struct Piece {
    to: usize,
    from: usize,
    what: What,
    bytes: u64,
    is_last: bool,
}

impl Frame for Piece {
    fn wire_bytes(&self) -> u64 {
        self.bytes + HEADER_BYTES
    }
}

impl NetworkFrame for Piece {
    fn destination(&self) -> Destination {
        Destination::Host(self.to)
    }
    fn flow(&self) -> u64 {
        self.from as u64
    }
    fn payload_bytes(&self) -> u64 {
        self.bytes
    }
    fn add(&mut self, _: &Self) {}
    fn corrupt(&mut self, _: u64) {}
}

fn topology(sources: u32) -> Result<Topology, IncastError> {
    let mut builder = TopologyBuilder::new("incast");
    let host = LinkConfig::default();
    let trunk = LinkConfig { rate: Rate::from_gbps(TRUNK_GBIT_PER_S)?, ..host };
    builder.switch("near", 3).switch("far", sources + 2);
    for name in ["receiver", "flow-to", "flow-from"] {
        builder.host(name);
    }
    builder.link("receiver", "near", host).link("flow-to", "near", host).link("near", "far", trunk);
    builder.link("flow-from", "far", host);
    for source in 0..sources {
        let name = format!("source-{source}");
        builder.host(&name).link(name, "far", host);
    }
    Ok(builder.build()?)
}

fn frames(from: usize, to: usize, what: What, bytes: u64) -> impl Iterator<Item = Piece> {
    let count = bytes.div_ceil(CHUNK_BYTES);
    (0..count).map(move |number| {
        let bytes = CHUNK_BYTES.min(bytes - number * CHUNK_BYTES);
        Piece { to, from, what, bytes, is_last: number + 1 == count }
    })
}

/// Tries it.
///
/// # Errors
/// [`IncastError`].
pub fn run(incast: &Incast) -> Result<IncastOutcome, IncastError> {
    let parameter = |what, value, limit| Err(IncastError::Parameter { what, value, limit });
    if incast.bytes == 0 || incast.bytes > 1 << 24 {
        return parameter("bytes of a block", incast.bytes, "give 1 to 16777216");
    }
    if !(1..=64).contains(&incast.sources) {
        return parameter("sources", incast.sources.into(), "give 1 to 64");
    }
    if incast.reads == Some(0) {
        return parameter("blocks read at once", 0, "give at least 1");
    }
    let (blocks_ps, flow_ps) = one(incast, true)?;
    let (_, flow_alone_ps) = one(&Incast { sources: 1, ..*incast }, false)?;
    Ok(IncastOutcome { blocks_ps, flow_ps, flow_alone_ps })
}

/// Times until all blocks and until the flow have arrived; without blocks, of the flow alone.
fn one(incast: &Incast, has_blocks: bool) -> Result<(u64, u64), IncastError> {
    let Incast { sources, bytes, reads } = *incast;
    let mut network: Network<Piece> = Network::new(&topology(sources)?);
    let mut fx = FabricEffects::default();
    let mut due = BinaryHeap::new();
    let mut arrived: BTreeMap<u64, Piece> = BTreeMap::new();
    let mut sequence = 0;
    // The flow has the same length with and without blocks.
    let flow_bytes = 10 * CHUNK_BYTES * BLOCKS;
    let all: VecDeque<usize> = (0..BLOCKS).flat_map(|_| SOURCES..SOURCES + sources as usize).collect();
    let mut waiting = if has_blocks { all } else { VecDeque::new() };
    let expected = waiting.len() as u64 * bytes.div_ceil(CHUNK_BYTES);
    let request = |source: usize| Piece { to: source, from: RECEIVER, what: What::Request, bytes: 16, is_last: true };
    let mut sends: VecDeque<(usize, Piece)> = VecDeque::new();
    match reads {
        Some(limit) => {
            for _ in 0..limit {
                sends.extend(waiting.pop_front().map(|source| (RECEIVER, request(source))));
            }
        }
        None => {
            for source in std::mem::take(&mut waiting) {
                sends.extend(frames(source, RECEIVER, What::Block, bytes).map(|frame| (source, frame)));
            }
        }
    }
    sends.extend(frames(FLOW_FROM, FLOW_TO, What::Flow, flow_bytes).map(|frame| (FLOW_FROM, frame)));
    let (mut found, mut flow, mut blocks_ps, mut flow_ps, mut now_ps) = (0, 0, 0, 0, 0);
    loop {
        while let Some((host, frame)) = sends.pop_front() {
            network.transmit(now_ps, host, frame, &mut fx)?;
        }
        for at_ps in fx.timers_ps.drain(..) {
            sequence += 1;
            due.push(Reverse((at_ps, sequence)));
        }
        for delivery in fx.deliveries.drain(..) {
            sequence += 1;
            due.push(Reverse((delivery.at_ps, sequence)));
            arrived.insert(sequence, delivery.frame);
        }
        let Some(Reverse((at_ps, number))) = due.pop() else { break };
        now_ps = at_ps;
        let Some(piece) = arrived.remove(&number) else {
            network.handle_timer(now_ps, &mut fx);
            continue;
        };
        match piece.what {
            What::Request => {
                sends.extend(frames(piece.to, RECEIVER, What::Block, bytes).map(|frame| (piece.to, frame)));
            }
            What::Block => {
                (found, blocks_ps) = (found + 1, now_ps);
                if piece.is_last {
                    sends.extend(waiting.pop_front().map(|source| (RECEIVER, request(source))));
                }
            }
            What::Flow => (flow, flow_ps) = (flow + 1, now_ps),
        }
    }
    if found != expected || flow != flow_bytes.div_ceil(CHUNK_BYTES) {
        return Err(IncastError::Lost { found, expected, flow });
    }
    Ok((blocks_ps, flow_ps))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_hold_a_flow_up_that_reads_let_pass() {
        let of = |reads| run(&Incast { sources: 16, bytes: 32 << 10, reads }).unwrap();
        let (writes, reads) = (of(None), of(Some(4)));
        eprintln!("{writes:?} {reads:?}");
        let slower = |outcome: IncastOutcome| outcome.flow_ps as f64 / outcome.flow_alone_ps as f64;
        assert!(slower(writes) > 2.0 && slower(reads) < 1.5, "{:.2}, {:.2}", slower(writes), slower(reads));
        // The host's link carries the blocks either way.
        assert!(reads.blocks_ps < writes.blocks_ps * 11 / 10);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let good = Incast { sources: 2, bytes: 1, reads: Some(1) };
        run(&good).unwrap();
        for wrong in [Incast { sources: 0, ..good }, Incast { bytes: 0, ..good }, Incast { reads: Some(0), ..good }] {
            assert!(matches!(run(&wrong), Err(IncastError::Parameter { .. })), "{wrong:?}");
        }
    }
}
