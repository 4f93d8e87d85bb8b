//! Tests of the engine with an offload: its operations and the carrier's never overlap, and each ends once.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use flexcast_proto::{Cause, Failure, FailureCode};

use super::{BYTES, Input, World, inputs, lost};
use crate::engine::offload::{Begun, Offload, OffloadFault};
use crate::engine::scripted::Call;
use crate::engine::{Core, Datapath as _, Posted, Task};
use crate::error::{Error, Result};
use crate::op::buffer::Buffer;
use crate::op::collective::Collective;
use crate::op::outcome::{Done, Failed};
use crate::op::report::Report;

/// What happens to the offload of an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Engine(Input),
    Post,
    /// It begins no operations, or does again.
    Defer(bool),
    /// The oldest operation ends.
    End,
    /// The newest operation has to begin again.
    Again,
    /// The next operation cannot begin.
    RefuseBegin,
    /// The next operation cannot be prepared.
    RefusePrepare,
    /// It finds a failure of this rank.
    FailHere,
    /// It finds a failure of another rank.
    FailElsewhere,
}

const STEPS: [Step; 9] = [
    Step::Post,
    Step::Defer(true),
    Step::Defer(false),
    Step::End,
    Step::Again,
    Step::RefuseBegin,
    Step::RefusePrepare,
    Step::FailHere,
    Step::FailElsewhere,
];

fn fault(failed_rank: u32) -> OffloadFault {
    let cause = Cause::Device(FailureCode::ServiceProcess);
    OffloadFault { failure: Failure { failed_rank, detecting_rank: 0, cause }, calls: None }
}

#[derive(Default)]
struct Script {
    defers: bool,
    ends: u32,
    again: bool,
    refuses_begin: bool,
    refuses_prepare: bool,
    fault: Option<OffloadFault>,
    /// How often [`Offload::fail`] was called.
    failed: u32,
    running: VecDeque<Posted<Task>>,
}

/// An offload that takes Alltoall alone, and answers as the test says.
#[derive(Clone, Default)]
struct Scripted(Arc<Mutex<Script>>);

impl Scripted {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.0.lock().expect("no test has failed while it had this")
    }
}

impl Offload for Scripted {
    fn takes(&self, task: &Task) -> bool {
        matches!(task, Task::Collective(Collective::Alltoall { .. }))
    }

    fn prepare(&mut self, _: &mut Posted<Task>) -> Result<()> {
        match std::mem::take(&mut self.script().refuses_prepare) {
            false => Ok(()),
            true => Err(Error::Argument { operation: "scripted offload", reason: "refused".to_owned() }),
        }
    }

    fn is_idle(&self) -> bool {
        self.script().running.is_empty()
    }

    fn is_free(&self) -> bool {
        self.is_idle()
    }

    fn begin(&mut self, posted: Posted<Task>) -> Begun {
        let mut script = self.script();
        if std::mem::take(&mut script.refuses_begin) {
            return Begun::Failed(posted, fault(0));
        }
        if script.defers {
            return Begun::NotYet(posted);
        }
        script.running.push_back(posted);
        Begun::Yes
    }

    fn poll(&mut self, core: &mut Core, _: u64) -> (bool, Option<OffloadFault>) {
        let mut script = self.script();
        let ends = std::mem::take(&mut script.ends) as usize;
        let ends = ends.min(script.running.len());
        for Posted { request, send, receive, .. } in script.running.drain(..ends) {
            core.requests.finish(request, Ok(Done { send, receive, report: Report::default() }));
        }
        if std::mem::take(&mut script.again)
            && let Some(posted) = script.running.pop_back()
        {
            core.waiting.push_front(posted);
        }
        let broken = core.requests.broken().map(|failure| OffloadFault { failure, calls: None });
        (ends > 0, script.fault.take().or(broken))
    }

    fn fail(&mut self, core: &mut Core, failure: Failure, _: u64) {
        let mut script = self.script();
        script.failed += 1;
        for posted in std::mem::take(&mut script.running).into_iter().chain(core.waiting.drain(..)) {
            let error = core.requests.failed(posted.plan.name(), failure, None);
            let Posted { request, send, receive, .. } = posted;
            let failed = Failed { error, send, receive: Some(receive), report: Report::default() };
            core.requests.finish(request, Err(Box::new(failed)));
        }
    }

