//! Search for the reasons why programs are stuck: see [`Diagnosis`].
//!
//! Nothing here takes virtual time or changes a result. What costs something happens seldom: queues are checked a few
//! times in each span after which one is stuck, and a thread is watched for a moment once it has run for so long.

use emu_nic::{AsyncEvent, CqProgress, CqTarget, FailureCause, RefusedEntry, Space};

use super::World;
use crate::dpa::crash::ANNOUNCED;
use crate::dpa::thread::{Attention, Thread, ThreadKind, ThreadState};
use crate::observe::diagnosis::{Diagnosis, Gone, Lock, MAX_DIAGNOSES, Symptom, Waits};
use crate::observe::record::What;
use crate::observe::sample::{Sample, Spin};
use crate::observe::watch::Watch;
use crate::time::{cycles_to_ps, ps_to_cycles};

/// Checks of queues in the span after which one is stuck.
const CHECKS: u64 = 8;
/// Cycles for which a thread is watched that does not end.
const SAMPLE_CYCLES: u64 = 20_000;
/// Polls of a machine in which nothing is due, at one virtual instant, after which what waits will wait for ever.
const IDLE_POLLS: u32 = 10_000;

impl World {
    /// When queues are to be checked next.
    pub(crate) fn next_check_ps(&self) -> u64 {
        self.now_ps.saturating_add((self.config.stuck_ps / CHECKS).max(1))
    }

    /// The probes are due: the observer wants the state, or queues are to be checked.
    #[cold]
    pub(crate) fn serve_probes(&mut self) {
        if self.now_ps >= self.probes.check_due_ps {
            self.check_queues(false);
            self.probes.check_due_ps = self.next_check_ps();
        }
        if self.now_ps >= self.probes.state_due_ps {
            self.publish_state();
        }
        self.probes.update_due();
    }

    /// A host polls, and nothing is due.
    #[cold]
    pub(crate) fn polled_idly(&mut self) {
        let (at_ps, polls) = &mut self.probes.idle;
        if *at_ps != self.now_ps {
            (*at_ps, *polls) = (self.now_ps, 0);
        }
        *polls = polls.saturating_add(1);
        if *polls == IDLE_POLLS {
            self.check_queues(true);
        }
    }

    pub(crate) fn diagnose(&mut self, card: usize, (process, thread): (u32, Option<u32>), symptom: Symptom) {
        let key = match &symptom {
            Symptom::Overrun { cqn, .. } => (card, 0, *cqn),
            Symptom::Unarmed { cqn, .. } => (card, 1, *cqn),
            Symptom::NeverRun { cqn, .. } => (card, 10, *cqn),
            Symptom::NotReady { qpn, .. } => (card, 2, *qpn),
            Symptom::Refused(entry) => (card, 3, entry.qpn),
            Symptom::Endless { .. } => (card, 4, thread.unwrap_or_default()),
            Symptom::Gone(Gone::Memory { number, .. }) => (card, 7, *number),
            Symptom::Gone(Gone::Key { entry, .. }) => (card, 8, entry.qpn),
            Symptom::Gone(Gone::Window { window }) => (card, 9, *window),
            Symptom::Failed(AsyncEvent::QpFatal { qpn: number, .. }) => (card, 5, *number),
            Symptom::Failed(AsyncEvent::CqError { cqn: number, .. } | AsyncEvent::UnknownQueue { number }) => {
                (card, 6, *number)
            }
            Symptom::Failed(AsyncEvent::SrqError { srqn: number, .. } | AsyncEvent::SrqLimit { srqn: number }) => {
                (card, 11, *number)
            }
            Symptom::Failed(AsyncEvent::LastReceive { qpn: number }) => (card, 12, *number),
        };
        if !self.probes.diagnosed.insert(key) {
            return;
        }
        let at_ps = self.now_ps;
        let on = &self.cards[card];
        let entry = |id: u32| {
            let process = on.processes.get(&process)?;
            Some((id, process.entry_symbol(process.threads.get(&id)?)))
        };
        let queues = thread.map_or_else(Vec::new, |id| on.queues_of(id));
        let diagnosis = Diagnosis { card, process, thread: thread.and_then(entry), queues, symptom, at_ps };
        tracing::warn!(target: ANNOUNCED, "{diagnosis}");
        if let Some(recorder) = &mut self.probes.recorder {
            recorder.push(at_ps, card, thread, What::Diagnosis(diagnosis.clone()));
        }
        if let Some(fault_sink) = &mut self.probes.fault_sink {
            fault_sink.diagnosed(&diagnosis);
        }
        if self.probes.diagnoses.len() < MAX_DIAGNOSES {
            self.probes.diagnoses.push(diagnosis);
        }
        self.publish_state();
    }

