//! Two agents and a network that loses, doubles and delays.

use std::net::IpAddr;

use proptest::prelude::*;

use super::agent::{Action, Agent, ConnId, Event, ListenerId, Path, Refused, State, Terms, Wanted};
use super::mad::{About, MAD_BYTES, Mad, Message, private, reason, sidr_status};
use super::service::{Header, Service, Space};
use super::times::{self, MAX_RETRIES, RESPONSE_TIMEOUT};

const CLIENT: usize = 0;
const SERVER: usize = 1;
/// How long a datagram is on its way.
const LATENCY_PS: u64 = 1_000_000;
const SERVICE: Service = Service { space: Space::Tcp, port: 7471 };
const LOOKUP: Service = Service { space: Space::Udp, port: 7174 };

fn address(end: usize) -> IpAddr {
    [198, 18, 0, end as u8 + 1].into()
}

fn path(from: usize) -> Path {
    Path { port: 0, local: address(from), remote: address(1 - from) }
}

fn terms(qpn: u32) -> Terms {
    Terms { qpn, psn: qpn + 1, ca_guid: 5, responder_resources: 4, initiator_depth: 3, mtu: 5, ..Terms::default() }
}

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Arrives,
    Lost,
    Twice,
    /// After the sender has repeated it.
    Late,
}

const FATES: [Fate; 4] = [Fate::Arrives, Fate::Lost, Fate::Twice, Fate::Late];

/// When it arrives, to whom, and what.
type Datagram = (u64, usize, Box<[u8; MAD_BYTES]>);

struct Net {
    agents: [Agent; 2],
    now_ps: u64,
    wire: Vec<Datagram>,
    /// Of the first datagrams; later ones arrive.
    fates: Vec<Fate>,
    sent: usize,
    /// Kinds of messages that were sent.
    kinds: Vec<(usize, u8)>,
    events: [Vec<(ConnId, Event)>; 2],
}

impl Net {
    fn new(fates: &[Fate]) -> Self {
        Self {
            agents: [Agent::new(100), Agent::new(0xFFFF_FFF0)],
            now_ps: 0,
            wire: Vec::new(),
            fates: fates.to_vec(),
            sent: 0,
            kinds: Vec::new(),
            events: Default::default(),
        }
    }

    fn listening(fates: &[Fate]) -> Self {
        let mut net = Self::new(fates);
        net.agents[SERVER].listen(SERVICE, None, 16).expect("nobody else does");
        net
    }

    fn connect(&mut self) -> ConnId {
        let now_ps = self.now_ps;
        self.agents[CLIENT].connect(path(CLIENT), (SERVICE, 9), &terms(0x11), b"hello", now_ps).expect("room")
    }

    /// Takes the actions of both: datagrams go to the wire, events to `handle`.
    fn act(&mut self, handle: &mut impl FnMut(&mut Agent, usize, ConnId, &Event, u64)) {
        for end in [CLIENT, SERVER] {
            while let Some(action) = self.agents[end].take_action() {
                match action {
                    Action::Send { path: way, bytes } => {
                        assert_eq!(way, path(end));
                        self.kinds.push((end, bytes[17]));
                        let fate = self.fates.get(self.sent).copied().unwrap_or(Fate::Arrives);
                        self.sent += 1;
                        let at_ps = self.now_ps + LATENCY_PS;
                        let late_ps = self.now_ps + times::response_ps(RESPONSE_TIMEOUT) * 3 / 2;
                        match fate {
                            Fate::Arrives => self.wire.push((at_ps, 1 - end, bytes)),
                            Fate::Lost => {}
                            Fate::Twice => {
                                self.wire.push((at_ps, 1 - end, bytes.clone()));
                                self.wire.push((at_ps + LATENCY_PS, 1 - end, bytes));
                            }
                            Fate::Late => self.wire.push((late_ps, 1 - end, bytes)),
                        }
                    }
                    Action::Report { conn, event } => {
                        handle(&mut self.agents[end], end, conn, &event, self.now_ps);
                        self.events[end].push((conn, event));
                    }
                }
            }
        }
    }

