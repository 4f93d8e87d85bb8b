//! The state machine of connections, as the InfiniBand specification has it (volume 1, 12.9), for all ports of a
//! machine. It does no input or output: calls bring messages, wishes and the time, and what is to be sent or reported
//! is taken by [`Agent::take_action`].
//!
//! A message that needs an answer is repeated until that has come, a bounded number of times. A receiver that has seen
//! it already answers as before, and never reports it twice.

mod incoming;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use super::mad::{About, MAD_BYTES, Mad, Message, Rep, Req, private, reason, sidr_status};
use super::service::{Header, Service};
use super::times::{self, MAX_RETRIES, RESPONSE_TIMEOUT};

/// Most connections at a time, those that are ending included.
pub const MAX_CONNECTIONS: usize = 1 << 16;
/// Most refusals that are remembered, to be repeated.
const MAX_REFUSALS: usize = 1 << 10;
/// Partition of connections: the default one.
const PKEY: u16 = 0xFFFF;
/// Transport service of a REQ: reliable connection.
const TRANSPORT_RC: u8 = 0;
/// Hop limit of paths, as Linux has it for RoCE v2.
pub const HOP_LIMIT: u8 = 64;

/// The GID of an IP address.
#[must_use]
pub fn gid_of(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The IP address of a GID.
#[must_use]
pub fn address_of(gid: [u8; 16]) -> IpAddr {
    let address = std::net::Ipv6Addr::from(gid);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

/// From where to where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Path {
    /// The port of this machine: a number that the caller has chosen.
    pub port: usize,
    /// Its address.
    pub local: IpAddr,
    /// The other end's.
    pub remote: IpAddr,
}

/// A connection, or a request of a datagram service: its number in messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId(pub u32);

/// Somebody who listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u64);

/// What an end of a connection says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Terms {
    /// Queue pair, 24 bits.
    pub qpn: u32,
    /// First PSN that it sends, 24 bits.
    pub psn: u32,
    /// GUID of its card.
    pub ca_guid: u64,
    /// Reads and atomics that it serves at a time.
    pub responder_resources: u8,
    /// Reads and atomics that it has outstanding at a time.
    pub initiator_depth: u8,
    /// End-to-end flow control.
    pub flow_control: bool,
    /// Retries that it asks the other end for when nothing is received, 0 to 7. Requests alone have it.
    pub retry_count: u8,
    /// Retries that it asks the other end for when there is no receive, 0 to 7.
    pub rnr_retry_count: u8,
    /// It has a shared receive queue.
    pub srq: bool,
    /// Code of the path MTU. Requests alone have it.
    pub mtu: u8,
    /// Code of the time after which a packet is repeated. Requests alone have it.
    pub ack_timeout: u8,
    /// Traffic class of the path. Requests alone have it.
    pub traffic_class: u8,
}

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// A reliable connection, on the requester's terms.
    Connection(Terms),
    /// A queue pair for datagrams.
    Datagrams,
}

/// A request that has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Who is asked.
    pub listener: ListenerId,
    /// The way.
    pub path: Path,
    /// The service.
    pub service: Service,
    /// The requester's port.
    pub port: u16,
    /// What is asked for.
    pub wanted: Wanted,
    /// The program's private data.
    pub private: Vec<u8>,
}

/// What has become of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Somebody asks for it.
    Request(Box<Request>),
    /// The other end has accepted; [`Agent::establish`] is due.
    Accepted {
        /// The other end's terms.
        terms: Terms,
        /// Private data.
        private: Vec<u8>,
    },
    /// The other end has its queue pair: the connection may be used.
    Established,
    /// The other end has refused, or given up.
    Rejected {
        /// See [`reason`].
        reason: u16,
        /// Private data.
        private: Vec<u8>,
    },
    /// No answer has come.
    Unreachable,
    /// The connection has ended.
    Disconnected,
    /// Nothing of the connection can be on its way any more.
    TimeWaitOver,
    /// The queue pair of a datagram service.
    Found {
        /// Its number.
        qpn: u32,
        /// Its Q_Key.
        qkey: u32,
        /// Private data.
        private: Vec<u8>,
    },
    /// The datagram service has refused, or nobody has it.
    NotFound {
        /// See [`sidr_status`].
        status: u8,
        /// Private data.
        private: Vec<u8>,
    },
}

