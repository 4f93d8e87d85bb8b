//! Messages of all ranks' schedules on their way, in any order that connections allow.

use std::collections::{HashMap, VecDeque};

use flexcast_proto::RankInfo;
use flexcast_proto::p2p::{Arrival, Operation, Schedule, Transfer};

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % count
    }
}

pub(crate) fn schedules(operation: Operation, ranks: u32) -> Vec<Schedule> {
    (0..ranks).map(|rank| Schedule::new(operation, RankInfo::new(rank, ranks).unwrap()).unwrap()).collect()
}

/// What happens to the buffers of ranks.
pub(crate) trait Buffers {
    /// What a message carries.
    type Content;

    /// The rank posts a message.
    fn send(&mut self, rank: u32, transfer: Transfer) -> Self::Content;

    /// A message reaches the rank.
    fn arrive(&mut self, rank: u32, arrival: Arrival, content: Self::Content);

    /// The rank may combine what has come.
    fn reduce(&mut self, schedule: &mut Schedule);
}

/// What is under way from one rank to another: messages, their numbers in the longest chain of messages up to them, and
/// what they carry.
type Connection<C> = VecDeque<(Transfer, u32, C)>;

/// Carries all schedules out: each message at any time after those before it on its connection, and those that it
/// depends on. Gives the number of steps: the longest chain of messages of which each waits for the one before.
pub(crate) fn deliver<B: Buffers>(all: &mut [Schedule], seed: u64, buffers: &mut B) -> u32 {
    let mut random = Random(seed);
    let mut connections: HashMap<(u32, u32), Connection<B::Content>> = HashMap::new();
    let mut under_way: Vec<(u32, u32)> = Vec::new();
    let mut polling: Vec<u32> = (0..all.len() as u32).collect();
    // Of each rank's arrivals, by tag.
    let mut steps: Vec<Vec<u32>> = all.iter().map(|schedule| vec![0; schedule.receives().count()]).collect();
    while !polling.is_empty() || !under_way.is_empty() {
        if !polling.is_empty() && (under_way.is_empty() || random.below(2) == 0) {
            let rank = polling.swap_remove(random.below(polling.len()));
            while let Some(transfer) = all[rank as usize].poll() {
                assert_ne!(transfer.to, rank, "a message to oneself");
                let before = steps[rank as usize][..transfer.after as usize].iter().max();
                let message = (transfer, before.map_or(1, |before| before + 1), buffers.send(rank, transfer));
                connections.entry((rank, transfer.to)).or_default().push_back(message);
                under_way.push((rank, transfer.to));
                all[rank as usize].sent().unwrap();
            }
        } else {
            let (from, to) = under_way.swap_remove(random.below(under_way.len()));
            let (transfer, step, content) = connections.get_mut(&(from, to)).and_then(VecDeque::pop_front).unwrap();
            let schedule = &mut all[to as usize];
            let arrival = schedule.receive(transfer.tag).unwrap();
            assert_eq!((arrival.from, arrival.target), (from, transfer.target));
            buffers.arrive(to, arrival, content);
            schedule.arrived(from, transfer.tag).unwrap();
            steps[to as usize][transfer.tag as usize] = step;
            let (mut reduces, mut sends) = (*schedule, *schedule);
            assert!(reduces.reduce().is_none() || sends.poll().is_none(), "sent before what has come is combined");
            buffers.reduce(schedule);
            polling.push(to);
        }
    }
    for schedule in all {
        assert!(schedule.is_complete(), "{:?} waits for {:?}", schedule.place(), schedule.waiting_for());
        assert_eq!((schedule.poll(), schedule.reduce(), schedule.waiting_for()), (None, None, None));
    }
    steps.into_iter().flatten().max().unwrap_or(0)
}
