//! From records to events.

use std::collections::{BTreeMap, HashMap, VecDeque};

use emu_machine::nic::{CqTarget, CqeNote, Note, PacketNote, cqe_opcode};
use emu_machine::{Record, Recording, ThreadKind, What, thread_name};

use super::{Args, Event, Summary, Timeline, names};
use crate::state::card_name;

/// Tracks of a card that have no number of their own. A track with the number of its process would be taken for its
/// main thread.
const PORT_TX: u32 = 0x10_0001;
const PORT_RX: u32 = 0x10_0002;
const LOOPBACK: u32 = 0x10_0003;
const HOST: u32 = 0x10_0004;
const FAILURES: u32 = 0x10_0005;
/// Threads and completion queues are numbered from here.
const THREADS: u32 = 0x100_0000;
const QUEUES: u32 = 0x200_0000;

/// How long a completion is drawn: long enough to be seen and hit, and cut where the next one begins.
const CQE_PS: u64 = 10_000;

/// A card and one of its tracks.
type Track = (usize, u32);

/// A span on a track; those of one track do not nest.
struct Span {
    begin_ps: u64,
    end_ps: u64,
    category: &'static str,
    name: String,
    args: Args,
    /// What is only known at the end.
    end_args: Option<Args>,
    /// The flow through it, and whether it comes in and goes on.
    flow: Option<Flow>,
}

struct Flow {
    id: u64,
    phase: char,
}

/// Where a flow went last, so that what comes next can be joined to it.
#[derive(Clone, Copy)]
struct Last {
    track: Track,
    span: usize,
}

/// A packet that has left.
#[derive(Clone, Copy)]
struct Left {
    at_ps: u64,
    duration_ps: u64,
    last: Last,
    arrived: bool,
}

#[derive(Default)]
struct Builder {
    spans: BTreeMap<Track, Vec<Span>>,
    marks: BTreeMap<Track, Vec<Event>>,
    counts: BTreeMap<&'static str, u64>,
    flows: u64,
    /// Packets on their way, by what identifies them; the latest of each.
    in_flight: HashMap<(PacketNote, bool), Left>,
    /// Packets that arrived last, by card.
    arrived: HashMap<(usize, PacketNote), Last>,
    /// Per queue pair, the packets whose completion entries follow.
    completing: HashMap<(usize, u32), VecDeque<Last>>,
    /// The completion entry written last to a queue.
    completions: HashMap<(usize, u32), (u64, Last)>,
    /// What triggered a thread that has not begun yet.
    triggers: HashMap<(usize, u32), Last>,
    /// The span of a thread that executes.
    open: HashMap<(usize, u32), Last>,
}

pub(super) fn timeline(recording: &Recording, text: &dyn Fn(&[u8]) -> String) -> Timeline {
    let mut builder = Builder::default();
    for record in &recording.records {
        builder.record(recording, record, text);
    }
    let mut in_flight: Vec<Left> = std::mem::take(&mut builder.in_flight).into_values().collect();
    in_flight.sort_by_key(|left| (left.at_ps, left.last.track, left.last.span));
    for left in in_flight {
        builder.missing(left);
    }
    let times = || recording.records.iter().map(|record| record.at_ps);
    let summary = Summary {
        left_out: recording.left_out,
        first_ps: times().min().unwrap_or(0),
        last_ps: times().max().unwrap_or(0),
        counts: std::mem::take(&mut builder.counts),
    };
    let end_ps = recording.end_ps.max(summary.last_ps);
    Timeline { events: builder.events(recording, end_ps), summary, model: recording.model.clone() }
}

