//! The machine as a whole: cards, what joins them, host memory, the event queue and the clock.

mod command_queue;
mod control;
mod cores;
pub(crate) mod debug;
mod departures;
mod diagnose;
mod firsts;
mod functions;
mod host_processes;
mod lifetime;
mod model;
mod outside;
mod probes;
mod probing;
mod queue;
mod ready;
mod rtos;
mod schedule;
mod snapshot;
mod stall;
mod station;
mod visibility;

use std::collections::VecDeque;
use std::io::Write;

use emu_fabric::{Network, PortRoom};
use emu_nic::{AsyncEvent, CqTarget, Effects, Nic, NicTiming, Packet};
use emu_timing::Model;

use crate::card::{Card, CardDma};
use crate::config::wiring::Wiring;
use crate::config::{Config, DrivenFrom, MemoryModel};
use crate::dpa::images::Images;
use crate::dpa::layout::USER_EUS;
use crate::dpa::thread::ThreadState;
use crate::error::MachineError;
use crate::function::ArmSide;
use crate::host_memory::HostMemory;
use crate::host_process::HostProcesses;
use crate::near;
use crate::numbering::MAX_CARDS;
use crate::numbering::{LAST_CARD, nic_config};
use crate::observe::watch::Watch;
use crate::time::{cycles_to_ps, ps_to_cycles};
use crate::timed::nic::nic_timing;
use crate::timed::{CORES_TURN, Timed};
use crate::trace::Trace;
use crate::wires::Wires;
use departures::Departures;
use probes::Probes;
use queue::{Event, EventQueue};
use ready::{Ready, Turn};
use station::Outer;
pub use station::Station;

/// Everything that is emulated. One thread of the host drives it; the same calls in the same order give the same trace.
#[derive(Debug)]
pub struct World {
    pub(crate) config: Config,
    pub(crate) cards: Vec<Card>,
    /// The registered part of the host's memory.
    pub host: HostMemory,
    /// Other processes of the host, with their memory; usually none.
    pub(crate) host_processes: HostProcesses,
    pub(crate) images: Images,
    pub(crate) queue: EventQueue,
    pub(crate) ready: Ready,
    pub(crate) now_ps: u64,
    pub(crate) trace: Trace,
    pub(crate) effects: Effects,
    /// What the configuration asks for beyond the plain machine; usually nothing.
    pub(crate) watch: Option<Box<Watch>>,
    pub(crate) wires: Wires,
    /// Probes that are on; usually none.
    pub(crate) probes: Probes,
    pub(crate) channel_events: VecDeque<(usize, u32, u32)>,
    pub(crate) async_events: VecDeque<(usize, AsyncEvent)>,
    /// The outer end of the cable, if it is open.
    pub(crate) outside: Option<Departures>,
    /// What is there, if it is no other machine.
    pub(crate) outer: Option<Outer>,
    /// Whether it is worth asking for memory a turn ahead.
    pub(crate) prefetches: bool,
}

/// What happens next, and when.
#[derive(Clone, Copy, Debug)]
struct Next {
    at_ps: u64,
    /// The thread whose turn it is; none if it is the first event's.
    turn: Option<Turn>,
}

/// Cards from which on their state does not stay in the caches between two turns.
const MANY_CARDS: usize = 16;

