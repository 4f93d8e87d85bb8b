//! Every interleaving of sparse AllReduce among up to three workers, by a model checker: messages and answers that take
//! any time, over reliable connections, whose memory is read and written as late as possible; and over datagrams that
//! are lost, come twice and overtake one another. Sums are compared exactly. A worker dies in any state. Larger models
//! are ignored: `cargo test -p flexcast-proto-models sparse_model:: -- --ignored`.

use std::collections::{BTreeSet, VecDeque};

use crate::support::check::check;
use crate::support::sparse::{Message, NO_LIMITS, Node, Party, sums, union};
use flexcast_proto::sparse::{
    AggregatorError, AggregatorLimits, Answer, Answered, Order, Parameters, Received, WorkerError,
};
use stateright::{Checker as _, Model, Property};

/// What lies in the slots before the operation: in no sum.
const STALE: i32 = 1_000_000;
const WRONG: &str = "nothing goes wrong";

fn parameters(workers: usize, width: u32) -> Parameters {
    Parameters::new(workers as u32, 256, width, 4).unwrap()
}

/// Arrays of `blocks` blocks. Bit b of a worker's pattern: its block b is not zero. Each sum shows whose blocks are in
/// it.
fn arrays(patterns: &[u32], blocks: u32) -> Vec<Vec<i32>> {
    let block = |rank: usize, at: u32| 16i32.pow(rank as u32) * (patterns[rank] >> at & 1) as i32 * (1 + at as i32);
    (0..patterns.len()).map(|rank| (0..blocks).map(|at| block(rank, at)).collect()).collect()
}

/// All patterns of so many workers and blocks.
fn all_patterns(workers: u32, blocks: u32) -> Vec<Vec<u32>> {
    let one = 1 << blocks;
    (0..one << (blocks * (workers - 1)))
        .map(|all: u32| (0..workers).map(|rank| all >> (rank * blocks) & (one - 1)).collect())
        .collect()
}

/// Reliable connections.
#[derive(Clone)]
struct Reliable {
    /// By worker, of one case or of several.
    cases: Vec<Vec<u32>>,
    blocks: u32,
    width: u32,
    order: Order,
    one_slot: bool,
}

