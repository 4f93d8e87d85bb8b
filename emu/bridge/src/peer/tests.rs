//! Ends that talk to one another at random: none holds up the others for ever.

use super::*;

const US_PS: u64 = 1_000_000;
const ANSWER_PS: u64 = 51 * US_PS;

/// Numbers that depend on a seed alone (xorshift64*).
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound
    }
}

/// Some ends, each with every other as its peer, and what is on the way between them.
struct Mesh {
    heres: Vec<Here>,
    peers: Vec<Vec<Peer>>,
    /// Of each pair of ends, sender first.
    ways: Vec<Vec<VecDeque<Header>>>,
    now: Instant,
}

impl Mesh {
    fn new(ends: usize) -> Self {
        let here = |end| Here {
            epoch: end as u32 + 1,
            room: 256,
            clock_ps: 0,
            answer_ps: ANSWER_PS,
            process: Process::own(),
            peer_timeout: Duration::from_secs(10),
        };
        let peer = || PeerConfig { address: SocketAddr::from(([127, 0, 0, 1], 1)), cards: None };
        Self {
            heres: (0..ends).map(here).collect(),
            peers: (0..ends).map(|_| (0..ends).map(|_| Peer::new(peer(), 4)).collect()).collect(),
            ways: vec![vec![VecDeque::new(); ends]; ends],
            now: Instant::now(),
        }
    }

    /// One end takes up to `most` datagrams of each other, sends `frames` of them to another, and lets its clock go on
    /// as far as it may. The clock of one that `jumps` goes on however far it may.
    fn poll(&mut self, end: usize, most: usize, frames: &[(usize, usize)], go_on_ps: u64, jumps: bool) {
        let Self { heres, peers, ways, now } = self;
        let (here, peers) = (&mut heres[end], &mut peers[end]);
        clock_is_set(peers, *here);
        for (other, peer) in peers.iter_mut().enumerate().filter(|(other, _)| *other != end) {
            for _ in 0..most {
                let Some(header) = ways[other][end].pop_front() else { break };
                peer.receive(*here, header);
            }
            if peer.must_report(*here) {
                ways[end][other].push_back(peer.header(*here, 0));
            }
            let more = frames.iter().filter(|(to, _)| *to == other).map(|(_, count)| count).sum();
            peer.waiting.extend((0..more).map(|_| Vec::new()));
            while !peer.waiting.is_empty() && peer.may_send() {
                peer.waiting.pop_front();
                peer.note_sent(*here);
                ways[end][other].push_back(peer.header(*here, 1));
            }
        }
        let limit_ps = if jumps { u64::MAX } else { limit_ps(peers, *here).unwrap_or(u64::MAX) };
        here.clock_ps = here.clock_ps.max(limit_ps.min(here.clock_ps + go_on_ps));
        clock_is_set(peers, *here);
        let mut written_off = 0;
        for (other, peer) in peers.iter_mut().enumerate().filter(|(other, _)| *other != end) {
            peer.judge(*here, Duration::from_micros(10), &mut written_off);
            if peer.should_be_asked(*here, *now) {
                ways[end][other].push_back(peer.question(*here, *now));
            } else if peer.must_report(*here) {
                ways[end][other].push_back(peer.header(*here, 0));
            }
        }
        assert_eq!(written_off, 0, "nobody is given up");
        *now += Duration::from_micros(200);
    }

    /// Ends take turns, none longer than the others, and have nothing new to send: every clock goes on.
    fn settles(&mut self, case: &str) {
        let before: Vec<u64> = self.heres.iter().map(|here| here.clock_ps).collect();
        for _ in 0..2_000 {
            (0..self.heres.len()).for_each(|end| self.poll(end, usize::MAX, &[], 20 * US_PS, false));
        }
        for (end, (here, before)) in self.heres.iter().zip(before).enumerate() {
            let moved_ps = here.clock_ps - before;
            assert!(moved_ps > 1_000 * US_PS, "{case}: end {end} has moved by {} us", moved_ps / US_PS);
        }
    }
}

fn walk(seed: u64, jumps: bool) {
    let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    let ends = 2 + dice.below(3);
    let mut mesh = Mesh::new(ends);
    for _ in 0..600 {
        let end = dice.below(ends);
        let most = dice.below(40);
        let frames: Vec<_> = (0..dice.below(3)).map(|_| (dice.below(ends), dice.below(200))).collect();
        let go_on_ps = (dice.below(150) as u64) * US_PS;
        let jump = jumps && dice.below(20) == 0;
        mesh.poll(end, most, &frames, if jump { 1_000 * US_PS } else { go_on_ps }, jump);
    }
    mesh.settles(&format!("seed {seed}, {ends} ends"));
}

/// The clock of each goes no further than its frames allow, and each takes frames late: still none waits for one that
/// waits for it.
#[test]
fn ends_that_hold_their_clocks_for_one_another_all_go_on() {
    (0..300).for_each(|seed| walk(seed, false));
}

/// The same, where a call to FlexIO has set clocks ahead of what frames under way allow.
#[test]
fn clocks_that_jump_past_their_frames_hold_nobody_for_ever() {
    (0..300).for_each(|seed| walk(seed, true));
}
