//! The threads of a card under a timing model: the cores decide which of them issues when, and each access costs what caches and shared
//! paths make of it.
//!
//! A thread executes one instruction at the cycle in which its core issues it, and plain ones that follow ahead of time; the core
//! issues those afterwards, one by one (see [`emu_timing::Core`]). So everything that another agent could notice happens in the order
//! of the cycles, over all cores of the card; ties go to the lower core. A code line that is not in the core's code cache costs the
//! thread the wait for it and the issue slot in which it was found missing.

use emu_hart::{Class, Hart, Step, Stop};
use emu_timing::cache::line_of;
use emu_timing::core::THREADS;
use emu_timing::memory::CORES;
use emu_timing::{Core, Counts, Issue, Memory, Model};

use crate::bus::{OutboxStore, ThreadBus};
use crate::card::Card;
use crate::costs::{Modelled, tag};
use crate::images::Code;
use crate::layout::EXECUTION_UNITS;
use crate::process::Process;
use crate::schedule::QUANTUM_CYCLES;
use crate::thread::{Port, Thread, ThreadState};
use crate::time::{cycles_to_ps, ps_to_cycles};
use crate::world::World;

/// In the list of turns, the number of a card's cores: threads have others.
pub(crate) const CORES_TURN: u32 = 0;
/// Longest run of plain instructions ahead of time.
const MOST_AHEAD: u32 = 63;
/// A cycle that does not come.
const NEVER: u64 = u64::MAX;
/// No line of code.
const NOWHERE: u64 = u64::MAX;

/// A thread that executes on a hardware thread.
#[derive(Clone, Copy, Debug)]
struct Lane {
    /// Cycle at which its activation has lasted too long.
    deadline: u64,
    /// The line of code that it has at hand.
    line: u64,
}

/// The cores of a card.
#[derive(Debug)]
pub(crate) struct Timed {
    memory: Memory,
    cores: Box<[Core; CORES]>,
    /// By execution unit.
    lanes: Box<[Option<Lane>; EXECUTION_UNITS]>,
    /// Execution units whose threads have reserved memory (load-reserved).
    reserved: Vec<usize>,
    /// The card's place in the list of turns.
    turn: Option<u64>,
}

impl Timed {
    pub(crate) fn new(model: Model) -> Self {
        Timed {
            cores: Box::new(std::array::from_fn(|_| Core::new(model.issues_per_cycle, model.gap_millicycles))),
            memory: Memory::new(model),
            lanes: Box::new([None; EXECUTION_UNITS]),
            reserved: Vec::new(),
            turn: None,
        }
    }

    pub(crate) fn model(&self) -> &Model {
        self.memory.model()
    }

    /// Accesses so far, by the level that served them.
    pub(crate) fn counts(&self) -> Counts {
        self.memory.counts()
    }

    /// Counts a range of a process's addresses under a name, too.
    pub(crate) fn label(&mut self, process: u32, addr: u64, len: u64, name: &str) -> bool {
        self.memory.label(tag(process) | addr, len, name)
    }

    /// Accesses so far by name.
    pub(crate) fn labelled(&self) -> impl Iterator<Item = (&str, Counts)> {
        self.memory.labelled()
    }

    /// Instructions issued so far, by core.
    pub(crate) fn issues(&self) -> Vec<u64> {
        self.cores.iter().map(Core::issues).collect()
    }

    /// Whether a thread executes on an execution unit.
    pub(crate) fn is_taken(&self, eu: u32) -> bool {
        self.lanes[eu as usize].is_some()
    }

    /// An activation begins.
    pub(crate) fn begin(&mut self, thread: &Thread, watchdog_ps: u64) {
        let deadline = thread.started_cycles.saturating_add(ps_to_cycles(watchdog_ps));
        self.lanes[thread.port.eu as usize] = Some(Lane { deadline, line: NOWHERE });
        self.memory.begin(thread.port.eu as usize);
    }

    /// An activation is over, however it ended.
    pub(crate) fn end(&mut self, eu: u32) {
        let unit = eu as usize;
        if self.lanes[unit].take().is_some() {
            self.memory.end(unit);
            self.cores[unit / THREADS].leave(unit % THREADS);
            self.reserved.retain(|other| *other != unit);
        }
    }

    /// The network card has written to the memory of a process.
    pub(crate) fn written_by_card(&mut self, process: u32, addr: u64, len: u64) {
        self.memory.written_by_card(tag(process) | addr, len);
    }

