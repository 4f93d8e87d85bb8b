//! The machine as a whole: cards, link, host memory, the event queue and the clock.

use std::collections::{BTreeSet, VecDeque};
use std::io::Write;

use emu_fabric::{BackToBack, Captured, Delivery, Link, LinkConfig as WireConfig, Rate, SeededDrop};
use emu_nic::{Address, AsyncEvent, CqTarget, Effects, Mtu, Nic, NicConfig, NicTiming, Packet};

use crate::address::{LAST_CARD_NUMBER, card_address};
use crate::card::{Card, CardDma};
use crate::config::Config;
use crate::error::MachineError;
use crate::external::Outside;
use crate::host_memory::HostMemory;
use crate::queue::{Event, EventQueue};
use crate::thread::ThreadState;
use crate::time::{cycles_to_ps, ps_to_cycles};
use crate::trace::Trace;
use crate::watch::Watch;

/// Everything that is emulated. One thread of the host drives it; the same calls in the same order give the same trace.
#[derive(Debug)]
pub struct World {
    pub(crate) config: Config,
    pub(crate) cards: Vec<Card>,
    /// The registered part of the host's memory.
    pub host: HostMemory,
    pub(crate) queue: EventQueue,
    pub(crate) ready: BTreeSet<(u64, usize, u32)>,
    pub(crate) now_ps: u64,
    pub(crate) trace: Trace,
    pub(crate) effects: Effects,
    /// What the configuration asks for beyond the plain machine; usually nothing.
    pub(crate) watch: Option<Box<Watch>>,
    pub(crate) link: Captured<SeededDrop<BackToBack>, Box<dyn Write + Send>>,
    pub(crate) deliveries: Vec<Delivery<Packet>>,
    pub(crate) channel_events: VecDeque<(usize, u32, u32)>,
    pub(crate) async_events: VecDeque<(usize, AsyncEvent)>,
    /// The outer end of the link, if it is open.
    pub(crate) outside: Option<Outside>,
}

impl World {
    /// Builds the machine in virtual time 0.
    ///
    /// # Errors
    /// A number of cards other than 1 or 2, a link rate of zero, or more than a million drops per million.
    pub fn new(config: Config) -> Result<Self, MachineError> {
        if !(1..=2).contains(&config.cards) {
            return Err(MachineError::Cards(config.cards));
        }
        let last = config.first_card.saturating_add(config.cards as u32 - 1);
        if config.first_card == 0 || last > LAST_CARD_NUMBER {
            return Err(MachineError::CardNumber { number: last, first: config.first_card });
        }
        let rate = Rate::from_gbps(config.link.gbit_per_s).map_err(|e| MachineError::Link(e.to_string()))?;
        let wire = BackToBack::new(WireConfig { rate, latency_ps: config.link.latency_ps });
        let link = SeededDrop::new(wire, config.link.drop_ppm, config.link.seed)
            .map_err(|e| MachineError::Link(e.to_string()))?;
        let cards =
            (config.first_card..).take(config.cards).map(|number| Card::new(Nic::new(nic_config(number)))).collect();
        Ok(World {
            watch: Watch::new(&config),
            config,
            cards,
            host: HostMemory::default(),
            queue: EventQueue::default(),
            ready: BTreeSet::new(),
            now_ps: 0,
            trace: Trace::default(),
            effects: Effects::default(),
            link: Captured::off(link),
            deliveries: Vec::new(),
            channel_events: VecDeque::new(),
            async_events: VecDeque::new(),
            outside: None,
        })
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
        self.cards.get_mut(index).ok_or(MachineError::NoCard { index, cards })
    }

    /// Frames sent, received and lost at a card's port.
    #[must_use]
    pub fn port_counters(&self, card: usize) -> emu_fabric::PortCounters {
        Link::<Packet>::counters(&self.link, card)
    }

    /// Writes every frame that leaves a card's port from now on to a pcapng file.
    ///
    /// # Errors
    /// The writer failed.
    pub fn start_capture(&mut self, writer: Box<dyn Write + Send>) -> Result<(), MachineError> {
        let ports = self.cards.len() + usize::from(self.outside.is_some());
        self.link.start(ports, writer).map_err(|error| MachineError::Capture(error.to_string()))
    }

    /// Ends the capture and gives the number of frames in it; those that have no bytes on a wire are left out.
    ///
    /// # Errors
    /// The writer failed, now or before.
    pub fn finish_capture(&mut self) -> Result<u64, MachineError> {
        let frames = self.link.frames();
        match self.link.finish() {
            Ok(_) => Ok(frames),
            Err(error) => Err(MachineError::Capture(error.to_string())),
        }
    }

