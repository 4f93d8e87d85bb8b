//! The machine of the protocol, wherever it runs: here, driven by the engine, or on the card. Exactly one of them per communicator.

use flexcast_proto::{Action, Disagreement, Failure, OperationDescriptor, Participant, Turn};

use crate::error::Result;
use crate::protocol::conductor::Conductor;

/// The one machine of a communicator.
#[derive(Debug)]
pub(crate) enum Machine {
    /// Here.
    Host(Box<Participant>),
    /// On the card.
    Device(Box<Conductor>),
}

impl Machine {
    pub(crate) fn conductor(&self) -> Option<&Conductor> {
        match self {
            Self::Host(_) => None,
            Self::Device(conductor) => Some(conductor),
        }
    }

    pub(crate) fn conductor_mut(&mut self) -> Option<&mut Conductor> {
        match self {
            Self::Host(_) => None,
            Self::Device(conductor) => Some(conductor),
        }
    }

    pub(crate) fn is_on_card(&self) -> bool {
        self.conductor().is_some()
    }

    /// Takes what a machine on the card has told; whether there was anything.
    pub(crate) fn take(&mut self, now_ps: u64) -> Result<bool> {
        self.conductor_mut().map_or(Ok(false), |conductor| conductor.take_report(now_ps))
    }

    /// Passes on to a machine on the card what it has been told here.
    pub(crate) fn give(&mut self, now_ps: u64) -> Result<()> {
        self.conductor_mut().map_or(Ok(()), |conductor| conductor.give_order(now_ps))
    }

    pub(crate) fn operation(&self) -> u32 {
        match self {
            Self::Host(participant) => participant.operation(),
            Self::Device(conductor) => conductor.operation(),
        }
    }

    /// Begins an operation, here; on the card it has been posted before ([`Conductor::post`]).
    pub(crate) fn begin(&mut self, descriptor: OperationDescriptor, turn: Option<Turn>, own: u32, now_ps: u64) {
        if let Self::Host(participant) = self {
            participant.post_with(descriptor, turn, now_ps);
            participant.delivered(own);
        }
    }

    pub(crate) fn delivered(&mut self, block: u32) {
        match self {
            Self::Host(participant) => participant.delivered(block),
            Self::Device(conductor) => conductor.delivered(block),
        }
    }

    pub(crate) fn read(&mut self, block: u32) {
        match self {
            Self::Host(participant) => participant.read(block),
            Self::Device(conductor) => conductor.read(block),
        }
    }

    /// The own multicast is over, or as good as; the card's own machine knows.
    pub(crate) fn sent(&mut self) {
        if let Self::Host(participant) = self {
            participant.sent();
        }
    }

    pub(crate) fn fail(&mut self, failure: Failure) {
        match self {
            Self::Host(participant) => participant.fail(failure),
            Self::Device(conductor) => conductor.fail(failure),
        }
    }

    /// The process on the card has died, and a machine there with it: that cannot tell the others any more.
    pub(crate) fn lose(&mut self, failure: Failure) {
        match self {
            Self::Host(participant) => participant.fail(failure),
            Self::Device(conductor) => conductor.lose_to(failure),
        }
    }

    pub(crate) fn handle_time(&mut self, now_ps: u64) {
        match self {
            Self::Host(participant) => participant.handle_time(now_ps),
            Self::Device(conductor) => conductor.handle_time(now_ps),
        }
    }

    pub(crate) fn deadline_ps(&self) -> Option<u64> {
        match self {
            Self::Host(participant) => participant.deadline_ps(),
            Self::Device(conductor) => conductor.deadline_ps(),
        }
    }

    pub(crate) fn poll(&mut self) -> Option<Action> {
        match self {
            Self::Host(participant) => participant.poll(),
            Self::Device(conductor) => conductor.poll(),
        }
    }

    pub(crate) fn ready_ps(&self) -> Option<u64> {
        match self {
            Self::Host(participant) => participant.ready_ps(),
            Self::Device(conductor) => conductor.ready_ps(),
        }
    }

    pub(crate) fn has_everything(&self) -> bool {
        match self {
            Self::Host(participant) => participant.has_everything(),
            Self::Device(conductor) => conductor.has_everything(),
        }
    }

    pub(crate) fn disagreement(&self) -> Option<Disagreement> {
        match self {
            Self::Host(participant) => participant.disagreement(),
            Self::Device(conductor) => conductor.disagreement(),
        }
    }
}