/// Sums and indices.
type Sent = (Vec<i32>, Vec<u32>);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Connected {
    case: Vec<u32>,
    parties: Vec<Party<i32>>,
    node: Node<i32>,
    /// By worker: a message that is sent and has not landed, as it was when it was sent.
    up: Vec<Option<Message<i32>>>,
    /// By worker: what has landed in its receive slot and is not added yet, and whether the aggregator knows of it.
    slots: Vec<Option<(Message<i32>, bool)>>,
    /// By worker: an answer on its way, and what its memory was when it was sent.
    down: Vec<Option<(Answer, Sent)>>,
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Move {
    /// A message reaches the receive slot. Only then are the slots of the ring read.
    Land(usize),
    /// The aggregator takes a message from its receive slot.
    Take(usize),
    /// An answer reaches a worker. Only then is the transmit slot read.
    Answer(usize),
}

impl Connected {
    fn go_on(&mut self, rank: usize) {
        if self.parties[rank].drive() {
            self.up[rank] = self.parties[rank].message();
        }
    }

    fn step(&mut self, step: Move) -> Result<(), &'static str> {
        match step {
            Move::Land(rank) => {
                let sent = self.up[rank].take().ok_or("nothing was sent")?;
                if self.parties[rank].message().as_ref() != Some(&sent) {
                    return Err("a slot was changed before it was sent");
                }
                if self.slots[rank].replace((sent, false)).is_some() {
                    return Err("a receive slot was written to before its message was added");
                }
            }
            Move::Take(rank) => {
                let (message, _) = self.slots[rank].take().ok_or("nothing has landed")?;
                let taken = self.node.handle(rank as u32, &message, true, 0);
                let (received, answer) = taken.map_err(|_| "a message was refused")?;
                if received == Received::Held {
                    self.slots[rank] = Some((message, true));
                }
                if let Some(answer) = answer {
                    // Messages that were held have been added as well.
                    self.slots.fill(None);
                    for down in &mut self.down {
                        if down.replace((answer, self.node.slots.content(&answer))).is_some() {
                            return Err("two answers are on their way to one worker");
                        }
                    }
                }
            }
            Move::Answer(rank) => {
                let (answer, sent) = self.down[rank].take().ok_or("nothing was answered")?;
                let (blocks, next) = self.node.slots.content(&answer);
                if (&blocks, &next) != (&sent.0, &sent.1) {
                    return Err("a transmit slot was changed before everybody had it");
                }
                if self.parties[rank].answer(answer.iteration, &blocks, &next) != Ok(Answered::New) {
                    return Err("an answer was refused");
                }
                self.go_on(rank);
            }
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.parties.iter().all(|party| party.machine.is_complete()) && self.node.machine.is_complete()
    }
}

impl Reliable {
    fn new(cases: Vec<Vec<u32>>, blocks: u32, width: u32) -> Self {
        Self { cases, blocks, width, order: Order::Arrival, one_slot: false }
    }
}

impl Model for Reliable {
    type State = Connected;
    type Action = Move;

    fn init_states(&self) -> Vec<Connected> {
        let start = |case: &Vec<u32>| {
            let (workers, parameters) = (case.len(), parameters(case.len(), self.width));
            let parties = arrays(case, self.blocks).into_iter().map(|array| Party::new(parameters, array)).collect();
            let mut node = Node::new(parameters, self.blocks, self.order, NO_LIMITS, STALE);
            node.slots.one = self.one_slot;
            let (up, slots, down) = (vec![None; workers], vec![None; workers], vec![None; workers]);
            let mut state = Connected { case: case.clone(), parties, node, up, slots, down, wrong: None };
            (0..workers).for_each(|rank| state.go_on(rank));
            state
        };
        self.cases.iter().map(start).collect()
    }

    fn actions(&self, state: &Connected, steps: &mut Vec<Move>) {
        if state.wrong.is_some() {
            return;
        }
        for rank in 0..state.parties.len() {
            steps.extend(state.up[rank].is_some().then_some(Move::Land(rank)));
            let landed = state.slots[rank].as_ref().is_some_and(|(_, taken)| !taken);
            steps.extend(landed.then_some(Move::Take(rank)));
            steps.extend(state.down[rank].is_some().then_some(Move::Answer(rank)));
        }
    }

    fn next_state(&self, before: &Connected, step: Move) -> Option<Connected> {
        let mut state = before.clone();
        state.wrong = state.step(step).err();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WRONG, |_, state: &Connected| state.wrong.is_none()),
            Property::always("no deadlock", |model: &Self, state: &Connected| {
                let mut steps = Vec::new();
                model.actions(state, &mut steps);
                !steps.is_empty() || state.wrong.is_some() || state.is_over()
            }),
            Property::always("sums are exact", |model: &Self, state: &Connected| {
                let expected = sums(&arrays(&state.case, model.blocks));
                !state.is_over() || state.parties.iter().all(|party| party.array == expected)
            }),
            Property::always("iterations are those of the union", |model: &Self, state: &Connected| {
                let union = union(&arrays(&state.case, model.blocks)).len() as u32;
                let messages = union.div_ceil(model.width) + 1;
                !state.is_over() || state.parties.iter().all(|party| party.machine.iteration() == messages)
            }),
            Property::sometimes("it ends", |_, state: &Connected| state.is_over()),
        ]
    }
}

/// All patterns of two workers, and of three in small.
#[test]
fn two_transmit_slots_and_one_receive_slot_each_are_enough() {
    for (workers, blocks, width) in [(1, 4, 1), (2, 3, 1), (2, 3, 2), (3, 2, 1), (3, 2, 2)] {
        let cases = all_patterns(workers, blocks);
        check(&format!("{workers} workers, {blocks} blocks, {width} at a time"), Reliable::new(cases, blocks, width));
    }
}

#[test]
fn three_workers_and_several_iterations() {
    for case in [vec![0b11111; 3], vec![0b00111, 0b11100, 0b01010], vec![0b10000, 0b00001, 0]] {
        check("three workers, five blocks", Reliable::new(vec![case], 5, 2));
    }
}

#[test]
fn the_order_of_ranks_needs_no_slot_more() {
    for (workers, blocks, width) in [(2, 3, 1), (3, 2, 1)] {
        let cases = all_patterns(workers, blocks);
        check("by rank", Reliable { order: Order::Rank, ..Reliable::new(cases, blocks, width) });
    }
}

