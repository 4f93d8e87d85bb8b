//! Messages of every kind, fixed ones and random ones.

use flexcast_proto::MAX_RANKS;
use flexcast_proto::service::wire::{
    AccessKey, Body, Challenge, Endpoint, Flags, FormatError, Group, GroupError, Heartbeat, Hello, JoinRefused, Joined,
    KeyExport, KeyForm, KeyName, KeyRefusal, Link, MulticastEnd, OpStart, Packet, Place, Proof, Refused, Rejection,
    Rights, Role, StagingMemory, TaskParts, Welcome, decode, encode,
};
use flexcast_proto::service::{
    Announcement, Between, Blocks, CallError, Cause, Collective, ContextId, Datatype, Delivery, Descriptor,
    FailedParty, Failure, LocalCopies, Locality, Message, Operation, Part, Reader, Refusal, Region, StagedCause,
    StagedFailure, StagedMessage, StagedReader, StagedRefusal, TopologyError,
};
use proptest::prelude::*;

pub(crate) const CONTEXT: ContextId = ContextId { group: 0x0102_0304, collective: 0xa0b0_c0d0 };
pub(crate) const LINK: Link =
    Link { gid: *b"0123456789abcdef", mac: [2, 0, 0, 0, 3, 1], queue_pair: 0x1234, nonce: *b"fedcba9876543210" };
pub(crate) const REGION: Region = Region { address: 0x1122_3344_5566_7788, key: 0x99aa_bbcc, bytes: 0x1000 };

pub(crate) fn bytes_of(packet: &Packet<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(packet, &mut bytes).unwrap();
    bytes
}

/// That the bytes of a message are its only encoding.
pub(crate) fn is_encoding(bytes: &[u8]) -> Result<(), FormatError> {
    let packet = decode(bytes)?;
    assert_eq!(bytes_of(&packet), bytes);
    Ok(())
}

/// What a message of this body is about: nothing, a group, or a collective.
pub(crate) fn about(body: &Body<'_>, context: ContextId) -> ContextId {
    match body {
        Body::Hello(_)
        | Body::Challenge(_)
        | Body::Proof(_)
        | Body::Welcome(_)
        | Body::Rejected(_)
        | Body::Heartbeat(_)
        | Body::Goodbye
        | Body::Link(_)
        | Body::KeyExport(_)
        | Body::KeyAnswer { .. }
        | Body::KeyRevoke { .. }
        | Body::KeyRevoked(_) => ContextId { group: 0, collective: 0 },
        Body::GroupCreate(_)
        | Body::GroupAccepted { .. }
        | Body::GroupRefused { .. }
        | Body::GroupLeave { .. }
        | Body::GroupLeft { .. }
        | Body::Flags { .. }
        | Body::Joined { .. }
        | Body::GroupFailed { .. } => ContextId { collective: 0, ..context },
        Body::Start(_)
        | Body::Task(_)
        | Body::CallRefused { .. }
        | Body::LocalData { .. }
        | Body::LocalCopied { .. }
        | Body::Done { .. }
        | Body::Failed { .. }
        | Body::Process { .. }
        | Body::Staged { .. } => context,
    }
}

pub(crate) fn nonce(first: u8) -> [u8; 32] {
    core::array::from_fn(|at| first.wrapping_add(at as u8))
}

pub(crate) fn endpoint(last: u16, port: u16) -> Endpoint {
    Endpoint { address: core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last), port }
}

pub(crate) fn place(host: u32, port: u16) -> Place {
    Place { locality: Locality { host, socket: 1 }, core: 7 + host, process: endpoint(host as u16, port) }
}

/// An Alltoallv of `ranks` ranks, called by one of them, with counts and displacements that encode their places.
pub(crate) fn alltoallv(context: ContextId, rank: u32, ranks: u32) -> OpStart {
    let numbers = |first: u64| (first..).take(ranks as usize).collect::<Vec<u64>>();
    let datatype = Datatype { size_bytes: 8, extent_bytes: 8 };
    let (counts, displs) = (numbers(1), numbers(100));
    let send = Blocks { address: 0x1000, key: 0x51, datatype, counts: &counts, displs: &displs };
    let counts = numbers(10_000);
    let displs: Vec<u64> = counts.iter().map(|count| count << 14).collect();
    let receive = Blocks { address: 0x2000, key: 0x52, datatype, counts: &counts, displs: &displs };
    OpStart::alltoallv(context, (rank, ranks), &send, &receive).unwrap()
}

