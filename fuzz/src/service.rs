//! Messages of service processes, from ranks and from other service processes that know the secret and send anything.
//!
//! An input is a row of messages. A first byte of 0 says that one comes as it is, with its header; otherwise the byte
//! is its kind, and its header is made so that it fits. Checked: what decodes is what encoding makes of it; lists under
//! assembly take no more memory than they announce; the machines of service processes take all that decodes without a
//! panic and within their limits, and what they say in turn can be encoded.

use std::collections::VecDeque;
use std::sync::Arc;

use flexcast_proto::MAX_RANKS;
use flexcast_proto::service::wire::{
    self, Assembler, Body, Challenge, Endpoint, Group, GroupHead, HEADER_BYTES, Head, Hello, KeyForm, KeyName,
    MAX_BYTES, NO_CORE, OpStart, Packet, Place, Proof, Refused, Role, StartHead, TaskParts, VERSION, Welcome, Whole,
    decode, encode, length_of,
};
use flexcast_proto::service::{
    Action, Announcement, Blocks, BoundKey, Cause, Collective, ContextId, Datatype, Delivery, Descriptor, Event,
    FLAG_BYTES, FailedParty, Failure, LettingGo, Limits, LocalCopies, Locality, Message, Multicast, Part, ReadError,
    Reader, Region, ServiceProcess, SharedList, StagedAction, StagedEvent, StagedMessage, StagedProcess, Staging,
    Topology,
};

use crate::input::{Input, Script};

/// Kinds that [`run`] makes a header for, besides a few that do not exist.
const KINDS: u8 = 41;
/// The group that the machines have, of ranks 0 and 2 on one host, 1 and 3 on another.
const GROUP: u32 = 1;
const RANKS: u32 = 4;
/// The status that a completion of a failed Read carries.
const BROKEN: u16 = 10;
/// Transfers of staged collectives that end in one input.
const TRANSFERS: u32 = 200;

/// A service process and its connections.
struct Process {
    machine: ServiceProcess,
    staged: StagedProcess,
    limits: Limits,
    staging: Staging,
    list: SharedList,
    calls: Assembler<StartHead>,
    groups: Assembler<GroupHead>,
    /// A key that the program binds.
    key: BoundKey,
    /// Transfers of staged collectives that have ended.
    transfers: u32,
}

