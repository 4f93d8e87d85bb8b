//! Tests of the engine over a scripted carrier: every input in every phase, refusals, deadlines and ends.
//!
//! An input is what may happen to an engine from outside: a post, an action of the protocol, an answer of the carrier,
//! a call that fails, time that passes. Whatever happens, in whatever order: each request ends exactly once, and with
//! its buffers unless something may still reach them.

mod offload;

use flexcast_proto::{Action, Algorithm, Cause, Failure, FailureCode, PieceSet};

use super::carrier::{LetGo, Withdrawn};
use super::end::WIND_UP_PS;
use super::scripted::{Call, ScriptedProtocol, With, message};
use super::{Datapath as _, Engine, Posted, State, Task};
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::config::Config;
use crate::op::outcome::Outcome;
use crate::plan::{Kind, Plan};

type Scripted = Engine<With<ScriptedProtocol, ()>>;

const BYTES: u64 = 128;

fn failure(cause: Cause, detecting_rank: u32) -> Failure {
    Failure { failed_rank: 1, detecting_rank, cause }
}

fn lost() -> Failure {
    failure(Cause::Connection(FailureCode::ConnectionReset), 1)
}

/// What happens to an engine. Each is followed by an advance.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Input {
    PostBlocks,
    PostEager,
    PostCollective,
    Release,
    FailElsewhere,
    FailHere,
    Multicast,
    Read,
    Send,
    /// The carrier does not take operations, or does again.
    Defer(bool),
    /// The carrier does not let operations end, or does again.
    Hold(bool),
    LetGo(LetGo),
    Refuse(Call),
    WindUp,
}

fn inputs() -> Vec<Input> {
    let mut inputs = vec![
        Input::PostBlocks,
        Input::PostEager,
        Input::PostCollective,
        Input::Release,
        Input::FailElsewhere,
        Input::FailHere,
        Input::Multicast,
        Input::Read,
        Input::Send,
        Input::Defer(true),
        Input::Defer(false),
        Input::Hold(true),
        Input::Hold(false),
        Input::LetGo(LetGo::NotYet),
        Input::LetGo(LetGo::Never),
        Input::WindUp,
    ];
    inputs.extend(Call::ALL.map(Input::Refuse));
    inputs
}

/// An engine, and the requests that have been posted to it.
struct World {
    engine: Scripted,
    open: Vec<u64>,
    done: Vec<(u64, Outcome)>,
}

impl World {
    fn new() -> Self {
        let engine = With::engine(0, Config::default().chunk_bytes(64), ScriptedProtocol::default());
        Self { engine, open: Vec::new(), done: Vec::new() }
    }

    fn after(inputs: &[Input]) -> Self {
        let mut world = Self::new();
        inputs.iter().for_each(|input| world.put(*input));
        world
    }

    fn post(&mut self, task: Task) {
        let request = self.engine.ops.core.requests.open();
        let receive = Buffer::of_host(BYTES as usize).unwrap();
        let posted_ps = self.engine.carrier.0.now_ps;
        let posted = Posted { request, plan: task, send: None, receive, posted_ps };
        match self.engine.take_on(posted) {
            Ok(()) => self.open.push(request),
            Err(failed) => {
                let is_held = self.engine.carrier.0.withdrawn == Withdrawn::Held;
                assert!(failed.receive.is_some() || is_held, "{failed}: without its buffer");
            }
        }
    }

    fn blocks() -> Task {
        Task::Blocks(Plan::new(Kind::Broadcast { root: 0, bytes: BYTES }, 0, 2, 64, 1))
    }

    fn put(&mut self, input: Input) {
        let scripted = &mut self.engine.carrier.0;
        let actions = &mut self.engine.ops.protocol.actions;
        match input {
            Input::PostBlocks | Input::PostEager => {
                let is_eager = input == Input::PostEager;
                scripted.algorithm = if is_eager { Algorithm::Eager } else { Algorithm::Multicast };
                self.post(Self::blocks());
            }
            Input::PostCollective => self.post(Task::Collective(Collective::Barrier)),
            Input::Release => actions.push_back(Action::Release),
            Input::FailElsewhere => actions.push_back(Action::Fail(lost())),
            Input::FailHere => self.engine.fail_here(Cause::Device(FailureCode::Copy)),
            Input::Multicast => actions.push_back(Action::Multicast),
            Input::Read => actions.push_back(Action::Read { from: 1, pieces: PieceSet::EMPTY }),
            Input::Send => actions.push_back(Action::Send { to: 1, message: message() }),
            Input::Defer(defers) => scripted.defers = if defers { u32::MAX } else { 0 },
            Input::Hold(holds) => scripted.may_end = !holds,
            Input::LetGo(let_go) => scripted.let_go = let_go,
            Input::Refuse(call) => scripted.refuses = Some(call),
            Input::WindUp => scripted.now_ps += WIND_UP_PS + 1,
        }
        self.advance();
    }