#[test]
fn with_one_transmit_slot_a_slow_worker_sees_the_next_iteration() {
    let model = Reliable { one_slot: true, ..Reliable::new(vec![vec![0b11; 2]], 2, 1) };
    let checker = model.checker().spawn_bfs().join();
    let path = checker.discovery(WRONG).expect("a slot that was changed");
    assert_eq!(path.last_state().wrong, Some("a transmit slot was changed before everybody had it"));
}

#[test]
#[ignore = "larger: cargo test -p flexcast-proto-models sparse_model:: -- --ignored"]
fn all_patterns_of_three_workers_and_three_blocks() {
    for width in 1..=3 {
        check(&format!("three workers, three blocks, {width} at a time"), Reliable::new(all_patterns(3, 3), 3, width));
    }
}

/// What datagrams do on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Network {
    /// Everything that was sent may arrive at any later time, any number of times.
    Unordered {
        /// And may be lost for ever.
        losing: bool,
    },
    /// In both directions between a worker and the aggregator datagrams keep their order. They are lost and come twice.
    Ordered,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Content {
    Contribution(Message<i32>),
    Answer { iteration: u32, sums: Vec<i32>, next: Vec<u32> },
    Waiting { rank: u32 },
    Failed { rank: u32 },
}

/// A datagram of or for a worker.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Packet {
    worker: usize,
    content: Content,
}

#[derive(Clone)]
struct Datagrams {
    case: Vec<u32>,
    blocks: u32,
    width: u32,
    network: Network,
    /// Bits of the iteration that a datagram carries; all of them if none is given.
    bits: Option<u32>,
    order: Order,
    /// Whether a worker dies.
    dying: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Air {
    parties: Vec<Party<i32>>,
    /// What was reported to a worker.
    failed: Vec<Option<u32>>,
    node: Node<i32>,
    /// On an unordered network.
    flying: BTreeSet<Packet>,
    /// On an ordered one: from each worker, and to each worker.
    up: Vec<VecDeque<Packet>>,
    down: Vec<VecDeque<Packet>>,
    dead: Option<usize>,
    wrong: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    /// A packet arrives, and may arrive again.
    Arrive(Packet),
    Lose(Packet),
    /// The first packet of or to a worker arrives, and may arrive again.
    ArriveUp(usize),
    ArriveDown(usize),
    LoseUp(usize),
    LoseDown(usize),
    Repeat(usize),
    Die(usize),
    TimeOut,
}

/// Packets of an ordered connection on their way at once.
const WINDOW: usize = 2;
const LIMITS: AggregatorLimits = AggregatorLimits { iteration_ps: 1, linger_ps: 1 };

impl Datagrams {
    fn new(case: &[u32], blocks: u32, width: u32, network: Network) -> Self {
        Self { case: case.to_vec(), blocks, width, network, bits: None, order: Order::Arrival, dying: false }
    }

    fn mask(&self) -> u32 {
        self.bits.map_or(u32::MAX, |bits| (1 << bits) - 1)
    }

    fn send(&self, state: &mut Air, upward: bool, worker: usize, content: Content) {
        let mask = self.mask();
        let content = match content {
            Content::Contribution(message) => {
                Content::Contribution(Message { iteration: message.iteration & mask, ..message })
            }
            Content::Answer { iteration, sums, next } => Content::Answer { iteration: iteration & mask, sums, next },
            other => other,
        };
        let packet = Packet { worker, content };
        if self.network == Network::Ordered {
            let queue = if upward { &mut state.up[worker] } else { &mut state.down[worker] };
            // What finds no room is lost, as it may be anyhow.
            if queue.len() < WINDOW {
                queue.push_back(packet);
            }
        } else {
            state.flying.insert(packet);
        }
    }

    /// Sends a worker's message, again or for the first time.
    fn repeat(&self, state: &mut Air, worker: usize) {
        if let Some(message) = state.parties[worker].message() {
            self.send(state, true, worker, Content::Contribution(message));
        }
    }

    fn answer(&self, state: &mut Air, worker: usize, answer: Answer) {
        let (sums, next) = state.node.slots.content(&answer);
        self.send(state, false, worker, Content::Answer { iteration: answer.iteration, sums, next });
    }

    /// The whole iteration, of those near the current one, that these bits are of.
    fn whole(&self, bits: u32, near: &[u32]) -> Option<u32> {
        near.iter().copied().find(|iteration| iteration & self.mask() == bits)
    }

