//! Ranks of one operation as their hosts drive them, without any wire.

pub(crate) mod check;
pub(crate) mod delivery;
pub(crate) mod keyed;
pub(crate) mod packets;
pub(crate) mod service;
pub(crate) mod sparse;
pub(crate) mod sparse_network;
pub(crate) mod staged;

use std::collections::VecDeque;

use flexcast_proto::{Action, Failure, Message, OperationDescriptor, Participant, RankInfo, RankSet, Summary};

pub(crate) const BARRIER_TIMEOUT_PS: u64 = 20_000;
pub(crate) const CUTOFF_PS: u64 = 1_000;
pub(crate) const BOUND_PS: u64 = 40_000;
/// Failures for silence are held for a quarter of the bound; and the last rank may have posted late.
pub(crate) const END_PS: u64 = 1_000 + BARRIER_TIMEOUT_PS + BOUND_PS + BOUND_PS / 4 + 1_000;

/// An Allgather of one chunk per rank.
pub(crate) fn descriptor(ranks: u32, chains: u32) -> OperationDescriptor {
    OperationDescriptor {
        operation: 0,
        roots: RankSet::below(ranks),
        pieces: 1,
        summary: Summary::allgather(1, 1, chains),
        barrier_timeout_ps: BARRIER_TIMEOUT_PS,
        cutoff_ps: CUTOFF_PS,
        bound_ps: BOUND_PS,
    }
}

/// Numbers that depend on a seed alone.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// A rank whose host gives it the time when something has happened, or is due, and not otherwise.
pub(crate) struct Driven {
    machine: Participant,
    notified: bool,
}

impl Driven {
    pub(crate) fn new(place: RankInfo) -> Self {
        Self { machine: Participant::new(place, 0), notified: false }
    }

    /// The machine, which is about to be notified of something.
    pub(crate) fn notify(&mut self) -> &mut Participant {
        self.notified = true;
        &mut self.machine
    }

    /// Carries out what is to be done now: messages go to `wires`, one for each rank, reads end at once. Returns how
    /// the operation has ended, if it has.
    pub(crate) fn act(
        &mut self,
        now_ps: u64,
        wires: &mut [VecDeque<Message>],
        mut multicast: impl FnMut(),
    ) -> Option<Result<(), Failure>> {
        let machine = self.poll_machine(now_ps)?;
        let mut end = None;
        while let Some(action) = machine.poll() {
            match action {
                Action::Send { to, message } => wires[to as usize].push_back(message),
                Action::Multicast => multicast(),
                Action::Read { pieces, .. } => pieces.iter().for_each(|piece| machine.read(piece)),
                Action::Release => end = Some(Ok(())),
                Action::Fail(failure) => end = Some(Err(failure)),
            }
        }
        end
    }

    /// The machine, to be asked what is to be done now, if there may be anything.
    pub(crate) fn poll_machine(&mut self, now_ps: u64) -> Option<&mut Participant> {
        let due = self.machine.deadline_ps().is_some_and(|deadline_ps| deadline_ps <= now_ps);
        if !std::mem::take(&mut self.notified) && !due {
            return None;
        }
        self.machine.handle_time(now_ps);
        Some(&mut self.machine)
    }
}