/// What the caller is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a datagram from queue pair 1 to queue pair 1.
    Send {
        /// The way.
        path: Path,
        /// The datagram.
        bytes: Box<[u8; MAD_BYTES]>,
    },
    /// Report an event.
    Report {
        /// Of which connection.
        conn: ConnId,
        /// What.
        event: Event,
    },
}

/// A call that does not fit the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// There is no such connection any more.
    #[error("there is no such connection: it was refused, was never made, or has ended")]
    Gone,
    /// It is not the time for it.
    #[error("the connection is {0}")]
    State(State),
    /// Somebody listens there.
    #[error("somebody listens on the port already")]
    InUse,
    /// No room.
    #[error("there are {MAX_CONNECTIONS} connections already")]
    TooMany,
}

/// State of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// A REQ was sent.
    ReqSent,
    /// A REQ has come.
    ReqReceived,
    /// A REP was sent.
    RepSent,
    /// A REP has come.
    RepReceived,
    /// Both ends are ready.
    Established,
    /// A DREQ was sent.
    DreqSent,
    /// It has ended; packets of it may be on their way.
    TimeWait,
    /// A SIDR_REQ was sent.
    SidrSent,
    /// A SIDR_REQ has come.
    SidrReceived,
    /// It was answered for good; the answer is repeated if it is asked for again.
    Answered,
}

impl std::fmt::Display for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::ReqSent => "requested, and not answered yet",
            Self::ReqReceived => "asked for, and not answered yet",
            Self::RepSent => "accepted, and not confirmed by the other end yet",
            Self::RepReceived => "accepted by the other end, and not established yet",
            Self::Established => "established",
            Self::DreqSent => "about to end",
            Self::TimeWait => "disconnected",
            Self::SidrSent => "a request for a queue pair, not answered yet",
            Self::SidrReceived => "a request for a queue pair that has come",
            Self::Answered => "answered",
        })
    }
}

#[derive(Debug)]
struct Conn {
    path: Path,
    state: State,
    transaction: u64,
    /// The other end's number; 0 while it is not known.
    remote_id: u32,
    qpn: u32,
    remote_qpn: u32,
    /// Who was asked, and has not taken the request.
    pending: Option<ListenerId>,
    service: u64,
    /// What is repeated.
    last: Option<Box<[u8; MAD_BYTES]>>,
    tries: u8,
    interval_ps: u64,
    due_ps: Option<u64>,
    /// The program has forgotten it.
    orphan: bool,
}

#[derive(Debug)]
struct Listener {
    id: ListenerId,
    /// The port and address that requests must be for; all, if none is named.
    at: Option<(usize, IpAddr)>,
    backlog: usize,
    pending: usize,
}

/// The connections of a machine.
#[derive(Debug)]
pub struct Agent {
    conns: BTreeMap<u32, Conn>,
    /// Those that a request has made, by the sender's number of it.
    asked: BTreeMap<(Path, u32), u32>,
    /// The last connection with a queue pair of another end.
    connected: BTreeMap<(Path, u32), u32>,
    listeners: BTreeMap<Service, Vec<Listener>>,
    timers: BTreeSet<(u64, u32)>,
    actions: VecDeque<Action>,
    next_conn: u32,
    next_listener: u64,
    next_transaction: u64,
    refusals: usize,
    /// Datagrams that were no message, or for nobody.
    pub ignored: u64,
}

