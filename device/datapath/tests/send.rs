//! The send worker's logic, against a card that checks every entry.

mod fixture;

use dpa::hw::CqeOpcode;
use dpa::{Next, Signals};
use fixture::send::{SendFixture, Sent};
use fixture::{CHUNK, PSN_BITS, RKEY, at, of_depth};
use flexcast_abi::{
    ContextFault, DeviceAddress, OPERATION_CLOSED, OPERATION_DEFERRED, SendRun, SendStatus, Shared, Transport,
};

const BOTH: [Transport; 2] = [Transport::Uc, Transport::Ud];
const LAST: u32 = 55;

fn run(context: usize, first_psn: u32, chunks: u32) -> SendRun {
    SendRun {
        source: 0x10_0000 * (context as u64 + 1),
        remote_address: 0x7000_0000 + 0x10_0000 * context as u64,
        first_psn,
        chunks,
        last_chunk_bytes: LAST,
        rkey: RKEY,
        ..Default::default()
    }
}

/// Carries out and completes everything until the worker sleeps with nothing under way.
fn drive(fixture: &mut SendFixture, contexts: usize) -> Vec<Sent> {
    let mut sent = Vec::new();
    for _ in 0..1000 {
        let next = fixture.activate();
        let before = sent.len();
        let mut completed = false;
        for context in 0..contexts {
            sent.extend(fixture.carry(context));
            while fixture.complete_next(context, CqeOpcode::Requester) {
                completed = true;
            }
        }
        if next == Next::Reschedule && sent.len() == before && !completed {
            return sent;
        }
    }
    panic!("the worker does not come to rest");
}