    /// Cycle before which no thread of the card issues.
    fn next_at(&self) -> Option<u64> {
        self.cores.iter().filter_map(Core::next_at).min()
    }
}

/// Of all cores the one whose turn comes first, and when.
struct First {
    /// A tree: the turn of each core from place 16 on (its cycle, and in the eight low bits the execution unit of its thread), and at each
    /// place before that the lesser of its two children at twice the place.
    turns: [u64; 2 * CORES],
}

impl First {
    fn new() -> Self {
        First { turns: [NEVER; 2 * CORES] }
    }

    #[inline(always)]
    fn set(&mut self, core: usize, issue: Option<Issue>) {
        let mut place = CORES + core % CORES;
        let mut turn = issue.map_or(NEVER, |issue| issue.at << 8 | (core * THREADS + issue.thread) as u64);
        self.turns[place] = turn;
        for _ in 0..CORES.ilog2() {
            turn = turn.min(self.turns[(place ^ 1) % (2 * CORES)]);
            place /= 2;
            self.turns[place % (2 * CORES)] = turn;
        }
    }

    /// An execution unit, and the cycle.
    #[inline(always)]
    fn get(&self) -> Option<(usize, u64)> {
        let turn = self.turns[1];
        (turn != NEVER).then_some((turn as usize % EXECUTION_UNITS, turn >> 8))
    }
}

/// What a thread executes in.
struct Room<'a> {
    process: u32,
    memory: &'a mut crate::memory::ProcessMemory,
    windows: &'a std::collections::BTreeMap<u32, u32>,
    code: &'a mut Code,
}

/// A thread that executes.
struct Seat<'a> {
    room: usize,
    thread: u32,
    hart: &'a mut Hart,
    port: &'a mut Port,
}

/// Why the cores of a card stand still before the horizon.
enum Pause {
    /// A store to the outbox, which the card has to be told of.
    Outbox(OutboxStore),
    /// The thread cannot go on by itself.
    Stop(Stop, Option<String>),
    /// Its activation has lasted too long.
    Watchdog,
}

impl World {
    /// A thread goes on at a cycle: its next instruction is to be executed then.
    pub(crate) fn resume(&mut self, cycles: u64, card: usize, id: u32) {
        let Card { processes, owners, cores, .. } = &mut self.cards[card];
        let Some(timed) = cores.timed.as_deref_mut() else { return self.ready.insert((cycles, card, id)) };
        let Some(thread) = owners.get(&id).and_then(|process| processes.get(process)?.threads.get(&id)) else { return };
        let unit = thread.port.eu as usize;
        timed.cores[unit / THREADS].schedule(unit % THREADS, cycles, 0);
        self.wake(cycles, card);
    }

    /// The cores of a card have something to do at a cycle.
    fn wake(&mut self, cycles: u64, card: usize) {
        let Some(timed) = self.cards[card].cores.timed.as_deref_mut() else { return };
        if let Some(turn) = timed.turn {
            if turn <= cycles {
                return;
            }
            self.ready.remove((turn, card, CORES_TURN));
        }
        timed.turn = Some(cycles);
        self.ready.insert((cycles, card, CORES_TURN));
    }

    /// Runs the cores of a card until something else is due or a thread needs the world.
    pub(crate) fn run_cores(&mut self, at_cycles: u64, card_index: usize) {
        self.ready.run((at_cycles, card_index, CORES_TURN));
        self.now_ps = self.now_ps.max(cycles_to_ps(at_cycles));
        let horizon = self.queue.next_at_ps().map_or(NEVER, ps_to_cycles);
        let end = (at_cycles + QUANTUM_CYCLES).min(horizon.max(at_cycles + 1));
        if let Some(timed) = self.cards[card_index].cores.timed.as_deref_mut() {
            timed.turn = None;
        }
        if let Some((id, pause)) = self.issue_until(end, card_index) {
            let cycles = self.cards[card_index].thread(id).map_or(end, |thread| thread.hart.cycles);
            match pause {
                Pause::Outbox(store) => {
                    self.resume(cycles, card_index, id);
                    self.outbox(cycles_to_ps(cycles), card_index, id, store);
                }
                Pause::Stop(stop, detail) => self.stopped(card_index, id, stop, detail),
                Pause::Watchdog => self.overran(card_index, id),
            }
        }
        if let Some(next) = self.cards[card_index].cores.timed.as_deref().and_then(Timed::next_at) {
            self.wake(next, card_index);
        }
    }