pub(crate) fn allgatherv(context: ContextId, rank: u32, ranks: u32, send: Option<Region>) -> OpStart {
    allgatherv_by(LocalCopies::Host, context, (rank, ranks), send)
}

fn allgatherv_by(copies: LocalCopies, context: ContextId, place: (u32, u32), send: Option<Region>) -> OpStart {
    let ranks = place.1;
    let counts: Vec<u64> = (0..u64::from(ranks)).collect();
    let displs: Vec<u64> = counts.iter().map(|count| count << 10).collect();
    let datatype = Datatype { size_bytes: 4, extent_bytes: 4 };
    let receive = Blocks { address: 0x3000, key: 0x53, datatype, counts: &counts, displs: &displs };
    OpStart::allgatherv(context, place, send, &receive, copies).unwrap()
}

pub(crate) fn task(first: u32, ranks: u32) -> TaskParts {
    let collective = Collective::Broadcast { root: 2 };
    let region = |rank: u32, name: u64| Region { address: name << 32 | u64::from(rank), key: rank, bytes: name };
    let parts: Vec<Part> = (first..first + ranks)
        .map(|rank| Part {
            rank,
            send: region(rank, 1),
            receive: region(rank, 2),
            flags: region(rank, 3),
            shared: region(rank, 4),
        })
        .collect();
    TaskParts::new(Descriptor { collective, delivery: Delivery::Hierarchical, bytes: 0x1234 }, &parts).unwrap()
}

pub(crate) fn refusals() -> Vec<Refused> {
    let process = [
        Refusal::Limit { name: "groups", value: 0 },
        Refusal::Groups { groups: 65, limit: 64 },
        Refusal::Announcements { announcements: 1 << 40, limit: 1 << 20 },
        Refusal::GroupTwice { group: 5 },
        Refusal::NoGroup { group: 6 },
        Refusal::Process { process: 3, processes: 2 },
        Refusal::NotServed { rank: 9, process: 1 },
        Refusal::Collectives { group: 1, collective: 9, oldest: 0, limit: u32::MAX },
        Refusal::CalledTwice { rank: 1, group: 2, collective: 3 },
        Refusal::Blocks { found: 3, ranks: 4 },
    ];
    let staged = [
        StagedRefusal::Limit { name: "staging_bytes", value: 1, least: 2 },
        StagedRefusal::Process { process: 8, processes: 7 },
        StagedRefusal::Collectives { collective: 9, oldest: 1, limit: 8 },
        StagedRefusal::Rank { rank: 5, ranks: 4 },
        StagedRefusal::Buffer { name: "shared", rank: 1, found: 2, expected: 3 },
    ];
    let call = [
        CallError::Length { name: "displacements", found: 3, ranks: 4 },
        CallError::Extent { size_bytes: 4, extent_bytes: 8 },
        CallError::TooLarge { rank: 3 },
        CallError::InPlace,
        CallError::Rank { rank: 4, ranks: 4 },
        CallError::Overlap { first: 2, second: 1 },
    ];
    let topology = [
        TopologyError::Ranks { ranks: 1025 },
        TopologyError::Processes { processes: 65 },
        TopologyError::Host { rank: 1, host: 9, ranks: 2 },
        TopologyError::NoRank { host: 1, hosts: 3 },
    ];
    let group = [
        GroupError::Differs { rank: 3 },
        GroupError::Endpoint { rank: 3, process: 1 },
        GroupError::SameEndpoint { process: 0, other: 1 },
        GroupError::Elsewhere { rank: 3, process: 1 },
        GroupError::Staging { process: 2 },
        GroupError::Unreachable { process: 2 },
    ];
    let all = process.map(Refused::Process).into_iter().chain(staged.map(Refused::Staged));
    let all = all.chain(call.map(Refused::Call)).chain(topology.map(Refused::Topology));
    let later =
        [StagedRefusal::Exhausted { asked: 0x1_0000_0002, held: 3, limit: 4 }, StagedRefusal::NoStaging { group: 7 }];
    let not_shared = [Refused::NotShared { key: 0x0102_0304 }];
    all.chain(group.map(Refused::Group)).chain(later.map(Refused::Staged)).chain(not_shared).collect()
}

