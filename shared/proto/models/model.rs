//! Every interleaving of up to three ranks, by a model checker: barrier, activation, multicast that arrives, is late or
//! lost, cutoff, fetches before it and behind it, reads and final messages. No deadlock, no release before everything
//! is there, no read from a released buffer, no write into one. With two ranks, and for Broadcast, packets come twice
//! as well; Allgather of three would take too long with that.
//!
//! And of operations that fail: any rank cancels in any state, or calls something else than the others. Then all ranks
//! learn of it and nobody is released with a block that is not whole. What takes long is ignored: `cargo test -p
//! flexcast-proto-models model:: -- --ignored`.

use flexcast_proto::{
    Action, Cause, Failure, FailureCode, Message, OperationDescriptor, Participant, PieceSet, Pieces, RankInfo,
    RankSet, Summary,
};
use stateright::{Checker as _, Model, Property};

const CUTOFF_PS: u64 = 10;

/// What one piece of multicast is to one receiver.
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
    /// Reads under way: from whom, of which piece.
    reads: Vec<(u32, u32)>,
    /// Pieces in the user buffer.
    holds: PieceSet,
    /// Pieces that were reported to it as lost while multicast goes on.
    reported: PieceSet,
    reported_all: bool,
    posted: bool,
    released: bool,
    failed: Option<Failure>,
    cut_off: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    ranks: Vec<Rank>,
    cancelled: Option<u32>,
    /// Messages on their way, by sender and receiver, in order.
    wires: Vec<Vec<Message>>,
    /// By sender, receiver and piece of the sender's block.
    packets: Vec<Packet>,
    /// What went wrong.
    wrong: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Step {
    Post(usize),
    Cancel(usize),
    Deliver {
        from: usize,
        to: usize,
    },
    EndMulticast(usize),
    Arrive(Flight),
    Lose(Flight),
    ArriveAgain(Flight),
    EndRead {
        rank: usize,
        index: usize,
    },
    CutOff(usize),
    /// A rank takes a piece that has not come for lost.
    Report(Flight),
    /// It takes all that have not come for lost.
    ReportAll(usize),
}

/// A packet: sender, receiver, and which piece of the sender's block it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Flight {
    from: usize,
    to: usize,
    piece: usize,
}

#[derive(Clone, Copy)]
struct Collective {
    ranks: usize,
    roots: RankSet,
    /// Pieces of each block: as many packets.
    each: u32,
    chains: u32,
    /// Whether packets come twice.
    doubled: bool,
    /// Whether losses are reported to ranks while multicast goes on, truly or not.
    reporting: bool,
    /// Whether ranks post when they like; otherwise all have posted in the beginning.
    posting: bool,
    /// Whether one rank cancels.
    cancelling: bool,
    /// Whether failed ranks are forgotten: what they were like, and what is on its way to them. The smaller models show
    /// that it does not matter; the largest cannot do without.
    forgetting: bool,
    /// The ranks that contribute 512 bytes; the others contribute 4096.
    odd: RankSet,
}

impl Collective {
    /// An operation that ends well.
    fn new(ranks: usize, roots: RankSet, chains: u32) -> Self {
        let odd = RankSet::EMPTY;
        Self {
            ranks,
            roots,
            each: 1,
            chains,
            doubled: false,
            reporting: false,
            posting: false,
            cancelling: false,
            forgetting: false,
            odd,
        }
    }

    fn disagrees(&self) -> bool {
        !self.odd.is_empty()
    }

    fn pieces(&self) -> Pieces {
        Pieces::new(self.roots, self.each)
    }

    fn flight(&self, Flight { from, to, piece }: Flight) -> usize {
        self.at(from, to) * self.each as usize + piece
    }

    fn flights(&self, from: usize, to: usize) -> impl Iterator<Item = Flight> {
        (0..self.each as usize).map(move |piece| Flight { from, to, piece })
    }

    fn post(&self, state: &mut State, rank: usize) {
        let bytes = if self.odd.contains(rank as u32) { 512 } else { 4096 };
        let descriptor = OperationDescriptor {
            operation: 7,
            roots: self.roots,
            pieces: self.each,
            summary: Summary::allgather(bytes, 4096, self.chains),
            barrier_timeout_ps: u64::MAX,
            cutoff_ps: CUTOFF_PS,
            bound_ps: u64::MAX,
        };
        let this = &mut state.ranks[rank];
        assert!(this.machine.post(descriptor, 0));
        this.machine.delivered(rank as u32);
        this.posted = true;
    }

    fn at(&self, from: usize, to: usize) -> usize {
        from * self.ranks + to
    }

    /// Sends what a rank asks for to which a loss was reported.
    fn ask(&self, state: &mut State, rank: usize, action: Option<Action>) {
        if let Some(Action::Send { to, message }) = action {
            state.wires[self.at(rank, to as usize)].push(message);
        }
    }

