//! Receive contexts: placement of several roots' runs, rows, tail bitmap, closing, several receive contexts of one
//! thread; on a NIC that checks every promise.

mod fixture;
mod rng;

use dpa::Next;
use dpa::hw::CqeOpcode;
use dpa::proto::missing::{missing, missing_chunks};
use dpa::proto::{ReceiveSpace, RootRow, Subgroup};
use fixture::receive::{Ask, ReceiveFixture};
use fixture::{CHUNK, Fixture, PSN_BITS, at, of_depth};
use flexcast_abi::memory::QueueKind;
use flexcast_abi::{
    ContextFault, ContextMemory, DeviceAddress, OPERATION_REPORTS, Operation, Placement, Queue, ReceiveStatus, RunRow,
    TableMemory, Transport,
};
use rng::Rng;

const BOTH: [Transport; 2] = [Transport::Uc, Transport::Ud];

/// Contributions of the ranks, and which of them is the own one.
#[derive(Clone)]
struct Case {
    bytes: Vec<u64>,
    own: Option<usize>,
    by_rows: bool,
}

const WHOLE: Subgroup = Subgroup { index: 0, count: 1 };

impl Case {
    fn equal(roots: usize, bytes: u64, own: Option<usize>) -> Self {
        Self { bytes: vec![bytes; roots], own, by_rows: false }
    }

    fn user_bytes(&self) -> usize {
        self.bytes.iter().sum::<u64>() as usize + 2 * CHUNK as usize
    }