impl Builder {
    fn record(&mut self, recording: &Recording, record: &Record, text: &dyn Fn(&[u8]) -> String) {
        let &Record { at_ps, card, thread, .. } = record;
        let own = (card, thread.map_or(HOST, |thread| THREADS + thread));
        match &record.what {
            What::Card(note) => self.note(at_ps, card, own, note),
            What::Begin { entry } => {
                let identity = thread.and_then(|id| recording.threads.get(&(card, id)));
                let own_entry = identity.map(|identity| identity.entry.as_str());
                let name = entry.as_deref().or(own_entry).unwrap_or("");
                let name = if name.is_empty() { "activation" } else { name }.to_owned();
                let category = match identity.map(|identity| identity.kind) {
                    Some(ThreadKind::Rpc) => "call",
                    Some(ThreadKind::Worker) => "task",
                    _ => "activation",
                };
                let last = self.span(own, (at_ps, u64::MAX), category, name, Args::At { at_ps });
                if let Some(id) = thread {
                    if let Some(from) = self.triggers.remove(&(card, id)) {
                        self.join(from, last);
                    }
                    self.open.insert((card, id), last);
                }
                self.count(if category == "call" { "calls" } else { "activations" });
            }
            &What::End { how, instructions, cycles } => {
                let Some(last) = thread.and_then(|id| self.open.remove(&(card, id))) else { return };
                if let Some(span) = self.at(last) {
                    span.end_ps = at_ps;
                    span.end_args = Some(Args::Activation { ended: names::ending(how), instructions, cycles, at_ps });
                }
            }
            // The span that follows shows it.
            What::Trigger => {}
            &What::Call(number) => {
                self.mark(own, at_ps, "RTOS", names::rtos_call(number), Args::At { at_ps });
                self.count("RTOS calls");
            }
            What::Log { text: bytes, .. } => {
                self.mark(own, at_ps, "log", "message".to_owned(), Args::Text { text: text(bytes), at_ps });
                self.count("messages");
            }
            What::Crash(cause) => {
                self.mark(own, at_ps, "crash", "crash".to_owned(), Args::Text { text: cause.clone(), at_ps });
                self.count("crashes");
            }
            What::Diagnosis(diagnosis) => {
                let track = if thread.is_some() { own } else { (card, FAILURES) };
                let args = Args::Text { text: diagnosis.to_string(), at_ps };
                self.mark(track, at_ps, "diagnosis", "diagnosis".to_owned(), args);
                self.count("diagnoses");
            }
            What::Failure(event) => {
                let args = Args::Text { text: event.to_string(), at_ps };
                self.mark((card, FAILURES), at_ps, "failure", "queue failure".to_owned(), args);
                self.count("queue failures");
            }
        }
    }

    fn note(&mut self, at_ps: u64, card: usize, own: Track, note: &Note) {
        match *note {
            Note::Doorbell { qpn, producer_index } => {
                let name = format!("doorbell QP {qpn:#x}");
                self.mark(own, at_ps, "doorbell", name, Args::Doorbell { qpn, producer_index, at_ps });
                self.count("send doorbells");
            }
            Note::Arm { cqn, consumer_index } => {
                let args = Args::Arm { cqn, consumer_index, at_ps };
                self.mark(own, at_ps, "doorbell", format!("arm CQ {cqn:#x}"), args);
                self.count("arm doorbells");
            }
            Note::Sent { packet, until_ps, loopback } => {
                let track = (card, if loopback { LOOPBACK } else { PORT_TX });
                let last = self.packet(track, (at_ps, until_ps), &packet, at_ps);
                let duration_ps = until_ps.saturating_sub(at_ps);
                let left = Left { at_ps, duration_ps, last, arrived: loopback };
                // The same once more: sent again, because the first was lost or late.
                if let Some(before) = self.in_flight.insert((packet, loopback), left) {
                    self.missing(before);
                }
                self.count(if loopback { "packets turned round" } else { "packets sent" });
            }
            Note::Arrived { packet, loopback } => {
                let left = self.in_flight.get_mut(&(packet, loopback)).filter(|left| left.at_ps <= at_ps);
                let left = left.map(|left| {
                    left.arrived = true;
                    *left
                });
                if loopback {
                    // Drawn once, where it turned round.
                    if let Some(left) = left {
                        self.arrived.insert((card, packet), left.last);
                    }
                    return;
                }
                // The time of an arrival is that of the last bit.
                let duration_ps = left.map_or(0, |left| left.duration_ps);
                let last = self.packet((card, PORT_RX), (at_ps.saturating_sub(duration_ps), at_ps), &packet, at_ps);
                if let Some(left) = left {
                    self.join(left.last, last);
                }
                self.arrived.insert((card, packet), last);
                self.count("packets arrived");
            }
            Note::Dropped { packet, reason } => {
                let PacketNote { destination_qpn: qpn, psn, .. } = packet;
                let args = Args::Drop { qpn, psn, packet: names::packet(&packet), at_ps };
                self.mark((card, PORT_RX), at_ps, "drop", reason.to_owned(), args);
                self.count("packets dropped");
            }
            Note::Completed { qpn, packet } => {
                if let Some(&last) = self.arrived.get(&(card, packet)) {
                    self.completing.entry((card, qpn)).or_default().push_back(last);
                }
            }
            Note::Cqe(cqe) => self.cqe(at_ps, card, &cqe),
            Note::Event { cqn, target } => {
                let thread = match target {
                    CqTarget::DpaThread(thread) => Some(thread),
                    CqTarget::None | CqTarget::Channel(_) => None,
                };
                if let (Some(thread), Some(&(_, last))) =
                    (thread, self.completions.get(&(card, cqn)).filter(|(cqe_ps, _)| *cqe_ps == at_ps))
                {
                    self.triggers.insert((card, thread), last);
                }
                let args = Args::Event { cqn, thread, at_ps };
                self.mark((card, QUEUES + cqn), at_ps, "event", "event".to_owned(), args);
                self.count("completion events");
            }
        }
    }

