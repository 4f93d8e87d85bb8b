//! Sparse AllReduce in bytes: over connections, in any order between them, and over datagrams in virtual time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use flexcast_proto::sparse::{
    AggregatorError, AggregatorLimits, Answer, Due, HEADER_BYTES, Kind, Order, Parameters, Received, Retry,
    RetryLimits, Silent, SparseCodec, Votes, split,
};

use super::sparse::{Block, Message, NO_LIMITS, Node, Party};

/// A block of 256 bytes: 64 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Wide([i32; 64]);

impl Block for Wide {
    const ZERO: Self = Self([0; 64]);

    fn add(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, element)| *sum = sum.wrapping_add(element));
    }
}

impl Wide {
    /// A block that has two elements, and is zero if both are.
    pub(crate) fn new(first: i32, last: i32) -> Self {
        let mut elements = [0; 64];
        (elements[0], elements[63]) = (first, last);
        Self(elements)
    }

    pub(crate) fn padded(elements: &[i32]) -> Self {
        let mut block = Self::ZERO;
        block.0[..elements.len()].copy_from_slice(elements);
        block
    }

    pub(crate) fn elements(&self) -> &[i32; 64] {
        &self.0
    }

    fn from_bytes(bytes: &[u8]) -> Vec<Self> {
        let element = |bytes: &[u8; 4]| i32::from_le_bytes(*bytes);
        bytes
            .as_chunks::<256>()
            .0
            .iter()
            .map(|bytes| Self(std::array::from_fn(|at| element(&bytes.as_chunks().0[at]))))
            .collect()
    }
}

fn put(bytes: &mut Vec<u8>, parameters: Parameters, blocks: &[Wide], indices: &[u32]) {
    blocks.iter().for_each(|block| bytes.extend(block.0.iter().flat_map(|element| element.to_le_bytes())));
    let votes = Votes::read(parameters, indices.iter().copied()).unwrap();
    bytes.extend(&votes.to_bytes()[..parameters.index_bytes() as usize]);
}

pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % count
    }
}

/// How it ended over connections.
pub(crate) struct Done<B> {
    pub(crate) arrays: Vec<Vec<B>>,
    /// By worker: messages and answers.
    pub(crate) messages: Vec<(u32, u32)>,
    pub(crate) most_at_once: u32,
}

/// Over connections, with all messages and answers as bytes.
pub(crate) fn reliable(parameters: Parameters, arrays: &[Vec<Wide>], order: Order, seed: u64) -> Done<Wide> {
    run(parameters, arrays, order, seed, |blocks, indices, expected| {
        let mut bytes = Vec::new();
        put(&mut bytes, parameters, &blocks, &indices);
        assert_eq!(bytes.len() as u32, parameters.message_bytes(expected));
        assert!(split(parameters, &bytes[1..], expected).is_err());
        let (blocks, votes) = split(parameters, &bytes, expected).unwrap();
        (Wide::from_bytes(blocks), votes.places().to_vec())
    })
}

/// Over connections, with blocks of any kind.
pub(crate) fn connections<B: Block>(parameters: Parameters, arrays: &[Vec<B>], order: Order, seed: u64) -> Done<B> {
    run(parameters, arrays, order, seed, |blocks, indices, _| (blocks, indices))
}

fn run<B: Block>(
    parameters: Parameters,
    arrays: &[Vec<B>],
    order: Order,
    seed: u64,
    carry: impl Fn(Vec<B>, Vec<u32>, u32) -> (Vec<B>, Vec<u32>),
) -> Done<B> {
    let mut random = Random(seed);
    let mut parties: Vec<Party<B>> = arrays.iter().map(|array| Party::new(parameters, array.clone())).collect();
    let left = arrays.first().and_then(|array| array.first()).copied().unwrap_or(B::ZERO);
    let mut node = Node::new(parameters, arrays[0].len() as u32, order, NO_LIMITS, left);
    let mut messages = vec![(0, 0); arrays.len()];
    // Whose message, or answer, is on its way.
    let mut under_way: Vec<(usize, Option<Answer>)> = Vec::new();
    for (rank, party) in parties.iter_mut().enumerate() {
        assert!(party.drive());
        under_way.push((rank, None));
    }
    while !under_way.is_empty() {
        let (rank, answer) = under_way.swap_remove(random.below(under_way.len() as u64) as usize);
        if let Some(answer) = answer {
            let (blocks, next) = node.slots.content(&answer);
            let (blocks, next) = carry(blocks, next, answer.sums);
            parties[rank].answer(answer.iteration, &blocks, &next).unwrap();
            messages[rank].1 += 1;
            if parties[rank].drive() {
                under_way.push((rank, None));
            }
            continue;
        }
        let message = parties[rank].message().unwrap();
        messages[rank].0 += 1;
        let present = node.machine.summation().blocks_of(message.displacement).unwrap();
        let (blocks, votes) = carry(message.blocks, message.votes, present);
        let (_, answer) = node.handle(rank as u32, &Message { blocks, votes, ..message }, true, 0).unwrap();
        under_way.extend(answer.into_iter().flat_map(|answer| (0..arrays.len()).map(move |rank| (rank, Some(answer)))));
    }
    assert!(node.machine.is_complete() && parties.iter().all(|party| party.machine.is_complete()));
    let most_at_once = node.most_at_once;
    Done { arrays: parties.into_iter().map(|party| party.array).collect(), messages, most_at_once }
}