    /// Runs until nothing is due; the number of steps is bounded.
    fn run(&mut self, mut handle: impl FnMut(&mut Agent, usize, ConnId, &Event, u64)) {
        for _ in 0..10_000 {
            self.act(&mut handle);
            let arrival = self.wire.iter().map(|(at_ps, ..)| *at_ps).min();
            let timer = self.agents.iter().filter_map(Agent::due_ps).min();
            let Some(next_ps) = arrival.into_iter().chain(timer).min() else { return };
            self.now_ps = self.now_ps.max(next_ps);
            let now_ps = self.now_ps;
            if let Some(index) = self.wire.iter().position(|(at_ps, ..)| *at_ps <= now_ps) {
                let (_, to, bytes) = self.wire.remove(index);
                self.agents[to].receive(path(to), &bytes[..], now_ps);
            } else {
                self.agents.iter_mut().for_each(|agent| agent.tick(now_ps));
            }
        }
        panic!("it never ends: {:?}", self.kinds);
    }

    /// Has what is on its way arrive, without time for anything else.
    fn deliver(&mut self) {
        self.act(&mut |_, _, _, _, _| {});
        while !self.wire.is_empty() {
            let (at_ps, to, bytes) = self.wire.remove(0);
            self.now_ps = self.now_ps.max(at_ps);
            self.agents[to].receive(path(to), &bytes[..], at_ps);
            self.act(&mut |_, _, _, _, _| {});
        }
    }

    fn names(&self, end: usize) -> Vec<&'static str> {
        self.events[end].iter().map(|(_, event)| name(event)).collect()
    }
}

fn name(event: &Event) -> &'static str {
    match event {
        Event::Request(_) => "request",
        Event::Accepted { .. } => "accepted",
        Event::Established => "established",
        Event::Rejected { .. } => "rejected",
        Event::Unreachable => "unreachable",
        Event::Disconnected => "disconnected",
        Event::TimeWaitOver => "time wait over",
        Event::Found { .. } => "found",
        Event::NotFound { .. } => "not found",
    }
}

/// A server that accepts, a client that establishes, and then `closers` that disconnect.
fn play(closers: &'static [usize]) -> impl FnMut(&mut Agent, usize, ConnId, &Event, u64) {
    move |agent, end, conn, event, now_ps| match event {
        Event::Request(request) => {
            assert_eq!((request.service, request.port, &request.private[..5]), (SERVICE, 9, &b"hello"[..]));
            assert_eq!(request.wanted, Wanted::Connection(terms(0x11)));
            agent.accept(conn, &terms(0x22), b"welcome", now_ps).expect("it waits");
        }
        Event::Accepted { terms: theirs, private } => {
            assert_eq!((theirs.qpn, theirs.psn, &private[..7]), (0x22, 0x23, &b"welcome"[..]));
            agent.establish(conn).expect("it was accepted");
            if closers.contains(&end) {
                agent.disconnect(conn, now_ps).expect("it is established");
            }
        }
        Event::Established if closers.contains(&end) => {
            agent.disconnect(conn, now_ps).expect("it is established");
        }
        _ => {}
    }
}

#[test]
fn a_connection_is_made_and_ended_in_five_messages() {
    let mut net = Net::listening(&[]);
    let conn = net.connect();
    net.run(play(&[]));
    assert_eq!(net.kinds, [(CLIENT, 0x10), (SERVER, 0x13), (CLIENT, 0x14)]);
    assert_eq!((net.names(CLIENT), net.names(SERVER)), (vec!["accepted"], vec!["request", "established"]));
    let now_ps = net.now_ps;
    net.agents[CLIENT].disconnect(conn, now_ps).expect("it is established");
    net.run(play(&[]));
    assert_eq!(net.kinds[3..], [(CLIENT, 0x15), (SERVER, 0x16)]);
    assert_eq!(net.names(CLIENT)[1..], ["disconnected", "time wait over"]);
    assert_eq!(net.names(SERVER)[2..], ["disconnected", "time wait over"]);
    assert_eq!(net.agents.each_ref().map(Agent::connections), [0, 0]);
    assert_eq!(net.agents.each_ref().map(|agent| agent.ignored), [0, 0]);
}

