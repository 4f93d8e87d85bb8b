//! Progress engine: the protocol's state machine decides, this carries out. What it is told of comes from peers (here),
//! from the card and the clock (`look`); `descriptor` and `end` are an operation's beginning and end.

mod descriptor;
mod end;
mod look;
mod state;

use std::collections::BTreeMap;

use flexcast_proto::wire::Availability;
use flexcast_proto::{Action, Body, Cause, Failure, Message};

use crate::api::buffer::Buffer;
use crate::api::report::{Phases, PhasesPs, Report};
use crate::error::Result;
use crate::plan::{Missing, Plan};
use crate::protocol::control::{Event, Read};
use crate::protocol::machine::Machine;
pub(crate) use state::{Engine, Parts, Posted, Units};

/// Code of [`Cause::Connection`] for a peer that does not keep to the protocol.
const PROTOCOL_VIOLATION: u16 = u16::MAX;
/// Code of [`Cause::Device`] for a receive context that does not answer.
const NO_ANSWER: u16 = u16::MAX;
/// Code of [`Cause::Device`] for a DPA process that has died.
const DIED: u16 = u16::MAX - 1;
/// Longest that a worker takes to answer: all that may wait in its rings, many times over.
const WORKER_PS: u64 = 1_000_000_000_000;
/// A root stops its multicast this many cutoffs after the barrier. The other ranks have closed their receive contexts after one and fetch what they
/// miss, so what is sent later reaches nobody; until the second one late chunks still tell them that their cutoff is too short.
const MULTICAST_CUTOFFS: u64 = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Close {
    No,
    Wanted,
    Told { at_ps: u64 },
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    No,
    Wanted,
    Told,
    /// So little is left that the next root has been activated.
    Announced,
    Over,
}

impl Sending {
    /// Whether the card may still read the source.
    const fn is_under_way(self) -> bool {
        matches!(self, Sending::Told | Sending::Announced)
    }
}

/// The operation under way.
#[derive(Debug)]
pub(crate) struct Running {
    request: u64,
    plan: Plan,
    send: Option<Buffer>,
    /// The own block once more, where it cannot be sent from its place in the receive buffer.
    copied: Option<Buffer>,
    receive: Buffer,
    /// Its number, alike on all ranks.
    operation: u32,
    collective_id: u32,
    /// How long after the barrier multicast is waited for, in picoseconds; not known before the operation is posted.
    cutoff_ps: u64,
    /// When the receive contexts were told; they have not answered yet while `posted` is false.
    told_ps: Option<u64>,
    posted: bool,
    received: bool,
    sending: Sending,
    close: Close,
    missing: Option<Missing>,
    /// Reads under way of each block, and where it can be read.
    reads: BTreeMap<u32, u32>,
    availability: BTreeMap<u32, Availability>,
    failing: Option<(Failure, u64)>,
    /// Why the process on the card has died, if it has: nothing of it will answer any more.
    crash: Option<flexio::Error>,
    /// Since when all ranks are done with this one; its own sends may not be over.
    releasing_ps: Option<u64>,
    /// When workers were last looked at for failures.
    checked_ps: u64,
    /// When the protocol's machine wants to be told the time.
    deadline_ps: u64,
    report: Report,
}

impl Running {
    /// Address and local key of the own block.
    fn source(&self, own: u32) -> (u64, u32) {
        match self.send.as_ref().or(self.copied.as_ref()) {
            Some(send) => (send.region().addr().get(), send.region().lkey()),
            None => {
                let at = self.plan.block(own).offset;
                (self.receive.region().addr().get() + at, self.receive.region().lkey())
            }
        }
    }
}

impl Engine {
    /// Moves the protocol on as far as it goes now; returns whether anything happened. Never blocks.
    pub(crate) fn progress(&mut self) -> Result<bool> {
        let moved = self.advance();
        if moved.is_err() {
            // Whoever waits is to look by itself: nothing may end any more.
            (self.useless, self.ended) = (true, true);
        }
        moved
    }

