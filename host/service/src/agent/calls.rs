//! Calls of ranks that are further ahead than a group may have collectives under way: they wait, in order, until an
//! earlier one is over.

use std::collections::{BTreeMap, VecDeque};

use flexcast_proto::service::wire::{Body, Refused};
use flexcast_proto::service::{Call, ContextId, Event, Refusal};

use super::Agent;
use crate::error::Result;
use crate::links::PeerId;

/// Calls of a rank that wait. Flags have room for no more at a time either.
const MOST_CALLS_AHEAD: usize = 64;

/// A rank's connection, and its calls that wait.
type Waiting = (PeerId, VecDeque<(ContextId, Call)>);

/// By group and rank.
#[derive(Debug, Default)]
pub(super) struct Calls {
    waiting: BTreeMap<(u32, u32), Waiting>,
}

impl Calls {
    pub(super) fn has(&self, group: u32, rank: u32) -> bool {
        self.waiting.contains_key(&(group, rank))
    }

    pub(super) fn remove(&mut self, group: u32) {
        self.waiting.retain(|(of, _), _| *of != group);
    }

    pub(super) fn part_with(&mut self, peer: PeerId) {
        self.waiting.retain(|_, (of, _)| *of != peer);
    }
}

impl Agent {
    /// A rank calls a collective, behind those of its calls that wait.
    pub(super) fn enter(&mut self, from: PeerId, context: ContextId, rank: u32, call: Call) -> Result<()> {
        if let Some((_, queue)) = self.calls.waiting.get_mut(&(context.group, rank)) {
            if queue.len() < MOST_CALLS_AHEAD {
                queue.push_back((context, call));
                return Ok(());
            }
            let oldest = queue.front().map_or(0, |(oldest, _)| oldest.collective);
            let ContextId { group, collective } = context;
            let refusal = Refusal::Collectives { group, collective, oldest, limit: MOST_CALLS_AHEAD as u32 };
            self.end_call(context, rank, true);
            return self.say(from, context, Body::CallRefused { rank, refused: Refused::Process(refusal) });
        }
        self.offer_call(from, context, rank, call).map(|_| ())
    }

    /// Offers a call to the machine; whether it has been taken, or refused for good. Else it waits, before all others
    /// of its rank.
    fn offer_call(&mut self, from: PeerId, context: ContextId, rank: u32, call: Call) -> Result<bool> {
        // The machine takes what it is given, also where it gives it back.
        let event = Event::Entered { context, rank, call: call.clone() };
        match self.machine.handle(event, &mut self.actions) {
            Ok(()) => Ok(true),
            Err(Refusal::Collectives { .. }) => {
                let waiting = self.calls.waiting.entry((context.group, rank));
                waiting.or_insert_with(|| (from, VecDeque::new())).1.push_front((context, call));
                Ok(false)
            }
            Err(refusal) => {
                self.end_call(context, rank, true);
                self.say(from, context, Body::CallRefused { rank, refused: Refused::Process(refusal) })?;
                Ok(true)
            }
        }
    }

    /// Offers calls that wait; whether any was taken.
    pub(super) fn has_entered(&mut self) -> Result<bool> {
        let mut any = false;
        let keys: Vec<(u32, u32)> = self.calls.waiting.keys().copied().collect();
        for (group, rank) in keys {
            let Some((from, mut queue)) = self.calls.waiting.remove(&(group, rank)) else { continue };
            while let Some((context, call)) = queue.pop_front() {
                if self.offer_call(from, context, rank, call)? {
                    any = true;
                } else if let Some((_, waiting)) = self.calls.waiting.get_mut(&(group, rank)) {
                    waiting.append(&mut queue);
                }
            }
        }
        Ok(any)
    }
}