    fn has_failed(&self) -> bool {
        self.script().failed > 0
    }

    fn deadline_ps(&self, now_ps: u64, has_waiting: bool) -> Option<u64> {
        (has_waiting || !self.is_free()).then_some(now_ps + 5)
    }

    fn take_back(&mut self, _: &mut Buffer, _: bool) -> bool {
        true
    }

    fn is_flagged(&self) -> bool {
        self.is_idle()
    }
}

/// A world whose engine has an offload.
struct Offloading {
    world: World,
    offload: Scripted,
}

impl Offloading {
    fn after(steps: &[Step]) -> Self {
        let (mut world, offload) = (World::new(), Scripted::default());
        world.engine.set_offload(Box::new(offload.clone()));
        let mut both = Self { world, offload };
        steps.iter().for_each(|step| both.put(*step));
        both
    }

    fn put(&mut self, step: Step) {
        match step {
            Step::Engine(input) => self.world.put(input),
            Step::Post => self.world.post(Task::Collective(Collective::Alltoall { bytes: BYTES / 2 })),
            Step::Defer(defers) => self.offload.script().defers = defers,
            Step::End => self.offload.script().ends += 1,
            Step::Again => self.offload.script().again = true,
            Step::RefuseBegin => self.offload.script().refuses_begin = true,
            Step::RefusePrepare => self.offload.script().refuses_prepare = true,
            Step::FailHere => self.offload.script().fault = Some(fault(0)),
            Step::FailElsewhere => self.offload.script().fault = Some(fault(1)),
        }
        self.world.advance();
        let running = self.offload.script().running.len();
        assert!(running == 0 || self.world.engine.ops.is_free(), "{step:?}: operations of both are under way");
        assert!(self.offload.script().failed <= 1, "{step:?}: it fails twice");
    }

    fn waiting(&self) -> usize {
        self.world.engine.ops.core.waiting.len()
    }
}

/// Each request that was posted ends once, with its buffer; nothing waits for ever.
fn check(steps: &[Step]) {
    let mut both = Offloading::after(steps);
    let engine = &both.world.engine;
    let is_quiet = engine.ops.is_free() && both.offload.is_idle() && !both.offload.script().defers;
    if is_quiet && engine.ops.core.waiting.front().is_some_and(|posted| !both.offload.takes(&posted.plan)) {
        assert_eq!(engine.deadline_ps(), Some(0), "{steps:?}: the carrier's turn");
    }
    both.world.wind_up();
    assert!(both.world.open.is_empty(), "{steps:?}: requests {:?} do not end", both.world.open);
    assert!(both.world.engine.is_idle(), "{steps:?}");
    let inputs: Vec<Input> =
        steps.iter().filter_map(|step| if let Step::Engine(input) = step { Some(*input) } else { None }).collect();
    let may_hold = both.world.may_hold(&inputs);
    for (request, outcome) in &both.world.done {
        let has_buffer = outcome.as_ref().map_or_else(|failed| failed.receive.is_some(), |_| true);
        assert!(has_buffer || may_hold, "{steps:?}: {request}");
    }
}

/// Every phase of an offloaded operation, in addition to those of the carrier.
const PHASES: &[&[Step]] = &[
    &[],
    &[Step::Post],
    &[Step::Post, Step::Post],
    &[Step::Defer(true), Step::Post],
    &[Step::Post, Step::Engine(Input::PostBlocks)],
    &[Step::Post, Step::Engine(Input::PostCollective), Step::Post],
    &[Step::Engine(Input::PostBlocks), Step::Post],
    &[Step::Engine(Input::Hold(true)), Step::Engine(Input::PostBlocks), Step::Engine(Input::Release), Step::Post],
    &[Step::Engine(Input::PostCollective), Step::Post, Step::Engine(Input::PostBlocks)],
    &[Step::Post, Step::Engine(Input::FailElsewhere)],
    &[Step::Post, Step::FailElsewhere],
];

fn steps() -> Vec<Step> {
    inputs().into_iter().map(Step::Engine).chain(STEPS).collect()
}

#[test]
fn every_step_in_every_phase_leaves_each_request_one_end() {
    let steps = steps();
    for phase in PHASES {
        for first in &steps {
            steps.iter().for_each(|second| check(&[phase, &[*first, *second][..]].concat()));
        }
    }
}