/// How a worker ended over datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Complete(Vec<Wide>),
    /// It was notified of who is silent.
    Failed(u32),
    /// It has given up by itself.
    Silent(Silent),
    /// It was switched off.
    Dead,
    /// It never ended.
    Running,
}

const JOB: u64 = 0x1234_5678_9ABC_DEF0;
const SHARD: u32 = 7;
const REPEAT: u64 = 200;
const RETRY: RetryLimits = RetryLimits { repeat_ps: REPEAT, tries: 40, answer_ps: 100 * REPEAT };
/// All tries of a worker fit in them.
const LIMITS: AggregatorLimits = AggregatorLimits { iteration_ps: 45 * REPEAT, linger_ps: 45 * REPEAT };

/// When it arrives, its number, to whom, the aggregator being behind the last worker, and what.
type Flight = (u64, u64, usize, Vec<u8>);

/// Datagrams in virtual time: each takes 1 to 150 units, one in ten comes twice, and some are lost.
pub(crate) struct Network {
    parameters: Parameters,
    codec: SparseCodec,
    random: Random,
    /// Of 100 datagrams so many are lost.
    loss: u32,
    parties: Vec<Party<Wide>>,
    retries: Vec<Retry>,
    ends: Vec<End>,
    node: Node<Wide>,
    flying: BinaryHeap<Reverse<Flight>>,
    number: u64,
    /// From when on they are silent.
    silent: Vec<u64>,
    pub(crate) sent: Vec<u32>,
}

impl Network {
    pub(crate) fn new(parameters: Parameters, arrays: &[Vec<Wide>], order: Order, seed: u64, loss: u32) -> Self {
        Self {
            parameters,
            codec: SparseCodec::new(parameters, JOB, SHARD).unwrap(),
            random: Random(seed),
            loss,
            parties: arrays.iter().map(|array| Party::new(parameters, array.clone())).collect(),
            retries: vec![Retry::new(RETRY); arrays.len()],
            ends: vec![End::Running; arrays.len()],
            node: Node::new(parameters, arrays[0].len() as u32, order, LIMITS, Wide::new(-1, -1)),
            flying: BinaryHeap::new(),
            number: 0,
            silent: vec![u64::MAX; arrays.len() + 1],
            sent: vec![0; arrays.len()],
        }
    }

    /// A worker does nothing any more from this time on.
    pub(crate) fn silence(&mut self, worker: usize, at: u64) {
        self.silent[worker] = at;
    }

    pub(crate) fn silence_aggregator(&mut self, at: u64) {
        let aggregator = self.parties.len();
        self.silence(aggregator, at);
    }

    fn send(&mut self, now: u64, to: usize, bytes: &[u8]) {
        for _ in 0..if self.random.below(10) == 0 { 2 } else { 1 } {
            if self.random.below(100) >= u64::from(self.loss) {
                let at = now + 1 + self.random.below(150);
                self.number += 1;
                self.flying.push(Reverse((at, self.number, to, bytes.to_vec())));
            }
        }
    }

    fn send_message(&mut self, now: u64, worker: usize) {
        let Message { iteration, displacement, blocks, votes } = self.parties[worker].message().unwrap();
        let kind = Kind::Contribution { rank: worker as u32, displacement, blocks: blocks.len() as u32 };
        let mut bytes = self.codec.header(kind, iteration).to_vec();
        put(&mut bytes, self.parameters, &blocks, &votes);
        self.sent[worker] += 1;
        self.send(now, self.parties.len(), &bytes);
    }

    fn send_answer(&mut self, now: u64, worker: usize, answer: &Answer) {
        let (blocks, next) = self.node.slots.content(answer);
        let mut bytes = self.codec.header(Kind::Answer { blocks: answer.sums }, answer.iteration).to_vec();
        put(&mut bytes, self.parameters, &blocks, &next);
        self.send(now, worker, &bytes);
    }