impl Agent {
    /// Without connections. `seed` is to differ each time: numbers of connections begin there, so that what is on its
    /// way from an earlier run is not taken for the own.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            conns: BTreeMap::new(),
            asked: BTreeMap::new(),
            connected: BTreeMap::new(),
            listeners: BTreeMap::new(),
            timers: BTreeSet::new(),
            actions: VecDeque::new(),
            next_conn: seed as u32,
            next_listener: 1,
            next_transaction: seed.rotate_left(32) & !0xFFFF_FFFF | 1,
            refusals: 0,
            ignored: 0,
        }
    }

    /// What is to be done next.
    pub fn take_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`tick`](Self::tick) is due next, in picoseconds.
    #[must_use]
    pub fn due_ps(&self) -> Option<u64> {
        self.timers.first().map(|(due_ps, _)| *due_ps)
    }

    /// How many connections there are, those that are ending included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.conns.len()
    }

    /// The state of a connection, if it is there.
    #[must_use]
    pub fn state(&self, conn: ConnId) -> Option<State> {
        self.conns.get(&conn.0).map(|conn| conn.state)
    }

    /// Connections that the program has and may still end.
    #[must_use]
    pub fn alive(&self) -> Vec<ConnId> {
        let alive = self.conns.iter().filter(|(_, conn)| !conn.orphan);
        alive.map(|(id, _)| ConnId(*id)).collect()
    }

    /// Whether a message waits for an answer of the other end.
    #[must_use]
    pub fn awaits_network(&self) -> bool {
        let waits =
            |conn: &Conn| matches!(conn.state, State::ReqSent | State::RepSent | State::DreqSent | State::SidrSent);
        self.conns.values().any(waits)
    }

    /// Whether a program is to answer.
    #[must_use]
    pub fn awaits_program(&self) -> bool {
        let waits = |conn: &Conn| matches!(conn.state, State::ReqReceived | State::RepReceived | State::SidrReceived);
        self.conns.values().any(waits)
    }

    fn report(&mut self, conn: u32, event: Event) {
        self.actions.push_back(Action::Report { conn: ConnId(conn), event });
    }

    fn transmit(&mut self, path: Path, transaction: u64, message: Message) -> Box<[u8; MAD_BYTES]> {
        let bytes = Box::new(Mad { transaction, message }.encode());
        self.actions.push_back(Action::Send { path, bytes: bytes.clone() });
        bytes
    }

    fn set_due(&mut self, id: u32, due_ps: Option<u64>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(before) = conn.due_ps {
            self.timers.remove(&(before, id));
        }
        conn.due_ps = due_ps;
        self.timers.extend(due_ps.map(|due_ps| (due_ps, id)));
    }

    fn remove(&mut self, id: u32) -> Option<Conn> {
        self.set_due(id, None);
        let conn = self.conns.remove(&id)?;
        for (index, key) in [(&mut self.asked, conn.remote_id), (&mut self.connected, conn.remote_qpn)] {
            if index.get(&(conn.path, key)) == Some(&id) {
                index.remove(&(conn.path, key));
            }
        }
        if conn.state == State::Answered {
            self.refusals -= 1;
        }
        self.make_room(conn.pending, conn.service);
        Some(conn)
    }

    fn insert(&mut self, path: Path, state: State, transaction: u64) -> Result<u32, Refused> {
        if self.conns.len() >= MAX_CONNECTIONS {
            return Err(Refused::TooMany);
        }
        loop {
            self.next_conn = self.next_conn.wrapping_add(1);
            if self.next_conn != 0 && !self.conns.contains_key(&self.next_conn) {
                break;
            }
        }
        let conn = Conn {
            path,
            state,
            transaction,
            remote_id: 0,
            qpn: 0,
            remote_qpn: 0,
            pending: None,
            service: 0,
            last: None,
            tries: MAX_RETRIES,
            interval_ps: times::response_ps(RESPONSE_TIMEOUT),
            due_ps: None,
            orphan: false,
        };
        self.conns.insert(self.next_conn, conn);
        Ok(self.next_conn)
    }

    fn new_transaction(&mut self) -> u64 {
        self.next_transaction = self.next_transaction.wrapping_add(1);
        self.next_transaction
    }

    /// Sends a message of a connection, and repeats it until [`set_due`](Self::set_due) says otherwise.
    fn send_repeated(&mut self, id: u32, message: Message, now_ps: u64) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (path, transaction, due_ps) = (conn.path, conn.transaction, now_ps.saturating_add(conn.interval_ps));
        let bytes = self.transmit(path, transaction, message);
        self.set_due(id, Some(due_ps));
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.last = Some(bytes);
        }
    }

    fn send_once(&mut self, id: u32, message: Message) {
        if let Some(conn) = self.conns.get(&id) {
            self.transmit(conn.path, conn.transaction, message);
        }
    }

    fn repeat(&mut self, id: u32) {
        if let Some(conn) = self.conns.get(&id)
            && let Some(bytes) = &conn.last
        {
            self.actions.push_back(Action::Send { path: conn.path, bytes: bytes.clone() });
        }
    }

    /// A connection that the program knows, in a state.
    fn known(&self, conn: ConnId) -> Result<(u32, State), Refused> {
        let found = self.conns.get(&conn.0).filter(|conn| !conn.orphan).ok_or(Refused::Gone)?;
        Ok((conn.0, found.state))
    }
}