    fn arrive(&self, state: &mut Air, Packet { worker, content }: Packet) {
        let result = match content {
            Content::Contribution(message) => self.contribution(state, worker, message),
            _ if state.dead == Some(worker) || state.failed[worker].is_some() => Ok(()),
            Content::Answer { iteration, sums, next } => {
                let own = state.parties[worker].machine.iteration();
                let near = if self.bits.is_some() { vec![own, own.wrapping_sub(1)] } else { vec![iteration] };
                let Some(iteration) = self.whole(iteration, &near) else { return };
                match state.parties[worker].answer(iteration, &sums, &next) {
                    Ok(Answered::New) => {
                        if state.parties[worker].drive() {
                            self.repeat(state, worker);
                        }
                        Ok(())
                    }
                    // Complete, and the bits could be of the iteration that never comes.
                    Ok(Answered::Old) | Err(WorkerError::Early { .. }) if self.bits.is_some() => Ok(()),
                    Ok(Answered::Old) => Ok(()),
                    Err(_) => Err("an answer was refused"),
                }
            }
            Content::Waiting { rank } if rank as usize >= self.case.len() => Err("nobody is waited for"),
            Content::Waiting { .. } => Ok(()),
            Content::Failed { rank } => {
                state.failed[worker] = Some(rank);
                Ok(())
            }
        };
        state.wrong = state.wrong.or(result.err());
    }

    fn contribution(&self, state: &mut Air, worker: usize, message: Message<i32>) -> Result<(), &'static str> {
        let current = state.node.machine.summation().iteration();
        let near = if self.bits.is_some() { vec![current, current.wrapping_sub(1)] } else { vec![message.iteration] };
        let Some(iteration) = self.whole(message.iteration, &near) else { return Ok(()) };
        match state.node.handle(worker as u32, &Message { iteration, ..message }, false, 0) {
            Ok((Received::Waiting { for_rank }, _)) => {
                self.send(state, false, worker, Content::Waiting { rank: for_rank });
            }
            Ok((Received::Again(answer), _)) => self.answer(state, worker, answer),
            Ok((_, Some(answer))) => (0..self.case.len()).for_each(|worker| self.answer(state, worker, answer)),
            Ok(_) => {}
            Err(AggregatorError::Failed { failure, .. }) => {
                self.send(state, false, worker, Content::Failed { rank: failure.rank });
            }
            Err(_) => return Err("a message was refused"),
        }
        Ok(())
    }

    /// Whether everything that is missing is of the dead worker: limits are longer than all tries of whoever lives.
    fn may_time_out(&self, state: &Air) -> bool {
        let machine = &state.node.machine;
        let Some(dead) = state.dead.filter(|dead| machine.missing() == Some(*dead as u32)) else { return false };
        let live = (0..self.case.len()).filter(|worker| *worker != dead);
        machine.deadline_ps().is_some() && live.clone().all(|worker| machine.has_arrived(worker as u32))
    }

    fn time_out(&self, state: &mut Air) {
        let silent = state.node.machine.poll(LIMITS.iteration_ps).map(|silent| silent.rank);
        if silent != state.dead.map(|dead| dead as u32) {
            state.wrong = Some("somebody else was called silent");
        }
        let dead = state.dead;
        for worker in (0..self.case.len()).filter(|worker| Some(*worker) != dead) {
            self.send(state, false, worker, Content::Failed { rank: silent.unwrap_or(u32::MAX) });
        }
    }

    fn is_live(&self, state: &Air, worker: usize) -> bool {
        state.dead != Some(worker) && state.failed[worker].is_none()
    }

    fn is_over(&self, state: &Air) -> bool {
        (0..self.case.len()).all(|worker| {
            let failed = state.failed[worker].is_some() || state.dead == Some(worker);
            failed || state.parties[worker].machine.is_complete()
        })
    }