impl World {
    /// Builds the machine in virtual time 0.
    ///
    /// # Errors
    /// More cards than the wiring or the addresses allow, or none; a link rate of zero; faults that cannot be, or that
    /// name what the topology does not have; switches that hold no packet.
    pub fn new(config: Config) -> Result<Self, MachineError> {
        let Config { cards: count, first_card: first, .. } = config;
        if !(1..=MAX_CARDS).contains(&count) {
            return Err(MachineError::Cards(count));
        }
        if first > LAST_CARD + 1 - count {
            return Err(MachineError::FirstCard { first, cards: count });
        }
        if config.units.is_empty() || !config.units.clone().all(|unit| USER_EUS.contains(&unit)) {
            return Err(MachineError::Partition { first: *config.units.start(), last: *config.units.end() });
        }
        if config.arm_functions && config.driven_from == DrivenFrom::Arm {
            return Err(MachineError::ArmFunctionsOfArm);
        }
        let model = config.timing.as_ref().map(Model::new).transpose()?;
        if let (Some(model), true) = (&model, config.detect_races || config.memory != MemoryModel::Strong) {
            return Err(MachineError::TimingWatched { model: model.name.clone() });
        }
        let times = model.as_ref().map_or_else(NicTiming::default, nic_timing);
        let card = |index| {
            let mut nic = Nic::new(nic_config(first + index, config.wiring.port_rate(index)?, times));
            if config.uc_multicast {
                nic.allow_uc_multicast();
            }
            if let Wiring::Network(network) = &config.wiring {
                let switching = network.topology.switching();
                nic.set_priorities(switching.priorities, switching.weights);
            }
            let arm = config.arm_functions.then(|| ArmSide::new(&mut nic, first + index)).transpose()?;
            Ok(Card::new(
                nic,
                config.units.clone(),
                arm,
                model.clone().map(|model| Timed::new(model, config.driven_from)),
            ))
        };
        let cards = (0..count).map(card).collect::<Result<Vec<_>, MachineError>>()?;
        let wires = Wires::new(&config.wiring, first, count)?;
        Ok(World {
            watch: Watch::new(&config),
            probes: Probes::default(),
            config,
            cards,
            host: HostMemory::new(count),
            host_processes: HostProcesses::default(),
            images: Images::default(),
            queue: EventQueue::default(),
            ready: Ready::default(),
            now_ps: 0,
            trace: Trace::default(),
            effects: Effects::default(),
            wires,
            channel_events: VecDeque::new(),
            async_events: VecDeque::new(),
            outside: None,
            outer: None,
            prefetches: count >= MANY_CARDS,
        })
    }

    /// Cards, processes and threads are made, and what follows uses them: has the state of many cards gathered in the
    /// memory of the machine that runs the emulator. It is allocated piece by piece, and threads are accessed in turn,
    /// card after card: more pages of 4 KiB than a processor keeps the translations of. Nothing depends on whether this
    /// is called.
    pub fn settle(&self) {
        if !self.prefetches {
            return;
        }
        let threads = |card: &Card| -> Vec<usize> {
            let threads = card.processes.values().flat_map(|process| process.threads.values());
            threads.map(|thread| std::ptr::from_ref(thread).addr()).collect()
        };
        let cards = self.cards.iter().map(|card| std::ptr::from_ref(card).addr());
        near::gather(cards.chain(self.cards.iter().flat_map(threads)));
    }

    /// What it was built from.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Virtual time in picoseconds: that of the latest thing that happened.
    #[must_use]
    pub fn now_ps(&self) -> u64 {
        self.now_ps
    }

    /// Hash over every event so far, in order and with its time. Equal hashes mean equal runs.
    #[must_use]
    pub fn trace_hash(&self) -> u64 {
        let weak = self.watch.as_ref().and_then(|watch| watch.weak.as_ref());
        weak.map_or(0, |weak| weak.trace.hash().rotate_left(1)) ^ self.trace.hash()
    }

    /// Events that [`World::trace_hash`] covers.
    #[must_use]
    pub fn trace_events(&self) -> u64 {
        self.trace.events()
    }

    /// Number of cards.
    #[must_use]
    pub fn card_count(&self) -> usize {
        self.cards.len()
    }

    /// A card by its index.
    pub fn card(&mut self, index: usize) -> Result<&mut Card, MachineError> {
        let cards = self.cards.len();
        self.wires.touch(index);
        self.cards.get_mut(index).ok_or(MachineError::NoCard { index, cards })
    }

    /// Frames sent, received and lost at a card's port.
    #[must_use]
    pub fn port_counters(&self, card: usize) -> emu_fabric::PortCounters {
        self.wires.counters(card)
    }

    /// The network of switches, for its counters; `None` where a cable joins the cards. Its hosts have the topology's
    /// numbers.
    #[must_use]
    pub fn network(&self) -> Option<&Network<Packet>> {
        self.wires.network()
    }