/// Handles one input.
pub fn run(data: &[u8]) {
    let mut process = Process::new(data.len() % 2 == 1);
    let mut input = Input::new(data);
    while !input.is_empty() {
        let message = match input.u8() % KINDS {
            0 => raw(&mut input),
            kind => with_header(kind, &mut input),
        };
        match decode(&message) {
            Ok(packet) => {
                assert_eq!(bytes_of(&packet), message, "what decodes is what encoding makes of it");
                process.take(packet);
            }
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
}

/// A message as it is: as long as its header says, where that can be.
fn raw(input: &mut Input<'_>) -> Vec<u8> {
    let head = input.bytes(HEADER_BYTES);
    let rest = length_of(head).map_or(usize::from(u16::MAX), |length| length - HEADER_BYTES);
    [head, input.bytes(rest)].concat()
}

/// A message of this kind, and of the group that the machines have or of another one.
fn with_header(kind: u8, input: &mut Input<'_>) -> Vec<u8> {
    let (group, collective) = (u32::from(input.u8()), u32::from(input.u8()));
    let length = usize::from(input.u16()) % (MAX_BYTES - HEADER_BYTES + 1);
    let body = input.bytes(length);
    let length = ((HEADER_BYTES + body.len()) as u16).to_le_bytes();
    [&b"FXSP"[..], &[VERSION, kind], &length, &group.to_le_bytes(), &collective.to_le_bytes(), body].concat()
}

fn bytes_of(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(packet, &mut bytes).unwrap_or_else(|error| panic!("{packet:?}: {error}"));
    bytes
}

impl Process {
    /// With segments that go by multicast, or by messages.
    fn new(is_multicast: bool) -> Self {
        let localities: Vec<Locality> = (0..RANKS).map(|rank| Locality { host: rank % 2, socket: 0 }).collect();
        let topology = Arc::new(Topology::new(&localities, 2).expect("four ranks on two hosts"));
        let limits = Limits { active_reads: 2, groups: 2, collectives: 2, announcements: 64 };
        let mut machine = ServiceProcess::new(limits).expect("limits above zero");
        machine.add_group(GROUP, Arc::clone(&topology), 0).expect("room for a group");
        let multicast = is_multicast.then(Multicast::default);
        let staging =
            Staging { staging_bytes: 64, segments: 2, transfers: 2, collectives: 2, multicast, ..Staging::default() };
        let mut staged = StagedProcess::new(topology, 0, staging).expect("room for a byte of each rank");
        staged.agree(Some(4));
        Self {
            machine,
            staged,
            limits,
            staging,
            list: SharedList::new(limits.announcements),
            calls: Assembler::new(MAX_RANKS),
            groups: Assembler::new(MAX_RANKS),
            key: BoundKey::new(),
            transfers: 0,
        }
    }

    /// Does with a message what a daemon does.
    fn take(&mut self, Packet { context, body }: Packet<'_>) {
        match body {
            Body::Start(part) => {
                if let Some(start) = assemble(&mut self.calls, context, part) {
                    match start.call() {
                        Ok(call) => self.happen(Event::Entered { context, rank: start.head().rank, call }),
                        Err(error) => assert!(!error.to_string().is_empty()),
                    }
                }
            }
            Body::GroupCreate(part) => {
                if let Some(group) = assemble(&mut self.groups, context, part) {
                    match group.topology() {
                        Ok((topology, endpoints)) => assert_eq!(topology.processes() as usize, endpoints.len()),
                        Err(refused) => refuse(refused),
                    }
                }
            }
            Body::Task(task) => {
                for part in task.parts() {
                    let collective = context.collective;
                    self.happen_staged(StagedEvent::Called { collective, descriptor: task.descriptor(), part });
                }
            }
            Body::KeyExport(export) if export.form == KeyForm::Bound => {
                let before = self.key;
                match self.key.bind(export.generation) {
                    Ok(()) => assert_eq!((before.binding(), self.key.binding()), (None, Some(export.generation))),
                    Err(refusal) => {
                        assert!(!refusal.to_string().is_empty());
                        assert_eq!(before, self.key, "a refused binding changes nothing");
                    }
                }
            }
            Body::KeyRevoke { name: KeyName { generation, .. }, is_idle } => {
                let before = self.key;
                let how = self.key.revoke(generation, is_idle, context.collective == 0 && generation % 2 == 1);
                assert_eq!(how == LettingGo::Unknown, before == self.key, "only what is there is let go of");
                if how == LettingGo::Waits {
                    assert!(matches!(self.key.settle(false), LettingGo::Now));
                }
            }
            Body::LocalCopied { rank, source } => self.happen(Event::Copied { context, rank, source }),
            Body::Process { from, message, .. } => self.happen(Event::Arrived { from, context, message }),
            Body::Staged { from, message, .. } => {
                self.happen_staged(StagedEvent::Arrived { from, collective: context.collective, message });
            }
            // A rank goes without a word.
            Body::Goodbye => self.happen(Event::RankDied { group: GROUP, rank: 1 }),
            _ => {}
        }
    }

    /// Gives an event to the machine of Alltoallv and Allgatherv, and carries out what it asks for.
    fn happen(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            if let Err(refusal) = self.machine.handle(event, &mut actions) {
                assert!(actions.is_empty(), "a refused event changes nothing");
                refuse(Refused::Process(refusal));
            }
            assert!(self.machine.active_reads() <= self.limits.active_reads);
            assert!(self.machine.waiting() as u64 <= self.limits.announcements);
            for action in actions {
                let (context, body) = match action {
                    Action::Send { to, context, message } => (context, Body::Process { from: 0, to, message }),
                    Action::Notify { rank, context, source, holder, region } => {
                        (context, Body::LocalData { rank, source, holder, region })
                    }
                    Action::Complete { rank, context } => (context, Body::Done { rank }),
                    Action::Fail { rank, context, failure } => (context, Body::Failed { rank, failure }),
                    Action::Read { context, read } => {
                        // What lies at odd addresses cannot be read.
                        let error =
                            (read.from.address % 2 == 1).then_some(ReadError { code: BROKEN, rank: read.holder });
                        events.push_back(Event::ReadDone { context, source: read.source, target: read.target, error });
                        continue;
                    }
                    Action::Put { context, announcement } => {
                        let put = self.list.put(
                            context,
                            announcement,
                            Endpoint { address: core::net::Ipv6Addr::LOCALHOST, port: 1 },
                        );
                        assert!(put.is_ok(), "{put:?}");
                        continue;
                    }
                    Action::Claim { context } => {
                        events.push_back(Event::Claimed { context, announcement: self.list.claim(context) });
                        continue;
                    }
                    Action::Abandon { context } => {
                        self.list.remove(context);
                        continue;
                    }
                };
                bytes_of(&Packet { context, body });
            }
        }
    }

    /// Gives an event to the machine of staged collectives, and carries out what it asks for. A long message has many
    /// segments: after [`TRANSFERS`] of an input they take for ever.
    fn happen_staged(&mut self, event: StagedEvent) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            let mut actions = Vec::new();
            if let Err(refusal) = self.staged.handle(event, &mut actions) {
                assert!(actions.is_empty(), "a refused event changes nothing");
                refuse(Refused::Staged(refusal));
            }
            assert!(self.staged.active() as u64 <= u64::from(self.staging.transfers));
            for action in actions {
                match action {
                    StagedAction::Send { to, collective, message } => {
                        let context = ContextId { group: GROUP, collective };
                        bytes_of(&Packet { context, body: Body::Staged { from: 0, to, message } });
                    }
                    StagedAction::Fail { rank, failure } => {
                        let context = ContextId { group: GROUP, collective: 0 };
                        bytes_of(&Packet { context, body: Body::GroupFailed { rank, failure } });
                    }
                    StagedAction::Read { collective, work, .. }
                    | StagedAction::Fetch { collective, work, .. }
                    | StagedAction::Copy { collective, work, .. }
                    | StagedAction::Multicast { collective, work, .. }
                    | StagedAction::Write { collective, work, .. }
                    | StagedAction::WriteFlag { collective, work, .. } => {
                        if self.transfers < TRANSFERS {
                            self.transfers += 1;
                            events.push_back(StagedEvent::Done { collective, work, error: None });
                        }
                    }
                }
            }
        }
    }
}

