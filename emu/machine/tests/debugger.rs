//! Stopping and going on changes nothing: the trace of a debugged run is that of a plain one.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use crate::support;
use emu_machine::{Action, Config, DebugStop, Debugger, MemoryModel, Resume, Stopped, World};
use support::*;

/// Goes on as its script says, and writes down where it was.
#[derive(Default)]
struct Script {
    actions: Vec<Action>,
    breakpoints: BTreeSet<u64>,
    interrupt: bool,
    seen: Arc<Mutex<Vec<(Stopped, u64)>>>,
    ended: Arc<Mutex<Option<bool>>>,
}

impl Debugger for Script {
    fn stopped(&mut self, world: &mut World, stop: &Stopped) -> Resume {
        let process = world.process(stop.card, stop.process).expect("a process");
        let (pc, _) = process.registers(&process.threads[&stop.thread]);
        let mut seen = self.seen.lock().unwrap();
        let action = self.actions.get(seen.len()).copied().unwrap_or(Action::Continue);
        seen.push((stop.clone(), pc));
        Resume { action, breakpoints: self.breakpoints.clone() }
    }

    fn interrupted(&mut self) -> bool {
        std::mem::take(&mut self.interrupt)
    }

    fn ended(&mut self, crashed: bool) {
        *self.ended.lock().unwrap() = Some(crashed);
    }
}

/// Counts in memory, 400 times, and reschedules: several slices.
fn counting() -> Vec<u32> {
    vec![
        lui(T0, 0x40000),
        slli(T0, T0, 1),
        addi(A1, 0, 400),
        ld(A2, T0, 0),
        addi(A2, A2, 1),
        sd(A2, T0, 0),
        addi(A1, A1, -1),
        0xFE05_98E3, // bnez a1, -16
        addi(A7, 0, 1),
        ECALL,
    ]
}

struct Outcome {
    trace: (u64, u64, u64),
    count: u64,
    seen: Vec<(Stopped, u64)>,
    ended: Option<bool>,
}

/// Two handlers on one core, triggered one after the other.
fn run(handler: &[u32], config: Config, script: Option<Script>) -> Outcome {
    // ping(thread): event_handler_activate(thread).
    let (mut world, process) = boot(&image(handler, &[addi(A7, 0, 11), ECALL, RET]), config);
    let (seen, ended) = script.as_ref().map(|s| (Arc::clone(&s.seen), Arc::clone(&s.ended))).unwrap_or_default();
    if let Some(script) = script {
        world.attach_debugger(Box::new(script)).unwrap();
    }
    let entry = world.card(0).unwrap().process(process).unwrap().image.symbol("handler").unwrap();
    for _ in 0..2 {
        // The first may have ended the process.
        let Ok(thread) = world.create_thread(0, process, entry, 0, 0, None) else { break };
        world.run_event_handler(0, thread, 0).unwrap();
        // A handler may die before the call that triggers it returns.
        drop(ping(&mut world, process, u64::from(thread)));
    }
    while world.step() {}
    let mut count = [0; 8];
    world.peek_memory(0, process, 0x8000_0000, &mut count).unwrap();
    let trace = (world.trace_hash(), world.trace_events(), world.now_ps());
    world.destroy_process(0, process).unwrap();
    let (seen, ended) = (seen.lock().unwrap().clone(), *ended.lock().unwrap());
    Outcome { trace, count: u64::from_le_bytes(count), seen, ended }
}

fn one_card() -> Config {
    Config { cards: 1, ..Config::default() }
}

fn weak() -> Config {
    Config { memory: MemoryModel::weak(3), ..one_card() }
}

#[test]
fn breakpoints_and_steps_change_nothing() {
    for config in [one_card(), weak()] {
        let plain = run(&counting(), config.clone(), None);
        let entry = {
            let (mut world, process) = boot(&image(&counting(), &[RET]), one_card());
            world.card(0).unwrap().process(process).unwrap().image.symbol("handler").unwrap()
        };
        // At the store: 400 times for each of two threads.
        let script = Script { breakpoints: BTreeSet::from([entry + 20]), ..Script::default() };
        let stopped = run(&counting(), config.clone(), Some(script));
        assert_eq!(stopped.seen[0].0.why, DebugStop::Begin);
        assert_eq!(stopped.seen[0].1, entry);
        assert_eq!(stopped.seen.len(), 1 + 800);
        assert!(stopped.seen[1..].iter().all(|(stop, pc)| stop.why == DebugStop::Breakpoint && *pc == entry + 20));
        assert_eq!((stopped.trace, stopped.count), (plain.trace, plain.count));
        assert_eq!(stopped.ended, Some(false));

        // Every instruction of the first thread, its reschedule included.
        let thread = stopped.seen[0].0.thread;
        let actions = vec![Action::Step { thread, range: (0, 0) }; 3 + 400 * 5 + 2];
        let stepped = run(&counting(), config.clone(), Some(Script { actions, ..Script::default() }));
        assert_eq!((stepped.trace, stepped.count), (plain.trace, plain.count));
        assert_eq!(stepped.seen.len(), 1 + 3 + 400 * 5 + 2);
        assert!(stepped.seen[1..].iter().all(|(stop, _)| stop.why == DebugStop::Step && stop.thread == thread));
        assert_eq!(stepped.seen[4].1, entry + 16, "the fourth instruction is done");

        // A range: the loop as one step.
        let actions = vec![Action::Step { thread, range: (entry, entry + 32) }];
        let ranged = run(&counting(), config.clone(), Some(Script { actions, ..Script::default() }));
        assert_eq!((ranged.trace, ranged.count), (plain.trace, plain.count));
        assert_eq!((ranged.seen.len(), ranged.seen[1].1), (2, entry + 32));

        // In the middle of a slice it goes.
        let actions = vec![Action::Step { thread, range: (0, 0) }, Action::Detach];
        let breakpoints = BTreeSet::from([entry + 20]);
        let detached = run(&counting(), config, Some(Script { actions, breakpoints, ..Script::default() }));
        assert_eq!((detached.trace, detached.count), (plain.trace, plain.count));
        assert_eq!((detached.seen.len(), detached.ended), (2, None));
    }
}

#[test]
fn an_interrupt_stops_once() {
    let plain = run(&counting(), one_card(), None);
    let stopped = run(&counting(), one_card(), Some(Script { interrupt: true, ..Script::default() }));
    let whys: Vec<_> = stopped.seen.iter().map(|(stop, _)| stop.why.clone()).collect();
    assert_eq!(whys, [DebugStop::Begin, DebugStop::Interrupt]);
    assert_eq!((stopped.trace, stopped.count), (plain.trace, plain.count));
}

#[test]
fn a_death_is_seen_where_it_happens() {
    let dying = [addi(A1, 0, 7), ILLEGAL];
    let plain = run(&dying, one_card(), None);
    let stopped = run(&dying, one_card(), Some(Script::default()));
    let (stop, pc) = &stopped.seen[1];
    assert!(matches!(&stop.why, DebugStop::Crash(cause) if cause.contains("illegal instruction")), "{stop:?}");
    assert_eq!(*pc, stopped.seen[0].1 + 4);
    assert_eq!((stopped.trace, stopped.ended), (plain.trace, Some(true)));
}