    /// Process and thread that a completion queue belongs to, if they are the DPA's.
    fn owner_of_cq(&self, card: usize, cqn: u32) -> Option<(u32, Option<u32>)> {
        let card = &self.cards[card];
        let attr = card.nic.query_cq(cqn)?;
        let thread = match attr.target {
            CqTarget::DpaThread(thread) => Some(thread).filter(|thread| card.owners.contains_key(thread)),
            CqTarget::None | CqTarget::Channel(_) => None,
        };
        match (thread.and_then(|thread| card.owners.get(&thread)), attr.ring.space) {
            (Some(&process), _) | (None, Space::Dpa(process)) => Some((process, thread)),
            (None, _) => None,
        }
    }

    /// A queue has failed. A queue pair that fails with its completion queue, or for a peer, needs no diagnosis.
    pub(crate) fn explain_failure(&mut self, card: usize, event: AsyncEvent) {
        let nic = &self.cards[card].nic;
        let found = match event {
            AsyncEvent::CqError { cqn, cause } => self.owner_of_cq(card, cqn).zip(nic.cq_progress(cqn)).map(
                |(owner, CqProgress { depth, consumer, written, .. })| match cause {
                    // Nobody could report an index where the thread was never started, or not once more.
                    FailureCause::Overrun { .. } => self
                        .unnoticed(card, cqn, true)
                        .unwrap_or((owner, Symptom::Overrun { cqn, depth, consumer, written })),
                    _ => (owner, Symptom::Failed(event)),
                },
            ),
            AsyncEvent::QpFatal { qpn, cause: FailureCause::BadDoorbell { .. } | FailureCause::QueueMemory { .. } } => {
                self.owner_of_qp(card, qpn).map(|owner| (owner, Symptom::Failed(event)))
            }
            AsyncEvent::QpFatal { .. } | AsyncEvent::UnknownQueue { .. } | AsyncEvent::SrqError { .. } => None,
            // These are no failures.
            AsyncEvent::SrqLimit { .. } | AsyncEvent::LastReceive { .. } => return,
        };
        match found {
            Some((owner, symptom)) => self.diagnose(card, owner, symptom),
            None => tracing::warn!("queue failure on card {card}: {event}"),
        }
    }

    /// Process and thread that a queue pair belongs to, if it is the DPA's.
    pub(crate) fn owner_of_qp(&self, card: usize, qpn: u32) -> Option<(u32, Option<u32>)> {
        let attr = self.cards[card].nic.query_qp(qpn).ok()?.attr;
        let Space::Dpa(process) = attr.doorbell_record.space else { return None };
        let owners = [attr.recv_cq, attr.send_cq].map(|cqn| self.owner_of_cq(card, cqn));
        let with_thread = owners.into_iter().flatten().find(|(_, thread)| thread.is_some());
        Some(with_thread.unwrap_or((process, None)))
    }

    /// The card cannot execute an entry. Those of queues in host memory are their program's affair, which has the
    /// completion.
    pub(crate) fn explain_refused(&mut self, card: usize, entry: RefusedEntry) {
        let Ok(query) = self.cards[card].nic.query_qp(entry.qpn) else { return };
        let (ring, cqn) =
            if entry.is_send { (query.attr.sq, query.attr.send_cq) } else { (query.attr.rq, query.attr.recv_cq) };
        let Space::Dpa(process) = ring.space else { return };
        let owner = self.owner_of_cq(card, cqn).unwrap_or((process, None));
        self.diagnose(card, owner, Symptom::Refused(entry));
    }