    /// Calls `body` with the receive space of the case.
    fn space<R>(&self, body: impl FnOnce(&ReceiveSpace<'_>) -> R) -> R {
        let mut table = vec![RootRow::default(); self.bytes.len()];
        body(&ReceiveSpace::each(self.bytes.iter().copied(), CHUNK, WHOLE, &mut table).unwrap())
    }

    fn chunks(&self) -> u32 {
        self.space(|space| space.chunks()) as u32
    }

    /// PSNs of the own rank.
    fn own_psns(&self) -> std::ops::Range<u32> {
        let Some(own) = self.own else { return 0..0 };
        let (first, count) = self.space(|space| space.psns(own as u32)).unwrap();
        first as u32..(first + count) as u32
    }

    /// Offset and length of a chunk in the receive buffer.
    fn place(&self, psn: u32) -> (usize, u32) {
        self.space(|space| space.place(u64::from(psn)).map_or((0, 0), |place| (place.offset as usize, place.bytes)))
    }

    /// What the host writes; rows it has written already.
    fn ask(&self, fixture: &ReceiveFixture, sequence: u64, id: u32) -> (Ask, Placement) {
        let user = fixture.receivers[0].user.address();
        let mut next = 0;
        let rows: Vec<RunRow> = self
            .bytes
            .iter()
            .scan(0, |offset, &bytes| {
                let chunks = bytes.div_ceil(u64::from(CHUNK)) as u32;
                let row = RunRow {
                    destination: user + *offset,
                    first_psn: next,
                    chunks,
                    last_chunk_bytes: if bytes == 0 { 0 } else { ((bytes - 1) % u64::from(CHUNK)) as u32 + 1 },
                    ..Default::default()
                };
                next += chunks;
                *offset += bytes;
                Some(row)
            })
            .collect();
        let own = self.own_psns();
        let mut placement = if self.by_rows {
            fixture.receivers.iter().for_each(|receiver| receiver.write_rows(&rows));
            Placement { roots: rows.len() as u32, ..Default::default() }
        } else {
            let run_chunks = rows.first().map_or(0, |row| row.chunks);
            let bytes = self.bytes.first().copied().unwrap_or(0);
            let run_gap = bytes.wrapping_sub(u64::from(run_chunks * CHUNK));
            Placement { run_chunks, roots: rows.len() as u32, run_gap, ..Default::default() }
        };
        placement.own_first = own.start;
        placement.own_chunks = own.end - own.start;
        let last_chunk_bytes = rows.first().map_or(0, |row| row.last_chunk_bytes);
        (Ask { sequence, collective_id: id, chunks: next, last_chunk_bytes }, placement)
    }

    /// A thread with one receive context for the case.
    fn fixture(&self, transport: Transport, batch: u32) -> ReceiveFixture {
        let tail_words = self.bytes.len().div_ceil(64).max(1) as u32;
        let mut fixture =
            ReceiveFixture::ready(transport, batch, 1, (self.chunks().max(1), tail_words, self.user_bytes()));
        self.place_in(&mut fixture.receivers[0]);
        fixture
    }

    fn place_in(&self, receiver: &mut Fixture) {
        let case = self.clone();
        let beyond = self.user_bytes();
        receiver.offset_of = Box::new(move |psn| if psn < case.chunks() { case.place(psn).0 } else { beyond });
    }

    /// The PSNs that the words in host memory say are missing.
    fn missing(&self, fixture: &ReceiveFixture) -> Vec<u32> {
        let (words, tails) = fixture.copied_words(0);
        self.space(|space| {
            let runs: Vec<_> = missing(space, &words, &tails).collect();
            assert_eq!(missing_chunks(space, &words, &tails), runs.iter().map(|(_, run)| run.count).sum::<u64>());
            runs.into_iter().flat_map(|(_, run)| run.first as u32..(run.first + run.count) as u32).collect()
        })
    }
}

/// The buffer holds exactly the chunks of `there`, and zeros elsewhere.
fn check_buffer(fixture: &ReceiveFixture, case: &Case, there: &[bool]) {
    let receiver = &fixture.receivers[0];
    let mut expected = vec![0u8; receiver.user.bytes()];
    for (psn, _) in (0u32..).zip(there).filter(|(_, there)| **there) {
        let (offset, bytes) = case.place(psn);
        expected[offset..offset + bytes as usize].fill(psn as u8 ^ 0x5A);
    }
    let mut all = vec![0; expected.len()];
    receiver.user.read(0, &mut all);
    let wrong = all.iter().zip(&expected).position(|(a, b)| a != b);
    assert!(wrong.is_none(), "wrong bytes at {wrong:?} of {:?}, own {:?}", case.bytes, case.own);
}

fn cases() -> Vec<Case> {
    let chunk = u64::from(CHUNK);
    let mut cases = vec![
        Case::equal(1, 10 * chunk, None),
        Case::equal(1, 10 * chunk - 1, None),
        Case::equal(5, 8 * chunk, None),
        Case::equal(5, 8 * chunk - 37, Some(2)),
        Case::equal(7, 1, Some(0)),
        Case::equal(7, chunk, Some(6)),
        Case::equal(3, 3 * chunk - 5, Some(1)),
        Case::equal(70, 2 * chunk - 90, Some(69)),
    ];
    for bytes in
        [vec![10 * chunk], vec![0, 3, 700, 0, 128, 129, 1, 0], vec![chunk; 6], vec![900, 0, 0, 255, 256, 257, 64]]
    {
        for own in [None, Some(0), Some(bytes.len() / 2)] {
            cases.push(Case { bytes: bytes.clone(), own, by_rows: true });
        }
    }
    // Under Miri some of both kinds.
    if cfg!(miri) {
        cases = cases.into_iter().skip(3).step_by(9).collect();
    }
    cases
}

#[test]
#[cfg_attr(miri, ignore = "hundreds of chunks, which take minutes")]
fn chunks_of_all_roots_go_to_their_places_in_any_order() {
    for transport in BOTH {
        for batch in [2, 8] {
            for (number, case) in cases().into_iter().enumerate() {
                let mut fixture = case.fixture(transport, batch);
                let mut rng = Rng(0x1234_5678 + number as u64);
                for sequence in 1..=2u64 {
                    let (ask, placement) = case.ask(&fixture, sequence, 5);
                    fixture.start(ask, placement);
                    let own = case.own_psns();
                    let mut order: Vec<u32> = (0..ask.chunks).filter(|psn| !own.contains(psn)).collect();
                    if sequence == 2 {
                        for index in (1..order.len()).rev() {
                            order.swap(index, rng.below(index as u64 + 1) as usize);
                        }
                    }
                    assert_eq!(fixture.receivers[0].report().progress.remaining, order.len() as u64);
                    for psn in order {
                        if !fixture.receivers[0].can_deliver() {
                            fixture.settle();
                        }
                        let receiver = &mut fixture.receivers[0];
                        receiver.deliver(receiver.message(5, psn, case.place(psn).1));
                        if rng.below(4) == 0 {
                            fixture.activate();
                        }
                    }
                    fixture.settle();
                    assert_eq!(
                        (fixture.receivers[0].flag(), fixture.receivers[0].status()),
                        (sequence, ReceiveStatus::Complete),
                        "{number}"
                    );
                }
                let own = case.own_psns();
                check_buffer(&fixture, &case, &(0..case.chunks()).map(|psn| !own.contains(&psn)).collect::<Vec<_>>());
                fixture.close(0);
                fixture.settle();
                assert_eq!(case.missing(&fixture), [0u32; 0]);
            }
        }
    }
}

#[test]
fn a_chunk_of_the_wrong_length_touches_nothing_wherever_it_belongs() {
    // UD: the worker alone decides what is written. A full-length datagram for a short position, and a short one for a
    // full one.
    for case in cases() {
        let mut fixture = case.fixture(Transport::Ud, 4);
        let (ask, placement) = case.ask(&fixture, 1, 5);
        fixture.start(ask, placement);
        let own = case.own_psns();
        for psn in 0..ask.chunks {
            let right = case.place(psn).1;
            for bytes in [CHUNK, CHUNK - 1, right - u32::from(right > 1), right + 1, 1] {
                if bytes == right || bytes > CHUNK {
                    continue;
                }
                if !fixture.receivers[0].can_deliver() {
                    fixture.settle();
                }
                let receiver = &mut fixture.receivers[0];
                receiver.deliver(receiver.message(5, psn, bytes));
            }
        }
        fixture.close(0);
        fixture.settle();
        let statistics = fixture.receivers[0].report().statistics;
        assert_eq!((statistics.accepted, statistics.wrong_length + statistics.wrong_id), (0, statistics.cqes));
        check_buffer(&fixture, &case, &vec![false; ask.chunks as usize]);
        assert_eq!(case.missing(&fixture), (0..ask.chunks).filter(|psn| !own.contains(psn)).collect::<Vec<_>>());
    }
}

#[test]
fn own_chunks_and_repeated_short_ones_are_duplicates() {
    for transport in BOTH {
        for by_rows in [false, true] {
            let case = Case { by_rows, ..Case::equal(4, 3 * u64::from(CHUNK) - 8, Some(1)) };
            let mut fixture = case.fixture(transport, 4);
            let (ask, placement) = case.ask(&fixture, 1, 5);
            fixture.start(ask, placement);
            let deliver = |fixture: &mut ReceiveFixture, psn: u32| {
                fixture.settle();
                let receiver = &mut fixture.receivers[0];
                // On UC the card writes before the worker knows of it: the duplicate carries the same bytes.
                receiver.deliver(receiver.message(5, psn, case.place(psn).1));
                fixture.settle();
                fixture.receivers[0].context.state.statistics.duplicates
            };
            assert_eq!(deliver(&mut fixture, 3), 1, "own, full");
            assert_eq!(deliver(&mut fixture, 5), 2, "own, short");
            assert_eq!(deliver(&mut fixture, 2), 2, "short of root 0");
            assert_eq!(deliver(&mut fixture, 2), 3);
            assert_eq!(deliver(&mut fixture, 0), 3);
            assert_eq!(deliver(&mut fixture, 0), 4);
            assert_eq!(fixture.receivers[0].context.state.remaining, 7);
            assert_eq!(fixture.receivers[0].flag(), 0);
        }
    }
}

#[test]
fn a_closed_operation_is_frozen_and_its_words_show_what_is_missing() {
    for transport in BOTH {
        for (number, case) in cases().into_iter().enumerate() {
            let mut rng = Rng(0x9E37 + number as u64);
            let mut fixture = case.fixture(transport, 2);
            let (ask, placement) = case.ask(&fixture, 1, 5);
            fixture.start(ask, placement);
            let own = case.own_psns();
            let mut there = vec![false; ask.chunks as usize];
            for psn in 0..ask.chunks {
                if own.contains(&psn) || rng.below(3) == 0 {
                    continue;
                }
                if !fixture.receivers[0].can_deliver() {
                    fixture.settle();
                }
                let receiver = &mut fixture.receivers[0];
                receiver.deliver(receiver.message(5, psn, case.place(psn).1));
                there[psn as usize] = true;
            }
            // All consumed, copies still under way: no answer before they are complete.
            fixture.activate();
            let request = fixture.close(0);
            fixture.activate();
            if transport == Transport::Ud
                && there.contains(&true)
                && fixture.receivers[0].context.state.completed != fixture.receivers[0].delivered
            {
                assert_ne!(fixture.receivers[0].report().progress.reported, request, "copies are under way");
            }
            fixture.settle();
            assert_eq!(fixture.receivers[0].report().progress.reported, request);
            let lacking: Vec<u32> = (0..ask.chunks).filter(|psn| !own.contains(psn) && !there[*psn as usize]).collect();
            assert_eq!(case.missing(&fixture), lacking, "case {number} {transport:?}");
            let before = fixture.receivers[0].context.state.statistics.wrong_id;
            // What comes late changes nothing (UC: but for the card's own writes, which the host's key stops).
            for &psn in lacking.iter().take(10) {
                let receiver = &mut fixture.receivers[0];
                receiver.deliver(receiver.message(5, psn, case.place(psn).1));
                if transport == Transport::Uc {
                    there[psn as usize] = true;
                }
            }
            fixture.settle();
            fixture.close(0);
            fixture.settle();
            assert_eq!(case.missing(&fixture), lacking);
            assert_eq!(fixture.receivers[0].context.state.statistics.wrong_id - before, lacking.len().min(10) as u64);
            check_buffer(&fixture, &case, &there);
            assert_eq!(fixture.receivers[0].flag(), u64::from(lacking.is_empty()));
        }
    }
}

#[test]
fn a_worker_that_received_nothing_answers_the_cutoff() {
    for transport in BOTH {
        let case = Case::equal(4, 1000, Some(3));
        let mut fixture = case.fixture(transport, 8);
        let (ask, placement) = case.ask(&fixture, 1, 5);
        fixture.start(ask, placement);
        let request = fixture.close(0);
        assert_eq!(fixture.activate(), Next::Reschedule);
        assert_eq!(fixture.receivers[0].report().progress.reported, request);
        assert_eq!(case.missing(&fixture), (0..24).collect::<Vec<_>>());
    }
}

#[test]
fn operations_closed_before_they_began_and_after_they_completed() {
    let case = Case::equal(2, 300, None);
    let mut fixture = case.fixture(Transport::Ud, 4);
    let (ask, placement) = case.ask(&fixture, 1, 5);
    fixture.write(0, ask, placement);
    let request = fixture.close(0);
    fixture.activate();
    assert_eq!(
        (fixture.receivers[0].report().progress.sequence, fixture.receivers[0].report().progress.reported),
        (1, request)
    );
    assert_eq!(case.missing(&fixture).len(), 6);
    fixture.start(Ask { sequence: 2, ..ask }, placement);
    for psn in 0..6 {
        let receiver = &mut fixture.receivers[0];
        receiver.deliver(receiver.message(5, psn, case.place(psn).1));
    }
    fixture.settle();
    let request = fixture.close(0);
    fixture.settle();
    assert_eq!((fixture.receivers[0].flag(), fixture.receivers[0].report().progress.reported), (2, request));
    assert_eq!(case.missing(&fixture), [0u32; 0]);
}

#[test]
fn a_new_operation_waits_for_the_copies_of_the_last() {
    let case = Case::equal(2, 300, None);
    let mut fixture = case.fixture(Transport::Ud, 4);
    let (ask, placement) = case.ask(&fixture, 1, 5);
    fixture.start(ask, placement);
    let receiver = &mut fixture.receivers[0];
    receiver.deliver(receiver.message(5, 0, CHUNK));
    fixture.activate();
    fixture.write(0, Ask { sequence: 2, collective_id: 6, ..ask }, placement);
    fixture.control.message(CqeOpcode::WriteImmediate);
    fixture.activate();
    assert_eq!(fixture.receivers[0].report().progress.sequence, 1, "a copy is under way");
    fixture.receivers[0].copy_and_complete_all();
    fixture.activate();
    assert_eq!(fixture.receivers[0].report().progress.sequence, 2, "its completion leads to the new operation");
    assert_eq!(fixture.activate(), Next::Reschedule);
}

/// The host gave the next operation before the answer to a request for a report was there: the answer once made the
/// thread forget the operation.
#[test]
fn an_answer_does_not_forget_an_operation_that_waits() {
    let case = Case::equal(2, 300, None);
    let mut fixture = case.fixture(Transport::Ud, 4);
    let (ask, placement) = case.ask(&fixture, 1, 5);
    fixture.start(ask, placement);
    for psn in 0..6 {
        let receiver = &mut fixture.receivers[0];
        receiver.deliver(receiver.message(5, psn, case.place(psn).1));
    }
    let line = fixture.receivers[0].line();
    fixture.receivers[0].write_line(Operation { report_request: 1, ..line });
    fixture.control.message(CqeOpcode::WriteImmediate);
    fixture.thread.budget = 4;
    assert_eq!(fixture.activate(), Next::Retrigger);
    assert_eq!(fixture.receivers[0].report().progress.reported, 1, "a turn that the budget ends answers, too");
    fixture.thread.budget = 1 << 20;
    fixture.write(0, Ask { sequence: 2, collective_id: 6, ..ask }, placement);
    fixture.control.message(CqeOpcode::WriteImmediate);
    fixture.activate();
    let progress = fixture.receivers[0].report().progress;
    assert_eq!((progress.sequence, progress.reported), (1, 1), "copies are under way");
    fixture.receivers[0].copy_and_complete_all();
    fixture.activate();
    assert_eq!(fixture.receivers[0].report().progress.sequence, 2);
}

/// Reports that nobody has asked for: when three quarters of what was missing have come, and, near the end, before each
/// sleep; in turn in two places.
#[test]
fn a_context_reports_by_itself_where_the_operation_says_so() {
    for transport in BOTH {
        let case = Case::equal(2, 100 * u64::from(CHUNK), None);
        let mut fixture = case.fixture(transport, 4);
        let (ask, placement) = case.ask(&fixture, 1, 5);
        fixture.write(0, ask, placement);
        let line = fixture.receivers[0].line();
        fixture.receivers[0].write_line(Operation { flags: OPERATION_REPORTS, ..line });
        fixture.control.message(CqeOpcode::WriteImmediate);
        fixture.activate();
        let mut reports = Vec::new();
        // Five chunks are lost.
        for psn in (0..200).filter(|psn| psn % 40 != 3) {
            let receiver = &mut fixture.receivers[0];
            receiver.deliver(receiver.message(5, psn, case.place(psn).1));
            fixture.settle();
            let progress = fixture.receivers[0].report().progress;
            if reports.last().is_none_or(|(number, _)| *number != progress.reports) {
                reports.push((progress.reports, progress.remaining));
                let (words, _) = fixture.copied_words_of(0, progress.reports % 2 == 1);
                let come = words.iter().map(|word| word.count_ones() as u64).sum::<u64>();
                let missing = if progress.reports == 0 { 200 } else { progress.remaining };
                assert_eq!(200 - come, missing, "{transport:?}: report {}", progress.reports);
            }
            assert_eq!(progress.reported, 0, "nobody has asked");
        }
        assert_eq!(reports, [(0, 199), (1, 50), (2, 12), (3, 8), (4, 7), (5, 6), (6, 5)], "{transport:?}");
    }
}

#[test]
fn operations_are_checked_after_messages_only() {
    let case = Case::equal(2, 300, None);
    let mut fixture = case.fixture(Transport::Ud, 4);
    let (ask, placement) = case.ask(&fixture, 1, 5);
    fixture.write(0, ask, placement);
    fixture.activate();
    assert_eq!(fixture.receivers[0].report().progress.sequence, 0);
    let line = fixture.receivers[0].line();
    fixture.receivers[0].write_line(Operation { sequence_check: 0, ..line });
    fixture.control.message(CqeOpcode::WriteImmediate);
    fixture.activate();
    assert_eq!(fixture.receivers[0].report().progress.sequence, 0, "half written");
    fixture.receivers[0].write_line(line);
    fixture.control.message(CqeOpcode::WriteImmediate);
    fixture.activate();
    assert_eq!(fixture.receivers[0].report().progress.sequence, 1);
    for _ in 0..40 {
        fixture.control.message(CqeOpcode::WriteImmediate);
        fixture.activate();
    }
    let (messages, given_back) = fixture.control.counts();
    assert_eq!(messages, u64::from(given_back), "control receives come back");
}

#[test]
fn a_broken_control_connection_and_a_failed_copy_are_reported() {
    let case = Case::equal(2, 1024, None);
    let mut fixture = case.fixture(Transport::Ud, 4);
    let (ask, placement) = case.ask(&fixture, 1, 5);
    fixture.start(ask, placement);
    fixture.control.message(CqeOpcode::ResponderError);
    assert_eq!(fixture.activate(), Next::Reschedule);
    assert_eq!(fixture.receivers[0].status(), ReceiveStatus::ControlError);

    let mut fixture = case.fixture(Transport::Ud, 4);
    let (ask, placement) = case.ask(&fixture, 1, 5);
    fixture.start(ask, placement);
    for psn in 0..6 {
        let receiver = &mut fixture.receivers[0];
        receiver.deliver(receiver.message(5, psn, CHUNK));
    }
    fixture.activate();
    fixture.receivers[0].copy();
    assert!(fixture.receivers[0].complete_copy(CqeOpcode::RequesterError));
    fixture.activate();
    assert_eq!(fixture.receivers[0].status(), ReceiveStatus::CopyError);
    let receiver = &mut fixture.receivers[0];
    receiver.deliver(receiver.message(5, 7, CHUNK));
    fixture.activate();
    assert_eq!(fixture.receivers[0].context.state.statistics.wrong_id, 1, "a dead receiver accepts nothing");
    let request = fixture.close(0);
    fixture.activate();
    let progress = fixture.receivers[0].report().progress;
    assert_eq!(
        (progress.reported, fixture.receivers[0].status(), fixture.receivers[0].flag()),
        (request, ReceiveStatus::CopyError, 0)
    );
    fixture.write(0, Ask { sequence: 2, ..ask }, placement);
    fixture.control.message(CqeOpcode::WriteImmediate);
    fixture.activate();
    let progress = fixture.receivers[0].report().progress;
    assert_eq!((progress.sequence, fixture.receivers[0].status()), (2, ReceiveStatus::InvalidOperation));
    assert_eq!(progress.detail, ContextFault::DeadQueue as u32);
}

#[test]
fn bad_completions_end_no_context() {
    for transport in BOTH {
        let case = Case::equal(2, 1024, None);
        let mut fixture = case.fixture(transport, 4);
        let (ask, placement) = case.ask(&fixture, 1, 5);
        fixture.start(ask, placement);
        let receiver = &mut fixture.receivers[0];
        receiver.deliver(fixture::Message { opcode: CqeOpcode::Send, ..receiver.message(5, 0, CHUNK) });
        receiver.deliver(fixture::Message { opcode: CqeOpcode::ResponderError, ..receiver.message(5, 0, 0) });
        receiver.deliver(receiver.message(4, 1, CHUNK));
        receiver.deliver(receiver.message(5, (1 << PSN_BITS) - 1, CHUNK));
        for psn in 0..ask.chunks {
            if !fixture.receivers[0].can_deliver() {
                fixture.settle();
            }
            let receiver = &mut fixture.receivers[0];
            receiver.deliver(receiver.message(5, psn, CHUNK));
        }
        fixture.settle();
        assert_eq!(fixture.receivers[0].flag(), 1);
        assert_eq!(fixture.receivers[0].status(), ReceiveStatus::UnexpectedOpcode, "the first failure stays");
        let statistics = fixture.receivers[0].context.state.statistics;
        assert_eq!((statistics.unexpected_opcode, statistics.error_cqes), (1, 1));
        assert_eq!((statistics.wrong_id, statistics.out_of_range), (1, 1));
    }
}

#[test]
fn contexts_take_turns_and_the_last_one_completes_the_group() {
    for transport in BOTH {
        let case = Case::equal(3, 1024, Some(0));
        let mut fixture = ReceiveFixture::ready(transport, 2, 3, (24, 1, case.user_bytes()));
        fixture.receivers.iter_mut().for_each(|receiver| case.place_in(receiver));
        let (ask, placement) = case.ask(&fixture, 1, 5);
        fixture.start(ask, placement);
        fixture.thread.budget = 8;
        fixture.receivers.iter_mut().for_each(|receiver| receiver.context.budget = 2);
        for receiver in [2, 0, 1] {
            for psn in 8..24 {
                let receiver = &mut fixture.receivers[receiver];
                receiver.deliver(receiver.message(5, psn, CHUNK));
            }
        }
        assert_eq!(fixture.activate(), Next::Retrigger, "the thread's budget");
        let consumed = |fixture: &ReceiveFixture| {
            fixture.receivers.iter().map(|receiver| receiver.context.state.consumed).collect::<Vec<_>>()
        };
        assert_eq!(consumed(&fixture), [4, 2, 2], "two each in turn");
        assert_eq!(fixture.activate(), Next::Retrigger);
        assert_eq!(consumed(&fixture), [6, 6, 4], "the turn goes on where it ended");
        let mut flags = Vec::new();
        for _ in 0..40 {
            fixture.activate();
            flags.push(fixture.receivers[0].flag());
            fixture.receivers.iter_mut().take(2).for_each(Fixture::copy_and_complete_all);
        }
        let expected = u64::from(transport == Transport::Uc);
        assert_eq!(*flags.last().unwrap(), expected, "UD: the copies of receiver 2 are not complete");
        fixture.settle();
        assert_eq!(fixture.receivers[0].flag(), 1);
        assert_eq!(fixture.receivers[0].group_count(), 1 << 32 | 3);
    }
}

/// Batches longer than [`flexcast_abi::PROGRESS_EVERY`], budgets that end within them, and deliveries of any number at
/// a time.
#[test]
#[cfg_attr(miri, ignore = "hundreds of chunks, which take minutes")]
fn progress_is_published_whatever_ends_an_activation() {
    for transport in BOTH {
        for (batch, budget) in [(256, 1), (256, 64), (256, 100), (256, 1 << 20), (128, 200), (64, 1), (16, 40), (2, 3)]
        {
            let mut rng = Rng(u64::from(batch + budget));
            let case = Case::equal(1, 700 * u64::from(CHUNK), None);
            let receiver = Fixture::sized(transport, batch, 9, case.chunks(), (1, case.user_bytes()), 0);
            let mut fixture = ReceiveFixture::new(transport, vec![receiver]);
            case.place_in(&mut fixture.receivers[0]);
            fixture.receivers[0].context.budget = budget;
            fixture.thread.budget = budget;
            fixture.prepare().unwrap();
            fixture.activate();
            let (ask, placement) = case.ask(&fixture, 1, 5);
            fixture.start(ask, placement);
            let (mut psn, mut retriggers) = (0, 0);
            while psn < ask.chunks {
                for _ in 0..rng.below(300).min(u64::from(ask.chunks - psn)) {
                    let receiver = &mut fixture.receivers[0];
                    if receiver.can_deliver() {
                        receiver.deliver(receiver.message(5, psn, CHUNK));
                        psn += 1;
                    }
                }
                let before = fixture.receivers[0].report().progress.consumed;
                let next = fixture.activate();
                let progress = fixture.receivers[0].report().progress;
                if next == Next::Retrigger {
                    retriggers += 1;
                    assert!(progress.consumed > before, "an activation that goes on has done something");
                }
                assert_eq!(u64::from(ask.chunks) - progress.remaining, progress.consumed);
                fixture.receivers[0].copy_and_complete_all();
            }
            assert_eq!(retriggers > 0, budget < 300, "batch {batch}, budget {budget}");
            fixture.thread.budget = 1 << 20;
            fixture.receivers[0].context.budget = 1 << 20;
            fixture.settle();
            assert_eq!((fixture.receivers[0].flag(), fixture.receivers[0].status()), (1, ReceiveStatus::Complete));
            check_buffer(&fixture, &case, &vec![true; ask.chunks as usize]);
        }
    }
}

#[test]
fn a_completion_wakes_only_what_it_concerns() {
    let case = Case::equal(2, 1024, None);
    let mut fixture = ReceiveFixture::ready(Transport::Ud, 2, 4, (16, 1, case.user_bytes()));
    let (ask, placement) = case.ask(&fixture, 1, 5);
    fixture.start(ask, placement);
    let activations = |fixture: &ReceiveFixture| {
        fixture.receivers.iter().map(|receiver| receiver.context.state.statistics.activations).collect::<Vec<_>>()
    };
    let before = activations(&fixture);
    let receiver = &mut fixture.receivers[2];
    receiver.deliver(receiver.message(5, 0, CHUNK));
    fixture.activate();
    let after: Vec<u64> = activations(&fixture).iter().zip(&before).map(|(after, before)| after - before).collect();
    assert_eq!(after, [0, 0, 1, 0]);
    assert_eq!(fixture.receivers[3].armed_at() as u32, 0x11 | 3 << 8, "every queue is armed, the last receiver's last");
}

#[test]
fn contexts_that_do_not_fit_are_refused_with_the_context_at_fault() {
    type Change = &'static dyn Fn(&mut ReceiveFixture);
    fn contexts(fixture: &ReceiveFixture) -> DeviceAddress {
        DeviceAddress::new(fixture.thread.contexts.address())
    }
    fn resize<K: QueueKind>(queue: &mut Queue<K>, log_depth: u32) {
        *queue = of_depth(*queue, log_depth);
    }
    let cases: [(Change, ContextFault, u32); 25] = [
        (&|fixture| fixture.thread.abi_hash ^= 1, ContextFault::AbiHash, 0),
        (&|fixture| fixture.thread.transport = 9, ContextFault::Transport, 0),
        (&|fixture| fixture.thread.budget = 0, ContextFault::Budget, 0),
        (&|fixture| fixture.thread.contexts = ContextMemory::new(contexts(fixture), 0), ContextFault::Contexts, 0),
        (&|fixture| fixture.thread.contexts = ContextMemory::new(DeviceAddress::new(0), 2), ContextFault::Contexts, 0),
        (&|fixture| resize(&mut fixture.thread.control_cq, 2), ContextFault::QueueDepth, 0),
        (&|fixture| fixture.thread.control_queue = at(fixture.thread.control_queue, 8), ContextFault::QueueAddress, 0),
        (&|fixture| fixture.receivers[1].context.abi_hash ^= 1, ContextFault::AbiHash, 1),
        (&|fixture| fixture.receivers[1].context.batch = 0, ContextFault::Batch, 1),
        (&|fixture| fixture.receivers[1].context.batch = 1, ContextFault::Batch, 1),
        (&|fixture| fixture.receivers[1].context.batch = 3, ContextFault::Batch, 1),
        (&|fixture| fixture.receivers[1].context.batch = 16, ContextFault::Batch, 1),
        (&|fixture| fixture.receivers[1].context.budget = 0, ContextFault::Budget, 1),
        (&|fixture| fixture.receivers[1].context.psn_bits = 32, ContextFault::PsnBits, 1),
        (&|fixture| fixture.receivers[1].context.worker = 1, ContextFault::Worker, 1),
        (&|fixture| fixture.receivers[1].context.transport = Transport::Uc as u32, ContextFault::Transport, 1),
        (&|fixture| fixture.receivers[1].context.staging.stride = 40, ContextFault::Staging, 1),
        (&|fixture| fixture.receivers[1].context.staging.stride = 100, ContextFault::Staging, 1),
        (&|fixture| fixture.receivers[1].context.receive_cq = Default::default(), ContextFault::QueueAddress, 1),
        (&|fixture| resize(&mut fixture.receivers[1].context.send_queue, 5), ContextFault::QueueDepth, 1),
        (&|fixture| resize(&mut fixture.receivers[1].context.receive_cq, 3), ContextFault::QueueDepth, 1),
        (&|fixture| resize(&mut fixture.receivers[1].context.receive_queue, 16), ContextFault::QueueDepth, 1),
        (&|fixture| fixture.receivers[1].context.bitmap = Default::default(), ContextFault::DeviceMemory, 1),
        (&|fixture| fixture.receivers[1].context.operation = Default::default(), ContextFault::DeviceMemory, 1),
        (&|fixture| fixture.receivers[1].context.report_host += 8, ContextFault::HostAddress, 1),
    ];
    for (change, fault, receiver) in cases {
        let fixtures = (0..2).map(|receiver| Fixture::sized(Transport::Ud, 4, 4, 8, (1, 4096), receiver)).collect();
        let mut fixture = ReceiveFixture::new(Transport::Ud, fixtures);
        change(&mut fixture);
        assert_eq!(fixture.prepare(), Err((fault, receiver)));
        assert!(!fixture.receivers[0].can_deliver(), "nothing is posted");
    }
}

#[test]
fn operations_that_do_not_fit_are_refused() {
    let case = Case { by_rows: true, ..Case::equal(4, 1000, Some(1)) };
    let mut fixture = case.fixture(Transport::Ud, 4);
    let mut sequence = 0;
    type Change<'c> = &'c dyn Fn(&mut ReceiveFixture, &mut Ask, &mut Placement);
    let mut check = |fixture: &mut ReceiveFixture, change: Change<'_>, fault: Option<ContextFault>| {
        sequence += 1;
        let (mut ask, mut placement) = case.ask(fixture, sequence, 5);
        change(fixture, &mut ask, &mut placement);
        fixture.start(ask, placement);
        let progress = fixture.receivers[0].report().progress;
        let status = if fault.is_some() { ReceiveStatus::InvalidOperation } else { ReceiveStatus::Armed };
        assert_eq!((fixture.receivers[0].status(), progress.detail), (status, fault.map_or(0, |fault| fault as u32)));
    };
    let overlapping = RunRow { chunks: 33, last_chunk_bytes: 1, ..Default::default() };
    let gap = RunRow { first_psn: 1, chunks: 32, last_chunk_bytes: 1, ..Default::default() };
    let long = RunRow { chunks: 32, last_chunk_bytes: CHUNK + 1, ..Default::default() };
    for (row, fault) in [(overlapping, ContextFault::Rows), (gap, ContextFault::Rows), (long, ContextFault::ChunkBytes)]
    {
        let alone = |fixture: &mut ReceiveFixture, _: &mut Ask, placement: &mut Placement| {
            fixture.receivers[0].write_rows(&[row]);
            *placement = Placement { roots: 1, ..Default::default() };
        };
        check(&mut fixture, &alone, Some(fault));
    }
    let table = fixture.receivers[0].context.rows;
    fixture.receivers[0].context.rows = TableMemory::new(DeviceAddress::new(table.address()), 3);
    check(&mut fixture, &|_, _, _| (), Some(ContextFault::Rows));
    fixture.receivers[0].context.rows = table;
    check(&mut fixture, &|_, _, placement| placement.own_first = 25, Some(ContextFault::OwnChunks));
    check(&mut fixture, &|_, _, placement| placement.roots = 65, Some(ContextFault::Runs));
    check(&mut fixture, &|_, _, placement| placement.run_chunks = 7, Some(ContextFault::Runs));
    check(&mut fixture, &|_, ask, _| ask.chunks = 65, Some(ContextFault::Chunks));
    check(&mut fixture, &|_, ask, _| ask.collective_id = 1 << 20, Some(ContextFault::CollectiveId));
    check(&mut fixture, &|_, _, _| (), None);
    let zero = |ask: &mut Ask, placement: &mut Placement| {
        ask.chunks = 0;
        *placement = Placement::default();
    };
    let (mut ask, mut placement) = case.ask(&fixture, 99, 5);
    zero(&mut ask, &mut placement);
    fixture.start(ask, placement);
    assert_eq!(
        (fixture.receivers[0].flag(), fixture.receivers[0].status()),
        (99, ReceiveStatus::Complete),
        "nothing to receive"
    );
}

#[test]
#[should_panic(expected = "0x83")]
fn a_thread_that_was_not_prepared_ends_the_process() {
    let mut fixture = ReceiveFixture::new(Transport::Ud, vec![Fixture::sized(Transport::Ud, 4, 4, 8, (1, 4096), 0)]);
    fixture.activate();
}
