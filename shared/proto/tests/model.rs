//! Every interleaving of up to three ranks, by a model checker: barrier, activation, multicast that arrives, is late or lost, cutoff,
//! fetches, reads and final messages. No deadlock, no release before everything is there, no read from a released buffer, no write into
//! one. With two ranks, and for Broadcast, packets come twice as well; Allgather of three would take too long with that.

use flexcast_proto::{Action, Message, Participant, Place, RankSet, Terms};
use stateright::{Checker as _, Model, Property};

const CUTOFF_PS: u64 = 10;

/// What one block of multicast is to one receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Packet {
    Unsent,
    /// May arrive or be lost.
    Flying,
    /// Has arrived or was lost; a copy of it may still arrive.
    Copy,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Rank {
    machine: Participant,
    multicasting: bool,
    /// Reads under way: from whom, of which block.
    reads: Vec<(u32, u32)>,
    /// Blocks in the user buffer.
    holds: RankSet,
    released: bool,
    cut_off: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    ranks: Vec<Rank>,
    /// Messages on their way, by sender and receiver, in order.
    wires: Vec<Vec<Message>>,
    /// By sender and receiver.
    packets: Vec<Packet>,
    /// What went wrong.
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Deliver { from: usize, to: usize },
    EndMulticast(usize),
    Arrive { from: usize, to: usize },
    Lose { from: usize, to: usize },
    ArriveAgain { from: usize, to: usize },
    EndRead { rank: usize, index: usize },
    CutOff(usize),
}

struct Collective {
    ranks: usize,
    roots: RankSet,
    chains: u32,
    /// Whether packets come twice.
    doubled: bool,
}

impl Collective {
    fn at(&self, from: usize, to: usize) -> usize {
        from * self.ranks + to
    }

    /// Does what a rank's machine asks for.
    fn drive(&self, state: &mut State, rank: usize) {
        while let Some(action) = state.ranks[rank].machine.poll() {
            match action {
                Action::Send { to, message } => state.wires[self.at(rank, to as usize)].push(message),
                Action::Multicast => state.ranks[rank].multicasting = true,
                Action::Read { from, block } => state.ranks[rank].reads.push((from, block)),
                Action::Release => {
                    let this = &mut state.ranks[rank];
                    if this.holds != self.roots || this.multicasting || !this.reads.is_empty() {
                        state.wrong = Some("released too early");
                    }
                    this.released = true;
                }
                Action::Fail(_) => state.wrong = Some("failed"),
            }
        }
    }

    /// A packet reaches a rank: its worker takes it for the operation that is armed, and for no other.
    fn receive(&self, state: &mut State, from: usize, to: usize) {
        let this = &mut state.ranks[to];
        if this.released {
            return;
        }
        this.holds.insert(from as u32);
        this.machine.placed(from as u32);
        self.drive(state, to);
    }
}