    /// Does what a rank's machine asks for.
    fn drive(&self, state: &mut State, rank: usize) {
        while let Some(action) = state.ranks[rank].machine.poll() {
            match action {
                Action::Send { to, message } => state.wires[self.at(rank, to as usize)].push(message),
                Action::Multicast if self.disagrees() => state.wrong = Some("multicast although ranks differ"),
                Action::Multicast => state.ranks[rank].multicasting = true,
                Action::Read { from, pieces } => {
                    state.ranks[rank].reads.extend(pieces.iter().map(|piece| (from, piece)));
                }
                Action::Release => {
                    let this = &mut state.ranks[rank];
                    if this.holds != self.pieces().all() || this.multicasting || !this.reads.is_empty() {
                        state.wrong = Some("released too early");
                    }
                    this.released = true;
                }
                Action::Fail(failure) => self.failed(state, rank, failure),
            }
        }
    }

    /// A rank gives its buffers back: its keys are no more, its reads, sends and worker are over.
    fn failed(&self, state: &mut State, rank: usize, failure: Failure) {
        let Failure { failed_rank, detecting_rank, cause } = failure;
        let this = &mut state.ranks[rank];
        let fitting = match cause {
            Cause::Cancelled => failed_rank == detecting_rank && state.cancelled == Some(failed_rank),
            // A read from a buffer whose keys are no more.
            Cause::Connection(_) => state.cancelled.is_some(),
            Cause::Disagrees => self.odd.contains(failed_rank) != self.odd.contains(detecting_rank),
            Cause::Silent(_) | Cause::Device(_) | Cause::Aggregator(_) | Cause::Contribution => false,
        };
        if !fitting || this.failed.is_some() {
            state.wrong = Some("failed for no reason, or twice");
        }
        (this.failed, this.multicasting) = (Some(failure), false);
        this.reads.clear();
        if self.forgetting {
            let place = RankInfo::new(rank as u32, self.ranks as u32).unwrap();
            this.machine = Participant::new(place, 7);
            this.machine.fail(failure);
            while this.machine.poll().is_some() {}
            (this.holds, this.released, this.cut_off) = (self.pieces().all(), false, true);
            this.failed = Some(Failure { failed_rank: 0, detecting_rank: 0, cause });
        }
    }

    fn piece(&self, Flight { from, piece, .. }: Flight) -> u32 {
        self.pieces().of(from as u32).first().expect("a root") + piece as u32
    }

    /// Whether it may be reported to a rank that a packet on its way to it is lost.
    fn may_report(&self, state: &State, flight: Flight) -> bool {
        if !self.reporting || state.packets[self.flight(flight)] == Packet::Unsent {
            return false;
        }
        let (rank, piece) = (&state.ranks[flight.to], self.piece(flight));
        let idle = rank.cut_off || rank.released || rank.failed.is_some();
        !idle && !rank.holds.contains(piece) && !rank.reported.contains(piece)
    }

    /// Whether it may be reported to a rank that all that has not come is lost: every root has multicast.
    fn may_report_all(&self, state: &State, rank: usize) -> bool {
        let this = &state.ranks[rank];
        let idle = this.cut_off || this.released || this.failed.is_some() || this.machine.ready_ps().is_none();
        let lacks = !self.pieces().all().without(&this.holds).is_empty();
        let is_sent = |from: u32| {
            let mut flights = self.flights(from as usize, rank);
            from as usize == rank || flights.all(|flight| state.packets[self.flight(flight)] != Packet::Unsent)
        };
        self.reporting && !idle && lacks && !this.reported_all && self.roots.iter().all(is_sent)
    }

    /// A packet reaches a rank: its worker takes it for the operation that is armed, and for no other.
    fn receive(&self, state: &mut State, Flight { from, to, piece }: Flight) {
        let this = &mut state.ranks[to];
        if this.released || this.failed.is_some() {
            return;
        }
        let pieces = PieceSet::of(self.piece(Flight { from, to, piece }));
        this.holds = this.holds.or(&pieces);
        this.machine.delivered_pieces(&pieces);
        self.drive(state, to);
    }
}