    /// From here on nothing is lost and nothing delayed, and workers repeat what is not answered: all is over after a
    /// few rounds.
    fn ends(&self, state: &Air) -> bool {
        let mut state = state.clone();
        for _ in 0..2 * self.blocks + 4 {
            if self.is_over(&state) {
                return true;
            }
            state.flying.clear();
            state.up.iter_mut().chain(&mut state.down).for_each(VecDeque::clear);
            if self.may_time_out(&state) {
                self.time_out(&mut state);
            }
            for worker in (0..self.case.len()).filter(|worker| self.is_live(&state, *worker)).collect::<Vec<_>>() {
                self.repeat(&mut state, worker);
            }
            let up: Vec<Packet> = std::mem::take(&mut state.flying)
                .into_iter()
                .chain(state.up.iter_mut().flat_map(|up| up.drain(..)))
                .collect();
            up.into_iter().for_each(|packet| self.arrive(&mut state, packet));
            let down = std::mem::take(&mut state.flying).into_iter();
            let down: Vec<Packet> = down.chain(state.down.iter_mut().flat_map(|down| down.drain(..))).collect();
            down.into_iter().for_each(|packet| self.arrive(&mut state, packet));
        }
        self.is_over(&state)
    }
}

impl Model for Datagrams {
    type State = Air;
    type Action = Event;

    fn init_states(&self) -> Vec<Air> {
        let (workers, parameters) = (self.case.len(), parameters(self.case.len(), self.width));
        let parties = arrays(&self.case, self.blocks).into_iter().map(|array| Party::new(parameters, array)).collect();
        let mut state = Air {
            parties,
            failed: vec![None; workers],
            node: Node::new(parameters, self.blocks, self.order, LIMITS, STALE),
            flying: BTreeSet::new(),
            up: vec![VecDeque::new(); workers],
            down: vec![VecDeque::new(); workers],
            dead: None,
            wrong: None,
        };
        for worker in 0..workers {
            assert!(state.parties[worker].drive());
            self.repeat(&mut state, worker);
        }
        vec![state]
    }

    fn actions(&self, state: &Air, steps: &mut Vec<Event>) {
        if state.wrong.is_some() {
            return;
        }
        steps.extend(state.flying.iter().cloned().map(Event::Arrive));
        if self.network == (Network::Unordered { losing: true }) {
            steps.extend(state.flying.iter().cloned().map(Event::Lose));
        }
        for worker in 0..self.case.len() {
            if !state.up[worker].is_empty() {
                steps.extend([Event::ArriveUp(worker), Event::LoseUp(worker)]);
            }
            if !state.down[worker].is_empty() {
                steps.extend([Event::ArriveDown(worker), Event::LoseDown(worker)]);
            }
            if self.is_live(state, worker) && state.parties[worker].machine.message().is_some() {
                steps.push(Event::Repeat(worker));
            }
        }
        if self.dying && state.dead.is_none() {
            steps.extend((0..self.case.len()).map(Event::Die));
        }
        if self.may_time_out(state) {
            steps.push(Event::TimeOut);
        }
    }

    fn next_state(&self, before: &Air, step: Event) -> Option<Air> {
        let mut state = before.clone();
        match step {
            Event::Arrive(packet) => self.arrive(&mut state, packet),
            Event::Lose(packet) => {
                state.flying.remove(&packet);
            }
            Event::ArriveUp(worker) => {
                let packet = state.up[worker].front()?.clone();
                self.arrive(&mut state, packet);
            }
            Event::ArriveDown(worker) => {
                let packet = state.down[worker].front()?.clone();
                self.arrive(&mut state, packet);
            }
            Event::LoseUp(worker) => {
                state.up[worker].pop_front();
            }
            Event::LoseDown(worker) => {
                state.down[worker].pop_front();
            }
            Event::Repeat(worker) => self.repeat(&mut state, worker),
            Event::Die(worker) => state.dead = Some(worker),
            Event::TimeOut => self.time_out(&mut state),
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WRONG, |_, state: &Air| state.wrong.is_none()),
            Property::always("sums are exact", |model: &Self, state: &Air| {
                let expected = sums(&arrays(&model.case, model.blocks));
                state.parties.iter().all(|party| !party.machine.is_complete() || party.array == expected)
            }),
            Property::always("it can end from here", |model: &Self, state: &Air| {
                state.wrong.is_some() || model.ends(state)
            }),
            Property::always("the dead are named", |_, state: &Air| {
                state.failed.iter().flatten().all(|rank| Some(*rank as usize) == state.dead)
            }),
            Property::sometimes("it ends well", |model: &Self, state: &Air| {
                model.is_over(state) && state.parties.iter().all(|party| party.machine.is_complete())
            }),
            Property::sometimes("it fails where it may", |model: &Self, state: &Air| {
                !model.dying || state.failed.iter().any(Option::is_some)
            }),
        ]
    }
}

