//! Collectives that hosts carry out themselves, by the algorithms of MPI libraries: pairwise exchange for Alltoallv, a
//! ring for Allgather(v), dissemination for Allreduce, a binomial tree, or scatter and ring, for Broadcast. A rank goes
//! on in calls of its library only.
//!
//! Short messages carry their data (eager). Longer ones are announced; the receiver reads them once it is at that step,
//! and notifies the sender (rendezvous by Read). Ranks of one host have shared memory: the receiver copies from the
//! sender's buffer.

use std::collections::BTreeMap;

use flexcast_proto::service::ContextId;

use super::engine::{Flow, Happening, Note, Transfer, TransferEnd};
use super::network::Place;
use super::program::{By, Exchange, Kind, exchange, steps};

/// How far a rank is in a collective.
#[derive(Debug, Default)]
pub(super) struct HostCall {
    has_begun: bool,
    steps: u32,
    window: u32,
    started: u32,
    /// Steps that are over.
    over: u32,
    /// By step under way: what of it is not over.
    open: BTreeMap<u32, Open>,
    /// What has come of steps that have not begun.
    early: BTreeMap<u32, Note>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    sends: bool,
    receives: bool,
}

impl Flow {
    /// A rank begins a collective; the time that the call takes.
    pub(super) fn post_to_hosts(&mut self, rank: u32, own: u32, context: ContextId) -> u64 {
        let host = self.ranks[rank as usize].host;
        let Some(collective) = self.collectives.get_mut(&context) else { return 0 };
        let operation = collective.operation;
        let By::Hosts { window } = operation.by else { return 0 };
        let members = collective.has_called.len() as u32;
        let call = collective.host_calls[own as usize].get_or_insert_default();
        (call.has_begun, call.steps, call.window) = (true, steps(&operation, members), window);
        // The own block.
        let mut ps = self.params.processors.rank_post_ps;
        if !matches!(operation.kind, Kind::Allreduce | Kind::Broadcast) {
            ps = self.network.copy(host, operation.bytes, self.now_ps + ps) - self.now_ps;
        }
        ps + self.advance(rank, own, context, ps)
    }

    /// Begins steps that may begin, `after_ps` from now; the time that this takes. Reports the end.
    fn advance(&mut self, rank: u32, own: u32, context: ContextId, after_ps: u64) -> u64 {
        let post_ps = self.params.processors.rank_post_ps;
        let mut ps = 0;
        loop {
            let Some(collective) = self.collectives.get_mut(&context) else { return ps };
            let (operation, members) = (collective.operation, collective.has_called.len() as u32);
            let Some(call) = collective.host_calls[own as usize].as_mut().filter(|call| call.has_begun) else {
                return ps;
            };
            if call.over == call.steps {
                collective.host_calls[own as usize] = None;
                self.queue.plan(self.now_ps + after_ps + ps, Happening::Flag(rank, context));
                return ps;
            }
            if call.started == call.steps || call.started - call.over >= call.window {
                return ps;
            }
            let step = call.started;
            call.started += 1;
            let Exchange { send, receive } = exchange(&operation, members, own, step);
            if send.is_none() && receive.is_none() {
                call.over += 1;
                continue;
            }
            call.open.insert(step, Open { sends: send.is_some(), receives: receive.is_some() });
            let early = call.early.remove(&step);
            if let Some((to, bytes)) = send {
                ps += post_ps;
                self.send(rank, context, step, (to, bytes), after_ps + ps);
            }
            if let Some(note) = early {
                ps += self.arrive(rank, own, context, note, after_ps + ps);
            }
        }
    }

    /// Sends the data of a step, or says that it is there.
    fn send(&mut self, rank: u32, context: ContextId, step: u32, (to, bytes): (u32, u64), after_ps: u64) {
        let to = self.groups[context.group as usize].ranks[to as usize];
        let (from_host, to_host) = (self.ranks[rank as usize].host, self.ranks[to as usize].host);
        let at_ps = self.now_ps + after_ps;
        if bytes > self.params.processors.eager_bytes {
            let way_ps = self.network.message_ps(from_host, to_host);
            self.queue.plan(at_ps + way_ps, Happening::ToRank(to, Note::Ready { context, step }));
            return;
        }
        let note = Note::Data { context, step, bytes };
        if from_host == to_host {
            self.queue.plan(at_ps + self.params.network.local_ps, Happening::ToRank(to, note));
        } else {
            let (from, to_place) = (Place::Host(from_host), Place::Host(to_host));
            let transfer = Transfer { from, to: to_place, bytes, end: TransferEnd::Rank(to, note) };
            self.queue.plan(at_ps, Happening::Begin(transfer));
        }
        // The data is in a buffer of the library: the step's send is over.
        self.sent(rank, context, step);
    }

