//! Packets that are delayed until their id has come round: by a model checker, with every interleaving of four
//! Broadcasts among three ranks, two ids, and a clock. A worker knows a packet's operation by its id alone. None is
//! taken for another operation's, as long as an id rests for the lifetime of packets from the release of the *next*
//! operation; from the own release is too early.

use flexcast_proto::{
    Action, CollectiveIds, ImmediateLayout, Message, OperationDescriptor, Participant, RankInfo, RankSet, Summary,
};
use stateright::{Checker as _, Model, Property};

const RANKS: usize = 3;
const ROOT: u32 = 0;
const IDS: u32 = 2;
const OPERATIONS: u32 = 4;

/// How ids are handed out.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Ids {
    Kept(CollectiveIds),
    /// An id rests from the own release on.
    Naive {
        next: u32,
        released: [Option<u64>; IDS as usize],
    },
}

impl Ids {
    fn take(&mut self, now: u64, lifetime: u64) -> Option<u32> {
        match self {
            Self::Kept(ids) => ids.take(now).ok(),
            Self::Naive { next, released } => {
                let id = *next;
                if released[id as usize].is_some_and(|released| now < released + lifetime) {
                    return None;
                }
                *next = (id + 1) % IDS;
                Some(id)
            }
        }
    }

    fn release(&mut self, id: u32, now: u64) {
        match self {
            Self::Kept(ids) => ids.release(id, now),
            Self::Naive { released, .. } => released[id as usize] = Some(now),
        }
    }
}

/// An operation and its id.
type Tag = (u32, u32);

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rank {
    machine: Participant,
    ids: Ids,
    armed: Option<Tag>,
    multicasting: Option<Tag>,
    reads: Vec<(u32, u32)>,
    posted: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    now: u64,
    ranks: Vec<Rank>,
    wires: Vec<Vec<Message>>,
    /// Packets on their way: to whom, of what, sent when.
    flying: Vec<(usize, Tag, u64)>,
    mixed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Post(usize),
    Deliver { from: usize, to: usize },
    EndMulticast,
    Arrive(usize),
    EndRead { rank: usize, index: usize },
    CutOff(usize),
    Tick,
}

struct Reuse {
    naive: bool,
    lifetime: u64,
    end: u64,
}

impl Reuse {
    fn drive(&self, state: &mut State, rank: usize) {
        let now = state.now;
        let this = &mut state.ranks[rank];
        while let Some(action) = this.machine.poll() {
            match action {
                Action::Send { to, message } => state.wires[rank * RANKS + to as usize].push(message),
                Action::Multicast => this.multicasting = this.armed,
                Action::Read { from, pieces } => this.reads.extend(pieces.iter().map(|piece| (from, piece))),
                Action::Release => {
                    let (_, id) = this.armed.take().expect("an operation is released once");
                    this.ids.release(id, now);
                }
                Action::Fail(failure) => panic!("{failure}"),
            }
        }
    }
}