pub(crate) fn failures() -> [Failure; 5] {
    let [by_host, by_card] = [LocalCopies::Host, LocalCopies::Card].map(Operation::Allgatherv);
    [
        (FailedParty::Process(3), Cause::Died),
        (FailedParty::Rank(5), Cause::Read(0x0102)),
        (FailedParty::Rank(6), Cause::Bytes { detecting_rank: 7, found: 8, expected: 9 }),
        (FailedParty::Rank(1), Cause::Operation { found: by_host, expected: Operation::Alltoallv }),
        (FailedParty::Rank(1), Cause::Operation { found: by_card, expected: by_host }),
    ]
    .map(|(failed_rank, cause)| Failure { failed_rank, cause })
}

pub(crate) fn staged_failures() -> [StagedFailure; 3] {
    [
        (FailedParty::Process(3), StagedCause::Died),
        (FailedParty::Rank(5), StagedCause::Transfer(0x0102)),
        (FailedParty::Rank(6), StagedCause::Disagrees),
    ]
    .map(|(failed_rank, cause)| StagedFailure { failed_rank, cause })
}

/// A message of each kind and of each variant, with a name, as bytes.
pub(crate) fn all() -> Vec<(String, Vec<u8>)> {
    let name = KeyName { key: 0x0a0b_0c0d, generation: 3 };
    let rights = Rights { local_write: true, remote_read: true, ..Rights::default() };
    let export = KeyExport {
        form: KeyForm::Memory,
        region: REGION,
        rights,
        virtual_hca: 0x0203,
        generation: 3,
        access_key: AccessKey(nonce(0x40)),
    };
    let pooled =
        KeyExport { form: KeyForm::Pool, region: Region { address: 0, bytes: 0, ..REGION }, generation: 0, ..export };
    let bound = KeyExport { form: KeyForm::Bound, access_key: AccessKey([0; 32]), ..export };
    let answers = [
        Ok(0x77),
        Err(KeyRefusal::OtherCard { virtual_hca: 5 }),
        Err(KeyRefusal::Keys { limit: 16 }),
        Err(KeyRefusal::Generation { known: 4 }),
        Err(KeyRefusal::Card { syndrome: 0xdead }),
        Err(KeyRefusal::NotInPool { key: 0x0102_0304 }),
        Err(KeyRefusal::Bound { generation: 5 }),
    ];
    let (rank, failure, refused) = (4, failures()[0], Refused::Process(Refusal::NoGroup { group: 6 }));
    let flags = Flags::new(Region { bytes: 64, ..REGION }).unwrap();
    let multicast = Some(MulticastEnd { queue_pair: 0x0A_0B0C, chunk_bytes: 0x1000 });
    let reader = StagedReader::First;
    let staging = StagingMemory { region: REGION, segments: 2, scatter_bytes: 0x10000, reader, multicast };
    let joined = |joined| Body::Joined { from: 1, to: 2, joined };
    let group = Group::new(CONTEXT.group, 0x1020_3040_5060_7080, 1, 2, &[place(0, 9000), place(1, 9001)]).unwrap();
    let starts = [
        alltoallv(CONTEXT, 1, 3),
        allgatherv(CONTEXT, 2, 3, Some(Region { bytes: 8, ..REGION })),
        allgatherv(CONTEXT, 0, 2, None),
        allgatherv_by(LocalCopies::Card, CONTEXT, (2, 3), Some(Region { bytes: 8, ..REGION })),
        allgatherv_by(LocalCopies::Card, CONTEXT, (0, 2), None),
    ];
    let task = task(7, 2);
    let announcement = Announcement { source: 3, region: REGION };
    let process = |message| Body::Process { from: 1, to: 2, message };
    let staged = |message| Body::Staged { from: 1, to: 2, message };
    let mut bodies = vec![
        ("hello of a rank", Body::Hello(Hello { role: Role::Rank, epoch: 0x55, nonce: nonce(0) })),
        (
            "hello of a process",
            Body::Hello(Hello { role: Role::Process { listens: endpoint(1, 4791) }, epoch: 0x56, nonce: nonce(1) }),
        ),
        ("challenge", Body::Challenge(Challenge { nonce: nonce(2), tag: nonce(3) })),
        ("proof", Body::Proof(Proof { tag: nonce(4) })),
        ("welcome", Body::Welcome(Welcome { epoch: 9, heartbeat_ms: 100, groups: 64, collectives: 8 })),
        ("rejected: secret", Body::Rejected(Rejection::Secret)),
        ("rejected: connections", Body::Rejected(Rejection::Connections { limit: 32 })),
        ("rejected: crowded", Body::Rejected(Rejection::Crowded { limit: 64 })),
        ("rejected: stopping", Body::Rejected(Rejection::Stopping)),
        ("rejected: format", Body::Rejected(Rejection::Format)),
        ("rejected: crossing", Body::Rejected(Rejection::Crossing)),
        ("heartbeat", Body::Heartbeat(Heartbeat { number: 0x0102, seen: 0x0304 })),
        ("goodbye", Body::Goodbye),
        ("link", Body::Link(LINK)),
        ("key export", Body::KeyExport(export)),
        ("key of a pool", Body::KeyExport(pooled)),
        ("key bound", Body::KeyExport(bound)),
        ("key revoke", Body::KeyRevoke { name, is_idle: false }),
        ("key revoke, idle", Body::KeyRevoke { name, is_idle: true }),
        ("key revoked", Body::KeyRevoked(name)),
        ("group accepted", Body::GroupAccepted { rank, process: 1, between: Between::Messages }),
        ("group accepted by multicast", Body::GroupAccepted { rank, process: 1, between: Between::Multicast }),
        ("group refused", Body::GroupRefused { rank, refused }),
        ("group leave", Body::GroupLeave { rank }),
        ("group left", Body::GroupLeft { rank }),
        ("flags", Body::Flags { rank, flags }),
        (
            "joined with staging",
            joined(Ok(Joined { communicator: 0x1020, staging: Some(staging), queue_pair: 0x30_4050 })),
        ),
        ("joined", joined(Ok(Joined { communicator: 0x1020, staging: None, queue_pair: 0 }))),
        (
            "join refused",
            joined(Err(JoinRefused {
                communicator: 0x1020,
                refused: Refused::Group(GroupError::Staging { process: 2 }),
            })),
        ),
        ("local data", Body::LocalData { rank, source: 5, holder: 6, region: REGION }),
        ("local copied", Body::LocalCopied { rank, source: 5 }),
        ("done", Body::Done { rank }),
        ("failed", Body::Failed { rank, failure }),
        ("ready", process(Message::Ready { source: 3, target: 4, region: REGION })),
        ("block", process(Message::Block { announcement, forwards: 2, copies: LocalCopies::Host })),
        ("block", process(Message::Block { announcement, forwards: 0, copies: LocalCopies::Card })),
        ("listed", process(Message::Listed)),
        ("read by a rank", process(Message::HasRead { source: 3, reader: Reader::Rank(4) })),
        ("read by a host", process(Message::HasRead { source: 3, reader: Reader::Host(4) })),
        ("held", process(Message::Held { source: 3, holder: 4, region: REGION, copies: LocalCopies::Host })),
        ("held", process(Message::Held { source: 3, holder: 4, region: REGION, copies: LocalCopies::Card })),
        ("copied", process(Message::Copied { source: 3, holder: 4, by: 5 })),
        ("unreadable", process(Message::Unreadable { source: 3, code: 0x0102 })),
        ("offer", staged(StagedMessage::Offer { segment: 0x0102_0304, tag: 5 })),
        ("taken", staged(StagedMessage::Taken { segment: 0x0102_0304, tag: 5 })),
    ];
    bodies.extend(answers.map(|answer| ("key answer", Body::KeyAnswer { name, answer })));
    bodies.extend(refusals().into_iter().map(|refused| ("call refused", Body::CallRefused { rank, refused })));
    bodies.extend(failures().map(|failure| ("process failed", process(Message::Failed(failure)))));
    bodies.extend(staged_failures().map(|failure| ("staged failed", staged(StagedMessage::Failed(failure)))));
    bodies.extend(staged_failures().map(|failure| ("group failed", Body::GroupFailed { rank, failure })));
    bodies.extend(group.parts().map(|part| ("group create", Body::GroupCreate(part.unwrap()))));
    bodies.extend(starts.iter().flat_map(OpStart::parts).map(|part| ("start", Body::Start(part.unwrap()))));
    bodies.extend(task.parts().map(|part| ("task", Body::Task(part.unwrap()))));
    let bytes = |body: &Body<'_>| bytes_of(&Packet { context: about(body, CONTEXT), body: *body });
    let mut all: Vec<(String, Vec<u8>)> = Vec::new();
    for (name, body) in &bodies {
        let count = all.iter().filter(|(other, _)| other.split(" #").next() == Some(name)).count();
        let name = if count == 0 { (*name).to_owned() } else { format!("{name} #{}", count + 1) };
        all.push((name, bytes(body)));
    }
    all
}