fn check_run(transport: Transport, sent: &[Sent], context: usize, run: SendRun) {
    let own: Vec<&Sent> = sent.iter().filter(|sent| sent.context == context).collect();
    assert_eq!(own.len(), run.chunks as usize);
    for (chunk, sent) in own.into_iter().enumerate() {
        let chunk = chunk as u32;
        let offset = u64::from(chunk * CHUNK);
        let remote = if transport == Transport::Uc { run.remote_address + offset } else { 0 };
        let bytes = if chunk + 1 == run.chunks { LAST } else { CHUNK };
        assert_eq!(sent.immediate, 3 << PSN_BITS | (run.first_psn + chunk));
        assert_eq!((sent.source, sent.bytes, sent.remote), (run.source + offset, bytes, remote), "chunk {chunk}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of chunks, which take minutes")]
fn every_chunk_goes_out_once_with_a_doorbell_and_a_completion_per_batch() {
    /// Chunks of either send context.
    const CHUNKS: [[u32; 2]; 6] = [[0, 0], [1, 0], [1, 1], [4, 3], [13, 12], [100, 99]];
    for transport in BOTH {
        for batch in [1u32, 3, 4] {
            for chunks in CHUNKS {
                let mut fixture = SendFixture::ready(transport, batch, 4, 2);
                for sequence in 1..=4u64 {
                    let before = fixture.report();
                    let runs = [run(0, 40, chunks[0]), run(1, 500, chunks[1])];
                    fixture.ask(sequence, &runs, 0);
                    let sent = drive(&mut fixture, 2);
                    for (context, run) in runs.into_iter().enumerate() {
                        check_run(transport, &sent, context, run);
                    }
                    let report = fixture.report();
                    assert_eq!(
                        (report.announced, report.finished, fixture.status()),
                        (sequence, sequence, SendStatus::Finished)
                    );
                    let batches: u32 = chunks.iter().map(|chunks| chunks.div_ceil(batch)).sum();
                    assert_eq!(report.posted - before.posted, u64::from(chunks[0] + chunks[1]));
                    assert_eq!(report.doorbells - before.doorbells, u64::from(batches), "a doorbell for each batch");
                    assert_eq!(
                        sent.iter().filter(|sent| sent.signalled).count() as u32,
                        batches,
                        "a completion for each batch"
                    );
                    let (completed, given_back) = fixture.completions();
                    assert_eq!(completed, given_back);
                }
                let (messages, given_back) = fixture.control.counts();
                assert_eq!(messages, u64::from(given_back));
            }
        }
    }
}

#[test]
fn batches_rotate_over_the_contexts() {
    let mut fixture = SendFixture::ready(Transport::Ud, 4, 8, 3);
    fixture.ask(1, &[run(0, 0, 20), run(1, 0, 20), run(2, 0, 20)], 0);
    // Room for all: every send context gets its batches; with little room the one whose turn it is holds the others
    // back.
    fixture.activate();
    assert_eq!(fixture.array.iter().map(|context| context.state.left).collect::<Vec<_>>(), [0; 3]);
    let mut fixture = SendFixture::ready(Transport::Ud, 4, 4, 3);
    fixture.ask(1, &[run(0, 0, 40), run(1, 0, 40), run(2, 0, 40)], 0);
    for step in 0..200 {
        fixture.activate();
        let left: Vec<u32> = fixture.array.iter().map(|context| context.state.left).collect();
        let skew = left.iter().max().unwrap() - left.iter().min().unwrap();
        assert!(skew <= 4, "{left:?}");
        fixture.carry(step % 3);
        fixture.complete_next(step % 3, CqeOpcode::Requester);
    }
    assert_eq!(fixture.report().finished, 1);
}

#[test]
fn a_full_queue_sends_the_worker_to_sleep_with_its_completions_armed() {
    let mut fixture = SendFixture::ready(Transport::Ud, 4, 4, 1);
    fixture.ask(1, &[run(0, 0, 40)], 0);
    assert_eq!(fixture.activate(), Next::Reschedule, "no spinning");
    assert_eq!(fixture.report().posted, 8, "two batches fit");
    assert_eq!(dpa::sys::outbox_register(dpa::hw::outbox::CQ_DOORBELL), 0x60, "armed at completion 0");
    assert_eq!(fixture.carry(0).len(), 8);
    assert_eq!(fixture.activate(), Next::Reschedule);
    assert_eq!(fixture.report().posted, 8, "carried out, but not completed");
    assert!(fixture.complete_next(0, CqeOpcode::Requester));
    fixture.activate();
    assert_eq!(fixture.report().posted, 12);
    assert_eq!(dpa::sys::outbox_register(dpa::hw::outbox::CQ_DOORBELL), 1 << 32 | 0x60);
    assert_eq!((fixture.report().announced, fixture.report().finished), (0, 0));
}

/// A batch has one completion, so one ends where the lookahead begins.
#[test]
fn a_lead_within_a_batch_is_reported_before_the_end() {
    let mut fixture = SendFixture::ready(Transport::Uc, 16, 5, 1);
    fixture.ask(1, &[run(0, 0, 16)], 7);
    fixture.thread.budget = 9;
    fixture.activate();
    assert_eq!((fixture.report().posted, fixture.report().announced), (9, 0));
    fixture.carry(0);
    fixture.complete_next(0, CqeOpcode::Requester);
    fixture.activate();
    let report = fixture.report();
    assert_eq!((report.posted, report.announced, report.finished), (16, 1, 0));
}

#[test]
fn the_operation_is_announced_with_its_lead() {
    // An activation posts a batch of 4; the one before is complete by then. What is posted and not complete is still to
    // be sent.
    for (lookahead, posted_by_then) in [(0, 20), (7, 20), (8, 16), (19, 9), (1000, 4)] {
        let mut fixture = SendFixture::ready(Transport::Uc, 4, 3, 1);
        fixture.ask(1, &[run(0, 0, 20)], lookahead);
        let mut posted_when_announced = None;
        for _ in 0..20 {
            fixture.thread.budget = 4;
            fixture.activate();
            let report = fixture.report();
            if report.announced == 1 {
                posted_when_announced.get_or_insert(report.posted);
            }
            fixture.carry(0);
            fixture.complete_next(0, CqeOpcode::Requester);
        }
        assert_eq!(posted_when_announced, Some(posted_by_then), "lookahead {lookahead}");
        assert_eq!(fixture.report().finished, 1);
    }
}

#[test]
fn the_budget_ends_an_activation_at_a_batch() {
    let mut fixture = SendFixture::ready(Transport::Ud, 4, 8, 2);
    fixture.thread.budget = 6;
    fixture.ask(1, &[run(0, 0, 20), run(1, 0, 20)], 0);
    assert_eq!(fixture.activate(), Next::Retrigger);
    assert_eq!(fixture.report().posted, 8);
    assert_eq!(fixture.activate(), Next::Retrigger);
    assert_eq!(fixture.report().posted, 16);
    drive(&mut fixture, 2);
    assert_eq!((fixture.report().posted, fixture.status()), (40, SendStatus::Finished));
}

#[test]
fn a_closed_operation_posts_nothing_more_and_ends_when_the_card_is_done() {
    for transport in BOTH {
        let mut fixture = SendFixture::ready(transport, 2, 4, 2);
        fixture.ask(1, &[run(0, 0, 40), run(1, 0, 40)], 0);
        fixture.activate();
        let posted = fixture.report().posted;
        fixture.change(|line| line.flags = OPERATION_CLOSED);
        fixture.control.message(CqeOpcode::WriteImmediate);
        fixture.activate();
        assert_eq!((fixture.report().posted, fixture.report().finished), (posted, 0), "still under way");
        let sent = drive(&mut fixture, 2);
        assert_eq!(sent.len() as u64, posted);
        assert_eq!((fixture.report().finished, fixture.status()), (1, SendStatus::Closed));
        // Closed before it began, and then an ordinary one.
        fixture.ask(2, &[run(0, 0, 5), run(1, 0, 5)], 0);
        fixture.change(|line| line.flags = OPERATION_CLOSED);
        assert!(drive(&mut fixture, 2).is_empty());
        assert_eq!((fixture.report().finished, fixture.status()), (2, SendStatus::Closed));
        fixture.ask(3, &[run(0, 0, 5), run(1, 0, 0)], 0);
        check_run(transport, &drive(&mut fixture, 2), 0, run(0, 0, 5));
        assert_eq!((fixture.report().finished, fixture.status()), (3, SendStatus::Finished));
    }
}

#[test]
fn a_new_operation_waits_for_the_last() {
    let mut fixture = SendFixture::ready(Transport::Ud, 4, 4, 1);
    fixture.ask(1, &[run(0, 0, 6)], 0);
    fixture.activate();
    fixture.change(|line| line.sequence = 2);
    fixture.change(|line| line.sequence_check = 2);
    fixture.control.message(CqeOpcode::WriteImmediate);
    fixture.activate();
    assert_eq!((fixture.report().posted, fixture.report().finished), (6, 0));
    let sent = drive(&mut fixture, 1);
    assert_eq!((sent.len(), fixture.report().finished), (12, 2));
}

#[test]
fn a_failed_send_is_reported_and_later_operations_are_refused() {
    for (opcode, status) in
        [(CqeOpcode::RequesterError, SendStatus::SendError), (CqeOpcode::Send, SendStatus::UnexpectedOpcode)]
    {
        let mut fixture = SendFixture::ready(Transport::Ud, 4, 5, 2);
        fixture.ask(1, &[run(0, 0, 40), run(1, 0, 40)], 0);
        fixture.activate();
        fixture.carry(0);
        fixture.carry(1);
        assert!(fixture.complete_next(0, opcode));
        fixture.activate();
        let posted = fixture.report().posted;
        assert_eq!((fixture.status(), fixture.report().finished), (status, 0), "context 1 is still sending");
        while fixture.complete_next(1, CqeOpcode::Requester) {}
        // What else was posted on the dead queue is flushed.
        while fixture.complete_next(0, CqeOpcode::RequesterError) {}
        fixture.activate();
        assert_eq!((fixture.status(), fixture.report().finished, fixture.report().posted), (status, 1, posted));
        fixture.ask(2, &[run(0, 0, 4), run(1, 0, 4)], 0);
        fixture.activate();
        assert_eq!((fixture.status(), fixture.report().finished), (SendStatus::InvalidOperation, 2));
        assert_eq!(fixture.report().detail, ContextFault::DeadQueue as u32);
    }
}

#[test]
fn operations_that_do_not_fit_are_refused() {
    let mut fixture = SendFixture::ready(Transport::Ud, 4, 4, 2);
    let mut sequence = 0;
    let mut ask = |fixture: &mut SendFixture, runs: [SendRun; 2], change: &dyn Fn(&mut SendFixture)| {
        sequence += 1;
        fixture.ask(sequence, &runs, 0);
        change(fixture);
        drive(fixture, 2);
        assert_eq!((fixture.report().announced, fixture.report().finished), (sequence, sequence));
        (fixture.status(), fixture.report().detail)
    };
    let refused = |fault: ContextFault| (SendStatus::InvalidOperation, fault as u32);
    let good = [run(0, 0, 4), run(1, 0, 4)];
    assert_eq!(ask(&mut fixture, [good[0], run(1, 1 << PSN_BITS, 1)], &|_| ()), refused(ContextFault::Chunks));
    assert_eq!(
        ask(&mut fixture, [good[0], SendRun { last_chunk_bytes: 0, ..good[1] }], &|_| ()),
        refused(ContextFault::ChunkBytes)
    );
    assert_eq!(
        ask(&mut fixture, good, &|fixture| fixture.change(|line| line.chunk_bytes = LAST - 1)),
        refused(ContextFault::ChunkBytes)
    );
    assert_eq!(
        ask(&mut fixture, good, &|fixture| fixture.change(|line| line.collective_id = 1 << 20)),
        refused(ContextFault::CollectiveId)
    );
    assert_eq!(ask(&mut fixture, good, &|fixture| fixture.change(|line| line.flags = 4)), refused(ContextFault::Flags));
    assert_eq!(fixture.report().posted, 0, "nothing goes out for them");
    assert_eq!(ask(&mut fixture, good, &|_| ()), (SendStatus::Finished, 0));
    // Half written: ignored.
    fixture.ask(99, &good, 0);
    fixture.change(|line| line.sequence_check = 98);
    fixture.activate();
    assert_eq!(fixture.report().finished, 6);
}

#[test]
fn contexts_that_do_not_fit_are_refused_with_the_context_at_fault() {
    type Change = &'static dyn Fn(&mut SendFixture);
    let cases: [(Change, ContextFault, u32); 14] = [
        (&|fixture| fixture.thread.abi_hash ^= 1, ContextFault::AbiHash, 0),
        (&|fixture| fixture.thread.transport = 3, ContextFault::Transport, 0),
        (&|fixture| fixture.thread.budget = 0, ContextFault::Budget, 0),
        (&|fixture| fixture.thread.batch = 0, ContextFault::Batch, 0),
        (&|fixture| fixture.thread.batch = 5, ContextFault::Batch, 0),
        (&|fixture| fixture.thread.psn_bits = 32, ContextFault::PsnBits, 0),
        (&|fixture| fixture.thread.contexts = Default::default(), ContextFault::Contexts, 0),
        (&|fixture| fixture.thread.operation = Default::default(), ContextFault::DeviceMemory, 0),
        (&|fixture| fixture.array[1].run = Default::default(), ContextFault::DeviceMemory, 1),
        (&|fixture| fixture.thread.report_host += 8, ContextFault::HostAddress, 0),
        (
            &|fixture| fixture.thread.control_queue = of_depth(fixture.thread.control_queue, 4),
            ContextFault::QueueDepth,
            0,
        ),
        (
            &|fixture| fixture.array[1].send_queue = of_depth(fixture.array[1].send_queue, 1),
            ContextFault::QueueDepth,
            1,
        ),
        (&|fixture| fixture.array[1].send_cq = of_depth(fixture.array[1].send_cq, 2), ContextFault::QueueDepth, 1),
        (&|fixture| fixture.array[1].send_queue = at(fixture.array[1].send_queue, 32), ContextFault::QueueAddress, 1),
    ];
    for (change, fault, context) in cases {
        let mut fixture = SendFixture::new(Transport::Ud, 4, 4, 2);
        change(&mut fixture);
        assert_eq!(fixture.prepare(), Err((fault, context)));
    }
}

#[test]
fn a_broken_control_connection_is_reported() {
    let mut fixture = SendFixture::ready(Transport::Ud, 4, 4, 1);
    fixture.ask(1, &[run(0, 0, 20)], 0);
    fixture.activate();
    fixture.control.message(CqeOpcode::ResponderError);
    let sent = drive(&mut fixture, 1);
    assert_eq!(sent.len(), 20, "the operation under way is completed");
    assert_eq!((fixture.status(), fixture.report().finished), (SendStatus::ControlError, 1));
}

#[test]
#[cfg_attr(miri, ignore = "65,536 entries")]
fn indices_pass_their_16_bits() {
    let mut fixture = SendFixture::ready(Transport::Ud, 3, 4, 1);
    for sequence in 1..=1200 {
        fixture.ask(sequence, &[run(0, 7, 32)], 0);
        check_run(Transport::Ud, &drive(&mut fixture, 1), 0, run(0, 7, 32));
    }
    assert!(fixture.array[0].state.produced > 1 << 16);
    assert_eq!(fixture.report().finished, 1200);
}

#[test]
fn a_deferred_operation_waits_for_the_progress_thread_or_for_its_closing() {
    for transport in BOTH {
        let mut line = flexcast_abi::Signals { contexts: 1, senders: 1, ..Default::default() };
        let named = Shared::new(DeviceAddress::new(core::ptr::from_mut(&mut line) as u64));
        let signals = Signals::attach(&named).unwrap();
        let mut fixture = SendFixture::ready(transport, 4, 4, 2);
        fixture.thread.signals = named;
        let runs = [run(0, 0, 9), run(1, 0, 5)];
        let ask = |fixture: &mut SendFixture, sequence| {
            fixture.ask(sequence, &runs, 0);
            fixture.change(|line| line.flags = OPERATION_DEFERRED);
        };
        ask(&mut fixture, 1);
        assert!(drive(&mut fixture, 2).is_empty() && fixture.report().finished == 0, "held");
        assert!(!signals.are_announced(1) && !signals.are_sent(1));
        signals.go(1);
        let sent = drive(&mut fixture, 2);
        runs.iter().enumerate().for_each(|(context, run)| check_run(transport, &sent, context, *run));
        assert!(signals.are_announced(1) && signals.are_sent(1) && fixture.report().finished == 1);
        ask(&mut fixture, 2);
        assert!(
            drive(&mut fixture, 2).is_empty() && fixture.report().finished == 1,
            "the leave of the last does not count"
        );
        fixture.ask(2, &runs, 0);
        fixture.change(|line| line.flags = OPERATION_CLOSED);
        assert!(drive(&mut fixture, 2).is_empty() && fixture.report().finished == 2);
        assert_eq!(fixture.status(), SendStatus::Closed);
    }
}

#[test]
fn without_a_progress_thread_the_host_lets_a_deferred_operation_go_or_replaces_it() {
    for transport in BOTH {
        let mut fixture = SendFixture::ready(transport, 4, 4, 2);
        let runs = [run(0, 0, 9), run(1, 0, 5)];
        fixture.ask(1, &runs, 0);
        fixture.change(|line| line.flags = OPERATION_DEFERRED);
        assert!(drive(&mut fixture, 2).is_empty() && fixture.report().announced == 0, "held");
        fixture.ask(1, &runs, 0);
        let sent = drive(&mut fixture, 2);
        runs.iter().enumerate().for_each(|(context, run)| check_run(transport, &sent, context, *run));
        assert_eq!(fixture.report().finished, 1);
        fixture.ask(2, &runs, 0);
        fixture.change(|line| line.flags = OPERATION_DEFERRED);
        assert!(drive(&mut fixture, 2).is_empty());
        // Operation 2 has failed before its turn: nothing of it is sent, and no more messages name it.
        let others = [run(0, 30, 3), run(1, 40, 2)];
        fixture.ask(3, &others, 0);
        let sent = drive(&mut fixture, 2);
        others.iter().enumerate().for_each(|(context, run)| check_run(transport, &sent, context, *run));
        assert_eq!((fixture.report().finished, fixture.report().posted), (3, 9 + 5 + 3 + 2));
        fixture.ask(4, &runs, 0);
        fixture.change(|line| line.flags = OPERATION_DEFERRED);
        assert!(drive(&mut fixture, 2).is_empty() && fixture.report().finished == 3);
        fixture.ask(4, &runs, 0);
        fixture.change(|line| line.flags = OPERATION_CLOSED);
        assert!(drive(&mut fixture, 2).is_empty() && fixture.report().finished == 4);
        assert_eq!(fixture.status(), SendStatus::Closed);
    }
}
