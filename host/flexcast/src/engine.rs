//! How an operation is driven: the protocol's machine decides, this carries out.

use std::collections::BTreeMap;

use flexcast_proto::cutoff::transfer_ps;
use flexcast_proto::wire::Availability;
use flexcast_proto::{Action, Alpha, Body, Cause, Failure, Message, Summary, Terms};

use crate::buffer::Buffer;
use crate::chains::{Order, order};
use crate::communicator::{Communicator, Parts, Posted};
use crate::conductor::{Conductor, Posting};
use crate::config::Config;
use crate::control::{Event, Read};
use crate::error::{Error, Result};
use crate::machine::Machine;
use crate::plan::{Kind, Missing, Plan};
use crate::request::{Done, Phases, Report};

/// Code of [`Cause::Connection`] for a peer that does not keep to the protocol.
const PROTOCOL_VIOLATION: u16 = u16::MAX;
/// Code of [`Cause::Device`] for a lane that does not answer.
const NO_ANSWER: u16 = u16::MAX;
/// Time between two looks for failures of workers.
const CHECK_PS: u64 = 10_000_000;
/// Longest that a worker takes to answer: all that may wait in its rings, many times over.
const WORKER_PS: u64 = 1_000_000_000_000;

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
pub(crate) struct Running<'c> {
    request: u64,
    plan: Plan,
    send: Option<Buffer<'c>>,
    receive: Buffer<'c>,
    /// Its number, alike on all ranks.
    operation: u32,
    collective_id: u32,
    /// When the lanes were told; they have not answered yet while `posted` is false.
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
    /// Since when all ranks are done with this one; its own sends may not be over.
    releasing_ps: Option<u64>,
    /// When workers were last looked at for failures.
    checked_ps: u64,
    /// When the protocol's machine wants to be told the time.
    deadline_ps: u64,
    report: Report,
}

impl Running<'_> {
    /// Address and local key of the own block.
    fn source(&self, own: u32) -> (u64, u32) {
        match &self.send {
            Some(send) => (send.region().addr().get(), send.region().lkey()),
            None => {
                let at = self.plan.block(own).offset;
                (self.receive.region().addr().get() + at, self.receive.region().lkey())
            }
        }
    }
}

fn summary(plan: &Plan, chunk_bytes: u32, chains: u32) -> Summary {
    match &plan.kind {
        Kind::Broadcast { root, bytes } => Summary::broadcast(*root, *bytes, chunk_bytes),
        Kind::Allgather { bytes } => Summary::allgather(*bytes, chunk_bytes, chains),
        Kind::Allgatherv { bytes } => {
            Summary::allgatherv(bytes.iter().chain(plan.displacements()).copied(), chunk_bytes, chains)
        }
    }
}