fn rank() -> impl Strategy<Value = u32> {
    0..MAX_RANKS
}

fn region() -> impl Strategy<Value = Region> {
    let length = prop_oneof![Just(0), Just(1), Just(u64::MAX), any::<u64>()];
    (any::<u64>(), length, any::<u32>()).prop_map(|(address, bytes, key)| {
        let bytes = bytes.min(u64::MAX - address);
        Region { address, key, bytes }
    })
}

fn any_endpoint() -> impl Strategy<Value = Endpoint> {
    (any::<u128>(), 1..=u16::MAX).prop_map(|(address, port)| Endpoint { address: address.into(), port })
}

fn failed_rank() -> impl Strategy<Value = FailedParty> {
    prop_oneof![rank().prop_map(FailedParty::Rank), rank().prop_map(FailedParty::Process)]
}

fn copies() -> impl Strategy<Value = LocalCopies> + Clone {
    prop_oneof![Just(LocalCopies::Host), Just(LocalCopies::Card)]
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![Just(Operation::Alltoallv), copies().prop_map(Operation::Allgatherv)]
}

fn failure() -> impl Strategy<Value = Failure> {
    let bytes = (rank(), any::<u64>(), any::<u64>());
    let cause = prop_oneof![
        Just(Cause::Died),
        any::<u16>().prop_map(Cause::Read),
        bytes.prop_map(|(detecting_rank, found, expected)| Cause::Bytes { detecting_rank, found, expected }),
        (operation(), operation()).prop_map(|(found, expected)| Cause::Operation { found, expected }),
    ];
    (failed_rank(), cause).prop_map(|(failed_rank, cause)| Failure { failed_rank, cause })
}