    /// Checks whether queues are stuck. `idle`: nothing will happen any more unless the host acts.
    fn check_queues(&mut self, idle: bool) {
        for card in 0..self.cards.len() {
            self.check_receives(card);
            self.check_arming(card, idle);
        }
    }

    fn check_receives(&mut self, card: usize) {
        let nic = &self.cards[card].nic;
        let stuck = |qpn: u32| {
            let not_ready = nic.not_ready(qpn)?;
            let for_ps = self.now_ps.saturating_sub(not_ready.since_ps);
            let attr = nic.query_qp(qpn).ok()?.attr;
            let Space::Dpa(process) = attr.rq.space else { return None };
            let owner = self.owner_of_cq(card, attr.recv_cq).unwrap_or((process, None));
            (for_ps >= self.config.stuck_ps).then_some((owner, Symptom::NotReady { qpn, naks: not_ready.naks, for_ps }))
        };
        let found: Vec<_> = nic.queue_pairs(0).filter_map(stuck).collect();
        for (owner, symptom) in found {
            self.diagnose(card, owner, symptom);
        }
    }

    fn check_arming(&mut self, card: usize, idle: bool) {
        let queues = self.cards[card].nic.completion_queues(|attr| matches!(attr.target, CqTarget::DpaThread(_)));
        let found: Vec<_> = queues.into_iter().filter_map(|cqn| self.unnoticed(card, cqn, idle)).collect();
        for (owner, symptom) in found {
            self.diagnose(card, owner, symptom);
        }
    }

    /// Entries that the thread of a completion queue does not learn of: whose they are, and why. `at_once`: however
    /// short a time they have been there.
    fn unnoticed(&self, card: usize, cqn: u32, at_once: bool) -> Option<((u32, Option<u32>), Symptom)> {
        let on = &self.cards[card];
        let progress = on.nic.cq_progress(cqn)?;
        let owner @ (process, Some(id)) = self.owner_of_cq(card, cqn)? else { return None };
        let thread = on.processes.get(&process)?.threads.get(&id)?;
        let is_long = |since_ps: u64| at_once || self.now_ps.saturating_sub(since_ps) >= self.config.stuck_ps;
        if thread.state == ThreadState::Created {
            let since_ps = progress.unannounced.map_or(self.now_ps, |(_, since_ps)| since_ps);
            let symptom = Symptom::NeverRun { cqn, entries: progress.written };
            return (progress.written > 0 && is_long(since_ps)).then_some((owner, symptom));
        }
        let (entries, since_ps) = progress.unannounced.filter(|_| !progress.armed && progress.events > 0)?;
        // Whoever is woken by other threads, or by another of its queues, may poll this one.
        let waits = thread.state == ThreadState::Waiting && !thread.pending && !thread.is_woken_by_threads;
        let armed = |cqn: u32| on.nic.cq_progress(cqn).is_some_and(|progress| progress.armed);
        let forgotten = waits && is_long(since_ps) && !on.queues_of(id).into_iter().any(armed);
        forgotten.then_some((owner, Symptom::Unarmed { cqn, entries }))
    }

    /// A thread has come to the cycle at which it has to be examined. Returns whether it goes on.
    pub(crate) fn examine(&mut self, card: usize, id: u32) -> bool {
        let Ok(thread) = self.cards[card].thread(id) else { return false };
        let watchdog_cycles = ps_to_cycles(self.config.watchdog(thread.kind).0);
        let end = thread.started_cycles.saturating_add(watchdog_cycles);
        let cycles = thread.hart.cycles;
        if cycles >= end {
            return false;
        }
        let (next, due) = match thread.attention {
            // Cores under a timing model have no observer.
            Attention::None if self.config.timing.is_none() => {
                self.start_sampling(card, id);
                (Attention::Sampled, end.min(cycles + SAMPLE_CYCLES))
            }
            Attention::None | Attention::Sampled => {
                self.explain_endless(card, id);
                self.stop_sampling(card, id);
                (Attention::Reported, end)
            }
            Attention::Reported => (Attention::Reported, end),
        };
        if let Ok(thread) = self.cards[card].thread_mut(id) {
            thread.attention = next;
            thread.due_cycles = due;
            let eu = thread.port.eu;
            if let Some(timed) = self.cards[card].cores.timed.as_deref_mut() {
                timed.set_due(eu, due);
            }
        }
        self.resume(cycles, card, id);
        true
    }

