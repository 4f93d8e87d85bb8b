//! Looking: at what the card's workers have told, and at the clock.

use flexcast_proto::wire::Availability;
use flexcast_proto::{Cause, Failure};

use super::descriptor::descriptor;
use super::{Close, Engine, MULTICAST_CUTOFFS, NO_ANSWER, Sending, WORKER_PS};
use crate::error::Result;
use crate::plan::chains::{Order, order};
use crate::plan::stream::Transport;
use crate::protocol::conductor::{Conductor, Posting};
use crate::protocol::machine::Machine;

/// Time between two looks for failures of workers.
pub(super) const CHECK_PS: u64 = 10_000_000;

impl Engine {
    /// Looks at what the card's workers have told, and at the clock.
    pub(super) fn look(&mut self, now_ps: u64, mut moved: bool) -> Result<bool> {
        let Some(running) = self.current.as_mut() else { return Ok(moved) };
        let own = self.place.rank();
        let device = |code: u16| Failure { culprit: own, witness: own, cause: Cause::Device(code) };
        if running.failing.is_none() && now_ps.saturating_sub(running.checked_ps) >= CHECK_PS {
            running.checked_ps = now_ps;
            if let Err(crash) = self.card.process().check() {
                tracing::error!(%crash, "the process on the card has died");
                running.crash.get_or_insert(crash);
                self.parts.machine.lose(device(super::DIED));
                // Neither receive contexts nor send workers will do anything any more.
                return Ok(true);
            }
            if let Some((context, status, detail)) = self.parts.receive.failure()? {
                tracing::error!(context, ?status, detail, "receive worker failed");
                self.parts.machine.fail(device(status as u16));
                moved = true;
            }
            if let Some((culprit, status)) = self.parts.receive.take_broken()? {
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
            if running.failing.is_some() || !self.parts.receive.is_ready()? || !self.parts.send.is_free()? {
                return Ok(moved);
            }
            // Every id is in use by packets that may still arrive: later.
            let Ok(collective_id) = self.ids.take(now_ps) else { return Ok(moved) };
            (running.operation, running.collective_id) = (self.parts.machine.operation(), collective_id);
            let (receive, ids) = (&mut running.receive, (running.operation, collective_id));
            self.parts.receive.arm(&running.plan, own, receive, ids, self.config.chunk_bytes)?;
            running.told_ps = Some(now_ps);
            // Targets of single ranks are not known yet.
            if !on_card && self.config.transport != Transport::UcUnicast && self.place.ranks() > 1 {
                let order = order(&running.plan, &self.config, own);
                if order.turn.is_some() {
                    self.parts.send.prepare(&running.plan, running.source(own), running.operation)?;
                }
            }
            self.post_on_card()?;
            return Ok(true);
        };
        if !running.posted {
            if self.parts.receive.is_armed()? {
                running.posted = true;
                running.report.phases.0.armed_ps = Some(now_ps);
                let Order { chains, turn, .. } = order(&running.plan, &self.config, own);
                let descriptor =
                    descriptor(&running.plan, &self.config, &self.alpha, self.parts.machine.operation(), chains);
                running.cutoff_ps = descriptor.cutoff_ps;
                self.parts.machine.begin(descriptor, turn, own, now_ps);
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
            running.report.phases.0.received_ps = Some(now_ps);
            // The card's own machine has heard of it from the receive contexts.
            if !self.parts.machine.is_on_card() {
                for root in running.plan.root_ranks() {
                    self.parts.machine.delivered(root);
                }
            }
            moved = true;
        }
        let ready_ps = self.parts.machine.ready_ps().unwrap_or(now_ps);
        let in_vain = now_ps.saturating_sub(ready_ps) >= running.cutoff_ps.saturating_mul(MULTICAST_CUTOFFS);
        if in_vain && running.sending == Sending::Wanted {
            running.sending = Sending::Over;
            running.report.phases.0.sent_ps = Some(now_ps);
            self.parts.machine.sent();
            moved = true;
        }
        if running.sending == Sending::Wanted
            && self.parts.send.is_free()?
            && self.parts.receive.are_targets_known(running.operation)?
        {
            let (source, ids) = (running.source(own), (running.operation, running.collective_id));
            let targets = self.parts.receive.targets();
            self.parts.send.start(&running.plan, source, ids, &self.config, targets, false)?;
            running.sending = Sending::Told;
            running.report.phases.0.sending_ps = Some(now_ps);
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
            running.report.phases.0.sent_ps = Some(now_ps);
            self.parts.machine.sent();
            moved = true;
        }
        if in_vain && running.sending.is_under_way() && !self.parts.send.is_closing() && self.parts.send.is_free()? {
            self.parts.send.close()?;
        }
        self.look_at_clock(now_ps, moved)
    }

    /// Gives the current operation, whose receive contexts have been told, to a machine on the card, with all that the card needs to carry it out by itself.
    fn post_on_card(&mut self) -> Result<()> {
        let (Some(running), Machine::Device(conductor)) = (self.current.as_mut(), &mut self.parts.machine) else {
            return Ok(());
        };
        let own = self.place.rank();
        let Order { chains, turn, .. } = order(&running.plan, &self.config, own);
        let descriptor = descriptor(&running.plan, &self.config, &self.alpha, conductor.operation(), chains);
        running.cutoff_ps = descriptor.cutoff_ps;
        let mut send_sequence = 0;
        // A rank alone has nobody to multicast to.
        if turn.is_some() && self.place.ranks() > 1 {
            let (source, ids) = (running.source(own), (running.operation, running.collective_id));
            self.parts.send.start(&running.plan, source, ids, &self.config, None, true)?;
            running.sending = Sending::Told;
            send_sequence = self.parts.send.sequence();
        }
        let region = running.receive.region();
        let here = Availability { address: region.addr().get(), rkey: region.rkey() };
        let receive_sequence = self.parts.receive.sequence();
        conductor.post(&descriptor, Posting { turn, receive_sequence, send_sequence, here });
        Ok(())
    }

    /// Tells the protocol the time. Before it hears that the cutoff is reached the receive contexts are closed, so that what is missing then is the
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
            running.report.phases.0.cut_off_ps = Some(now_ps);
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
                        self.parts.machine.delivered(root);
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
}