/// Wishes of the program.
impl Agent {
    /// Takes requests for a service from now on: those to an address of a port, or all. `backlog` is how many may wait
    /// for the program.
    ///
    /// # Errors
    /// Somebody listens there already.
    pub fn listen(
        &mut self,
        service: Service,
        at: Option<(usize, IpAddr)>,
        backlog: usize,
    ) -> Result<ListenerId, Refused> {
        let there = self.listeners.entry(service).or_default();
        if there.iter().any(|other| other.at == at) {
            return Err(Refused::InUse);
        }
        let id = ListenerId(self.next_listener);
        self.next_listener += 1;
        there.push(Listener { id, at, backlog, pending: 0 });
        Ok(id)
    }

    /// Takes no more. Requests that wait for the program are to be [forgotten](Self::forget).
    pub fn unlisten(&mut self, listener: ListenerId) {
        self.listeners.retain(|_, there| {
            there.retain(|other| other.id != listener);
            !there.is_empty()
        });
    }

    /// The program has taken a request: there is room for another.
    pub fn taken(&mut self, conn: ConnId) {
        if let Some(conn) = self.conns.get_mut(&conn.0) {
            let (pending, service) = (conn.pending.take(), conn.service);
            self.make_room(pending, service);
        }
    }

    fn make_room(&mut self, pending: Option<ListenerId>, service: u64) {
        let there = Service::from_id(service).and_then(|service| self.listeners.get_mut(&service));
        let listener = there.and_then(|there| there.iter_mut().find(|other| Some(other.id) == pending));
        if let Some(listener) = listener {
            listener.pending = listener.pending.saturating_sub(1);
        }
    }