#[test]
fn any_three_steps_in_any_order_leave_each_request_one_end() {
    let steps = steps();
    for first in &steps {
        for second in &steps {
            steps.iter().for_each(|third| check(&[Step::Post, *first, *second, *third]));
        }
    }
}

#[test]
fn the_queue_goes_by_turns_and_offloaded_operations_overlap_one_another() {
    let mut both = Offloading::after(&[Step::Post, Step::Post, Step::Engine(Input::PostBlocks), Step::Post]);
    assert_eq!((both.offload.script().running.len(), both.waiting()), (2, 2));
    assert_eq!(both.world.engine.deadline_ps(), Some(5), "it is polled, and nothing else is due");
    assert!(!both.world.engine.is_flagged().unwrap(), "the last one waits");
    both.put(Step::End);
    assert_eq!((both.offload.script().running.len(), both.waiting()), (1, 2));
    both.put(Step::End);
    assert_eq!((both.offload.script().running.len(), both.waiting()), (0, 2));
    assert_eq!(both.world.engine.deadline_ps(), Some(0), "the carrier's turn has come");
    both.world.advance();
    assert!(both.world.engine.ops.current.is_some() && both.waiting() == 1);
    both.put(Step::Engine(Input::Release));
    assert_eq!((both.offload.script().running.len(), both.waiting()), (1, 0), "begun by the end before it");
    assert!(!both.world.engine.is_flagged().unwrap());
    both.put(Step::End);
    assert!(both.world.engine.is_flagged().unwrap() && both.world.engine.is_idle());
}

#[test]
fn a_failure_that_the_offload_finds_of_this_rank_is_the_protocol_s_as_well() {
    let mut both = Offloading::after(&[Step::Post]);
    both.put(Step::FailHere);
    let notified = |world: &World| world.engine.ops.protocol.events.iter().any(|event| event == "Failed");
    assert!(notified(&both.world), "ranks that wait by the protocol are notified");
    let mut others = Offloading::after(&[Step::Post]);
    others.put(Step::FailElsewhere);
    assert!(!notified(&others.world), "the other rank's own offload reports it");
    for both in [&mut both, &mut others] {
        assert!(both.world.open.is_empty() && both.offload.has_failed());
        assert!(both.world.engine.ops.core.broken.is_some());
    }
    // The protocol's own failure reaches what is offloaded.
    let mut both = Offloading::after(&[Step::Post, Step::Defer(true), Step::Post]);
    both.put(Step::Engine(Input::FailElsewhere));
    assert!(both.world.open.is_empty() && both.world.engine.ops.core.broken == Some(lost()));
}

#[test]
fn nothing_is_taken_on_after_a_failure() {
    let mut both = Offloading::after(&[Step::Engine(Input::FailElsewhere)]);
    for plan in [Task::Collective(Collective::Alltoall { bytes: 1 }), Task::Collective(Collective::Barrier)] {
        let request = both.world.engine.ops.core.requests.open();
        let receive = Buffer::of_host(2).unwrap();
        let posted = Posted { request, plan, send: None, receive, posted_ps: 0 };
        let failed = both.world.engine.take_on(posted).expect_err("it is refused");
        assert!(failed.receive.is_some() && failed.to_string().contains("rank 1"), "{failed}");
    }
    assert!(both.world.engine.is_idle());
}

#[test]
fn an_operation_that_cannot_be_prepared_comes_back_and_fails_nobody() {
    let mut both = Offloading::after(&[Step::RefusePrepare]);
    let request = both.world.engine.ops.core.requests.open();
    let receive = Buffer::of_host(2).unwrap();
    let plan = Task::Collective(Collective::Alltoall { bytes: 1 });
    let failed = both.world.engine.take_on(Posted { request, plan, send: None, receive, posted_ps: 0 });
    assert!(failed.is_err_and(|failed| failed.receive.is_some()));
    assert!(both.world.engine.ops.core.broken.is_none() && both.world.engine.is_idle());
    // A carrier's call that is refused while the failure goes out is returned by progress; all the same all end.
    let mut both = Offloading::after(&[Step::Post, Step::Engine(Input::Refuse(Call::Failed)), Step::FailHere]);
    both.world.advance();
    assert!(both.world.open.is_empty());
}