fn staged_failure() -> impl Strategy<Value = StagedFailure> {
    let transfer = any::<u16>().prop_map(StagedCause::Transfer);
    let cause = prop_oneof![Just(StagedCause::Died), transfer, Just(StagedCause::Disagrees)];
    (failed_rank(), cause).prop_map(|(failed_rank, cause)| StagedFailure { failed_rank, cause })
}

fn refused() -> impl Strategy<Value = Refused> {
    let numbers = (any::<[u32; 4]>(), any::<[u64; 2]>());
    (prop::sample::select(refusals()), numbers).prop_map(|(refused, ([a, b, c, d], [e, f]))| match refused {
        Refused::Process(Refusal::Collectives { .. }) => {
            Refused::Process(Refusal::Collectives { group: a, collective: b, oldest: c, limit: d })
        }
        Refused::Process(Refusal::Blocks { .. }) => Refused::Process(Refusal::Blocks { found: e as usize, ranks: a }),
        Refused::Staged(StagedRefusal::Limit { name, .. }) => {
            Refused::Staged(StagedRefusal::Limit { name, value: e, least: f })
        }
        Refused::Staged(StagedRefusal::Buffer { name, .. }) => {
            Refused::Staged(StagedRefusal::Buffer { name, rank: a, found: e, expected: f })
        }
        Refused::Staged(StagedRefusal::Exhausted { .. }) => {
            let asked = u64::from(a) << 32 | u64::from(b);
            Refused::Staged(StagedRefusal::Exhausted { asked, held: e, limit: f })
        }
        Refused::Topology(TopologyError::Host { .. }) => {
            Refused::Topology(TopologyError::Host { rank: a, host: b, ranks: c })
        }
        other => other,
    })
}