    fn advance(&mut self) {
        // What is refused is returned to whoever calls; the next call goes on.
        _ = self.engine.progress();
        let requests = self.engine.ops.core.requests.clone();
        self.open.retain(|request| match requests.take_done(*request) {
            None => true,
            Some(outcome) => {
                assert!(requests.take_done(*request).is_none(), "request {request} ends twice");
                self.done.push((*request, outcome));
                false
            }
        });
    }

    /// The communicator fails, the carrier lets go, and time passes: everything ends.
    fn wind_up(&mut self) {
        let scripted = &mut self.engine.carrier.0;
        (scripted.refuses, scripted.defers, scripted.may_end) = (None, 0, true);
        self.put(Input::FailElsewhere);
        self.put(Input::WindUp);
        self.advance();
    }

    /// Whether buffers may stay with the engine.
    fn may_hold(&self, inputs: &[Input]) -> bool {
        inputs.iter().any(|input| matches!(input, Input::LetGo(_) | Input::Refuse(Call::Renew | Call::EndExchange)))
    }

    fn state(&self) -> Option<State> {
        self.engine.ops.current.as_ref().map(|operation| operation.state)
    }
}

/// Each request that was posted ends once; nothing begins after a failure.
fn check(inputs: &[Input]) {
    let mut world = World::after(inputs);
    if world.engine.ops.core.broken.is_some() {
        assert!(world.engine.ops.core.waiting.is_empty(), "{inputs:?}: operations wait for a failed communicator");
    }
    if world.engine.ops.is_free() {
        assert!(world.engine.ops.core.waiting.is_empty() || world.engine.deadline_ps() == Some(0), "{inputs:?}");
    }
    world.wind_up();
    assert!(world.open.is_empty(), "{inputs:?}: requests {:?} do not end", world.open);
    assert!(world.engine.is_idle(), "{inputs:?}");
    let may_hold = world.may_hold(inputs);
    for (request, outcome) in &world.done {
        let receive = match outcome {
            Ok(done) => Some(&done.receive),
            Err(failed) => failed.receive.as_ref(),
        };
        assert!(receive.is_some_and(|buffer| buffer.len() == BYTES as usize) || may_hold, "{inputs:?}: {request}");
    }
}

/// Every phase of an operation, and how the engine comes to it.
const PHASES: &[&[Input]] = &[
    &[],
    &[Input::Defer(true), Input::PostBlocks],
    &[Input::PostBlocks],
    &[Input::PostEager],
    &[Input::PostCollective],
    &[Input::PostBlocks, Input::PostBlocks],
    &[Input::PostCollective, Input::PostBlocks],
    &[Input::Hold(true), Input::PostBlocks, Input::Release],
    &[Input::Hold(true), Input::PostEager, Input::Release],
    &[Input::Hold(true), Input::PostCollective, Input::Release],
    &[Input::LetGo(LetGo::NotYet), Input::PostBlocks, Input::FailElsewhere],
    &[Input::LetGo(LetGo::NotYet), Input::PostBlocks, Input::PostCollective, Input::FailHere],
    &[Input::Hold(true), Input::PostCollective, Input::FailElsewhere],
    &[Input::FailElsewhere],
];

#[test]
fn every_input_in_every_phase_leaves_each_request_one_end() {
    let inputs = inputs();
    for phase in PHASES {
        for first in &inputs {
            for second in &inputs {
                check(&[phase, &[*first, *second][..]].concat());
            }
        }
    }
}

#[test]
fn any_four_inputs_in_any_order_leave_each_request_one_end() {
    // Without the calls that are refused, which the test above puts everywhere.
    let inputs: Vec<Input> = inputs().into_iter().filter(|input| !matches!(input, Input::Refuse(_))).collect();
    for first in &inputs {
        for second in &inputs {
            for third in &inputs {
                inputs.iter().for_each(|fourth| check(&[*first, *second, *third, *fourth]));
            }
        }
    }
}

#[test]
fn a_call_that_is_refused_is_returned_once_and_the_engine_goes_on() {
    // Of a begin that fails the caller has the buffers: nothing is returned by progress.
    let of_progress = [
        (Call::Receive, None),
        (Call::Advance, None),
        (Call::SendData, None),
        (Call::Flush, None),
        (Call::SendMessage, Some(Input::Send)),
        (Call::Multicast, Some(Input::Multicast)),
        (Call::Read, Some(Input::Read)),
        (Call::Failed, Some(Input::FailElsewhere)),
    ];
    for (call, input) in of_progress {
        let mut world = World::after(&[Input::PostBlocks]);
        let actions = &mut world.engine.ops.protocol.actions;
        match input {
            None => {}
            Some(Input::Send) => actions.push_back(Action::Send { to: 1, message: message() }),
            Some(Input::Multicast) => actions.push_back(Action::Multicast),
            Some(Input::Read) => actions.push_back(Action::Read { from: 1, pieces: PieceSet::EMPTY }),
            Some(_) => actions.push_back(Action::Fail(lost())),
        }
        world.engine.carrier.0.refuses = Some(call);
        let refused = world.engine.progress().expect_err("it is refused");
        assert!(refused.to_string().contains(&format!("{call:?}")), "{refused}");
        world.engine.progress().expect("it goes on");
    }
}