    /// A packet that left and was not seen to arrive.
    fn missing(&mut self, left: Left) {
        if !left.arrived {
            let at_ps = left.at_ps + left.duration_ps;
            self.mark(left.last.track, at_ps, "drop", "not seen to arrive".to_owned(), Args::At { at_ps });
            self.count("packets not seen to arrive");
        }
    }

    fn cqe(&mut self, at_ps: u64, card: usize, cqe: &CqeNote) {
        let &CqeNote { cqn, qpn, opcode, syndrome, wqe_counter, byte_count, owner } = cqe;
        let error = opcode >= cqe_opcode::REQUESTER_ERROR;
        let syndrome = error.then_some(syndrome);
        let args = Args::Cqe { cqn, qpn, opcode, syndrome, wqe_counter, bytes: byte_count, owner, at_ps };
        let name = names::cqe(opcode, syndrome.unwrap_or(0));
        let category = if error { "error" } else { "cqe" };
        let last = self.span((card, QUEUES + cqn), (at_ps, at_ps + CQE_PS), category, name, args);
        if !error && opcode != cqe_opcode::REQUESTER {
            let packet = self.completing.get_mut(&(card, qpn)).and_then(VecDeque::pop_front);
            if let Some(packet) = packet {
                self.join(packet, last);
            }
        }
        self.completions.insert((card, cqn), (at_ps, last));
        self.count("completion entries");
    }

    fn packet(&mut self, track: Track, span: (u64, u64), packet: &PacketNote, at_ps: u64) -> Last {
        let args = Args::Packet {
            qpn: packet.destination_qpn,
            psn: packet.psn,
            bytes: packet.frame_bytes,
            immediate: packet.immediate.map(u32::from_be_bytes),
            at_ps,
        };
        self.span(track, span, "packet", names::packet(packet), args)
    }

    fn count(&mut self, kind: &'static str) {
        *self.counts.entry(kind).or_default() += 1;
    }

    fn span(&mut self, track: Track, span: (u64, u64), category: &'static str, name: String, args: Args) -> Last {
        let spans = self.spans.entry(track).or_default();
        let (begin_ps, end_ps) = span;
        spans.push(Span { begin_ps, end_ps, category, name, args, end_args: None, flow: None });
        Last { track, span: spans.len() - 1 }
    }

    fn at(&mut self, last: Last) -> Option<&mut Span> {
        self.spans.get_mut(&last.track)?.get_mut(last.span)
    }