fn message() -> impl Strategy<Value = Message> {
    let reader = prop_oneof![rank().prop_map(Reader::Rank), rank().prop_map(Reader::Host)];
    let three = || (rank(), rank(), region());
    prop_oneof![
        three().prop_map(|(source, target, region)| Message::Ready { source, target, region }),
        (rank(), 0u32..64, region(), copies()).prop_map(|(source, forwards, region, copies)| {
            Message::Block { announcement: Announcement { source, region }, forwards, copies }
        }),
        Just(Message::Listed),
        (rank(), reader).prop_map(|(source, reader)| Message::HasRead { source, reader }),
        (three(), copies()).prop_map(|((source, holder, region), copies)| Message::Held {
            source,
            holder,
            region,
            copies
        }),
        (rank(), rank(), rank()).prop_map(|(source, holder, by)| Message::Copied { source, holder, by }),
        (rank(), any::<u16>()).prop_map(|(source, code)| Message::Unreadable { source, code }),
        failure().prop_map(Message::Failed),
    ]
}

fn staged_message() -> impl Strategy<Value = StagedMessage> {
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(segment, tag)| StagedMessage::Offer { segment, tag }),
        any::<(u32, u32)>().prop_map(|(segment, tag)| StagedMessage::Taken { segment, tag }),
        staged_failure().prop_map(StagedMessage::Failed),
    ]
}

fn of_connections() -> impl Strategy<Value = Body<'static>> {
    let role = prop_oneof![Just(Role::Rank), any_endpoint().prop_map(|listens| Role::Process { listens })];
    let rejection = prop_oneof![
        Just(Rejection::Secret),
        any::<u32>().prop_map(|limit| Rejection::Connections { limit }),
        any::<u32>().prop_map(|limit| Rejection::Crowded { limit }),
        Just(Rejection::Stopping),
        Just(Rejection::Format),
        Just(Rejection::Crossing),
    ];
    let welcome = (any::<u64>(), 1..=u32::MAX, 1..=u32::MAX, 1..=u32::MAX);
    prop_oneof![
        (role, any::<u64>(), any::<[u8; 32]>()).prop_map(|(role, epoch, nonce)| Body::Hello(Hello {
            role,
            epoch,
            nonce
        })),
        any::<([u8; 32], [u8; 32])>().prop_map(|(nonce, tag)| Body::Challenge(Challenge { nonce, tag })),
        any::<[u8; 32]>().prop_map(|tag| Body::Proof(Proof { tag })),
        welcome.prop_map(|(epoch, heartbeat_ms, groups, collectives)| {
            Body::Welcome(Welcome { epoch, heartbeat_ms, groups, collectives })
        }),
        rejection.prop_map(Body::Rejected),
        any::<(u64, u64)>().prop_map(|(number, seen)| Body::Heartbeat(Heartbeat { number, seen })),
        Just(Body::Goodbye),
        (any::<[u8; 16]>(), any::<[u8; 6]>(), 2..=0xFF_FFFFu32, any::<[u8; 16]>())
            .prop_map(|(gid, mac, queue_pair, nonce)| Body::Link(Link { gid, mac, queue_pair, nonce })),
    ]
}