/// Every fate of each of the first datagrams, of a connection that one end or both end as soon as it is made: both see
/// it made once and ended once, and nothing is left.
#[test]
fn whatever_happens_to_each_message_both_ends_see_the_same() {
    const FIRST: u32 = 6;
    for closers in [&[CLIENT][..], &[SERVER], &[CLIENT, SERVER]] {
        for number in 0..4_usize.pow(FIRST) {
            let fates: Vec<Fate> = (0..FIRST).map(|place| FATES[number / 4_usize.pow(place) % 4]).collect();
            let mut net = Net::listening(&fates);
            net.connect();
            net.run(play(closers));
            let context = || format!("{closers:?} {fates:?} {:?}", net.kinds);
            assert_eq!(net.names(CLIENT), ["accepted", "disconnected", "time wait over"], "{}", context());
            assert_eq!(
                net.names(SERVER),
                ["request", "established", "disconnected", "time wait over"],
                "{}",
                context()
            );
            assert_eq!(net.agents.each_ref().map(Agent::connections), [0, 0], "{}", context());
        }
    }
}

#[test]
fn a_refusal_arrives_whatever_happens_to_its_messages() {
    for number in 0..64_usize {
        let fates = [number % 4, number / 4 % 4, number / 16].map(|fate| FATES[fate]);
        let mut net = Net::listening(&fates);
        net.connect();
        net.run(|agent, _, conn, event, now_ps| {
            if let Event::Request(_) = event {
                agent.reject(conn, b"no", now_ps).expect("it waits");
            }
        });
        assert_eq!(net.names(SERVER), ["request"], "{fates:?}");
        let [(_, Event::Rejected { reason, private })] = &net.events[CLIENT][..] else {
            panic!("{fates:?}: {:?}", net.events[CLIENT])
        };
        assert_eq!((*reason, &private[..3], private.len()), (reason::CONSUMER_DEFINED, &b"no\0"[..], private::REJ));
        assert_eq!(net.agents.each_ref().map(Agent::connections), [0, 0]);
    }
}

#[test]
fn without_an_answer_a_request_is_repeated_and_then_given_up() {
    let mut net = Net::new(&[Fate::Lost; 100]);
    net.connect();
    net.run(play(&[]));
    assert_eq!(net.names(CLIENT), ["unreachable"]);
    // And the REJ that says so.
    assert_eq!(net.kinds.len(), usize::from(MAX_RETRIES) + 2);
    assert_eq!(net.kinds.last(), Some(&(CLIENT, 0x12)));
    assert_eq!(net.now_ps, times::given_up_ps());
    // An acceptance without an answer likewise: the request arrives, and nothing else.
    let mut fates = vec![Fate::Lost; 100];
    fates[0] = Fate::Arrives;
    let mut net = Net::listening(&fates);
    net.connect();
    net.run(play(&[]));
    assert_eq!((net.names(CLIENT), net.names(SERVER)), (vec!["unreachable"], vec!["request", "unreachable"]));
}

#[test]
fn a_program_that_takes_its_time_is_waited_for() {
    let mut net = Net::listening(&[]);
    net.connect();
    // Nobody answers; the client asks again, and is asked to wait.
    for _ in 0..20 {
        net.act(&mut |_, _, _, _, _| {});
        let Some(at_ps) = net.wire.first().map(|(at_ps, ..)| *at_ps).or(net.agents[CLIENT].due_ps()) else { break };
        if at_ps > times::code_ps(times::MRA_TIMEOUT) {
            break;
        }
        net.now_ps = at_ps;
        match net.wire.pop() {
            Some((_, to, bytes)) => net.agents[to].receive(path(to), &bytes[..], at_ps),
            None => net.agents[CLIENT].tick(at_ps),
        }
    }
    assert_eq!(net.kinds, [(CLIENT, 0x10), (CLIENT, 0x10), (SERVER, 0x11)]);
    let conn = net.events[SERVER][0].0;
    let now_ps = net.now_ps + 60_000_000_000_000;
    net.now_ps = now_ps;
    net.agents[SERVER].accept(conn, &terms(0x22), b"welcome", now_ps).expect("it waits still");
    net.run(play(&[]));
    assert_eq!((net.names(CLIENT), net.names(SERVER)), (vec!["accepted"], vec!["request", "established"]));
}