    /// Writes every frame that leaves a card's port from now on to a pcapng file, and in a network every frame that
    /// arrives at one, as the faults have left it. Interface `port N` is that of card N.
    ///
    /// # Errors
    /// The writer failed.
    pub fn start_capture(&mut self, writer: Box<dyn Write + Send>) -> Result<(), MachineError> {
        let ports = self.cards.len() + usize::from(self.outside.is_some());
        self.wires.start_capture(ports, writer).map_err(|error| MachineError::Capture(error.to_string()))
    }

    /// Ends the capture and gives the number of frames in it; those that have no bytes on a wire are left out.
    ///
    /// # Errors
    /// The writer failed, now or before.
    pub fn finish_capture(&mut self) -> Result<u64, MachineError> {
        self.wires.finish_capture().map_err(|error| MachineError::Capture(error.to_string()))
    }

    /// Host-side doorbell of a send queue: the producer index is the 16-bit counter of 64-byte blocks.
    pub fn ring_sq(&mut self, card: usize, qpn: u32, producer_index: u16) -> Result<(), MachineError> {
        let now_ps = self.now_ps;
        self.watch_doorbell(now_ps, card, qpn, producer_index);
        self.nic_call(card, |nic, fx| nic.ring_sq(now_ps, qpn, producer_index, fx))
    }

    /// Host-side doorbell of a send queue that brings the last entry before `producer_index` along.
    pub fn push_sq(&mut self, card: usize, qpn: u32, producer_index: u16) -> Result<(), MachineError> {
        let now_ps = self.now_ps;
        self.watch_doorbell(now_ps, card, qpn, producer_index);
        self.nic_call(card, |nic, fx| nic.push_sq(now_ps, qpn, producer_index, fx))
    }

    /// Host-side arm of a completion queue at a consumer index.
    pub fn arm_cq(&mut self, card: usize, cqn: u32, consumer_index: u32) -> Result<(), MachineError> {
        let now_ps = self.now_ps;
        self.nic_call(card, |nic, fx| nic.arm_cq(now_ps, cqn, consumer_index, fx))
    }

    /// Calls the network card and carries out what follows from it. Used for control calls with effects, too.
    pub fn nic_call<R>(
        &mut self,
        card: usize,
        call: impl FnOnce(&mut Nic, &mut Effects) -> R,
    ) -> Result<R, MachineError> {
        let mut effects = std::mem::take(&mut self.effects);
        let result = self.card(card).map(|card| call(&mut card.nic, &mut effects));
        self.carry_out(card, &mut effects);
        self.effects = effects;
        result
    }

    /// Completion-queue events for the host: (card, channel, queue number).
    pub fn take_channel_event(&mut self) -> Option<(usize, u32, u32)> {
        self.channel_events.pop_front()
    }

    /// Those of them whose channels have this number or a higher one.
    pub fn take_channel_events_from(&mut self, first: u32) -> VecDeque<(usize, u32, u32)> {
        let (taken, left) = self.channel_events.drain(..).partition(|&(_, channel, _)| channel >= first);
        self.channel_events = left;
        taken
    }

    /// Failures of queues that no completion reports: (card, event).
    pub fn take_async_event(&mut self) -> Option<(usize, AsyncEvent)> {
        self.async_events.pop_front()
    }

    /// Lets the next thing happen: one event, or one slice of one thread's instructions. `false` when nothing is due
    /// and nothing ever will be until the host acts.
    pub fn step(&mut self) -> bool {
        if self.now_ps >= self.probes.due_ps {
            self.serve_probes();
        }
        if self.probes.debug.is_some() {
            self.poll_debugger();
        }
        match self.next() {
            Some(next) => {
                self.take(next);
                true
            }
            None => self.publish_next(),
        }
    }

    /// What happens next.
    #[inline]
    fn next(&self) -> Option<Next> {
        let event_ps = self.queue.next_at_ps();
        if let Some(turn) = self.ready.first() {
            let at_ps = cycles_to_ps(turn.0);
            if event_ps.is_none_or(|event_ps| at_ps < event_ps) {
                return Some(Next { at_ps, turn: Some(turn) });
            }
        }
        event_ps.map(|at_ps| Next { at_ps, turn: None })
    }