impl Model for Reuse {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let layout = ImmediateLayout::new(31).unwrap();
        let ids = match self.naive {
            true => Ids::Naive { next: 0, released: [None; IDS as usize] },
            false => Ids::Kept(CollectiveIds::new(layout, self.lifetime)),
        };
        let rank = |rank| Rank {
            machine: Participant::new(RankInfo::new(rank, RANKS as u32).unwrap(), 0),
            ids: ids.clone(),
            armed: None,
            multicasting: None,
            reads: Vec::new(),
            posted: 0,
        };
        let (ranks, wires) = ((0..RANKS as u32).map(rank).collect(), vec![Vec::new(); RANKS * RANKS]);
        vec![State { now: 0, ranks, wires, flying: Vec::new(), mixed: false }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for (from, rank) in state.ranks.iter().enumerate() {
            if rank.armed.is_none()
                && rank.posted < OPERATIONS
                && rank.ids.clone().take(state.now, self.lifetime).is_some()
            {
                steps.push(Step::Post(from));
            }
            if rank.multicasting.is_some() {
                steps.push(Step::EndMulticast);
            }
            steps.extend((0..rank.reads.len()).map(|index| Step::EndRead { rank: from, index }));
            // The cutoff is at once; the machines' own clocks stand still, which keeps the states few.
            if rank.machine.deadline_ps() == Some(0) {
                steps.push(Step::CutOff(from));
            }
            steps.extend(
                (0..RANKS).filter(|to| !state.wires[from * RANKS + to].is_empty()).map(|to| Step::Deliver { from, to }),
            );
        }
        steps.extend((0..state.flying.len()).map(Step::Arrive));
        if state.now < self.end {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        let now = state.now;
        match step {
            Step::Post(rank) => {
                let this = &mut state.ranks[rank];
                let id = this.ids.take(now, self.lifetime)?;
                this.armed = Some((this.posted, id));
                let descriptor = OperationDescriptor {
                    operation: this.posted,
                    roots: RankSet::of(ROOT),
                    pieces: 1,
                    summary: Summary::broadcast(ROOT, 1, 1),
                    barrier_timeout_ps: u64::MAX,
                    cutoff_ps: 0,
                    bound_ps: u64::MAX,
                };
                assert!(this.machine.post(descriptor, 0));
                this.machine.delivered(rank as u32);
                this.posted += 1;
                self.drive(&mut state, rank);
            }
            Step::Deliver { from, to } => {
                let message = state.wires[from * RANKS + to].remove(0);
                state.ranks[to].machine.handle(from as u32, message).unwrap();
                self.drive(&mut state, to);
            }
            Step::EndMulticast => {
                let root = &mut state.ranks[ROOT as usize];
                let tag = root.multicasting.take()?;
                root.machine.sent();
                state.flying.extend((0..RANKS).filter(|to| *to != ROOT as usize).map(|to| (to, tag, now)));
                state.flying.sort_unstable();
                self.drive(&mut state, ROOT as usize);
            }
            Step::Arrive(index) => {
                let (to, (operation, id), _) = state.flying.remove(index);
                if let Some((current, _)) = state.ranks[to].armed.filter(|(_, armed)| *armed == id) {
                    state.mixed |= current != operation;
                    state.ranks[to].machine.delivered(ROOT);
                    self.drive(&mut state, to);
                }
            }
            Step::EndRead { rank, index } => {
                let (_, piece) = state.ranks[rank].reads.remove(index);
                state.ranks[rank].machine.read(piece);
                self.drive(&mut state, rank);
            }
            Step::CutOff(rank) => {
                state.ranks[rank].machine.handle_time(0);
                self.drive(&mut state, rank);
            }
            Step::Tick => {
                state.now += 1;
                // Lost, or dead.
                let (now, lifetime) = (state.now, self.lifetime);
                state.flying.retain(|(_, _, sent)| now < sent + lifetime);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no packet is taken for another operation's", |_, state: &State| !state.mixed),
            Property::sometimes("an id comes round while a rank is behind", |_, state: &State| {
                state.ranks.iter().any(|rank| rank.posted == OPERATIONS)
                    && state.ranks.iter().any(|rank| rank.posted < OPERATIONS)
            }),
            Property::sometimes("a packet flies while others are done with its operation", |_, state: &State| {
                state.flying.iter().any(|(to, (operation, _), _)| {
                    state.ranks[*to].posted > operation + 1 || state.ranks[*to].armed.is_none()
                })
            }),
        ]
    }
}

fn check(naive: bool, lifetime: u64, end: u64) -> impl stateright::Checker<Reuse> {
    Reuse { naive, lifetime, end }.checker().threads(2).spawn_dfs().join()
}

#[test]
fn no_delayed_packet_is_taken_for_another_operations() {
    for (lifetime, end) in [(1, 3), (2, 5)] {
        let checker = check(false, lifetime, end);
        checker.assert_properties();
        let states = checker.unique_state_count();
        assert!(states > 20_000, "{states} states");
    }
}

#[test]
fn resting_from_the_own_release_mixes_operations_up() {
    let checker = check(true, 1, 2);
    let path = checker.discovery("no packet is taken for another operation's").expect("the checker finds it");
    assert!(path.last_state().mixed);
}
