//! Sums that switches keep: computing in the network, as a model (see [`Destination::Sum`](crate::Destination::Sum)).

use std::collections::BTreeMap;

use super::Network;
use crate::NetworkFrame;

/// A sum at a switch: switch, group, host that gets it, and which of the host's.
type Key = (u32, u32, u32, u64);

/// What has come so far.
#[derive(Clone, Debug)]
struct Partial<F> {
    frame: F,
    frames: usize,
}

/// All sums that lack frames.
#[derive(Clone, Debug)]
pub(super) struct Sums<F> {
    open: BTreeMap<Key, Partial<F>>,
}

impl<F> Default for Sums<F> {
    fn default() -> Self {
        Sums { open: BTreeMap::new() }
    }
}

impl<F> Sums<F> {
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }
}

impl<F: NetworkFrame> Network<F> {
    /// A frame for a sum has come to a switch. It goes on, as the sum, through the port that is appended to `ways` if
    /// it is the last one; otherwise its contents stay here. Returns whether the switch has a use for it: not from
    /// where no member is, nor from the host that gets the sum.
    pub(super) fn sum(
        &mut self,
        (switch, ingress): (usize, u32),
        slot: u32,
        (group, host, tag): (u32, u32, u64),
        ways: &mut Vec<u32>,
    ) -> bool {
        let Some(egress) = self.groups.towards(&self.routes, group, switch, host as usize) else { return false };
        // Frames come from where a multicast of that host would go.
        self.groups.ways(group, switch, egress, ways);
        let (expected, is_one) = (ways.len(), ways.contains(&ingress));
        ways.clear();
        if !is_one {
            return false;
        }
        let Some(transit) = self.frames.get_mut(slot) else { return false };
        let key = (switch as u32, group, host, tag);
        if let Some(partial) = self.sums.open.get_mut(&key) {
            partial.frames += 1;
            if partial.frames < expected {
                partial.frame.add(&transit.frame);
                return true;
            }
            transit.frame.add(&partial.frame);
            self.sums.open.remove(&key);
        } else if expected > 1 {
            self.sums.open.insert(key, Partial { frame: transit.frame.clone(), frames: 1 });
            return true;
        }
        ways.push(egress);
        true
    }
}