    fn advance(&mut self) -> Result<bool> {
        if let Some(error) = self.trouble.take() {
            return Err(error);
        }
        let now_ps = self.card.now_ps();
        let mut moved = self.parts.machine.take(now_ps)? | self.take_events()? | std::mem::take(&mut self.told);
        if let Some(conductor) = self.parts.machine.conductor() {
            self.messages = conductor.messages();
        }
        if self.current.is_none()
            && self.broken.is_none()
            && let Some(posted) = self.waiting.pop_front()
        {
            self.begin(posted)?;
            moved = true;
        }
        if self.current.is_some() {
            moved |= self.look(now_ps, moved)?;
        }
        // The protocol's machine has nothing new to say unless something has been told to it.
        if moved {
            self.carry_out(now_ps)?;
        }
        self.release(now_ps)?;
        moved |= self.wind_up(now_ps)?;
        self.parts.machine.give(now_ps)?;
        Ok(moved)
    }

    /// When [`Engine::progress`] is to be called next, even if neither peers nor card have written anything until then, in picoseconds of the
    /// card's clock; none if nothing is under way.
    pub(crate) fn deadline_ps(&self) -> Option<u64> {
        let begins = self.current.is_none() && !self.waiting.is_empty();
        if begins || self.trouble.is_some() || self.told {
            return Some(0);
        }
        let running = self.current.as_ref()?;
        Some(running.deadline_ps.min(running.checked_ps.saturating_add(look::CHECK_PS)))
    }

    /// Ends everything because of something on this rank.
    pub(crate) fn fail_here(&mut self, cause: Cause) {
        let own = self.place.rank();
        self.parts.machine.fail(Failure { culprit: own, witness: own, cause });
        self.told = true;
    }

    /// The own block of an operation in place, copied to where nobody writes, if Writes of this rank come back to the receive buffer. All
    /// of a Broadcast is the root's, whose card gets no key for it.
    fn copy_of_source(&self, plan: &Plan, receive: &Buffer) -> Result<Option<Buffer>> {
        let (own, foreign) = (plan.receive_bytes() - plan.foreign_bytes(), plan.foreign_bytes());
        if own == 0 || foreign == 0 || !self.parts.send.writes_come_back() {
            return Ok(None);
        }
        let block = plan.block(self.place.rank());
        let mut copied = self.card.buffer(block.bytes as usize)?;
        copy((receive, block.offset as usize), (&mut copied, 0), block.bytes as usize)?;
        Ok(Some(copied))
    }

    /// Makes an operation the current one: own block in place.
    fn begin(&mut self, posted: Posted) -> Result<()> {
        let Posted { request, plan, send, mut receive, posted_ps } = posted;
        let copied = match &send {
            Some(send) => {
                let at = plan.block(self.place.rank()).offset;
                copy((send, 0), (&mut receive, at as usize), send.len())?;
                None
            }
            None => self.copy_of_source(&plan, &receive)?,
        };
        let report = Report {
            phases: Phases(PhasesPs { posted_ps, ..PhasesPs::default() }),
            foreign_bytes: plan.foreign_bytes(),
            ..Report::default()
        };
        self.current = Some(Running {
            request,
            plan,
            send,
            copied,
            receive,
            operation: 0,
            collective_id: 0,
            cutoff_ps: u64::MAX,
            told_ps: None,
            posted: false,
            received: false,
            sending: Sending::No,
            close: Close::No,
            missing: None,
            reads: BTreeMap::new(),
            availability: BTreeMap::new(),
            failing: None,
            crash: None,
            releasing_ps: None,
            checked_ps: 0,
            deadline_ps: u64::MAX,
            report,
        });
        Ok(())
    }

    /// Takes messages and finished reads.
    fn take_events(&mut self) -> Result<bool> {
        let Self { parts: Parts { control, machine, .. }, current, codec, place, .. } = self;
        let own = place.rank();
        control.poll(|_, event| {
            match event {
                Event::Message { from, bytes } => {
                    let violation =
                        Failure { culprit: from, witness: own, cause: Cause::Connection(PROTOCOL_VIOLATION) };
                    let control = match codec.decode(bytes) {
                        Ok(control) => control,
                        Err(error) => {
                            tracing::error!(from, %error, "message refused");
                            machine.fail(violation);
                            return Ok(());
                        }
                    };
                    if let Some(running) = current.as_mut() {
                        match (control.message.body, control.availability) {
                            (Body::Acknowledge { block }, Some(availability)) => {
                                running.availability.insert(block, availability);
                            }
                            (Body::Fetch { .. }, _) => running.report.fetches_served += 1,
                            _ => {}
                        }
                    }
                    if let Machine::Host(participant) = machine
                        && let Err(error) = participant.handle(from, control.message)
                    {
                        tracing::error!(from, %error, "message refused");
                        machine.fail(violation);
                    }
                }
                Event::Read { tag: block } => {
                    if let Some(running) = current.as_mut()
                        && let Some(left) = running.reads.get_mut(&block)
                    {
                        *left -= 1;
                        if *left == 0 {
                            machine.read(block);
                        }
                    }
                }
                Event::Broken { rank, status } => {
                    machine.fail(Failure { culprit: rank, witness: own, cause: Cause::Connection(status as u16) });
                }
            }
            Ok(())
        })
    }