    fn call_of(&mut self, rank: u32, context: ContextId) -> Option<(u32, &mut HostCall)> {
        let own = *self.groups.get(context.group as usize)?.number.get(&rank)?;
        let collective = self.collectives.get_mut(&context)?;
        Some((own, collective.host_calls.get_mut(own as usize)?.get_or_insert_default()))
    }

    fn sent(&mut self, rank: u32, context: ContextId, step: u32) {
        self.close(rank, context, step, |open| open.sends = false);
    }

    fn close(&mut self, rank: u32, context: ContextId, step: u32, how: impl Fn(&mut Open)) {
        let Some((_, call)) = self.call_of(rank, context) else { return };
        let Some(open) = call.open.get_mut(&step) else { return };
        how(open);
        if !open.sends && !open.receives {
            call.open.remove(&step);
            call.over += 1;
        }
    }

    /// A note of a collective takes effect; the time that what follows takes.
    pub(super) fn take_of_hosts(&mut self, rank: u32, note: Note) -> u64 {
        let (Note::Ready { context, step }
        | Note::Data { context, step, .. }
        | Note::HasRead { context, step }
        | Note::Copied { context, step, .. }
        | Note::Taken { context, step }) = note
        else {
            return 0;
        };
        let Some((own, call)) = self.call_of(rank, context) else { return 0 };
        if matches!(note, Note::Ready { .. } | Note::Data { .. }) && !call.open.contains_key(&step) {
            call.early.insert(step, note);
            return 0;
        }
        let ps = self.arrive(rank, own, context, note, 0);
        ps + self.advance(rank, own, context, ps)
    }

    /// What has come of a step that is under way; the time that what follows takes.
    fn arrive(&mut self, rank: u32, own: u32, context: ContextId, note: Note, after_ps: u64) -> u64 {
        let post_ps = self.params.processors.rank_post_ps;
        match note {
            Note::Data { step, .. } => {
                self.close(rank, context, step, |open| open.receives = false);
                0
            }
            Note::Taken { step, .. } => {
                self.sent(rank, context, step);
                0
            }
            Note::Ready { step, .. } => {
                let Some((from, bytes)) = self.source(own, context, step) else { return 0 };
                let (from_host, host) = (self.ranks[from as usize].host, self.ranks[rank as usize].host);
                let at_ps = self.now_ps + after_ps + post_ps;
                if from_host == host {
                    // Copied by this processor, as the next thing that it does.
                    self.queue.plan(at_ps, Happening::ToRank(rank, Note::Copied { context, step, bytes }));
                } else {
                    let way_ps = self.network.message_ps(host, from_host);
                    let end = TransferEnd::Rank(rank, Note::HasRead { context, step });
                    let transfer = Transfer { from: Place::Host(from_host), to: Place::Host(host), bytes, end };
                    self.queue.plan(at_ps + way_ps, Happening::Begin(transfer));
                }
                post_ps
            }
            Note::HasRead { step, .. } | Note::Copied { step, .. } => {
                if let Some((from, _)) = self.source(own, context, step) {
                    let hosts = (self.ranks[rank as usize].host, self.ranks[from as usize].host);
                    let at_ps = self.now_ps + after_ps + post_ps + self.network.message_ps(hosts.0, hosts.1);
                    self.queue.plan(at_ps, Happening::ToRank(from, Note::Taken { context, step }));
                }
                self.close(rank, context, step, |open| open.receives = false);
                post_ps
            }
            Note::Copy { .. } | Note::Shared { .. } => 0,
        }
    }

    /// From which rank a step receives, and how many bytes.
    fn source(&self, own: u32, context: ContextId, step: u32) -> Option<(u32, u64)> {
        let collective = self.collectives.get(&context)?;
        let members = collective.has_called.len() as u32;
        let (from, bytes) = exchange(&collective.operation, members, own, step).receive?;
        Some((*self.groups.get(context.group as usize)?.ranks.get(from as usize)?, bytes))
    }
}
