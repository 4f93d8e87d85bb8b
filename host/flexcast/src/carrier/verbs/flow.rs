//! Flow control of an operation: how far a root may be ahead, and which roots wait for everybody before the next one
//! begins.
//!
//! The blocks that a chain's roots send one behind the other must have room in every receive ring, together with those
//! of the other chains. A block that is longer than its window is acknowledged on the way. Shorter ones are not; but
//! before more would wait than there is room for, a root lets the next one begin only when all have seen its block's
//! end, and with it all that came before.

use super::carrier::ALL;
use super::send;
use crate::error::Result;
use crate::op::config::Config;
use crate::plan::Plan;
use crate::plan::chains::{Order, order};

/// How an operation's roots wait for their receivers; alike on all ranks.
#[derive(Debug, Default)]
pub(super) struct Flow {
    /// Chunks that a root may be ahead; none if all there is has room.
    window_chunks: Option<u32>,
    roots: Vec<Root>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Root {
    chunks: u32,
    /// The root of its chain that begins behind it.
    next: Option<u32>,
    /// That one begins only when all have seen this one's block.
    waits: bool,
}

impl Flow {
    /// Of an operation whose receivers have `slots` receives each.
    pub(super) fn new(plan: &Plan, config: &Config, slots: u32) -> Result<Self> {
        let mut table = Vec::new();
        let chunks = plan.space(ALL, &mut table)?.chunks();
        if chunks + u64::from(send::ENDS) * u64::from(plan.roots().len()) <= slots.into() {
            return Ok(Self::default());
        }
        let Order { chains, .. } = order(plan, config, plan.own());
        let room = slots / chains.max(1);
        let window = (room / 2).saturating_sub(send::ENDS).max(1);
        let mut roots = vec![Root::default(); plan.ranks() as usize];
        let mut heads = Vec::new();
        for rank in plan.root_ranks() {
            let chunks = plan.block(rank).bytes.div_ceil(u64::from(config.chunk_bytes));
            let turn = order(plan, config, rank).turn;
            heads.extend(turn.is_none_or(|turn| turn.predecessor.is_none()).then_some(rank));
            let next = turn.and_then(|turn| turn.successor);
            roots[rank as usize] = Root { chunks: u32::try_from(chunks).unwrap_or(u32::MAX), next, waits: false };
        }
        // What a block takes of the room at most.
        let needs = |chunks: u32| chunks.min(window) + send::ENDS;
        for head in heads {
            let (mut at, mut waiting) = (head, 0);
            for _ in 0..plan.ranks() {
                let Root { chunks, next: Some(next), .. } = roots[at as usize] else { break };
                waiting = if chunks > window { needs(chunks) } else { waiting + needs(chunks) };
                if waiting + needs(roots[next as usize].chunks) > room {
                    roots[at as usize].waits = true;
                    waiting = 0;
                }
                at = next;
            }
        }
        Ok(Self { window_chunks: Some(window), roots })
    }

    /// Chunks that a root may be ahead of its receivers.
    pub(super) fn window_chunks(&self) -> u32 {
        self.window_chunks.unwrap_or(u32::MAX)
    }

    fn root(&self, rank: u32) -> Root {
        self.roots.get(rank as usize).copied().unwrap_or_default()
    }

    /// Whether this rank acknowledges to a root how far its block has come.
    pub(super) fn is_acknowledged(&self, rank: u32) -> bool {
        let root = self.root(rank);
        root.waits || self.window_chunks.is_some_and(|window| root.chunks > window)
    }

    /// Whether the root behind this one begins only when all have seen this one's block.
    pub(super) fn waits(&self, rank: u32) -> bool {
        self.root(rank).waits
    }

    /// The root of its chain that begins behind this one.
    pub(super) fn next(&self, rank: u32) -> Option<u32> {
        self.root(rank).next
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::Kind;

    /// The most that waits in a ring if a receiver takes nothing but what it must: chains go on as long as they may.
    fn most_waiting(plan: &Plan, config: &Config, flow: &Flow, slots: u32) -> u32 {
        let Order { chains, .. } = order(plan, config, 0);
        let window = flow.window_chunks();
        let of_chain = |head: u32| {
            let (mut at, mut waiting, mut most) = (Some(head), 0, 0);
            while let Some(rank) = at {
                let chunks = flow.root(rank).chunks;
                let behind = chunks.min(window) + send::ENDS;
                most = most.max(waiting + behind);
                waiting = if chunks > window { behind } else { waiting + behind };
                waiting = if flow.waits(rank) { 0 } else { waiting };
                at = flow.next(rank);
            }
            most
        };
        let heads = plan
            .root_ranks()
            .filter(|rank| order(plan, config, *rank).turn.is_some_and(|turn| turn.predecessor.is_none()));
        let sum: u32 = heads.map(of_chain).sum();
        assert!(slots / chains.max(1) >= 2 * (1 + send::ENDS), "rings so short have no room for two roots a chain");
        sum
    }

    #[test]
    fn rings_have_room_for_what_may_wait() {
        for (ranks, bytes, slots, chains) in [
            (188, 64 << 10, 1024, 0),
            (188, 64 << 10, 1024, 1),
            (1024, 4096, 1024, 7),
            (11, 87_607, 64, 1),
            (7, 48_139, 256, 2),
            (5, 1 << 20, 256, 5),
            (64, 20_000, 512, 16),
        ] {
            let config = Config::default().with_subgroups(1).slots(slots).chains(chains).link_gbit_per_s(200);
            let plan = Plan::new(Kind::Allgather { bytes }, 0, ranks, config.chunk_bytes, 1);
            let flow = Flow::new(&plan, &config, slots).unwrap();
            let most = most_waiting(&plan, &config, &flow, slots);
            assert!(most <= slots, "{most} of {slots}: {ranks} ranks, {bytes} bytes, {chains} chains");
        }
    }

    #[test]
    fn what_has_room_waits_for_nobody_and_a_lone_root_has_no_next() {
        let config = Config::default().with_subgroups(1).slots(1024).link_gbit_per_s(200);
        let plan = Plan::new(Kind::Allgather { bytes: 64 << 10 }, 0, 8, config.chunk_bytes, 1);
        let flow = Flow::new(&plan, &config, 1024).unwrap();
        assert!((0..8).all(|rank| !flow.is_acknowledged(rank) && flow.next(rank).is_none()));
        assert_eq!(flow.window_chunks(), u32::MAX);
        let plan = Plan::new(Kind::Broadcast { root: 2, bytes: 64 << 20 }, 0, 8, config.chunk_bytes, 1);
        let flow = Flow::new(&plan, &config, 1024).unwrap();
        assert_eq!((flow.window_chunks(), flow.is_acknowledged(2), flow.waits(2)), (510, true, false));
        assert!(!flow.is_acknowledged(0));
    }
}