    /// Lets the cores of a card issue instructions of the cycles before `end`. A thread that cannot go on by itself ends it, and is
    /// not scheduled any more.
    #[inline(never)]
    fn issue_until(&mut self, end: u64, card_index: usize) -> Option<(u32, Pause)> {
        let Card { nic, processes, cores, .. } = &mut self.cards[card_index];
        let timed = cores.timed.as_deref_mut()?;
        let (mut rooms, mut seats) = (Vec::with_capacity(processes.len()), Vec::with_capacity(32));
        let mut seat_of = [0u16; EXECUTION_UNITS];
        for process in processes.values_mut() {
            let Process { id, memory, windows, code, threads, .. } = process;
            for thread in threads.values_mut().filter(|thread| thread.state == ThreadState::Running) {
                seat_of[thread.port.eu as usize] = seats.len() as u16;
                let Thread { id, hart, port, .. } = thread;
                seats.push(Seat { room: rooms.len(), thread: *id, hart, port });
            }
            rooms.push(Room { process: *id, memory, windows, code });
        }

        let mut first = First::new();
        for (number, core) in timed.cores.iter_mut().enumerate() {
            first.set(number, core.advance(end));
        }
        let Timed { memory: caches, cores, lanes, reserved, .. } = timed;
        loop {
            let (unit, at) = first.get()?;
            let (core, thread) = (unit / THREADS, unit % THREADS);
            cores[core].take();
            let Some(lane) = &mut lanes[unit] else {
                first.set(core, cores[core].advance(end));
                continue;
            };
            let Seat { room, thread: id, hart, port } = &mut seats[usize::from(seat_of[unit])];
            hart.cycles = at;
            if at >= lane.deadline {
                return Some((*id, Pause::Watchdog));
            }
            let Room { process, memory, windows, code } = &mut rooms[*room];
            let line = line_of(hart.pc);
            if line != lane.line {
                lane.line = line;
                let missed = caches.fetch(core, tag(*process) | hart.pc, at);
                if missed > 0 {
                    cores[core].schedule(thread, at + missed, 0);
                    first.set(core, cores[core].advance(end));
                    continue;
                }
            }
            let mut bus = ThreadBus::<_, false> {
                memory,
                host: &self.host,
                nic,
                windows,
                port,
                costs: Modelled { memory: caches, thread: unit, tag: tag(*process), stored: None },
                outbox_store: None,
                detail: None,
                watch: None,
                card: card_index,
                process: *process,
                thread: *id,
                pc: 0,
            };
            let (step, ahead) = hart.burst(self.images.text(code), &mut bus, MOST_AHEAD, emu_timing::cache::LINE_BYTES);
            let ThreadBus { costs: Modelled { stored, .. }, outbox_store, detail, .. } = bus;
            let class = match step {
                Step::Retired(class) => class,
                Step::Stopped(stop) => return Some((*id, Pause::Stop(stop, detail))),
            };
            let cost = match class {
                Class::Multiply => caches.model().multiply_cycles,
                Class::Divide => caches.model().divide_cycles,
                Class::Other if hart.cycles > at => hart.cycles - at,
                Class::Other => cores[core].gap(thread),
            };
            hart.cycles = at + cost;
            if let Some(store) = outbox_store {
                return Some((*id, Pause::Outbox(store)));
            }
            cores[core].schedule(thread, at + cost, ahead);
            first.set(core, cores[core].advance(end));
            if hart.reservation().is_some() || !reserved.is_empty() {
                let room = *room;
                reserve(reserved, unit, room, &mut seats, &seat_of, stored);
            }
        }
    }
}

/// A thread has reserved memory, or has stored where others may have.
#[cold]
fn reserve(
    reserved: &mut Vec<usize>,
    unit: usize,
    room: usize,
    seats: &mut [Seat<'_>],
    seat_of: &[u16; EXECUTION_UNITS],
    stored: Option<u64>,
) {
    if !reserved.contains(&unit) {
        reserved.push(unit);
    }
    reserved.retain(|&other| {
        let seat = &mut seats[usize::from(seat_of[other])];
        if let Some(addr) = stored.filter(|_| other != unit && seat.room == room) {
            // Stores are eight bytes long at most, and reservations are of aligned words: of the double word.
            seat.hart.break_reservation(addr & !7, 8);
        }
        seat.hart.reservation().is_some()
    });
}