#[test]
fn what_nobody_listens_to_is_refused_at_once() {
    let mut net = Net::new(&[]);
    net.connect();
    net.run(play(&[]));
    let [(_, Event::Rejected { reason, .. })] = &net.events[CLIENT][..] else { panic!("{:?}", net.events[CLIENT]) };
    assert_eq!((*reason, net.kinds.len()), (reason::INVALID_SERVICE_ID, 2));
}

#[test]
fn a_full_backlog_refuses_until_the_program_takes_a_request() {
    let mut net = Net::new(&[]);
    net.agents[SERVER].listen(SERVICE, None, 2).expect("nobody else does");
    let conns = [net.connect(), net.connect(), net.connect()];
    net.deliver();
    assert_eq!(net.names(SERVER), ["request"; 2]);
    let [(refused, Event::Rejected { reason, .. })] = &net.events[CLIENT][..] else { panic!("one is refused") };
    assert_eq!((*refused, *reason), (conns[2], reason::NO_RESOURCES));
    let first = net.events[SERVER][0].0;
    net.agents[SERVER].taken(first);
    net.connect();
    net.deliver();
    assert_eq!(net.names(SERVER), ["request"; 3]);
}

#[test]
fn who_names_an_address_listens_before_who_names_none_and_nobody_twice() {
    let mut agent = Agent::new(1);
    let all = agent.listen(SERVICE, None, 1).expect("free");
    let named = agent.listen(SERVICE, Some((0, address(SERVER))), 1).expect("another");
    assert_eq!(agent.listen(SERVICE, None, 1), Err(Refused::InUse));
    let request = |agent: &mut Agent| -> ListenerId {
        let mut client = Agent::new(7);
        client.connect(path(CLIENT), (SERVICE, 1), &terms(1), &[], 0).expect("room");
        let Some(Action::Send { bytes, .. }) = client.take_action() else { panic!("a REQ") };
        agent.receive(path(SERVER), &bytes[..], 0);
        let Some(Action::Report { conn, event: Event::Request(request) }) = agent.take_action() else {
            panic!("a request")
        };
        agent.forget(conn, 0);
        while agent.take_action().is_some() {}
        // So that the next one is not the same again.
        agent.tick(times::given_up_ps());
        request.listener
    };
    assert_eq!(request(&mut agent), named);
    agent.unlisten(named);
    assert_eq!(request(&mut agent), all);
}

#[test]
fn a_program_that_goes_away_notifies_the_other_end() {
    // Before an answer: the server's program is notified of it, and cannot accept any more.
    let mut net = Net::listening(&[]);
    let conn = net.connect();
    net.run(|_, _, _, _, _| {});
    let now_ps = net.now_ps;
    let theirs = net.events[SERVER][0].0;
    net.agents[CLIENT].forget(conn, now_ps);
    net.run(|_, _, _, _, _| {});
    assert_eq!(net.names(SERVER), ["request", "rejected"]);
    assert_eq!(net.agents[SERVER].accept(theirs, &terms(2), &[], now_ps), Err(Refused::Gone));
    // With the answer on its way, as an end, and in the middle of everything.
    for (forgetter, when, expected) in [
        (SERVER, "request", ["rejected"].as_slice()),
        (SERVER, "established", &["accepted", "disconnected", "time wait over"]),
        (CLIENT, "accepted", &["request", "rejected"]),
    ] {
        let mut net = Net::listening(&[]);
        net.connect();
        let mut usual = play(&[]);
        net.run(|agent, end, conn, event, now_ps| {
            if end == forgetter && name(event) == when {
                agent.forget(conn, now_ps);
            } else {
                usual(agent, end, conn, event, now_ps);
            }
        });
        assert_eq!(net.names(1 - forgetter), expected, "{when}");
        assert_eq!(net.agents.each_ref().map(Agent::connections), [0, 0], "{when}");
    }
}

#[test]
fn a_queue_pair_that_asks_anew_has_lost_its_connection() {
    let mut net = Net::listening(&[]);
    net.connect();
    net.run(play(&[]));
    // The client's process ends without a word, and its successor has a queue pair with the same number.
    net.agents[CLIENT] = Agent::new(9_999);
    net.connect();
    net.run(play(&[]));
    let server = ["request", "established", "disconnected", "request", "established", "time wait over"];
    assert_eq!(net.names(SERVER), server);
}