    fn start_sampling(&mut self, card: usize, id: u32) {
        let Some(&process) = self.cards[card].owners.get(&id) else { return };
        let watch = self.watch.get_or_insert_with(|| Box::new(Watch { weak: None, races: None, sample: None }));
        let sample = watch.sample.get_or_insert_with(|| Sample::new((card, process)));
        sample.users.insert((card, id));
    }

    /// A thread needs the sample no more: it has been reported, or has ended after all.
    pub(crate) fn stop_sampling(&mut self, card: usize, id: u32) {
        let Some(watch) = self.watch.as_deref_mut() else { return };
        let Some(sample) = &mut watch.sample else { return };
        sample.users.remove(&(card, id));
        if sample.users.is_empty() {
            watch.sample = None;
            if watch.weak.is_none() && watch.races.is_none() {
                self.watch = None;
            }
        }
    }

    fn explain_endless(&mut self, card: usize, id: u32) {
        let Some(&pid) = self.cards[card].owners.get(&id) else { return };
        let Some(process) = self.cards[card].processes.get(&pid) else { return };
        let Some(thread) = process.threads.get(&id) else { return };
        let sample = self.watch.as_ref().and_then(|watch| watch.sample.as_ref()).filter(|of| of.whose == (card, pid));
        let lock = |addr: u64| Lock { addr, name: process.image.variable(addr) };
        let spin = sample.and_then(|sample| sample.spin(id));
        let waits = match spin {
            Some(Spin::Lock(addr)) => {
                let others = process.threads.values().filter(|other| other.id != id && is_stuck(other, thread));
                let mut theirs = others.filter_map(|other| match sample?.spin(other.id) {
                    Some(Spin::Lock(theirs)) if theirs != addr => Some((other, theirs)),
                    _ => None,
                });
                match theirs.next() {
                    Some((other, theirs)) => Waits::Deadlock {
                        lock: lock(addr),
                        other: (other.id, process.entry_symbol(other)),
                        others_lock: lock(theirs),
                    },
                    None => Waits::Lock(lock(addr)),
                }
            }
            Some(Spin::Loads(addrs)) => {
                let nic = &self.cards[card].nic;
                let entry =
                    nic.completion_queues(|attr| attr.ring.space == Space::Dpa(pid)).into_iter().find_map(|cqn| {
                        let attr = nic.query_cq(cqn)?;
                        let bytes = 64_u64 << attr.log_depth;
                        let at = addrs.iter().map(|addr| addr.wrapping_sub(attr.ring.addr)).find(|at| *at < bytes)?;
                        Some(Waits::Entry { cqn, slot: (at / 64) as u32 })
                    });
                entry.unwrap_or(match addrs[..] {
                    [addr] => Waits::Word { addr },
                    _ => Waits::Unknown,
                })
            }
            None => Waits::Unknown,
        };
        let pc = thread.hart.pc;
        let symptom = Symptom::Endless {
            is_task: thread.kind == ThreadKind::Worker,
            pc,
            symbol: process.image.symbolize(pc),
            for_ps: cycles_to_ps(thread.hart.cycles - thread.started_cycles),
            watchdog_ps: self.config.watchdog(thread.kind).0,
            waits,
        };
        self.now_ps = self.now_ps.max(cycles_to_ps(thread.hart.cycles));
        self.diagnose(card, (pid, Some(id)), symptom);
    }
}

/// Whether another thread runs for about as long as one that does not end: half as long at least.
fn is_stuck(other: &Thread, thread: &Thread) -> bool {
    let run = |thread: &Thread| thread.hart.cycles.saturating_sub(thread.started_cycles);
    other.state == ThreadState::Running && other.kind != ThreadKind::Rpc && run(other) >= run(thread) / 2
}