    fn send_short(&mut self, now: u64, worker: usize, kind: Kind) {
        let iteration = self.node.machine.summation().iteration();
        let bytes = self.codec.header(kind, iteration);
        self.send(now, worker, &bytes);
    }

    fn go_on(&mut self, now: u64, worker: usize) {
        if self.parties[worker].drive() {
            self.retries[worker].sent(now);
            self.send_message(now, worker);
        } else if self.parties[worker].machine.is_complete() {
            self.ends[worker] = End::Complete(self.parties[worker].array.clone());
        }
    }

    fn at_aggregator(&mut self, now: u64, bytes: &[u8]) {
        let datagram = self.codec.decode(bytes).unwrap();
        let Kind::Contribution { rank, displacement, .. } = datagram.kind else { panic!("{:?}", datagram.kind) };
        let message = Message {
            iteration: datagram.iteration,
            displacement,
            blocks: Wide::from_bytes(datagram.blocks),
            votes: datagram.votes.places().to_vec(),
        };
        let worker = rank as usize;
        match self.node.handle(rank, &message, false, now) {
            Ok((Received::Waiting { for_rank }, _)) => self.send_short(now, worker, Kind::Waiting { rank: for_rank }),
            Ok((Received::Again(answer), _)) => self.send_answer(now, worker, &answer),
            Ok((_, Some(answer))) => (0..self.parties.len()).for_each(|worker| self.send_answer(now, worker, &answer)),
            Ok(_) => {}
            Err(AggregatorError::Failed { failure, .. }) => {
                self.send_short(now, worker, Kind::Failed { rank: failure.rank });
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn at_worker(&mut self, now: u64, worker: usize, bytes: &[u8]) {
        if self.ends[worker] != End::Running {
            return;
        }
        let datagram = self.codec.decode(bytes).unwrap();
        match datagram.kind {
            Kind::Answer { .. } => {
                let sums = Wide::from_bytes(datagram.blocks);
                let answered = self.parties[worker].answer(datagram.iteration, &sums, datagram.votes.places());
                if answered.unwrap() == flexcast_proto::sparse::Answered::New {
                    self.retries[worker].answered();
                    self.go_on(now, worker);
                }
            }
            Kind::Waiting { rank } => self.retries[worker].waiting(rank),
            Kind::Failed { rank } => self.ends[worker] = End::Failed(rank),
            Kind::Contribution { .. } => panic!("a worker sends nothing to workers"),
        }
    }

    /// Runs until everybody has ended; gives up long after all limits.
    pub(crate) fn run(&mut self) -> Vec<End> {
        let workers = self.parties.len();
        // They begin at different times, which the limits allow.
        let mut begin: Vec<Option<u64>> = (0..workers).map(|_| Some(self.random.below(300))).collect();
        loop {
            let timers = (0..workers).filter(|worker| self.ends[*worker] == End::Running);
            let timers = timers.filter_map(|worker| begin[worker].or_else(|| self.retries[worker].deadline_ps()));
            let next = self.flying.peek().map(|Reverse((at, ..))| *at);
            let aggregator = self.node.machine.deadline_ps();
            let Some(now) = timers.chain(next).chain(aggregator).min() else { break };
            if !self.ends.contains(&End::Running) || now > 1_000_000 {
                break;
            }
            for worker in (0..workers).filter(|worker| self.silent[*worker] <= now).collect::<Vec<_>>() {
                if self.ends[worker] == End::Running {
                    self.ends[worker] = End::Dead;
                }
            }
            while self.flying.peek().is_some_and(|Reverse((at, ..))| *at <= now) {
                let Some(Reverse((_, _, to, bytes))) = self.flying.pop() else { break };
                match to == workers {
                    true if self.silent[workers] <= now => {}
                    true => self.at_aggregator(now, &bytes),
                    false => self.at_worker(now, to, &bytes),
                }
            }
            if self.silent[workers] > now {
                if let Some(silent) = self.node.machine.poll(now) {
                    (0..workers).for_each(|worker| self.send_short(now, worker, Kind::Failed { rank: silent.rank }));
                }
            } else {
                // A timer whose result nobody uses.
                let _ = self.node.machine.poll(now);
            }
            for (worker, begin) in begin.iter_mut().enumerate() {
                if self.ends[worker] != End::Running {
                    continue;
                }
                if begin.take_if(|at| *at <= now).is_some() {
                    self.go_on(now, worker);
                }
                match self.retries[worker].poll(now) {
                    Some(Due::Repeat) => self.send_message(now, worker),
                    Some(Due::Failed(silent)) => self.ends[worker] = End::Silent(silent),
                    None => {}
                }
            }
        }
        assert!(self.flying.iter().all(|Reverse((.., bytes))| bytes.len() >= HEADER_BYTES));
        self.ends.clone()
    }
}