const LOSING: Network = Network::Unordered { losing: true };
const DELAYING: Network = Network::Unordered { losing: false };

/// Losses, repeats, and any delay, with whole iterations.
#[test]
fn datagrams_are_lost_and_come_twice_and_in_any_order() {
    for (case, blocks, width) in
        [(&[0b111][..], 3, 1), (&[0, 0b1], 1, 1), (&[0b1, 0b1], 1, 1), (&[0b11, 0b10], 2, 2), (&[0, 0], 2, 1)]
    {
        check(&format!("{case:?} of {blocks} blocks, losing"), Datagrams::new(case, blocks, width, LOSING));
    }
    for (case, blocks, width) in
        [(&[0b1111, 0b0101][..], 4, 1), (&[0b11, 0b11, 0b10], 2, 1), (&[0b101, 0b010, 0b111], 3, 2)]
    {
        check(&format!("{case:?} of {blocks} blocks, delaying"), Datagrams::new(case, blocks, width, DELAYING));
    }
}

#[test]
fn datagrams_in_the_order_of_ranks() {
    for (blocks, network) in [(1, LOSING), (2, DELAYING)] {
        check("by rank", Datagrams { order: Order::Rank, ..Datagrams::new(&[0b11, 0b11], blocks, 1, network) });
    }
}

/// The iteration could be one bit over channels that keep order, however much is lost or comes twice.
#[test]
fn one_bit_of_the_iteration_is_enough_where_order_is_kept() {
    for (case, blocks) in [(&[0b1111][..], 4), (&[0b11, 0b01], 2)] {
        let model = Datagrams { bits: Some(1), ..Datagrams::new(case, blocks, 1, Network::Ordered) };
        check(&format!("one bit, {case:?}"), model);
    }
}

/// And over channels that delay datagrams for any time no number of bits is enough unless it numbers all iterations.
/// With one and two bits an old datagram is taken for a new one.
#[test]
fn few_bits_of_the_iteration_mix_iterations_up_where_order_is_lost() {
    for (bits, blocks) in [(1, 3), (2, 5)] {
        let whole = Datagrams::new(&[(1 << blocks) - 1], blocks, 1, DELAYING);
        check("whole iterations", whole.clone());
        let checker = Datagrams { bits: Some(bits), ..whole }.checker().spawn_bfs().join();
        let wrong = checker.discovery(WRONG).or(checker.discovery("sums are exact"));
        assert!(wrong.is_some(), "{bits} bits");
    }
}

/// All that live end, with their sums or with the name of who has died.
#[test]
fn a_worker_dies_in_any_state() {
    for (case, blocks, network) in
        [(&[0b1, 0b1][..], 1, LOSING), (&[0b11, 0b10], 2, DELAYING), (&[0b1, 0b1, 0], 1, DELAYING)]
    {
        let model = Datagrams { dying: true, ..Datagrams::new(case, blocks, 1, network) };
        check(&format!("{case:?}, one dies"), model);
    }
}

#[test]
#[ignore = "larger: cargo test -p flexcast-proto-models sparse_model:: -- --ignored"]
fn more_datagrams() {
    for (case, width) in [([0b011, 0b011], 1), ([0b001, 0b010], 1), ([0b111, 0b101], 2)] {
        check(&format!("{case:?}, losing"), Datagrams::new(&case, 3, width, LOSING));
    }
    check("by rank", Datagrams { order: Order::Rank, ..Datagrams::new(&[0b11, 0b11], 2, 1, LOSING) });
    check("three workers, three blocks", Datagrams::new(&[0b111, 0b111, 0b111], 3, 1, DELAYING));
    check("one bit", Datagrams { bits: Some(1), ..Datagrams::new(&[0b11, 0b11], 2, 1, Network::Ordered) });
    for (case, network) in [(&[0b11, 0b10][..], LOSING), (&[0b11, 0b11, 0b11], DELAYING)] {
        check(&format!("{case:?}, one dies"), Datagrams { dying: true, ..Datagrams::new(case, 2, 1, network) });
    }
}

#[test]
#[ignore = "minutes: cargo test -p flexcast-proto-models sparse_model:: -- --ignored"]
fn datagrams_of_three_workers_are_lost() {
    check("three workers, losing", Datagrams::new(&[0b1, 0b1, 0], 1, 1, LOSING));
}