/// Puts a part to the others.
fn assemble<H: Head>(assembler: &mut Assembler<H>, context: ContextId, part: wire::Part<'_, H>) -> Option<Whole<H>> {
    let most = part.head().entries() * size_of::<H::Entry>();
    let before = assembler.held_bytes();
    match assembler.add(context, part) {
        Ok(whole) => {
            assert!(assembler.held_bytes() <= before.max(most), "no more than the list announces");
            whole
        }
        Err(error) => {
            assert_eq!(assembler.held_bytes(), before, "{error}");
            // A daemon ends the connection; another rank connects.
            assembler.clear();
            None
        }
    }
}

/// Reports to a rank why something is refused.
fn refuse(refused: Refused) {
    assert!(!refused.to_string().is_empty());
    let context = ContextId { group: GROUP, collective: 0 };
    bytes_of(&Packet { context, body: Body::CallRefused { rank: 0, refused } });
}

/// Messages of one collective of each kind, and some of each other kind.
#[must_use]
pub fn seeds() -> Vec<(&'static str, Vec<u8>)> {
    let context = ContextId { group: GROUP, collective: 0 };
    let of = |body: Body<'_>| raw_message(&Packet { context, body });
    let region = |address: u64, bytes: u64| Region { address, key: 7, bytes };
    let numbers: Vec<u64> = (0..u64::from(RANKS)).collect();
    let ones = [1; RANKS as usize];
    let datatype = Datatype { size_bytes: 8, extent_bytes: 8 };
    let blocks = |address| Blocks { address, key: 7, datatype, counts: &ones, displs: &numbers };
    let start = |start: Result<OpStart, _>| -> Vec<u8> {
        let start = start.expect("a call that can be carried out");
        let packets = start.packets().map(|packet| raw_message(&packet.expect("a group of a size that there is")));
        packets.collect::<Vec<_>>().concat()
    };
    let process = |from, message| of(Body::Process { from, to: 0, message });
    let alltoallv = start(OpStart::alltoallv(context, (0, RANKS), &blocks(0x1000), &blocks(0x2000)));
    let others = [(1, 2), (2, 1), (3, 3)];
    let announced =
        others.map(|(source, from)| process(from, Message::Ready { source, target: 0, region: region(0x3000, 8) }));
    let read = others.map(|(rank, from)| process(from, Message::HasRead { source: 0, reader: Reader::Rank(rank) }));
    let (announced, read) = (announced.concat(), read.concat());
    let allgatherv =
        |copies| start(OpStart::allgatherv(context, (0, RANKS), Some(region(0x1000, 8)), &blocks(0x2000), copies));
    let block = |source, forwards, copies| {
        let announcement = Announcement { source, region: region(0x3000, 8) };
        Message::Block { announcement, forwards, copies }
    };
    let gathered = |copies| {
        let notice = of(Body::LocalCopied { rank: 0, source: 2 });
        [
            process(2, block(1, 0, copies)),
            process(1, Message::Listed),
            process(1, block(3, 1, copies)),
            process(1, Message::Held { source: 2, holder: 2, region: region(0x3000, 8), copies }),
            if copies == LocalCopies::Host { notice } else { Vec::new() },
            process(1, Message::Copied { source: 0, holder: 0, by: 2 }),
            process(1, Message::Copied { source: 1, holder: 0, by: 2 }),
            process(1, Message::Copied { source: 3, holder: 0, by: 2 }),
            process(2, Message::HasRead { source: 0, reader: Reader::Host(1) }),
        ]
    };
    let failure = Failure { failed_rank: FailedParty::Rank(3), cause: Cause::Died };
    let failing = [process(2, Message::Failed(failure)), process(2, Message::Unreadable { source: 0, code: BROKEN })];
    let task = |collective, bytes: u64, blocks: u64| {
        let flags = FLAG_BYTES * 4;
        let part = |rank| Part {
            rank,
            send: region(0x1000, bytes),
            receive: region(0x2000, bytes * blocks),
            flags: region(0x4000, flags),
            shared: region(0, 0),
        };
        let parts: Vec<Part> = (0..RANKS).map(part).collect();
        let task = TaskParts::new(Descriptor { collective, delivery: Delivery::Flat, bytes }, &parts);
        let task = task.expect("regions within the address space");
        let parts: Vec<Vec<u8>> = task.parts().map(|part| of(Body::Task(part.expect("ranks of a group")))).collect();
        parts.concat()
    };
    let staged = |from, message| of(Body::Staged { from, to: 0, message });
    let broadcast = [
        task(Collective::Broadcast { root: 1 }, 24, 1),
        staged(2, StagedMessage::Offer { segment: 0, tag: 0 }),
        staged(1, StagedMessage::Taken { segment: 0, tag: 1 }),
    ];
    let places: Vec<Place> = (0..RANKS)
        .map(|rank| {
            let locality = Locality { host: rank % 2, socket: 0 };
            let process = Endpoint { address: core::net::Ipv6Addr::LOCALHOST, port: 1 + rank as u16 };
            Place { locality, core: NO_CORE, process }
        })
        .collect();
    let group = Group::new(GROUP, 0x77, 0, 2, &places).expect("four ranks");
    let group: Vec<Vec<u8>> =
        group.packets().map(|packet| raw_message(&packet.expect("a rank of the group"))).collect();
    let connection = ContextId { group: 0, collective: 0 };
    let greeting = [
        Body::Hello(Hello { role: Role::Rank, epoch: 1, nonce: [2; 32] }),
        Body::Challenge(Challenge { nonce: [3; 32], tag: [4; 32] }),
        Body::Proof(Proof { tag: [5; 32] }),
        Body::Welcome(Welcome { epoch: 6, heartbeat_ms: 100, groups: 2, collectives: 2 }),
        Body::Goodbye,
    ];
    let greeting = greeting.map(|body| raw_message(&Packet { context: connection, body }));
    // A key of no kind that there is, one that is cut short, and a message of another release.
    let headed = Script::new().bytes(&[40, GROUP as u8, 0]).u16(4).bytes(&[1; 4]);
    let broken = headed.bytes(&[8, 0, 0]).u16(3).bytes(&[1; 3]).bytes(b"\0FXSP\x02\x07\x10\0").u64(0).done();
    let (host, card) = (LocalCopies::Host, LocalCopies::Card);
    vec![
        ("alltoallv", [&alltoallv[..], &announced, &read].concat()),
        ("early", [&announced[..], &alltoallv, &read].concat()),
        ("allgatherv", [&allgatherv(host)[..], &gathered(host).concat()].concat()),
        ("copied", [&allgatherv(card)[..], &gathered(card).concat()].concat()),
        ("disagreeing", [&allgatherv(host)[..], &gathered(card).concat()].concat()),
        ("listed", [&process(1, block(1, 1, host))[..], &allgatherv(host)].concat()),
        ("failing", [&alltoallv[..], &failing.concat(), &allgatherv(host)].concat()),
        ("broadcast", broadcast.concat()),
        ("allgather", task(Collective::Allgather, 8, RANKS.into())),
        ("group", group.concat()),
        ("greeting", greeting.concat()),
        ("broken", broken),
    ]
}

/// A message as [`run`] reads it whole.
fn raw_message(packet: &Packet<'_>) -> Vec<u8> {
    [&[0][..], &bytes_of(packet)].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seeds reach the machines: they end collectives, or fail them.
    #[test]
    fn seeds_are_messages_that_the_machines_take() {
        for (name, data) in seeds() {
            let (mut process, mut input) = (Process::new(false), Input::new(&data));
            while name != "broken" && !input.is_empty() {
                assert_eq!(input.u8(), 0, "{name}");
                let message = raw(&mut input);
                process.take(decode(&message).unwrap_or_else(|error| panic!("{name}: {error}")));
            }
            let begun = process.machine.under_way(GROUP).expect("the group is there");
            let ignored = process.machine.ignored().total() + process.staged.ignored().total();
            let is_over = matches!(name, "alltoallv" | "early" | "allgatherv" | "copied");
            assert!(!is_over || (begun, ignored) == (0, 0), "{name}: {begun} under way, {ignored} ignored");
            assert_eq!(process.transfers > 0, matches!(name, "broadcast" | "allgather"), "{name}");
        }
    }
}