    /// Does what the protocol asks for.
    fn carry_out(&mut self, now_ps: u64) -> Result<()> {
        while let Some(action) = self.parts.machine.poll() {
            match action {
                Action::Send { to, message } => self.send_message(to, message)?,
                Action::Multicast => {
                    if let Some(running) = self.current.as_mut() {
                        running.sending = Sending::Wanted;
                    }
                    self.look(now_ps, false)?;
                }
                Action::Read { from, block } => {
                    if let Some(conductor) = self.parts.machine.conductor()
                        && let Some(running) = self.current.as_mut()
                    {
                        running.availability.insert(block, conductor.availability());
                    }
                    self.fetch(from, block)?;
                }
                Action::Release => {
                    if let Some(running) = self.current.as_mut() {
                        running.releasing_ps = Some(now_ps);
                    }
                }
                Action::Fail(failure) => {
                    self.broken = Some(failure);
                    // One that is being released has ended well on all ranks: only its own sends can still fail it.
                    let own = matches!(failure.cause, Cause::Device(_)) && failure.witness == self.place.rank();
                    if let Some(running) = self.current.as_mut()
                        && (own || running.releasing_ps.is_none())
                    {
                        running.failing = Some((failure, now_ps));
                        running.report.failure = Some(failure);
                    }
                    self.refuse_waiting(failure);
                    self.look(now_ps, false)?;
                }
            }
        }
        if let Some(running) = self.current.as_mut() {
            running.deadline_ps = self.parts.machine.deadline_ps().unwrap_or(u64::MAX);
            running.report.phases.0.ready_ps = self.parts.machine.ready_ps();
            if self.parts.machine.has_everything() {
                running.report.phases.0.complete_ps.get_or_insert(now_ps);
            }
            if let Some(conductor) = self.parts.machine.conductor() {
                conductor.note_phases(&mut running.report.phases.0);
                running.report.fetches_served = conductor.fetches();
            }
        }
        Ok(())
    }

    fn send_message(&mut self, to: u32, message: Message) -> Result<()> {
        let counts = &mut self.messages;
        *match message.body {
            Body::Barrier { .. } => &mut counts.barrier,
            Body::Activate => &mut counts.activate,
            Body::Fetch { .. } => &mut counts.fetch,
            Body::Acknowledge { .. } => &mut counts.acknowledge,
            Body::Final => &mut counts.last,
            Body::Failed(_) => &mut counts.failed,
        } += 1;
        let availability = self.current.as_ref().map_or_else(Availability::default, |running| Availability {
            address: running.receive.region().addr().get(),
            rkey: running.receive.region().rkey(),
        });
        let encoded = self.codec.encode(&message, availability);
        self.parts.control.send(to, encoded.as_bytes())
    }

    /// Begins to read what is missing of a block.
    fn fetch(&mut self, from: u32, block: u32) -> Result<()> {
        let Some(running) = self.current.as_mut() else { return Ok(()) };
        let runs = running.missing.as_ref().map(|missing| missing.runs(block)).unwrap_or_default();
        let Some(at) = running.availability.get(&block).copied().filter(|_| !runs.is_empty()) else {
            self.parts.machine.read(block);
            return Ok(());
        };
        running.reads.insert(block, runs.len() as u32);
        running.report.reads += runs.len() as u64;
        for run in runs {
            let local = running.receive.region().slice(run.offset, run.bytes as u32)?;
            let remote_addr = at.address + run.offset;
            self.parts.control.read(Read { from, local, remote_addr, rkey: at.rkey, tag: block })?;
        }
        Ok(())
    }
}

/// Copies bytes from a place in one buffer to a place in another.
fn copy((from, start): (&Buffer, usize), (to, offset): (&mut Buffer, usize), len: usize) -> Result<()> {
    let mut piece = [0; 4096];
    let mut at = 0;
    while at < len {
        let piece = &mut piece[..(len - at).min(4096)];
        from.read(start + at, piece)?;
        to.write(offset + at, piece)?;
        at += piece.len();
    }
    Ok(())
}