impl Model for Collective {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut state = State {
            ranks: Vec::new(),
            cancelled: None,
            wires: vec![Vec::new(); self.ranks * self.ranks],
            packets: vec![Packet::Unsent; self.ranks * self.ranks * self.each as usize],
            wrong: None,
        };
        for rank in 0..self.ranks as u32 {
            state.ranks.push(Rank {
                machine: Participant::new(RankInfo::new(rank, self.ranks as u32).unwrap(), 7),
                multicasting: false,
                reads: Vec::new(),
                holds: self.pieces().of(rank),
                reported: PieceSet::EMPTY,
                reported_all: false,
                posted: false,
                released: false,
                failed: None,
                cut_off: false,
            });
        }
        for rank in (0..self.ranks).filter(|_| !self.posting) {
            self.post(&mut state, rank);
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
            if !rank.posted && rank.failed.is_none() {
                steps.push(Step::Post(from));
            }
            if self.cancelling && state.cancelled.is_none() && rank.machine.is_running() {
                steps.push(Step::Cancel(from));
            }
            if self.may_report_all(state, from) {
                steps.push(Step::ReportAll(from));
            }
            if !rank.cut_off && rank.machine.deadline_ps() == Some(CUTOFF_PS) {
                steps.push(Step::CutOff(from));
            }
            for to in 0..self.ranks {
                if !state.wires[self.at(from, to)].is_empty() {
                    steps.push(Step::Deliver { from, to });
                }
                for flight in self.flights(from, to) {
                    if self.may_report(state, flight) {
                        steps.push(Step::Report(flight));
                    }
                    match state.packets[self.flight(flight)] {
                        Packet::Flying => steps.extend([Step::Arrive(flight), Step::Lose(flight)]),
                        Packet::Copy => steps.push(Step::ArriveAgain(flight)),
                        Packet::Unsent | Packet::Gone => {}
                    }
                }
            }
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Post(rank) => {
                self.post(&mut state, rank);
                self.drive(&mut state, rank);
            }
            Step::Cancel(rank) => {
                state.cancelled = Some(rank as u32);
                assert!(state.ranks[rank].machine.cancel());
                self.drive(&mut state, rank);
            }
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
                    for flight in self.flights(from, to) {
                        state.packets[self.flight(flight)] = Packet::Flying;
                    }
                }
                state.ranks[from].machine.sent();
                self.drive(&mut state, from);
            }
            Step::Arrive(flight) => {
                state.packets[self.flight(flight)] = if self.doubled { Packet::Copy } else { Packet::Gone };
                self.receive(&mut state, flight);
            }
            Step::Lose(flight) => state.packets[self.flight(flight)] = Packet::Gone,
            Step::ArriveAgain(flight) => {
                state.packets[self.flight(flight)] = Packet::Gone;
                self.receive(&mut state, flight);
            }
            Step::EndRead { rank, index } => {
                let (from, piece) = state.ranks[rank].reads.remove(index);
                let source = &state.ranks[from as usize];
                if source.failed.is_some() {
                    let failure = Failure {
                        failed_rank: from,
                        detecting_rank: rank as u32,
                        cause: Cause::Connection(FailureCode::RetriesExceeded),
                    };
                    state.ranks[rank].machine.fail(failure);
                } else {
                    if source.released {
                        state.wrong = Some("read from a released buffer");
                    }
                    if !source.holds.contains(piece) {
                        state.wrong = Some("read what is not there");
                    }
                    if state.ranks[rank].released {
                        state.wrong = Some("wrote into a released buffer");
                    }
                    state.ranks[rank].holds.insert(piece);
                    state.ranks[rank].machine.read(piece);
                }
                self.drive(&mut state, rank);
            }
            Step::Report(flight) => {
                let (rank, piece) = (flight.to, self.piece(flight));
                state.ranks[rank].reported.insert(piece);
                let action = state.ranks[rank].machine.lost(&PieceSet::of(piece), false);
                self.ask(&mut state, rank, action);
                self.drive(&mut state, rank);
            }
            Step::ReportAll(rank) => {
                let this = &mut state.ranks[rank];
                this.reported_all = true;
                let lost = self.pieces().all().without(&this.holds);
                let action = this.machine.lost(&lost, true);
                self.ask(&mut state, rank, action);
                self.drive(&mut state, rank);
            }
            Step::CutOff(rank) => {
                state.ranks[rank].cut_off = true;
                state.ranks[rank].machine.handle_time(CUTOFF_PS);
                self.drive(&mut state, rank);
            }
        }
        for to in (0..self.ranks).filter(|to| self.forgetting && state.ranks[*to].failed.is_some()) {
            for from in 0..self.ranks {
                state.wires[self.at(from, to)].clear();
                for flight in self.flights(from, to) {
                    state.packets[self.flight(flight)] = Packet::Gone;
                }
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("nothing goes wrong", |_, state: &State| state.wrong.is_none()),
            // A state without a next step is an end: everybody must be released there, or have failed.
            Property::always("no deadlock", |model: &Self, state: &State| {
                let mut steps = Vec::new();
                model.actions(state, &mut steps);
                let fails = model.disagrees() || state.cancelled.is_some();
                !steps.is_empty()
                    || state.ranks.iter().all(|rank| if fails { rank.failed.is_some() } else { rank.released })
            }),
            Property::sometimes("a piece is fetched", |model: &Self, state: &State| {
                model.disagrees() || state.ranks.iter().any(|rank| !rank.reads.is_empty())
            }),
            Property::sometimes("all are released", |model: &Self, state: &State| {
                model.disagrees() || state.ranks.iter().all(|rank| rank.released && rank.failed.is_none())
            }),
            Property::sometimes("it fails where it may", |model: &Self, state: &State| {
                !(model.disagrees() || model.cancelling) || state.ranks.iter().all(|rank| rank.failed.is_some())
            }),
            Property::sometimes("a read from a failed rank", |model: &Self, state: &State| {
                let connection = |failure: Failure| matches!(failure.cause, Cause::Connection(_));
                !model.cancelling || state.ranks.iter().any(|rank| rank.failed.is_some_and(connection))
            }),
        ]
    }
}