impl Model for Collective {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let terms = Terms {
            operation: 7,
            roots: self.roots,
            chains: self.chains,
            patience_ps: u64::MAX,
            cutoff_ps: CUTOFF_PS,
            bound_ps: u64::MAX,
        };
        let mut state = State {
            ranks: Vec::new(),
            wires: vec![Vec::new(); self.ranks * self.ranks],
            packets: vec![Packet::Unsent; self.ranks * self.ranks],
            wrong: None,
        };
        for rank in 0..self.ranks as u32 {
            let mut machine = Participant::new(Place::new(rank, self.ranks as u32).unwrap(), 7);
            assert!(machine.post(terms, 0));
            machine.placed(rank);
            let holds = self.roots.and(&RankSet::of(rank));
            state.ranks.push(Rank {
                machine,
                multicasting: false,
                reads: Vec::new(),
                holds,
                released: false,
                cut_off: false,
            });
        }
        for rank in 0..self.ranks {
            self.drive(&mut state, rank);
        }
        vec![state]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for from in 0..self.ranks {
            if state.ranks[from].multicasting {
                steps.push(Step::EndMulticast(from));
            }
            steps.extend((0..state.ranks[from].reads.len()).map(|index| Step::EndRead { rank: from, index }));
            let rank = &state.ranks[from];
            if !rank.cut_off && rank.machine.deadline_ps() == Some(CUTOFF_PS) {
                steps.push(Step::CutOff(from));
            }
            for to in 0..self.ranks {
                if !state.wires[self.at(from, to)].is_empty() {
                    steps.push(Step::Deliver { from, to });
                }
                match state.packets[self.at(from, to)] {
                    Packet::Flying => steps.extend([Step::Arrive { from, to }, Step::Lose { from, to }]),
                    Packet::Copy => steps.push(Step::ArriveAgain { from, to }),
                    Packet::Unsent | Packet::Gone => {}
                }
            }
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Deliver { from, to } => {
                let message = state.wires[self.at(from, to)].remove(0);
                if state.ranks[to].machine.handle(from as u32, message).is_err() {
                    state.wrong = Some("a message was refused");
                }
                self.drive(&mut state, to);
            }
            Step::EndMulticast(from) => {
                state.ranks[from].multicasting = false;
                for to in (0..self.ranks).filter(|&to| to != from) {
                    let at = self.at(from, to);
                    state.packets[at] = Packet::Flying;
                }
                state.ranks[from].machine.sent();
                self.drive(&mut state, from);
            }
            Step::Arrive { from, to } => {
                let at = self.at(from, to);
                state.packets[at] = if self.doubled { Packet::Copy } else { Packet::Gone };
                self.receive(&mut state, from, to);
            }
            Step::Lose { from, to } => {
                let at = self.at(from, to);
                state.packets[at] = Packet::Gone;
            }
            Step::ArriveAgain { from, to } => {
                let at = self.at(from, to);
                state.packets[at] = Packet::Gone;
                self.receive(&mut state, from, to);
            }
            Step::EndRead { rank, index } => {
                let (from, block) = state.ranks[rank].reads.remove(index);
                let source = &state.ranks[from as usize];
                if source.released {
                    state.wrong = Some("read from a released buffer");
                }
                if !source.holds.contains(block) {
                    state.wrong = Some("read what is not there");
                }
                if state.ranks[rank].released {
                    state.wrong = Some("wrote into a released buffer");
                }
                state.ranks[rank].holds.insert(block);
                state.ranks[rank].machine.read(block);
                self.drive(&mut state, rank);
            }
            Step::CutOff(rank) => {
                state.ranks[rank].cut_off = true;
                state.ranks[rank].machine.handle_time(CUTOFF_PS);
                self.drive(&mut state, rank);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing goes wrong", |_, state: &State| state.wrong.is_none()),
            // A state without a next step is an end: everybody must be released there.
            Property::always("no deadlock", |model: &Self, state: &State| {
                let mut steps = Vec::new();
                model.actions(state, &mut steps);
                !steps.is_empty() || state.ranks.iter().all(|rank| rank.released)
            }),
            Property::sometimes("a block is fetched", |_, state: &State| {
                state.ranks.iter().any(|rank| !rank.reads.is_empty())
            }),
            Property::sometimes("all are released", |_, state: &State| state.ranks.iter().all(|rank| rank.released)),
        ]
    }
}

fn check(ranks: usize, roots: RankSet, chains: u32, doubled: bool) -> usize {
    let checker = Collective { ranks, roots, chains, doubled }.checker().threads(2).spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

#[test]
fn two_ranks() {
    for chains in [1, 2] {
        let states = check(2, RankSet::below(2), chains, true);
        assert!(states > 100, "{states} states");
    }
    check(2, RankSet::of(1), 1, true);
}

#[test]
fn broadcast_to_three_ranks() {
    for root in 0..3 {
        let states = check(3, RankSet::of(root), 1, true);
        assert!(states > 100, "{states} states");
    }
}

#[test]
fn allgather_of_three_ranks() {
    let states = check(3, RankSet::below(3), 2, false);
    assert!(states > 500_000, "{states} states");
}

#[test]
#[ignore = "a minute more: cargo test -p flexcast-proto --test model -- --ignored"]
fn allgather_of_three_ranks_in_one_chain_and_in_three() {
    for chains in [1, 3] {
        let states = check(3, RankSet::below(3), chains, false);
        assert!(states > 500_000, "{chains} chains: {states} states");
    }
}
