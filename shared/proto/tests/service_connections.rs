//! Connection caches of several processes together, set-ups and messages in any order: one connection per pair, nothing
//! lost, nobody waits for ever.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use flexcast_proto::service::{Access, ConnectionAction, ConnectionError, Connections};
use proptest::prelude::*;
use rand_steps::Steps;

/// Steps in an order that a seed gives.
mod rand_steps {
    pub(crate) struct Steps(pub(crate) u64);

    impl Steps {
        /// A number below `count` (splitmix64).
        pub(crate) fn below(&mut self, count: usize) -> usize {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((mixed ^ mixed >> 31) % count as u64) as usize
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Item {
    /// The set-up is over.
    Welcome,
    Message,
    Goodbye,
}

/// A connection: what is on its way to each end, and which ends are not freed.
#[derive(Debug)]
struct Line {
    ends: [u32; 2],
    ways: [VecDeque<Item>; 2],
    open: [bool; 2],
}

#[derive(Clone, Copy, Debug)]
enum Reply {
    Crossing,
    Full,
}

#[derive(Debug)]
struct World {
    limit: u32,
    caches: Vec<Connections<u32>>,
    lines: Vec<Line>,
    /// By process and peer: its end of which line.
    current: BTreeMap<(u32, u32), usize>,
    /// Set-ups on their way, and answers that refuse them.
    attempts: Vec<(u32, u32)>,
    replies: Vec<(u32, u32, Reply)>,
    /// By sender and receiver: messages that wait for a connection.
    waiting: BTreeMap<(u32, u32), u32>,
    /// Messages that nobody has asked a connection for.
    posts: Vec<(u32, u32)>,
    delivered: usize,
}

impl World {
    fn new(processes: u32, limit: u32, posts: Vec<(u32, u32)>) -> Self {
        let caches = (0..processes).map(|own| Connections::new(own, limit).unwrap()).collect();
        Self {
            limit,
            caches,
            lines: Vec::new(),
            current: BTreeMap::new(),
            attempts: Vec::new(),
            replies: Vec::new(),
            waiting: BTreeMap::new(),
            posts,
            delivered: 0,
        }
    }

    fn cache(&mut self, process: u32) -> &mut Connections<u32> {
        &mut self.caches[process as usize]
    }

    fn send(&mut self, from: u32, to: u32, item: Item) {
        let line = &mut self.lines[self.current[&(from, to)]];
        let way = usize::from(line.ends[1] == to);
        line.ways[way].push_back(item);
    }

    fn act(&mut self, own: u32, actions: Vec<ConnectionAction<u32>>) {
        for action in actions {
            match action {
                ConnectionAction::Connect(peer) => self.attempts.push((own, peer)),
                ConnectionAction::Cancel(peer) => {
                    self.attempts.retain(|attempt| *attempt != (own, peer));
                    self.replies.retain(|(from, to, _)| (*from, *to) != (own, peer));
                }
                ConnectionAction::Goodbye(peer) => self.send(own, peer, Item::Goodbye),
                ConnectionAction::Close(peer) => {
                    let line = &mut self.lines[self.current.remove(&(own, peer)).unwrap()];
                    let end = usize::from(line.ends[1] == own);
                    let only_goodbye = line.ways[end].iter().all(|item| matches!(item, Item::Goodbye));
                    assert!(only_goodbye, "a connection with something in flight is freed");
                    line.open[end] = false;
                }
            }
        }
    }

    fn post(&mut self, from: u32, to: u32) {
        let mut actions = Vec::new();
        match self.cache(from).acquire(to, &mut actions) {
            Ok(Access::Ready) => self.send(from, to, Item::Message),
            Ok(Access::Later) => *self.waiting.entry((from, to)).or_default() += 1,
            Err(error) => {
                assert_eq!(error, ConnectionError::Full { limit: self.limit });
                self.posts.push((from, to));
            }
        }
        self.act(from, actions);
    }

    /// So many messages have their connection.
    fn go(&mut self, from: u32, to: u32, granted: u32) {
        assert_eq!(self.waiting.remove(&(from, to)).unwrap_or(0), granted);
        (0..granted).for_each(|_| self.send(from, to, Item::Message));
    }

    fn arrive(&mut self, from: u32, to: u32) {
        let mut actions = Vec::new();
        let accepted = self.cache(to).accepted(from, &mut actions);
        self.act(to, actions);
        match accepted {
            Ok(granted) => {
                let line = Line { ends: [from, to], ways: [[Item::Welcome].into(), VecDeque::new()], open: [true; 2] };
                self.lines.push(line);
                self.current.insert((to, from), self.lines.len() - 1);
                self.go(to, from, granted);
                // The welcome is on its way.
                let mut actions = Vec::new();
                self.cache(to).release(from, &mut actions);
                self.act(to, actions);
            }
            Err(ConnectionError::Crossing) => self.replies.push((from, to, Reply::Crossing)),
            Err(ConnectionError::Full { .. }) => self.replies.push((from, to, Reply::Full)),
            Err(error) => panic!("{from} to {to}: {error}"),
        }
    }

    fn reply(&mut self, from: u32, to: u32, reply: Reply) {
        match reply {
            Reply::Crossing => self.cache(from).crossed(to),
            Reply::Full => {
                let mut actions = Vec::new();
                let lost = self.cache(from).failed(to, &mut actions);
                assert_eq!(self.waiting.remove(&(from, to)).unwrap_or(0), lost);
                self.act(from, actions);
                self.posts.extend((0..lost).map(|_| (from, to)));
            }
        }
    }

    fn deliver(&mut self, line: usize, way: usize) {
        let Line { ends, ways, open } = &mut self.lines[line];
        let (to, from) = (ends[way], ends[1 - way]);
        let item = ways[way].pop_front().unwrap();
        if !open[way] {
            assert!(matches!(item, Item::Goodbye), "{item:?} to {to}, who has freed the connection");
            return;
        }
        let mut actions = Vec::new();
        match item {
            Item::Welcome => {
                self.current.insert((to, from), line);
                let granted = self.cache(to).connected(from);
                self.go(to, from, granted);
            }
            Item::Message => {
                self.delivered += 1;
                self.cache(from).release(to, &mut actions);
                self.act(from, actions);
                return;
            }
            Item::Goodbye => self.cache(to).goodbye(from, &mut actions),
        }
        self.act(to, actions);
    }

    /// Does one thing that can happen. False if nothing can.
    fn step(&mut self, steps: &mut Steps) -> bool {
        let ways: Vec<(usize, usize)> = (0..self.lines.len())
            .flat_map(|line| [(line, 0), (line, 1)])
            .filter(|(line, way)| !self.lines[*line].ways[*way].is_empty())
            .collect();
        let counts = [self.posts.len(), self.attempts.len(), self.replies.len(), ways.len()];
        let all = counts.iter().sum();
        if all == 0 {
            return false;
        }
        let mut at = steps.below(all);
        if at < counts[0] {
            let (from, to) = self.posts.swap_remove(at);
            self.post(from, to);
            return true;
        }
        at -= counts[0];
        if at < counts[1] {
            let (from, to) = self.attempts.swap_remove(at);
            self.arrive(from, to);
            return true;
        }
        at -= counts[1];
        if at < counts[2] {
            let (from, to, reply) = self.replies.swap_remove(at);
            self.reply(from, to, reply);
            return true;
        }
        let (line, way) = ways[at - counts[2]];
        self.deliver(line, way);
        true
    }

    fn check(&self) {
        let mut pairs = BTreeSet::new();
        let mut ends = vec![0; self.caches.len()];
        for Line { ends: [a, b], open, .. } in &self.lines {
            assert!(*open != [true; 2] || pairs.insert((a.min(b), a.max(b))), "two connections of {a} and {b}");
            for (end, open) in [a, b].into_iter().zip(open) {
                ends[*end as usize] += u32::from(*open);
            }
        }
        for (own, cache) in (0u32..).zip(&self.caches) {
            assert!(cache.there() <= 2 * self.limit && ends[own as usize] <= 2 * self.limit, "{own}: over the limit");
            assert_eq!(cache.counts().ignored, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 500 }))]

    #[test]
    fn all_messages_arrive_over_one_connection_per_pair(
        processes in 2u32..7,
        limit in 1u32..7,
        posts in proptest::collection::vec((0u32..7, 1u32..7), 1..80),
        seed: u64,
    ) {
        let posts: Vec<(u32, u32)> = posts
            .into_iter()
            .map(|(from, step)| (from % processes, (from % processes + 1 + step % (processes - 1)) % processes))
            .collect();
        let pairs: BTreeSet<(u32, u32)> = posts.iter().map(|(from, to)| (*from.min(to), *from.max(to))).collect();
        let (count, mut steps) = (posts.len(), Steps(seed));
        let mut world = World::new(processes, limit, posts);
        let mut taken = 0;
        while world.step(&mut steps) {
            world.check();
            taken += 1;
            prop_assert!(taken < 100_000, "no end: {} of {} delivered", world.delivered, count);
        }
        prop_assert_eq!(world.delivered, count);
        prop_assert!(world.waiting.is_empty());
        let sum = |of: fn(&Connections<u32>) -> u64| world.caches.iter().map(of).sum::<u64>();
        let (accepted, evictions) = (sum(|cache| cache.counts().accepted), sum(|cache| cache.counts().evictions));
        if limit >= processes - 1 {
            // Room for all: each pair is set up once.
            prop_assert_eq!((accepted, evictions), (pairs.len() as u64, 0));
        }
        prop_assert!(accepted >= pairs.len() as u64);
        prop_assert!(sum(|cache| cache.counts().hits + cache.counts().misses) >= count as u64);
    }
}