#[test]
fn calls_that_come_at_the_wrong_time_are_refused() {
    let mut net = Net::listening(&[]);
    let conn = net.connect();
    let agent = &mut net.agents[CLIENT];
    let wrong = Err(Refused::State(State::ReqSent));
    assert_eq!(agent.accept(conn, &terms(1), &[], 0), wrong);
    assert_eq!(agent.reject(conn, &[], 0), wrong);
    assert_eq!(agent.establish(conn), wrong);
    assert_eq!(agent.disconnect(conn, 0), wrong);
    assert_eq!(agent.data_came(conn), wrong);
    assert_eq!(agent.show(conn, (1, 2), &[], 0), wrong);
    assert_eq!(agent.disconnect(ConnId(0), 0), Err(Refused::Gone));
}

#[test]
fn data_before_the_last_message_establish_a_connection() {
    let mut net = Net::listening(&[Fate::Arrives, Fate::Arrives, Fate::Lost]);
    net.connect();
    let mut usual = play(&[]);
    let mut data = true;
    net.run(|agent, end, conn, event, now_ps| {
        usual(agent, end, conn, event, now_ps);
        if matches!(event, Event::Request(_)) && std::mem::take(&mut data) {
            agent.data_came(conn).expect("it was accepted");
        }
    });
    assert_eq!(net.names(SERVER), ["request", "established"]);
}

#[test]
fn requests_that_contradict_their_packet_are_refused() {
    let mut client = Agent::new(7);
    client.connect(path(CLIENT), (SERVICE, 1), &terms(1), &[], 0).expect("room");
    let Some(Action::Send { bytes, .. }) = client.take_action() else { panic!("a REQ") };
    let Ok(Mad { message: Message::Req(good), .. }) = Mad::decode(&bytes[..]) else { panic!("a REQ") };
    let stranger = Header { port: 1, source: [10, 0, 0, 1].into(), destination: address(SERVER) };
    for (req, expected) in [
        (super::mad::Req { transport: 1, ..good }, reason::INVALID_TRANSPORT),
        (super::mad::Req { mtu: 0, ..good }, 26),
        (super::mad::Req { local_gid: [7; 16], ..good }, 12),
        (super::mad::Req { private: stranger.with(&[]), ..good }, 12),
        (super::mad::Req { private: [0; private::REQ], ..good }, 12),
        (super::mad::Req { service_id: 7, ..good }, reason::INVALID_SERVICE_ID),
        (super::mad::Req { service_id: LOOKUP.id(), ..good }, reason::INVALID_SERVICE_ID),
    ] {
        let mut agent = Agent::new(1);
        agent.listen(SERVICE, None, 1).expect("free");
        agent.listen(LOOKUP, None, 1).expect("free");
        agent.receive(path(SERVER), &Mad { transaction: 3, message: Message::Req(req) }.encode(), 0);
        let Some(Action::Send { bytes, .. }) = agent.take_action() else { panic!("an answer") };
        let answer = Mad::decode(&bytes[..]).expect("a message");
        let Message::Rej { about: About::Req, reason, remote_id, .. } = answer.message else { panic!("{answer:?}") };
        assert_eq!((reason, remote_id, answer.transaction), (expected, good.local_id, 3));
        assert_eq!(agent.connections(), 0);
    }
}