fn of_keys() -> impl Strategy<Value = Body<'static>> {
    let name = || any::<(u32, u32)>().prop_map(|(key, generation)| KeyName { key, generation });
    let rights = any::<[bool; 4]>().prop_map(|[local_write, remote_write, remote_read, remote_atomic]| Rights {
        local_write,
        remote_write,
        remote_read,
        remote_atomic,
    });
    let form = prop_oneof![Just(KeyForm::Memory), Just(KeyForm::Pool), Just(KeyForm::Bound)];
    let export = (form, region(), rights, any::<u16>(), any::<u32>(), any::<[u8; 32]>());
    let answer = prop_oneof![
        any::<u32>().prop_map(Ok),
        any::<u16>().prop_map(|virtual_hca| Err(KeyRefusal::OtherCard { virtual_hca })),
        any::<u32>().prop_map(|limit| Err(KeyRefusal::Keys { limit })),
        any::<u32>().prop_map(|known| Err(KeyRefusal::Generation { known })),
        any::<u32>().prop_map(|syndrome| Err(KeyRefusal::Card { syndrome })),
        any::<u32>().prop_map(|key| Err(KeyRefusal::NotInPool { key })),
        any::<u32>().prop_map(|generation| Err(KeyRefusal::Bound { generation })),
    ];
    prop_oneof![
        export.prop_map(|(form, region, rights, virtual_hca, generation, key)| {
            Body::KeyExport(KeyExport { form, region, rights, virtual_hca, generation, access_key: AccessKey(key) })
        }),
        (name(), answer).prop_map(|(name, answer)| Body::KeyAnswer { name, answer }),
        (name(), any::<bool>()).prop_map(|(name, is_idle)| Body::KeyRevoke { name, is_idle }),
        name().prop_map(Body::KeyRevoked),
    ]
}

fn of_groups() -> impl Strategy<Value = Body<'static>> {
    let flags = (any::<u64>(), any::<u32>(), 0u32..=31).prop_map(|(address, key, log)| {
        let bytes = 8 << log;
        Flags::new(Region { address: address.min(u64::MAX - bytes), key, bytes }).unwrap()
    });
    let reader = prop_oneof![Just(StagedReader::OfRoot), Just(StagedReader::First)];
    let multicast = proptest::option::of((0u32..1 << 24, 1..=u32::MAX))
        .prop_map(|end| end.map(|(queue_pair, chunk_bytes)| MulticastEnd { queue_pair, chunk_bytes }));
    let staging = (region(), 1..=u32::MAX, any::<u64>(), reader, multicast).prop_map(
        |(region, segments, scatter_bytes, reader, multicast)| StagingMemory {
            region,
            segments,
            scatter_bytes,
            reader,
            multicast,
        },
    );
    let joined = (any::<u64>(), proptest::option::of(staging), 0u32..1 << 24)
        .prop_map(|(communicator, staging, queue_pair)| Ok(Joined { communicator, staging, queue_pair }));
    let refusal =
        (any::<u64>(), refused()).prop_map(|(communicator, refused)| Err(JoinRefused { communicator, refused }));
    let joined = prop_oneof![joined, refusal];
    let between = prop_oneof![Just(Between::Messages), Just(Between::Multicast)];
    prop_oneof![
        (rank(), rank(), between).prop_map(|(rank, process, between)| Body::GroupAccepted { rank, process, between }),
        (rank(), refused()).prop_map(|(rank, refused)| Body::GroupRefused { rank, refused }),
        rank().prop_map(|rank| Body::GroupLeave { rank }),
        rank().prop_map(|rank| Body::GroupLeft { rank }),
        (rank(), flags).prop_map(|(rank, flags)| Body::Flags { rank, flags }),
        (rank(), rank(), joined).prop_map(|(from, to, joined)| Body::Joined { from, to, joined }),
        (rank(), staged_failure()).prop_map(|(rank, failure)| Body::GroupFailed { rank, failure }),
    ]
}

fn of_collectives() -> impl Strategy<Value = Body<'static>> {
    let local = (rank(), rank(), rank(), region());
    prop_oneof![
        (rank(), refused()).prop_map(|(rank, refused)| Body::CallRefused { rank, refused }),
        local.prop_map(|(rank, source, holder, region)| Body::LocalData { rank, source, holder, region }),
        (rank(), rank()).prop_map(|(rank, source)| Body::LocalCopied { rank, source }),
        rank().prop_map(|rank| Body::Done { rank }),
        (rank(), failure()).prop_map(|(rank, failure)| Body::Failed { rank, failure }),
        (rank(), rank(), message()).prop_map(|(from, to, message)| Body::Process { from, to, message }),
        (rank(), rank(), staged_message()).prop_map(|(from, to, message)| Body::Staged { from, to, message }),
    ]
}