    /// Host-side doorbell of a send queue: the producer index is the 16-bit counter of 64-byte blocks.
    pub fn ring_sq(&mut self, card: usize, qpn: u32, producer_index: u16) -> Result<(), MachineError> {
        let now_ps = self.now_ps;
        self.watch_doorbell(now_ps, card, qpn, producer_index);
        self.nic_call(card, |nic, fx| nic.ring_sq(now_ps, qpn, producer_index, fx))
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

    /// Failures of queues that no completion reports: (card, event).
    pub fn take_async_event(&mut self) -> Option<(usize, AsyncEvent)> {
        self.async_events.pop_front()
    }

    /// Lets the next thing happen: one event, or one slice of one thread's instructions. `false` when nothing is due and
    /// nothing ever will be until the host acts.
    pub fn step(&mut self) -> bool {
        let thread = self.ready.first().copied();
        let event_ps = self.queue.next_at_ps();
        match (thread, event_ps) {
            (None, None) => self.settle_next(),
            (Some((cycles, card, id)), event) if event.is_none_or(|at| cycles_to_ps(cycles) < at) => {
                self.run_slice(cycles, card, id);
                true
            }
            _ => {
                if let Some((at_ps, event)) = self.queue.pop() {
                    self.now_ps = self.now_ps.max(at_ps);
                    self.happen(at_ps, event);
                }
                true
            }
        }
    }

    /// Lets the machine run between two looks of a polling host: what is due within [`Config::host_poll_ps`] happens. When
    /// nothing is, time still passes, by [`Config::host_idle_ps`] at most: a far timer must not take the clock along with it.
    /// `false` when nothing is due and nothing ever will be until the host acts; then the clock stands still.
    pub fn relax(&mut self) -> bool {
        let Some(mut due_ps) = self.due_ps() else { return false };
        let end_ps = self.now_ps + self.config.host_poll_ps;
        if due_ps > end_ps {
            self.now_ps = due_ps.min(self.now_ps + self.config.host_idle_ps);
            return true;
        }
        while due_ps <= end_ps {
            self.step();
            match self.due_ps() {
                Some(next_ps) => due_ps = next_ps,
                None => break,
            }
        }
        self.now_ps = self.now_ps.max(end_ps);
        true
    }

    /// When the next thing is due.
    pub(crate) fn due_ps(&self) -> Option<u64> {
        let thread_ps = self.ready.first().map(|(cycles, ..)| cycles_to_ps(*cycles));
        let due_ps = [thread_ps, self.queue.next_at_ps()].into_iter().flatten().min();
        due_ps.or_else(|| self.next_visible_cycles().map(cycles_to_ps))
    }

    /// Steps until `done`, until nothing is due, or until virtual time has advanced by `bound_ps`. Tells whether `done`.
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

    fn happen(&mut self, at_ps: u64, event: Event) {
        if self.watch.is_some() {
            self.before_event(at_ps, &event);
        }
        let mut effects = std::mem::take(&mut self.effects);
        let card = match event {
            Event::Nic(card, timer) => {
                self.trace.record(at_ps, "nic", card as u64, 0);
                let Card { nic, processes, .. } = &mut self.cards[card];
                let watch = self.watch.as_deref_mut();
                let mut dma = CardDma { host: &self.host, processes, watch, card, at_ps };
                nic.handle_timer(at_ps, timer, &mut dma, &mut effects);
                card
            }
            Event::Arrival(card, packet) => {
                self.trace.record(at_ps, "rx", card as u64, packet.frame_bytes());
                let Card { nic, processes, .. } = &mut self.cards[card];
                let watch = self.watch.as_deref_mut();
                let mut dma = CardDma { host: &self.host, processes, watch, card, at_ps };
                nic.handle_packet(at_ps, packet, &mut dma, &mut effects);
                card
            }
            Event::Departure(card, packet) => {
                self.trace.record(at_ps, "tx", card as u64, packet.frame_bytes());
                // A single card has no peer: what leaves its port is lost, as on an unplugged cable.
                if self.cards.len() == 2 || self.outside.is_some() {
                    self.transmit(at_ps, card, packet);
                }
                card
            }
            Event::Completion(card, event) => {
                self.trace.record(at_ps, "event", card as u64, u64::from(event.cqn));
                match event.target {
                    CqTarget::None => {}
                    CqTarget::DpaThread(thread) => self.trigger(at_ps, card, thread),
                    CqTarget::Channel(channel) => self.channel_events.push_back((card, channel, event.cqn)),
                }
                card
            }
        };
        self.carry_out(card, &mut effects);
        self.effects = effects;
    }

    /// Schedules what a call of the network card led to, and leaves `effects` empty.
    pub(crate) fn carry_out(&mut self, card: usize, effects: &mut Effects) {
        for (at_ps, timer) in effects.timers.drain(..) {
            self.queue.push(at_ps, Event::Nic(card, timer));
        }
        for (at_ps, packet) in effects.packets.drain(..) {
            self.queue.push(at_ps, Event::Departure(card, packet));
        }
        for (at_ps, event) in effects.events.drain(..) {
            self.queue.push(at_ps, Event::Completion(card, event));
        }
        for event in effects.async_events.drain(..) {
            tracing::warn!(card, ?event, "queue failure");
            self.async_events.push_back((card, event));
        }
    }

    /// A trigger for a thread: starts it, or is remembered until it can start.
    pub(crate) fn trigger(&mut self, at_ps: u64, card: usize, id: u32) {
        let activate_ps = self.config.cost.activate_ps;
        let Ok(thread) = self.cards[card].thread_mut(id) else { return };
        match thread.state {
            ThreadState::Waiting => self.start(ps_to_cycles(at_ps + activate_ps), card, id),
            ThreadState::Created | ThreadState::Running => thread.pending = true,
            ThreadState::Finished => {}
        }
    }
}

/// Addresses and seed of the card with a number, from 1.
fn nic_config(number: u32) -> NicConfig {
    let Address { mac, gid } = card_address(number);
    let (port_mtu, timing, seed) = (Mtu::B4096, NicTiming::default(), u64::from(number));
    NicConfig { mac, gids: vec![gid], port_mtu, timing, seed }
}