impl<'c> Communicator<'c> {
    /// Moves the protocol on as far as it goes now; returns whether anything happened. Never blocks.
    ///
    /// # Errors
    /// The failure of a library call; the communicator is of no use afterwards. Failures of operations are theirs
    /// ([`Done::result`](crate::Done::result)).
    pub fn progress(&mut self) -> Result<bool> {
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

    /// Ends everything because of something on this rank.
    pub(crate) fn fail_here(&mut self, cause: Cause) {
        let own = self.place.rank();
        self.parts.machine.fail(Failure { culprit: own, witness: own, cause });
        self.told = true;
    }

    /// Makes an operation the current one: own block in place.
    fn begin(&mut self, posted: Posted<'c>) -> Result<()> {
        let Posted { request, plan, send, mut receive, posted_ps } = posted;
        if let Some(send) = &send {
            let at = plan.block(self.place.rank()).offset;
            copy(send, &mut receive, at as usize)?;
        }
        let report = Report {
            phases: Phases { posted_ps, ..Phases::default() },
            foreign_bytes: plan.foreign_bytes(),
            ..Report::default()
        };
        self.current = Some(Running {
            request,
            plan,
            send,
            receive,
            operation: 0,
            collective_id: 0,
            told_ps: None,
            posted: false,
            received: false,
            sending: Sending::No,
            close: Close::No,
            missing: None,
            reads: BTreeMap::new(),
            availability: BTreeMap::new(),
            failing: None,
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

    /// Looks at what the card's workers have told, and at the clock.
    fn look(&mut self, now_ps: u64, mut moved: bool) -> Result<bool> {
        let Some(running) = self.current.as_mut() else { return Ok(moved) };
        let own = self.place.rank();
        let device = |code: u16| Failure { culprit: own, witness: own, cause: Cause::Device(code) };
        if running.failing.is_none() && now_ps.saturating_sub(running.checked_ps) >= CHECK_PS {
            running.checked_ps = now_ps;
            if let Some((lane, status, detail)) = self.parts.receive.failure()? {
                tracing::error!(lane, ?status, detail, "receive worker failed");
                self.parts.machine.fail(device(status as u16));
                moved = true;
            }
            if let Some(targets) = self.parts.receive.targets_mut()
                && let Some((culprit, status)) = targets.take_broken()?
            {
                self.parts.machine.fail(Failure { culprit, witness: own, cause: Cause::Connection(status as u16) });
                moved = true;
            }
            if running.sending.is_under_way()
                && let Some((thread, status, detail)) = self.parts.send.failure()?
            {
                tracing::error!(thread, ?status, detail, "send worker failed");
                self.parts.machine.fail(device(0x100 | status as u16));
                moved = true;
            }
        }
        let Some(told_ps) = running.told_ps else {
            let on_card = self.parts.machine.is_on_card();
            if running.failing.is_some()
                || !self.parts.receive.is_ready()?
                || (on_card && !self.parts.send.is_free()?)
            {
                return Ok(moved);
            }
            // Every id is in use by packets that may still arrive: later.
            let Ok(collective_id) = self.ids.take(now_ps) else { return Ok(moved) };
            (running.operation, running.collective_id) = (self.parts.machine.operation(), collective_id);
            let (receive, ids) = (&mut running.receive, (running.operation, collective_id));
            let signals = self.parts.machine.conductor().map(Conductor::signals);
            self.parts.receive.arm(&running.plan, own, receive, ids, self.config.chunk_bytes, signals)?;
            running.told_ps = Some(now_ps);
            self.post_on_card()?;
            return Ok(true);
        };
        if !running.posted {
            if self.parts.receive.is_armed()? {
                running.posted = true;
                running.report.phases.armed_ps = Some(now_ps);
                let Order { chains, turn, .. } = order(&running.plan, &self.config, own);
                let terms = terms(&running.plan, &self.config, &self.alpha, self.parts.machine.operation(), chains);
                self.parts.machine.begin(terms, turn, own, now_ps);
                moved = true;
            } else if now_ps.saturating_sub(told_ps) > WORKER_PS {
                self.parts.machine.fail(device(NO_ANSWER));
                moved = true;
            }
            if running.failing.is_none() {
                return Ok(moved);
            }
        }
        if !running.received && running.close == Close::No && self.parts.receive.is_complete()? {
            running.received = true;
            running.report.phases.received_ps = Some(now_ps);
            // The card's own machine has heard of it from the lanes.
            if !self.parts.machine.is_on_card() {
                for root in running.plan.root_ranks() {
                    self.parts.machine.placed(root);
                }
            }
            moved = true;
        }
        if running.sending == Sending::Wanted
            && self.parts.send.is_free()?
            && self.parts.receive.can_be_sent(running.operation)?
        {
            let (source, ids) = (running.source(own), (running.operation, running.collective_id));
            let targets = self.parts.receive.targets();
            self.parts.send.start(&running.plan, source, ids, &self.config, targets, None)?;
            running.sending = Sending::Told;
            running.report.phases.sending_ps = Some(now_ps);
            moved = true;
        }
        if running.sending == Sending::Told && self.parts.send.is_announced()? {
            running.sending = Sending::Announced;
            self.parts.machine.sent();
            moved = true;
        }
        if running.failing.is_none()
            && running.releasing_ps.is_some_and(|since_ps| now_ps.saturating_sub(since_ps) > WORKER_PS)
        {
            self.parts.machine.fail(device(NO_ANSWER));
            moved = true;
        }
        let released = self.parts.machine.conductor().is_some_and(Conductor::is_released);
        if running.sending.is_under_way() && (released || self.parts.send.is_finished()?) {
            running.sending = Sending::Over;
            running.report.phases.sent_ps = Some(now_ps);
            self.parts.machine.sent();
            moved = true;
        }
        self.look_at_clock(now_ps, moved)
    }

    /// Gives the current operation, whose lanes have been told, to a machine on the card, with all that the card needs to carry it out by itself.
    fn post_on_card(&mut self) -> Result<()> {
        let (Some(running), Machine::Device(conductor)) = (self.current.as_mut(), &mut self.parts.machine) else {
            return Ok(());
        };
        let own = self.place.rank();
        let Order { chains, turn, .. } = order(&running.plan, &self.config, own);
        let terms = terms(&running.plan, &self.config, &self.alpha, conductor.operation(), chains);
        let mut send_sequence = 0;
        // A rank alone has nobody to multicast to.
        if turn.is_some() && self.place.ranks() > 1 {
            let (source, ids) = (running.source(own), (running.operation, running.collective_id));
            self.parts.send.start(&running.plan, source, ids, &self.config, None, Some(conductor.signals()))?;
            running.sending = Sending::Told;
            send_sequence = self.parts.send.sequence();
        }
        let region = running.receive.region();
        let here = Availability { address: region.addr().get(), rkey: region.rkey() };
        let receive_sequence = self.parts.receive.sequence();
        conductor.post(&terms, Posting { turn, receive_sequence, send_sequence, here });
        Ok(())
    }

    /// Tells the protocol the time. Before it hears that the cutoff is reached the lanes are closed, so that what is missing then is the
    /// truth and stays so.
    fn look_at_clock(&mut self, now_ps: u64, mut moved: bool) -> Result<bool> {
        let Some(running) = self.current.as_mut() else { return Ok(moved) };
        let own = self.place.rank();
        let due = now_ps >= running.deadline_ps || running.failing.is_some();
        if !due && !moved && matches!(running.close, Close::No | Close::Done) {
            return Ok(false);
        }
        let deadline_ps = self.parts.machine.deadline_ps().unwrap_or(u64::MAX);
        let due = now_ps >= deadline_ps || running.failing.is_some();
        if due && running.close == Close::No && !running.received {
            running.close = Close::Wanted;
            running.report.phases.cut_off_ps = Some(now_ps);
        }
        if running.close == Close::Wanted && self.parts.receive.is_free()? {
            self.parts.receive.close()?;
            running.close = Close::Told { at_ps: now_ps };
            moved = true;
        }
        if let Close::Told { at_ps } = running.close {
            if self.parts.receive.is_closed()? {
                running.close = Close::Done;
                // From here on recovery alone writes to the buffer.
                self.parts.receive.disarm(&mut running.receive);
                if running.failing.is_none() {
                    let missing = self.parts.receive.missing(&running.plan, &self.derived)?;
                    for root in running.plan.root_ranks().filter(|root| !missing.has(*root)) {
                        self.parts.machine.placed(root);
                    }
                    running.report.recovered_chunks = missing.len() as u64;
                    running.report.recovered_bytes = missing.bytes();
                    running.missing = Some(missing);
                }
                moved = true;
            } else if now_ps.saturating_sub(at_ps) > WORKER_PS {
                self.parts.machine.fail(Failure { culprit: own, witness: own, cause: Cause::Device(NO_ANSWER) });
                moved = true;
            }
        }
        let waits = matches!(running.close, Close::Wanted | Close::Told { .. });
        self.parts.machine.handle_time(if waits { now_ps.min(deadline_ps.saturating_sub(1)) } else { now_ps });
        // A time that is due is something told to the machine.
        Ok(moved || (due && !waits))
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
            running.report.phases.ready_ps = self.parts.machine.ready_ps();
            if self.parts.machine.has_everything() {
                running.report.phases.complete_ps.get_or_insert(now_ps);
            }
            if let Some(conductor) = self.parts.machine.conductor() {
                conductor.note_phases(&mut running.report.phases);
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

    /// Whether chunks came after the cutoff of the operation before shows once the workers report again.
    fn notice_late_chunks(&mut self, cut_off: bool) -> Result<()> {
        let late = self.parts.receive.late_chunks()?;
        if self.late_chunks.is_some_and(|before| late > before) {
            self.alpha.came_late();
        }
        self.late_chunks = cut_off.then_some(late);
        Ok(())
    }

    fn release(&mut self, now_ps: u64) -> Result<()> {
        let over = |running: &Running<'_>| {
            running.releasing_ps.is_some() && running.failing.is_none() && !running.sending.is_under_way()
        };
        let Some(mut running) = self.current.take_if(|running| over(running)) else { return Ok(()) };
        let phases = &mut running.report.phases;
        if let Some(conductor) = self.parts.machine.conductor() {
            conductor.note_phases(phases);
        }
        phases.released_ps.get_or_insert(now_ps);
        if let (Some(received_ps), Some(ready_ps)) = (phases.received_ps, phases.ready_ps) {
            let steps_ps = activations_ps(&running.plan, &self.config);
            let took_ps = received_ps.saturating_sub(ready_ps).saturating_sub(steps_ps);
            let bytes = running.plan.link_bytes(&self.config);
            self.alpha.observe(bytes, self.config.link_gbit_per_s, took_ps);
        }
        self.notice_late_chunks(running.close == Close::Done)?;
        self.ids.release(running.collective_id, now_ps);
        self.parts.receive.disarm(&mut running.receive);
        let Running { request, send, receive, report, .. } = running;
        self.finish(request, Done { result: Ok(()), send, receive: Some(receive), report });
        Ok(())
    }

    /// After a failure: gives the buffers back once nothing of the card can reach them any more.
    fn wind_up(&mut self, now_ps: u64) -> Result<bool> {
        let Some(running) = self.current.as_mut() else { return Ok(false) };
        let Some((failure, since_ps)) = running.failing else { return Ok(false) };
        self.parts.control.cancel_reads();
        let lanes = running.told_ps.is_none() || running.received || running.close == Close::Done;
        if running.sending.is_under_way() && self.parts.send.is_free()? && !self.parts.send.is_closing() {
            self.parts.send.close()?;
        }
        let sends = !running.sending.is_under_way();
        let over = lanes && sends && !self.parts.control.reading();
        if !over && now_ps.saturating_sub(since_ps) <= WORKER_PS {
            return Ok(false);
        }
        let Some(mut running) = self.current.take() else { return Ok(false) };
        self.parts.receive.disarm(&mut running.receive);
        let Running { request, plan, send, receive, report, .. } = running;
        let result = Err(Error::Failed { operation: plan.kind.name(), failure });
        let done = if over {
            // Peers may hold its key: the next owner of these bytes gets another one.
            let renew = |buffer: Buffer<'c>| self.card.renew(buffer);
            Done { result, send: send.map(renew).transpose()?, receive: Some(renew(receive)?), report }
        } else {
            self.lost.extend(send);
            self.lost.push(receive);
            Done { result, send: None, receive: None, report }
        };
        self.finish(request, done);
        Ok(true)
    }
}

/// Time that the turns of an operation take beyond the data's own: activations, which queue behind the data of a turn on their way unless
/// they have a higher priority, for which the fabric must have queues of their own.
fn activations_ps(plan: &Plan, config: &Config) -> u64 {
    let Order { chains, steps, .. } = order(plan, config, 0);
    let turn_bytes = plan.receive_bytes() / u64::from(plan.roots().len().max(1)) * u64::from(chains);
    let queued_bytes = if config.control_overtakes() { 0 } else { turn_bytes };
    let turn_ps = config.overheads.activation_ps.saturating_add(transfer_ps(queued_bytes, config.link_gbit_per_s));
    turn_ps.saturating_mul(u64::from(steps.saturating_sub(1)))
}

fn terms(plan: &Plan, config: &Config, alpha: &Alpha, operation: u32, chains: u32) -> Terms {
    let cutoff_ps =
        alpha.cutoff_ps(plan.link_bytes(config), config.link_gbit_per_s).saturating_add(activations_ps(plan, config));
    // What all but the root have lost is handed on from neighbour to neighbour all around the ring.
    let hops_ps = config.overheads.activation_ps.saturating_mul(2 * u64::from(plan.ranks()));
    Terms {
        operation,
        roots: plan.roots(),
        summary: summary(plan, config.chunk_bytes, chains),
        patience_ps: config.patience_ps,
        cutoff_ps,
        bound_ps: cutoff_ps.saturating_mul(3).saturating_add(config.recovery_ps).saturating_add(hops_ps),
    }
}

/// Copies all of one buffer into another.
fn copy(from: &Buffer<'_>, to: &mut Buffer<'_>, offset: usize) -> Result<()> {
    let mut piece = [0; 4096];
    let mut at = 0;
    while at < from.len() {
        let piece = &mut piece[..(from.len() - at).min(4096)];
        from.read(at, piece)?;
        to.write(offset + at, piece)?;
        at += piece.len();
    }
    Ok(())
}
