//! Progress engine: carries out what the protocol's driver decides.
//!
//! It gives operations to the card (`start`), polls the card's workers (`poll`) and the clock (`clock`), notifies the
//! driver of what it finds, looks for what is lost (`look`), does the driver's steps (here), and gives buffers back
//! (`end`).

mod between_pairs;
mod clock;
mod direct;
mod end;
mod look;
mod operation;
mod poll;
mod start;
mod state;

use flexcast_proto::wire::Availability;
use flexcast_proto::{Cause, Failure, PieceSet};

use crate::carrier::control::Read;
use crate::carrier::datapath::Datapath as _;
use crate::carrier::pairs::PairEngine as _;
use crate::engine::notice::{Notice, Step};
use crate::error::Result;
use crate::p2p;
pub(crate) use operation::Running;
use operation::{Fault, Sending, State};
pub(crate) use state::{Engine, Parts};

/// Longest that a worker takes to answer: all that may wait in its rings, many times over.
const WORKER_PS: u64 = 1_000_000_000_000;
/// A root whose send threads have posted nothing for this many cutoffs, and to which nothing comes any more, stops its
/// own multicast: the others have closed their receive contexts by then, and fetch what they miss.
const STUCK_CUTOFFS: u64 = 2;

impl Engine {
    /// Moves the protocol on as far as it goes now; returns whether anything happened. Never blocks.
    pub(super) fn move_on(&mut self) -> Result<bool> {
        self.core.check_fault()?;
        let now_ps = self.card.now_ps();
        self.polled_ps = now_ps;
        let mut moved = self.parts.driver.poll(now_ps)? | std::mem::take(&mut self.notified);
        if let Some(posted) = self.core.next(self.is_free()) {
            let request = posted.request;
            if let Err(failed) = self.launch(posted, now_ps) {
                self.core.requests.finish(request, Err(failed));
            }
            moved = true;
        }
        if self.current.is_some() {
            moved |= self.poll(now_ps, moved)?;
        }
        moved |= self.poll_pairs(now_ps);
        // The protocol's state machine has nothing new to say unless it has been notified of something.
        if moved {
            self.do_steps(now_ps)?;
        }
        self.release(now_ps)?;
        moved |= self.wind_up(now_ps)?;
        moved |= self.end_pairs(now_ps)?;
        self.parts.driver.flush(now_ps)?;
        Ok(moved)
    }

    /// When [`Engine::move_on`] is to be called next, even if neither peers nor card have written anything until then,
    /// in picoseconds of the card's clock; none if nothing is under way.
    pub(super) fn next_ps(&self) -> Option<u64> {
        if self.core.is_due(self.is_free()) || self.notified {
            return Some(0);
        }
        let probe_ps = self.parts.pairs.group.as_ref().and_then(p2p::Group::deadline_ps);
        let probe_ps = probe_ps.into_iter().chain(self.parts.pairs.deadline_ps()).min();
        let flush_ps = self.parts.driver.flush_ps().into_iter().chain(probe_ps).min();
        let Some(running) = self.current.as_ref() else { return flush_ps };
        let due_ps = running.stalled_ps(self.stall).unwrap_or(running.deadline_ps);
        let look_ps = running.look_ps(self.stall, self.is_over_for_neighbour(), self.polled_ps);
        let due_ps = due_ps.min(look_ps.unwrap_or(u64::MAX));
        Some(due_ps.min(running.checked_ps.saturating_add(poll::CHECK_PS)).min(flush_ps.unwrap_or(u64::MAX)))
    }

    /// Ends everything because of something on this rank.
    pub(super) fn end_all(&mut self, cause: Cause) {
        let own = self.core.place.rank();
        let failure = Failure { failed_rank: own, detecting_rank: own, cause };
        self.parts.driver.notify(self.card.now_ps(), Notice::Failed(failure));
        self.notified = true;
    }

    /// Does what the protocol asks for.
    fn do_steps(&mut self, now_ps: u64) -> Result<()> {
        while let Some(step) = self.parts.driver.next()? {
            match step {
                Step::Multicast => {
                    if let Some(sides) = self.current.as_mut().and_then(|running| running.state.sides_mut()) {
                        sides.sending = Sending::Requested;
                    }
                    self.poll_send(now_ps)?;
                }
                Step::Read { from, pieces, at } => self.fetch(from, &pieces, at)?,
                Step::Release => {
                    if let Some(running) = self.current.as_mut() {
                        running.state.release(now_ps);
                    }
                    if let Some(exchange) = self.parts.pairs.exchange.as_mut() {
                        exchange.state.release();
                    }
                }
                Step::SendsFinished => self.finish_sends(now_ps),
                Step::Fail(failure) => self.fail(now_ps, failure)?,
            }
        }
        if let Some(running) = self.current.as_mut() {
            running.deadline_ps = self.parts.driver.deadline_ps().unwrap_or(u64::MAX);
            self.parts.driver.note(now_ps, &mut running.report);
        }
        if let Some(exchange) = self.parts.pairs.exchange.as_mut() {
            exchange.deadline_ps = self.parts.driver.deadline_ps().unwrap_or(u64::MAX);
            self.parts.driver.note(now_ps, &mut exchange.report);
        }
        self.close_repaired(now_ps);
        Ok(())
    }

    /// The operation under way fails, and the communicator with it.
    fn fail(&mut self, now_ps: u64, failure: Failure) -> Result<()> {
        self.core.fail(failure, self.parts.driver.disagreement());
        // One that is being released has ended well on all ranks: only its own sends can still fail it.
        let own = matches!(failure.cause, Cause::Device(_)) && failure.detecting_rank == self.core.place.rank();
        if let Some(running) = self.current.as_mut()
            && (own || !matches!(running.state, State::Releasing { .. }))
        {
            running.state.fail(Fault { failure, since_ps: now_ps, crash: None });
            running.report.failure = Some(failure);
        }
        self.parts.pairs.fail(failure, now_ps);
        self.core.refuse_waiting(failure);
        self.poll_clock(now_ps, false)?;
        Ok(())
    }

    /// Begins to read what is missing of pieces.
    fn fetch(&mut self, from: u32, pieces: &PieceSet, at: Option<Availability>) -> Result<()> {
        let Some(running) = self.current.as_mut() else { return Ok(()) };
        let mut groups = vec![(*pieces, Vec::new())];
        if at.is_some()
            && let Some(missing) = running.missing.as_ref().or(running.gaps.as_ref().map(|gaps| &gaps.lost))
        {
            groups = missing.groups(&running.plan, &running.pieces, pieces);
        }
        let Availability { address, rkey } = at.unwrap_or_default();
        for (group, runs) in groups {
            let Some(tag) = group.first() else { continue };
            let region = running.receive.region()?;
            let reads = runs.iter().map(|run| {
                let local = region.slice(run.offset, run.bytes as u32)?;
                Ok(Read { from, local, remote_addr: address + run.offset, rkey, tag })
            });
            let reads: Vec<Read> = reads.collect::<Result<_>>()?;
            running.report.reads += reads.len() as u64;
            self.parts.driver.fetch(group, &reads)?;
        }
        Ok(())
    }
}