#[test]
fn a_queue_pair_is_found_whatever_happens_to_the_messages() {
    for number in 0..64_usize {
        let fates = [number % 4, number / 4 % 4, number / 16].map(|fate| FATES[fate]);
        for accepts in [true, false] {
            let mut net = Net::new(&fates);
            net.agents[SERVER].listen(LOOKUP, None, 1).expect("free");
            net.agents[CLIENT].query(path(CLIENT), (LOOKUP, 9), b"where", 0).expect("room");
            net.run(|agent, _, conn, event, now_ps| {
                if let Event::Request(request) = event {
                    assert_eq!((request.wanted, &request.private[..5]), (Wanted::Datagrams, &b"where"[..]));
                    agent.taken(conn);
                    let answered = if accepts {
                        agent.show(conn, (0x77, 0x0123_4567), b"here", now_ps)
                    } else {
                        agent.reject(conn, b"no", now_ps)
                    };
                    answered.expect("it waits");
                }
            });
            assert_eq!(net.names(SERVER), ["request"], "{fates:?}");
            match &net.events[CLIENT][..] {
                [(_, Event::Found { qpn: 0x77, qkey: 0x0123_4567, private })] if accepts => {
                    assert_eq!(&private[..5], b"here\0");
                }
                [(_, Event::NotFound { status: sidr_status::REJECTED, private })] if !accepts => {
                    assert_eq!(&private[..3], b"no\0");
                }
                other => panic!("{fates:?}: {other:?}"),
            }
            assert_eq!(net.agents.each_ref().map(Agent::connections), [0, 0]);
        }
    }
    let mut net = Net::new(&[]);
    net.agents[CLIENT].query(path(CLIENT), (LOOKUP, 9), &[], 0).expect("room");
    net.run(|_, _, _, _, _| {});
    let [(_, Event::NotFound { status, .. })] = &net.events[CLIENT][..] else { panic!("{:?}", net.events) };
    assert_eq!(*status, sidr_status::INVALID_SERVICE_ID);
}

/// What a program may do at any time.
#[derive(Clone, Copy, Debug)]
enum Wish {
    Connect,
    Accept,
    Reject,
    Establish,
    Disconnect,
    DataCame,
    Forget,
    Wait,
}

fn wish() -> impl Strategy<Value = (usize, Wish)> {
    let wishes = [
        Wish::Connect,
        Wish::Accept,
        Wish::Reject,
        Wish::Establish,
        Wish::Disconnect,
        Wish::DataCame,
        Wish::Forget,
        Wish::Wait,
    ];
    (0..2_usize, proptest::sample::select(wishes.to_vec()))
}

fn granted(net: &mut Net, (end, wish): (usize, Wish)) {
    let now_ps = net.now_ps;
    let last = net.events[end].last().map_or(ConnId(0), |(conn, _)| *conn);
    let agent = &mut net.agents[end];
    let _ = match wish {
        Wish::Connect => agent.connect(path(end), (SERVICE, 9), &terms(0x11), &[], now_ps).map(drop),
        Wish::Accept => agent.accept(last, &terms(0x22), &[], now_ps),
        Wish::Reject => agent.reject(last, &[], now_ps),
        Wish::Establish => agent.establish(last),
        Wish::Disconnect => agent.disconnect(last, now_ps),
        Wish::DataCame => agent.data_came(last),
        Wish::Forget => {
            agent.forget(last, now_ps);
            Ok(())
        }
        Wish::Wait => Ok(()),
    };
}

mod histories {
    use super::*;

    proptest! {
        /// Whatever both programs do, and the network: once both have forgotten everything, nothing is left.
        #[test]
        fn nothing_is_left_of_any_history(
            wishes in proptest::collection::vec(wish(), 1..30),
            fates in proptest::collection::vec(proptest::sample::select(FATES.to_vec()), 0..60),
        ) {
            let mut net = Net::listening(&fates);
            net.agents[CLIENT].listen(SERVICE, None, 4).expect("free");
            for wish in wishes {
                granted(&mut net, wish);
                if matches!(wish.1, Wish::Wait) {
                    net.run(|_, _, _, _, _| {});
                } else {
                    net.act(&mut |_, _, _, _, _| {});
                    if let Some((at_ps, to, bytes)) = net.wire.pop() {
                        net.now_ps = net.now_ps.max(at_ps);
                        let now_ps = net.now_ps;
                        net.agents[to].receive(path(to), &bytes[..], now_ps);
                    }
                }
            }
            for round in 0..3 {
                for end in [CLIENT, SERVER] {
                    for conn in net.agents[end].alive() {
                        let now_ps = net.now_ps;
                        net.agents[end].forget(conn, now_ps);
                    }
                }
                let quiet = |_: &mut Agent, _: usize, _: ConnId, event: &Event, _: u64| {
                    assert!(round == 0 || matches!(event, Event::Request(_)), "{event:?} of something forgotten");
                };
                net.run(quiet);
            }
            prop_assert_eq!(net.agents.each_ref().map(Agent::connections), [0, 0]);
        }
    }
}