    /// Lets it happen.
    #[inline]
    fn take(&mut self, next: Next) {
        let Some((cycles, card, id)) = next.turn else {
            if let Some((at_ps, event)) = self.queue.pop() {
                if self.prefetches
                    && let Some(card) = self.queue.prefetch().and_then(|card| self.cards.get(card))
                {
                    card.prefetch_nic();
                }
                self.now_ps = self.now_ps.max(at_ps);
                self.handle_event(at_ps, event);
            }
            return;
        };
        match id {
            CORES_TURN => self.run_cores(cycles, card),
            id => self.run_slice(cycles, card, id),
        }
        self.ready.close();
        if self.probes.debug.is_some() {
            self.finish_debugged_slice();
        }
    }

    /// Lets the machine run between two polls of a host: what is due within [`Config::host_poll_ps`] happens.
    /// When nothing is, time still passes, by [`Config::host_idle_ps`] at most: a far timer must not take the clock
    /// along with it. `false` when nothing is due and nothing ever will be until the host acts; then the clock stands
    /// still.
    pub fn relax(&mut self) -> bool {
        let Some(due_ps) = self.due_ps() else {
            self.polled_idly();
            return false;
        };
        let end_ps = self.now_ps + self.config.host_poll_ps;
        if due_ps > end_ps {
            self.now_ps = due_ps.min(self.now_ps + self.config.host_idle_ps);
            if self.now_ps >= self.probes.due_ps {
                self.serve_probes();
            }
            return true;
        }
        loop {
            match self.next() {
                Some(next) if next.at_ps > end_ps => break,
                // Nearly always there is no observer, which would have to be served first.
                Some(next) if self.probes.debug.is_none() && self.now_ps < self.probes.due_ps => self.take(next),
                Some(_) => _ = self.step(),
                None if self.due_ps().is_some_and(|due_ps| due_ps <= end_ps) => _ = self.step(),
                None => break,
            }
        }
        self.now_ps = self.now_ps.max(end_ps);
        true
    }

    /// When the next thing is due.
    pub(crate) fn due_ps(&self) -> Option<u64> {
        let due_ps = self.next().map(|next| next.at_ps);
        due_ps.or_else(|| self.next_visible_cycles().map(cycles_to_ps))
    }

    /// Steps until `done`, until nothing is due, or until virtual time has advanced by `bound_ps`. Returns whether
    /// `done`.
    pub fn run_until(&mut self, bound_ps: u64, mut done: impl FnMut(&mut World) -> bool) -> bool {
        let end_ps = self.now_ps.saturating_add(bound_ps);
        loop {
            if done(self) {
                return true;
            }
            if self.now_ps > end_ps || !self.step() {
                return done(self);
            }
        }
    }

    fn handle_event(&mut self, at_ps: u64, event: Event) {
        if self.watch.is_some() {
            self.before_event(at_ps, &event);
        }
        match event {
            Event::Nic(card, timer) => {
                self.trace.record(at_ps, "nic", card as u64, 0);
                self.nic_event(at_ps, card, |nic, dma, fx| nic.handle_timer(at_ps, timer, dma, fx));
            }
            Event::Arrival(card, packet) => {
                self.trace.record(at_ps, "rx", card as u64, packet.frame_bytes());
                self.wires.arrived(at_ps, card, &packet);
                self.nic_event(at_ps, card, |nic, dma, fx| nic.handle_packet(at_ps, packet, dma, fx));
            }
            Event::Departure(card, packet) => {
                self.trace.record(at_ps, "tx", card as u64, packet.frame_bytes());
                self.follow_groups();
                self.wires.transmit(at_ps, card, packet);
                self.carry_frames(at_ps);
            }
            Event::Station(arrived) => {
                let bytes = arrived.as_ref().map_or(0, Packet::frame_bytes);
                self.trace.record(at_ps, "station", 0, bytes);
                self.station_event(at_ps, arrived);
            }
            Event::Fabric => {
                self.trace.record(at_ps, "fabric", 0, 0);
                self.follow_groups();
                self.wires.handle_timer(at_ps);
                self.carry_frames(at_ps);
            }
            Event::Completion(card, event) => {
                self.trace.record(at_ps, "event", card as u64, u64::from(event.cqn));
                match event.target {
                    CqTarget::None => {}
                    CqTarget::DpaThread(thread) => self.trigger(at_ps, card, thread),
                    CqTarget::Channel(channel) => self.channel_events.push_back((card, channel, event.cqn)),
                }
            }
        }
    }