    /// Asks for a connection. `port` is the own port number, and `program` private data, at most
    /// [`REQ_BYTES`](super::service::REQ_BYTES) of them.
    ///
    /// # Errors
    /// There are too many.
    pub fn connect(
        &mut self,
        path: Path,
        (service, port): (Service, u16),
        terms: &Terms,
        program: &[u8],
        now_ps: u64,
    ) -> Result<ConnId, Refused> {
        let transaction = self.new_transaction();
        let id = self.insert(path, State::ReqSent, transaction)?;
        let header = Header { port, source: path.local, destination: path.remote };
        let req = Req {
            local_id: id,
            service_id: service.id(),
            ca_guid: terms.ca_guid,
            qpn: terms.qpn,
            responder_resources: terms.responder_resources,
            initiator_depth: terms.initiator_depth,
            remote_response_timeout: RESPONSE_TIMEOUT,
            transport: TRANSPORT_RC,
            flow_control: terms.flow_control,
            psn: terms.psn,
            local_response_timeout: RESPONSE_TIMEOUT,
            retry_count: terms.retry_count,
            pkey: PKEY,
            mtu: terms.mtu,
            rnr_retry_count: terms.rnr_retry_count,
            max_retries: MAX_RETRIES,
            srq: terms.srq,
            local_gid: gid_of(path.local),
            remote_gid: gid_of(path.remote),
            traffic_class: terms.traffic_class,
            hop_limit: HOP_LIMIT,
            ack_timeout: terms.ack_timeout,
            private: header.with(program),
        };
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.qpn = terms.qpn;
        }
        self.send_repeated(id, Message::Req(req), now_ps);
        Ok(ConnId(id))
    }

    /// Asks for the queue pair of a datagram service.
    ///
    /// # Errors
    /// There are too many requests.
    pub fn query(
        &mut self,
        path: Path,
        (service, port): (Service, u16),
        program: &[u8],
        now_ps: u64,
    ) -> Result<ConnId, Refused> {
        let transaction = self.new_transaction();
        let id = self.insert(path, State::SidrSent, transaction)?;
        let header = Header { port, source: path.local, destination: path.remote };
        let message =
            Message::SidrReq { request_id: id, pkey: PKEY, service_id: service.id(), private: header.with(program) };
        self.send_repeated(id, message, now_ps);
        Ok(ConnId(id))
    }

    /// Accepts a connection.
    ///
    /// # Errors
    /// Nobody asks for it any more, or it was answered.
    pub fn accept(&mut self, conn: ConnId, terms: &Terms, program: &[u8], now_ps: u64) -> Result<(), Refused> {
        let (id, state) = self.known(conn)?;
        let Some(found) = self.conns.get_mut(&id).filter(|_| state == State::ReqReceived) else {
            return Err(Refused::State(state));
        };
        (found.state, found.qpn) = (State::RepSent, terms.qpn);
        let rep = Rep {
            local_id: id,
            remote_id: found.remote_id,
            qpn: terms.qpn,
            psn: terms.psn,
            responder_resources: terms.responder_resources,
            initiator_depth: terms.initiator_depth,
            ack_delay: times::ACK_DELAY,
            flow_control: terms.flow_control,
            rnr_retry_count: terms.rnr_retry_count,
            srq: terms.srq,
            ca_guid: terms.ca_guid,
            private: padded(program),
        };
        self.send_repeated(id, Message::Rep(rep), now_ps);
        Ok(())
    }

    /// Refuses a connection that was asked for, or that the other end has accepted, or a request for a queue pair.
    ///
    /// # Errors
    /// Nobody waits for an answer.
    pub fn reject(&mut self, conn: ConnId, program: &[u8], now_ps: u64) -> Result<(), Refused> {
        let (id, state) = self.known(conn)?;
        let Some(found) = self.conns.get(&id) else { return Err(Refused::Gone) };
        let (remote_id, service_id) = (found.remote_id, found.service);
        let private = padded(program);
        let rej = |about| Message::Rej { local_id: id, remote_id, about, reason: reason::CONSUMER_DEFINED, private };
        match state {
            State::ReqReceived => self.answer(id, rej(About::Req), now_ps),
            State::RepReceived => {
                self.send_once(id, rej(About::Rep));
                self.remove(id);
            }
            State::SidrReceived => {
                let status = sidr_status::REJECTED;
                let private = padded(program);
                let rep = Message::SidrRep { request_id: remote_id, status, qpn: 0, service_id, qkey: 0, private };
                self.answer(id, rep, now_ps);
            }
            state => return Err(Refused::State(state)),
        }
        Ok(())
    }

    /// Answers a request for a queue pair of a datagram service.
    ///
    /// # Errors
    /// It was answered.
    pub fn show(&mut self, conn: ConnId, (qpn, qkey): (u32, u32), program: &[u8], now_ps: u64) -> Result<(), Refused> {
        let (id, state) = self.known(conn)?;
        let Some(found) = self.conns.get(&id).filter(|_| state == State::SidrReceived) else {
            return Err(Refused::State(state));
        };
        let (request_id, service_id) = (found.remote_id, found.service);
        let private = padded(program);
        let message = Message::SidrRep { request_id, status: sidr_status::VALID, qpn, service_id, qkey, private };
        self.answer(id, message, now_ps);
        Ok(())
    }

    /// Sends an answer after which nothing follows, and keeps it for whoever asks again.
    fn answer(&mut self, id: u32, message: Message, now_ps: u64) {
        let Some(conn) = self.conns.get(&id) else { return };
        let (path, transaction) = (conn.path, conn.transaction);
        let bytes = self.transmit(path, transaction, message);
        if self.refusals >= MAX_REFUSALS {
            self.remove(id);
            return;
        }
        self.set_due(id, Some(now_ps.saturating_add(times::given_up_ps())));
        if let Some(conn) = self.conns.get_mut(&id) {
            (conn.state, conn.last, conn.orphan) = (State::Answered, Some(bytes), true);
            self.refusals += 1;
            let (pending, service) = (conn.pending.take(), conn.service);
            self.make_room(pending, service);
        }
    }

    /// The own queue pair is ready, and so is the other end's.
    ///
    /// # Errors
    /// The other end has not accepted.
    pub fn establish(&mut self, conn: ConnId) -> Result<(), Refused> {
        let (id, state) = self.known(conn)?;
        let Some(found) = self.conns.get_mut(&id).filter(|_| state == State::RepReceived) else {
            return Err(Refused::State(state));
        };
        found.state = State::Established;
        let message = Message::Rtu { local_id: id, remote_id: found.remote_id };
        let (path, transaction) = (found.path, found.transaction);
        let bytes = self.transmit(path, transaction, message);
        if let Some(conn) = self.conns.get_mut(&id) {
            // If it is lost, the REP comes again.
            conn.last = Some(bytes);
        }
        Ok(())
    }

    /// Data have come over a connection that the other end has not confirmed: it is established.
    ///
    /// # Errors
    /// It was not accepted.
    pub fn data_came(&mut self, conn: ConnId) -> Result<(), Refused> {
        let (id, state) = self.known(conn)?;
        match state {
            State::RepSent => self.confirmed(id),
            State::Established => {}
            state => return Err(Refused::State(state)),
        }
        Ok(())
    }

    fn confirmed(&mut self, id: u32) {
        if let Some(conn) = self.conns.get_mut(&id) {
            (conn.state, conn.last) = (State::Established, None);
            self.set_due(id, None);
            self.event(id, Event::Established);
        }
    }

    /// Ends a connection. One that has ended already stays so.
    ///
    /// # Errors
    /// It was never established.
    pub fn disconnect(&mut self, conn: ConnId, now_ps: u64) -> Result<(), Refused> {
        let (id, state) = self.known(conn)?;
        match state {
            State::Established => self.send_dreq(id, now_ps),
            State::DreqSent | State::TimeWait => {}
            State::RepSent => {
                let Some(conn) = self.remove(id) else { return Ok(()) };
                let (reason, private) = (reason::CONSUMER_DEFINED, [0; private::REJ]);
                let (remote_id, about) = (conn.remote_id, About::Other);
                let message = Message::Rej { local_id: id, remote_id, about, reason, private };
                self.transmit(conn.path, conn.transaction, message);
                self.report(id, Event::Disconnected);
            }
            state => return Err(Refused::State(state)),
        }
        Ok(())
    }

    fn send_dreq(&mut self, id: u32, now_ps: u64) {
        let transaction = self.new_transaction();
        let Some(conn) = self.conns.get_mut(&id) else { return };
        conn.state = State::DreqSent;
        conn.transaction = transaction;
        conn.tries = times::DREQ_RETRIES;
        conn.interval_ps = times::response_ps(RESPONSE_TIMEOUT);
        let message = Message::Dreq { local_id: id, remote_id: conn.remote_id, remote_qpn: conn.remote_qpn };
        self.send_repeated(id, message, now_ps);
    }

    /// The program has done with a connection, whatever its state: the other end is notified, and nothing is reported
    /// any more.
    pub fn forget(&mut self, conn: ConnId, now_ps: u64) {
        let Ok((id, state)) = self.known(conn) else { return };
        let Some(found) = self.conns.get_mut(&id) else { return };
        let (path, transaction, remote_id) = (found.path, found.transaction, found.remote_id);
        let rej = |about, reason| Message::Rej { local_id: id, remote_id, about, reason, private: [0; private::REJ] };
        match state {
            State::ReqReceived | State::SidrReceived => {
                let _ = self.reject(conn, &[], now_ps);
            }
            State::ReqSent => {
                self.transmit(path, transaction, rej(About::Req, reason::TIMEOUT));
                self.remove(id);
            }
            State::RepReceived | State::RepSent => {
                let about = if state == State::RepReceived { About::Rep } else { About::Other };
                self.transmit(path, transaction, rej(about, reason::CONSUMER_DEFINED));
                self.remove(id);
            }
            State::Established => {
                found.orphan = true;
                self.send_dreq(id, now_ps);
            }
            State::DreqSent | State::TimeWait => found.orphan = true,
            State::SidrSent => {
                self.remove(id);
            }
            State::Answered => {}
        }
    }

    fn event(&mut self, id: u32, event: Event) {
        if self.conns.get(&id).is_some_and(|conn| !conn.orphan) {
            self.report(id, event);
        }
    }
}

fn padded<const N: usize>(program: &[u8]) -> [u8; N] {
    let mut whole = [0; N];
    whole.iter_mut().zip(program).for_each(|(to, byte)| *to = *byte);
    whole
}