/// Any message without a list.
pub(crate) fn any_packet() -> impl Strategy<Value = Packet<'static>> {
    let body = prop_oneof![of_connections(), of_keys(), of_groups(), of_collectives()];
    (body, any::<(u32, u32)>()).prop_map(|(body, (group, collective))| {
        let context = about(&body, ContextId { group, collective });
        Packet { context, body }
    })
}

pub(crate) fn any_context() -> impl Strategy<Value = ContextId> {
    any::<(u32, u32)>().prop_map(|(group, collective)| ContextId { group, collective })
}

/// Any group, in any number of parts.
pub(crate) fn any_group() -> impl Strategy<Value = Group> {
    let place = (rank(), any::<u32>(), any::<u32>(), any_endpoint()).prop_map(|(host, socket, core, process)| Place {
        locality: Locality { host, socket },
        core,
        process,
    });
    let places = proptest::collection::vec(place, 1..300);
    (any::<u32>(), any::<u64>(), any::<prop::sample::Index>(), 1u32..=64, places).prop_map(
        |(group, communicator, rank, processes, places)| {
            Group::new(group, communicator, rank.index(places.len()) as u32, processes, &places).unwrap()
        },
    )
}

/// Any call, in any number of parts.
pub(crate) fn any_start() -> impl Strategy<Value = OpStart> {
    // A count, and elements between this block and the next one.
    let block = (0u64..1 << 30, 0u64..1 << 30);
    let blocks = proptest::collection::vec([block.clone(), block], 1..300);
    let buffers = [(0u64..1 << 60, any::<u32>(), 0u64..1 << 16), (0u64..1 << 60, any::<u32>(), 0u64..1 << 16)];
    let send = proptest::option::of(region());
    (any_context(), any::<prop::sample::Index>(), blocks, buffers, send, operation()).prop_map(
        |(context, rank, blocks, buffers, region, operation)| {
            let ranks = blocks.len() as u32;
            let rank = rank.index(blocks.len()) as u32;
            let lists: [[Vec<u64>; 2]; 2] = [0, 1].map(|side| {
                let mut end = 0;
                let mut place = |(count, gap): (u64, u64)| {
                    end += count + gap;
                    end - count
                };
                [
                    blocks.iter().map(|pair| pair[side].0).collect(),
                    blocks.iter().map(|pair| place(pair[side])).collect(),
                ]
            });
            let [send, receive] = [0, 1].map(|side: usize| {
                let ((address, key, size), [counts, displs]) = (buffers[side], &lists[side]);
                let datatype = Datatype { size_bytes: size, extent_bytes: size };
                Blocks { address, key, datatype, counts, displs }
            });
            match operation {
                Operation::Alltoallv => OpStart::alltoallv(context, (rank, ranks), &send, &receive).unwrap(),
                Operation::Allgatherv(copies) => {
                    OpStart::allgatherv(context, (rank, ranks), region, &receive, copies).unwrap()
                }
            }
        },
    )
}

/// Any task and its parts.
pub(crate) fn any_task() -> impl Strategy<Value = (Descriptor, Vec<Part>)> {
    let collective = prop_oneof![rank().prop_map(|root| Collective::Broadcast { root }), Just(Collective::Allgather)];
    let delivery = prop_oneof![Just(Delivery::Flat), Just(Delivery::Hierarchical), Just(Delivery::Direct)];
    let regions = proptest::collection::vec([region(), region(), region(), region()], 1..120);
    (collective, delivery, any::<u64>(), 0u32..=900, regions).prop_map(
        |(collective, delivery, bytes, first, regions)| {
            let part = |(rank, [send, receive, flags, shared]): (u32, [Region; 4])| Part {
                rank,
                send,
                receive,
                flags,
                shared,
            };
            (Descriptor { collective, delivery, bytes }, (first..).zip(regions).map(part).collect())
        },
    )
}
