//! Probes of a reliable connection whose peer has not acknowledged anything for long.
//!
//! A probe is a Read of nothing. The peer's card sees by its number that a packet before it is missing, and asks for it at once; so does the
//! own card when the answer comes and one before it has not. Otherwise a lost packet that nothing follows costs the connection's whole
//! timeout.

use flexio::{QueuePair, SendKind, SendRequest};

/// A peer that has not acknowledged anything for so long is probed: many round trips, and a small part of a card's own timeout.
const FIRST_PS: u64 = 25_000_000;

/// The probes of one queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Probes {
    under_way: u32,
    /// When the peer is probed next unless something is acknowledged before.
    at_ps: u64,
    /// When an acknowledgement began to be awaited, or the last one came.
    since_ps: u64,
    /// Longest time without one.
    silence_ps: u64,
}

impl Probes {
    /// Most under way on a queue pair, whose send queue has room for so many more requests.
    pub(crate) const MAX: u32 = 4;

    pub(crate) const fn new() -> Self {
        Self { under_way: 0, at_ps: u64::MAX, since_ps: 0, silence_ps: 0 }
    }

    /// Something is posted while nothing was under way: from now on an acknowledgement is awaited.
    pub(crate) const fn await_answer(&mut self, now_ps: u64) {
        self.since_ps = now_ps;
        self.at_ps = now_ps.saturating_add(FIRST_PS);
    }

    /// Something is acknowledged.
    pub(crate) fn answered(&mut self, now_ps: u64) {
        self.silence_ps = self.silence_ps.max(now_ps.saturating_sub(self.since_ps));
        self.since_ps = now_ps;
        self.set(now_ps);
    }

    const fn set(&mut self, now_ps: u64) {
        self.at_ps = now_ps.saturating_add(FIRST_PS << self.under_way);
    }

    /// A probe is acknowledged.
    pub(crate) fn probed(&mut self, now_ps: u64) {
        self.under_way = self.under_way.saturating_sub(1);
        self.answered(now_ps);
    }

    /// The longest time without an acknowledgement that was awaited, since this was last asked for, in picoseconds.
    pub(crate) const fn take_silence_ps(&mut self) -> u64 {
        std::mem::replace(&mut self.silence_ps, 0)
    }

    /// When the peer is to be probed while something is under way; none when it has been probed as often as is allowed.
    pub(crate) fn next_ps(&self) -> Option<u64> {
        (self.under_way < Self::MAX).then_some(self.at_ps)
    }

    /// Probes the peer if that is due while something is under way. `id` comes back with the completion.
    pub(crate) fn post_if_due(&mut self, queue_pair: &QueuePair, id: u64, now_ps: u64) -> flexio::Result<()> {
        if self.next_ps().is_none_or(|at_ps| now_ps < at_ps) {
            return Ok(());
        }
        let kind = SendKind::Read { remote_addr: 0, rkey: 0 };
        queue_pair.post_sends(&[SendRequest { id, kind, local: None, immediate: None, signaled: true }])?;
        self.under_way += 1;
        self.set(now_ps);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_peer_is_probed_at_growing_distances_and_not_for_ever() {
        let mut probes = Probes::new();
        assert_eq!(probes.next_ps(), Some(u64::MAX));
        probes.await_answer(1000);
        assert_eq!(probes.next_ps(), Some(1000 + FIRST_PS));
        for under_way in 1..=Probes::MAX {
            probes.under_way = under_way;
            probes.set(2000);
            let next_ps = (under_way < Probes::MAX).then_some(2000 + (FIRST_PS << under_way));
            assert_eq!(probes.next_ps(), next_ps);
        }
        probes.probed(3000);
        assert_eq!(probes.next_ps(), Some(3000 + (FIRST_PS << (Probes::MAX - 1))));
        probes.await_answer(u64::MAX);
        assert_eq!(probes.next_ps(), Some(u64::MAX));
    }

    #[test]
    fn the_longest_silence_is_told_once() {
        let mut probes = Probes::new();
        probes.await_answer(5000);
        probes.answered(5700);
        // Probes themselves do not shorten it.
        (probes.under_way, probes.at_ps) = (1, 6000);
        probes.set(6000);
        probes.probed(7000);
        probes.await_answer(9000);
        probes.answered(9001);
        assert_eq!((probes.take_silence_ps(), probes.take_silence_ps()), (1300, 0));
    }
}