#[test]
fn an_operation_that_cannot_begin_comes_back_and_ends_the_communicator_for_others() {
    for (call, withdrawn) in [
        (Call::Prepare, Withdrawn::Clean),
        (Call::Arm, Withdrawn::Clean),
        (Call::Arm, Withdrawn::Renew),
        (Call::Arm, Withdrawn::Held),
    ] {
        let mut world = World::new();
        (world.engine.carrier.0.refuses, world.engine.carrier.0.withdrawn) = (Some(call), withdrawn);
        let receive = Buffer::of_host(BYTES as usize).unwrap();
        let posted = Posted { request: 1, plan: World::blocks(), send: None, receive, posted_ps: 0 };
        let failed = world.engine.take_on(posted).expect_err("it is refused");
        assert_eq!(failed.receive.is_some(), withdrawn != Withdrawn::Held, "{call:?} {withdrawn:?}");
        assert_eq!(world.engine.ops.lost.len(), usize::from(withdrawn == Withdrawn::Held));
        assert!(world.engine.is_free() && world.engine.carrier.0.wakes > 0);
        world.advance();
        let broken = world.engine.ops.core.broken.expect("others wait for it");
        assert_eq!((broken.failed_rank, broken.cause), (0, Cause::Device(FailureCode::NotStarted)));
    }
}

#[test]
fn a_deferred_operation_is_tried_until_it_begins_and_can_fail_before() {
    let mut world = World::after(&[Input::Defer(true), Input::PostBlocks, Input::Release]);
    assert_eq!(world.state(), Some(State::Deferred), "what others release is not this one");
    world.put(Input::Defer(false));
    assert_eq!(world.state(), Some(State::Active));
    let arms = world.engine.carrier.0.calls.iter().filter(|call| **call == Call::Arm).count();
    assert!(arms >= 3, "{arms}");
    let mut world = World::after(&[Input::Defer(true), Input::LetGo(LetGo::NotYet), Input::PostBlocks]);
    world.put(Input::FailElsewhere);
    world.put(Input::Defer(false));
    assert_eq!(world.state(), Some(State::Failed(lost())), "it never begins");
}

#[test]
fn after_a_failure_buffers_are_waited_for_no_longer_than_the_bound() {
    let mut world = World::after(&[Input::LetGo(LetGo::NotYet), Input::PostBlocks, Input::FailElsewhere]);
    assert_eq!(world.engine.deadline_ps(), Some(WIND_UP_PS + 1));
    world.engine.carrier.0.now_ps = WIND_UP_PS;
    world.advance();
    assert_eq!(world.open.len(), 1, "within the bound");
    world.engine.carrier.0.now_ps = WIND_UP_PS + 1;
    world.advance();
    let (_, outcome) = world.done.pop().expect("it has ended");
    assert!(outcome.is_err_and(|failed| failed.receive.is_none()), "what may be reached stays with the engine");
    assert_eq!(world.engine.ops.lost.len(), 1);
    // Of a card that has died nobody waits for anything.
    let mut world = World::after(&[Input::LetGo(LetGo::Never), Input::PostBlocks, Input::FailElsewhere]);
    world.advance();
    assert!(world.open.is_empty() && world.engine.ops.lost.len() == 1);
}

#[test]
fn the_protocol_s_deadline_is_the_engine_s_and_what_waits_is_due_at_once() {
    let mut world = World::new();
    assert_eq!(world.engine.deadline_ps(), None);
    world.engine.ops.protocol.deadline_ps = Some(77);
    world.put(Input::PostBlocks);
    assert_eq!(world.engine.deadline_ps(), Some(77));
    world.put(Input::PostCollective);
    assert_eq!(world.engine.deadline_ps(), Some(77), "it waits for its turn");
    world.put(Input::Release);
    assert!(world.engine.ops.exchange.is_none(), "one end, one begin each time");
    assert_eq!(world.engine.deadline_ps(), Some(0), "its turn has come");
    world.advance();
    assert!(world.engine.ops.exchange.is_some());
}

#[test]
fn a_result_that_cannot_be_taken_is_an_error_of_this_rank_and_of_the_communicator() {
    let mut world = World::after(&[Input::PostBlocks]);
    world.engine.carrier.0.refuses = Some(Call::Ended);
    world.put(Input::Release);
    world.advance();
    let (_, outcome) = world.done.pop().expect("it has ended");
    assert!(outcome.is_err_and(|failed| failed.receive.is_some() && failed.to_string().contains("Ended is refused")));
    assert!(world.engine.ops.core.broken.is_some_and(|failure| failure.failed_rank == 0));
}