    fn mark(&mut self, track: Track, at_ps: u64, category: &'static str, name: String, args: Args) {
        let (card, tid) = track;
        let event = Event { phase: 'i', at_ps, pid: card + 1, tid, category, name, flow: None, args: Some(args) };
        self.marks.entry(track).or_default().push(event);
    }

    /// Draws an arrow; a flow that ends at `from` is prolonged.
    fn join(&mut self, from: Last, to: Last) {
        let fresh = self.flows + 1;
        let Some(span) = self.at(from) else { return };
        let id = match &mut span.flow {
            Some(flow) => {
                if flow.phase == 'f' {
                    flow.phase = 't';
                }
                flow.id
            }
            none => {
                *none = Some(Flow { id: fresh, phase: 's' });
                fresh
            }
        };
        self.flows = self.flows.max(id);
        if let Some(span) = self.at(to) {
            span.flow = Some(Flow { id, phase: 'f' });
        }
    }

    /// All events in order of time; those of one track and time in an order in which they nest.
    fn events(self, recording: &Recording, end_ps: u64) -> Vec<Event> {
        let mut events = Vec::new();
        for &track in self.spans.keys() {
            describe(recording, track, &mut events);
        }
        for track in self.marks.keys().filter(|track| !self.spans.contains_key(track)) {
            describe(recording, *track, &mut events);
        }
        let first = events.len();
        for ((card, tid), mut spans) in self.spans {
            spans.sort_by_key(|span| span.begin_ps);
            let nexts: Vec<u64> = spans.iter().skip(1).map(|span| span.begin_ps).chain([u64::MAX]).collect();
            for (span, next_ps) in spans.into_iter().zip(nexts) {
                let Span { begin_ps, category, name, args, end_args, flow, .. } = span;
                // What still runs when the recording ends, ends with it.
                let end_ps = span.end_ps.min(next_ps).min(end_ps.max(begin_ps));
                let event = |phase, at_ps, flow, args, name| Event {
                    phase,
                    at_ps,
                    pid: card + 1,
                    tid,
                    category,
                    name,
                    flow,
                    args,
                };
                events.push(event('B', begin_ps, None, Some(args), name));
                if let Some(flow) = flow {
                    let mut arrow = event(flow.phase, begin_ps, Some(flow.id), None, "packet".to_owned());
                    arrow.category = "flow";
                    events.push(arrow);
                }
                events.push(event('E', end_ps, None, end_args, String::new()));
            }
        }
        events.extend(self.marks.into_values().flatten());
        events[first..].sort_by_key(|event| event.at_ps);
        events
    }
}

/// Names a track, and its process with the first of its tracks.
fn describe(recording: &Recording, (card, tid): Track, events: &mut Vec<Event>) {
    let meta = |name: &str, tid, args| Event {
        phase: 'M',
        at_ps: 0,
        pid: card + 1,
        tid,
        category: "",
        name: name.to_owned(),
        flow: None,
        args: Some(args),
    };
    if !events.iter().any(|event| event.pid == card + 1) {
        events.push(meta("process_name", 0, Args::Name { name: card_name(card) }));
    }
    let name = match tid {
        PORT_TX => "port, sent".to_owned(),
        PORT_RX => "port, arrived".to_owned(),
        LOOPBACK => "inside the card".to_owned(),
        HOST => "host".to_owned(),
        FAILURES => "queue failures".to_owned(),
        QUEUES.. => format!("CQ {:#x}", tid - QUEUES),
        _ => {
            let id = tid.saturating_sub(THREADS);
            match recording.threads.get(&(card, id)) {
                Some(identity) => thread_name(identity.kind, identity.process, id),
                None => format!("thread {id}"),
            }
        }
    };
    events.push(meta("thread_name", tid, Args::Name { name }));
    // Threads first, then what feeds them.
    let rank = match tid {
        THREADS..QUEUES => tid - THREADS,
        QUEUES.. => tid,
        // The host rings what the cards send.
        HOST => 0x10_0000,
        _ => tid,
    };
    events.push(meta("thread_sort_index", tid, Args::Sort { sort_index: rank }));
}