    /// Hands an event to a network card, with the memories it reaches, and carries out what follows from it.
    pub(crate) fn nic_event(
        &mut self,
        at_ps: u64,
        card: usize,
        call: impl FnOnce(&mut Nic, &mut CardDma<'_>, &mut Effects),
    ) {
        let mut effects = std::mem::take(&mut self.effects);
        let Card { nic, arm, processes, cores, .. } = &mut self.cards[card];
        let arm = arm.as_ref();
        let (watch, timed) = (self.watch.as_deref_mut(), cores.timed.as_deref_mut());
        let mut dma = CardDma {
            host: &self.host,
            others: &self.host_processes.by_number,
            arm,
            processes,
            watch,
            timed,
            card,
            at_ps,
        };
        call(nic, &mut dma, &mut effects);
        if self.watch.is_some() {
            self.take_records();
            self.name_races();
        }
        self.carry_out(card, &mut effects);
        self.effects = effects;
    }

    /// Reports to the network the groups that cards have joined or left.
    fn follow_groups(&mut self) {
        let cards = &self.cards;
        self.wires.follow_groups(|card| &cards[card].nic);
    }

    /// Schedules what a call of the fabric led to.
    pub(crate) fn carry_frames(&mut self, at_ps: u64) {
        for delivery in self.wires.effects.deliveries.drain(..) {
            if let Some(outside) = self.outside.as_mut().filter(|_| delivery.port >= self.cards.len()) {
                if self.outer.is_some() {
                    self.queue.push(delivery.at_ps, Event::Station(Some(delivery.frame)));
                } else {
                    outside.arrive(delivery.at_ps, delivery.frame);
                }
                continue;
            }
            self.queue.push(delivery.at_ps, Event::Arrival(delivery.port, delivery.frame));
        }
        for at_ps in self.wires.effects.timers_ps.drain(..) {
            self.queue.push(at_ps, Event::Fabric);
        }
        let mut rooms = std::mem::take(&mut self.wires.effects.rooms);
        // The outer end has no card that could be held.
        let cards = self.cards.len();
        for (card, priorities, room) in rooms.drain(..).filter(|&(card, ..)| card < cards) {
            self.nic_event(at_ps, card, |nic, _, fx| match room {
                PortRoom::Full => nic.hold_port(priorities),
                PortRoom::Free => nic.release_port(at_ps, priorities, fx),
            });
        }
        self.wires.effects.rooms = rooms;
    }

    /// Schedules what a call of the network card led to, and leaves `effects` empty.
    pub(crate) fn carry_out(&mut self, card: usize, effects: &mut Effects) {
        if self.probes.recorder.is_some() {
            self.note_effects(card, effects);
        }
        for (at_ps, timer) in effects.timers.drain(..) {
            self.queue.push(at_ps, Event::Nic(card, timer));
        }
        for (at_ps, packet) in effects.packets.drain(..) {
            self.queue.push(at_ps, Event::Departure(card, packet));
        }
        for (at_ps, event) in effects.events.drain(..) {
            self.queue.push(at_ps, Event::Completion(card, event));
        }
        for entry in effects.refused.drain(..) {
            self.explain_refused(card, entry);
        }
        for event in effects.async_events.drain(..) {
            self.explain_failure(card, event);
            if self.is_notified(card, event) {
                self.async_events.push_back((card, event));
            }
        }
    }

    /// A trigger for a thread: starts it, or is remembered until it can start.
    pub(crate) fn trigger(&mut self, at_ps: u64, card: usize, id: u32) {
        self.note_trigger(at_ps, card, id);
        let activate_ps = self.activate_ps();
        let Ok(thread) = self.cards[card].thread_mut(id) else { return };
        match thread.state {
            ThreadState::Waiting => self.start(ps_to_cycles(at_ps + activate_ps), card, id),
            ThreadState::Created | ThreadState::Running => thread.pending = true,
            ThreadState::Finished => {}
        }
    }
}