fn check(collective: Collective) -> usize {
    // Depth first: much less is kept.
    let checker = collective.checker().threads(2).spawn_dfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}

#[test]
fn two_ranks() {
    for chains in [1, 2] {
        let states = check(Collective { doubled: true, ..Collective::new(2, RankSet::below(2), chains) });
        assert!(states > 100, "{states} states");
    }
    check(Collective { doubled: true, ..Collective::new(2, RankSet::of(1), 1) });
}

#[test]
fn broadcast_to_three_ranks() {
    for root in 0..3 {
        let states = check(Collective { doubled: true, ..Collective::new(3, RankSet::of(root), 1) });
        assert!(states > 100, "{states} states");
    }
}

#[test]
fn allgather_of_three_ranks() {
    let states = check(Collective::new(3, RankSet::below(3), 2));
    assert!(states > 500_000, "{states} states");
}

/// Blocks in pieces: some come, others are lost, and a rank passes on those that it has.
#[test]
fn blocks_of_two_ranks_in_pieces() {
    for (roots, each) in [(RankSet::below(2), 2), (RankSet::of(1), 3)] {
        let states = check(Collective { each, ..Collective::new(2, roots, 2) });
        assert!(states > 100, "{states} states");
    }
}

/// Losses are reported while multicast goes on, of pieces that are lost and of pieces that still come.
#[test]
fn losses_are_reported_before_the_cutoff() {
    for (ranks, roots, each) in [(2, RankSet::below(2), 1), (2, RankSet::of(1), 3), (3, RankSet::of(0), 1)] {
        let states = check(Collective { each, reporting: true, ..Collective::new(ranks, roots, 2) });
        assert!(states > 100, "{states} states");
    }
}

#[test]
fn a_broadcast_to_three_ranks_in_pieces() {
    for root in 0..3 {
        let states = check(Collective { each: 2, ..Collective::new(3, RankSet::of(root), 1) });
        assert!(states > 1000, "{states} states");
    }
}

#[test]
#[ignore = "a minute more: cargo test -p flexcast-proto-models model:: -- --ignored"]
fn allgather_of_three_ranks_in_one_chain_and_in_three() {
    for chains in [1, 3] {
        let states = check(Collective::new(3, RankSet::below(3), chains));
        assert!(states > 500_000, "{chains} chains: {states} states");
    }
}

/// Any rank cancels at any time: all ranks learn of it, also those that are released or have not posted.
#[test]
fn any_of_two_ranks_cancels_in_any_state() {
    for (roots, chains) in [(RankSet::below(2), 1), (RankSet::below(2), 2), (RankSet::of(1), 1)] {
        for posting in [false, true] {
            let states =
                check(Collective { doubled: true, posting, cancelling: true, ..Collective::new(2, roots, chains) });
            assert!(states > 100, "{states} states");
        }
    }
}

#[test]
fn any_of_three_ranks_cancels_a_broadcast_in_any_state() {
    for root in 0..3 {
        let states = check(Collective { posting: true, cancelling: true, ..Collective::new(3, RankSet::of(root), 1) });

        assert!(states > 1000, "{states} states");
    }
}

#[test]
#[ignore = "half a minute more: cargo test -p flexcast-proto-models model:: -- --ignored"]
fn any_of_three_ranks_cancels_an_allgather_in_any_state() {
    let allgather = Collective::new(3, RankSet::below(3), 2);
    let states = check(Collective { cancelling: true, forgetting: true, ..allgather });

    assert!(states > 500_000, "{states} states");
}

/// Whoever differs, and in whatever order they post: all fail, for that reason, and nobody has multicast.
#[test]
fn ranks_that_call_different_things_all_fail_before_anyone_multicasts() {
    for (ranks, odd) in [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)] {
        let odd = RankSet::of(odd);
        let states =
            check(Collective { posting: true, odd, ..Collective::new(ranks, RankSet::below(ranks as u32), 1) });

        assert!(states > 10, "{states} states");
    }
}
