//! Datagrams that come from the network, and time that passes.

use super::{Agent, Event, Listener, ListenerId, Path, Request, State, TRANSPORT_RC, Terms, Wanted, address_of};
use crate::protocol::mad::{About, Mad, Message, Rep, Req, private, reason, sidr_status};
use crate::protocol::service::{HEADER_BYTES, Header, Service, Space};
use crate::protocol::times;

/// Codes of path MTUs.
const MTU_CODES: std::ops::RangeInclusive<u8> = 1..=5;
/// Reasons of a REJ for what a REQ must not have.
const INVALID_GID: u16 = 12;
const INVALID_MTU: u16 = 26;

impl Agent {
    /// A datagram has come to queue pair 1 of a port, from `path.remote` to `path.local`.
    pub fn receive(&mut self, path: Path, bytes: &[u8], now_ps: u64) {
        let Ok(Mad { transaction, message }) = Mad::decode(bytes) else {
            self.ignored += 1;
            return;
        };
        let handled = match message {
            Message::Req(req) => self.req_came(path, transaction, &req, now_ps),
            Message::Mra { remote_id, local_id, about, service_timeout } => {
                self.mra_came(path, (remote_id, local_id), (about, service_timeout), now_ps)
            }
            Message::Rej { remote_id, local_id, reason, private, .. } => {
                self.rej_came(path, (remote_id, local_id), reason, &private, now_ps)
            }
            Message::Rep(rep) => self.rep_came(path, transaction, &rep),
            Message::Rtu { remote_id, local_id } => {
                let id = self.find(path, (remote_id, local_id), &[State::RepSent]);
                id.map(|id| self.confirmed(id)).is_some()
            }
            Message::Dreq { local_id, remote_id, remote_qpn } => {
                self.dreq_came(path, transaction, (remote_id, local_id), remote_qpn, now_ps)
            }
            Message::Drep { remote_id, local_id } => {
                let id = self.find(path, (remote_id, local_id), &[State::DreqSent]);
                id.map(|id| self.ended(id, now_ps)).is_some()
            }
            Message::SidrReq { request_id, service_id, private, .. } => {
                self.sidr_req_came(path, transaction, (request_id, service_id), &private)
            }
            Message::SidrRep { request_id, status, qpn, qkey, private, .. } => {
                let id = self.find(path, (request_id, 0), &[State::SidrSent]);
                let event = match status {
                    sidr_status::VALID => Event::Found { qpn, qkey, private: private.to_vec() },
                    status => Event::NotFound { status, private: private.to_vec() },
                };
                id.map(|id| self.finish(id, event)).is_some()
            }
        };
        self.ignored += u64::from(!handled);
    }

    /// Reports the last event of a connection.
    fn finish(&mut self, id: u32, event: Event) {
        self.event(id, event);
        self.remove(id);
    }

    /// The connection with the own number in a message, if it is one with the sender, in one of these states.
    fn find(&self, path: Path, (own, theirs): (u32, u32), states: &[State]) -> Option<u32> {
        let conn = self.conns.get(&own)?;
        let matches = conn.path == path && (conn.remote_id == theirs || conn.remote_id == 0);
        (matches && states.contains(&conn.state)).then_some(own)
    }

    /// The connection that a request made, by the sender's number.
    fn asked(&self, path: Path, theirs: u32) -> Option<u32> {
        self.asked.get(&(path, theirs)).copied()
    }

    /// Who listens to a service at an address: those that name it come first.
    fn listener(&mut self, path: Path, service_id: u64) -> Option<(Service, &mut Listener)> {
        let service = Service::from_id(service_id)?;
        let there = self.listeners.get_mut(&service)?;
        let named = there.iter().position(|other| other.at == Some((path.port, path.local)));
        let index = named.or_else(|| there.iter().position(|other| other.at.is_none()))?;
        Some((service, &mut there[index]))
    }

    fn req_came(&mut self, path: Path, transaction: u64, req: &Req, now_ps: u64) -> bool {
        if let Some(id) = self.asked(path, req.local_id) {
            match self.conns.get(&id).map(|conn| conn.state) {
                Some(State::ReqReceived) => {
                    let (remote_id, service_timeout) = (req.local_id, times::MRA_TIMEOUT);
                    self.send_once(id, Message::Mra { local_id: id, remote_id, about: About::Req, service_timeout });
                }
                Some(State::RepSent | State::Answered) => self.repeat(id),
                _ => {}
            }
            return true;
        }
        let refuse = |agent: &mut Self, reason| {
            let (private, remote_id) = ([0; private::REJ], req.local_id);
            let rej = Message::Rej { local_id: 0, remote_id, about: About::Req, reason, private };
            agent.transmit(path, transaction, rej);
        };
        let header = Header::decode(&req.private);
        let right = |header: &Header| header.source == path.remote && header.destination == path.local;
        if req.transport != TRANSPORT_RC {
            refuse(self, reason::INVALID_TRANSPORT);
            return true;
        } else if address_of(req.local_gid) != path.remote || !header.as_ref().is_some_and(right) {
            refuse(self, INVALID_GID);
            return true;
        } else if !MTU_CODES.contains(&req.mtu) {
            refuse(self, INVALID_MTU);
            return true;
        }
        let known = Service::from_id(req.service_id).filter(|service| service.space == Space::Tcp);
        let listener = known.and_then(|_| self.listener(path, req.service_id));
        let (Some((service, listener)), Some(header)) = (listener, header) else {
            refuse(self, reason::INVALID_SERVICE_ID);
            return true;
        };
        if listener.pending >= listener.backlog {
            refuse(self, reason::NO_RESOURCES);
            return true;
        }
        let listener = listener.id;
        self.end_stale(path, req.qpn, now_ps);
        let Ok(id) = self.insert(path, State::ReqReceived, transaction) else {
            refuse(self, reason::NO_RESOURCES);
            return true;
        };
        self.waits(service, listener);
        if let Some(conn) = self.conns.get_mut(&id) {
            (conn.remote_id, conn.remote_qpn, conn.service) = (req.local_id, req.qpn, req.service_id);
            (conn.pending, conn.tries) = (Some(listener), req.max_retries);
            conn.interval_ps = times::response_ps(times::sensible(req.local_response_timeout));
        }
        self.asked.insert((path, req.local_id), id);
        self.connected.insert((path, req.qpn), id);
        let terms = Terms {
            qpn: req.qpn,
            psn: req.psn,
            ca_guid: req.ca_guid,
            responder_resources: req.responder_resources,
            initiator_depth: req.initiator_depth,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            mtu: req.mtu,
            ack_timeout: req.ack_timeout,
            traffic_class: req.traffic_class,
        };
        let (wanted, port) = (Wanted::Connection(terms), header.port);
        let private = req.private[HEADER_BYTES..].to_vec();
        self.report(id, Event::Request(Box::new(Request { listener, path, service, port, wanted, private })));
        true
    }

    fn waits(&mut self, service: Service, listener: ListenerId) {
        let there = self.listeners.get_mut(&service);
        if let Some(listener) = there.and_then(|there| there.iter_mut().find(|other| other.id == listener)) {
            listener.pending += 1;
        }
    }

    /// A queue pair that asks for a connection has no other: one that it had belongs to a program that is gone.
    fn end_stale(&mut self, path: Path, remote_qpn: u32, now_ps: u64) {
        let Some(&id) = self.connected.get(&(path, remote_qpn)) else { return };
        let state = self.conns.get(&id).map(|conn| conn.state);
        if matches!(state, Some(State::Established | State::DreqSent | State::RepSent)) {
            self.ended(id, now_ps);
        }
    }

    fn mra_came(&mut self, path: Path, ids: (u32, u32), (about, service_timeout): (About, u8), now_ps: u64) -> bool {
        let states: &[State] = match about {
            About::Req => &[State::ReqSent],
            About::Rep => &[State::RepSent],
            About::Other => &[],
        };
        let Some(id) = self.find(path, ids, states) else { return false };
        let longer_ps = times::response_ps(service_timeout.min(times::MRA_TIMEOUT));
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.remote_id = ids.1;
        }
        self.set_due(id, Some(now_ps.saturating_add(longer_ps)));
        true
    }

    fn rej_came(&mut self, path: Path, ids: (u32, u32), reason: u16, private: &[u8], now_ps: u64) -> bool {
        use State::{DreqSent, Established, RepReceived, RepSent, ReqReceived, ReqSent};
        let open = [ReqSent, ReqReceived, RepSent, RepReceived, Established, DreqSent];
        // Who gives up before an answer has come does not know the number here.
        let unknown = || self.asked(path, ids.1).filter(|_| ids.0 == 0);
        let Some(id) = self.find(path, ids, &open).or_else(unknown) else { return false };
        match self.conns.get(&id).map(|conn| conn.state) {
            Some(Established | DreqSent) => self.ended(id, now_ps),
            Some(ReqSent | ReqReceived | RepSent | RepReceived) => {
                self.finish(id, Event::Rejected { reason, private: private.to_vec() });
            }
            _ => return false,
        }
        true
    }

    fn rep_came(&mut self, path: Path, transaction: u64, rep: &Rep) -> bool {
        use State::{DreqSent, Established, RepReceived, ReqSent, TimeWait};
        let ids = (rep.remote_id, rep.local_id);
        let Some(id) = self.find(path, ids, &[ReqSent, RepReceived, Established, DreqSent, TimeWait]) else {
            let (local_id, remote_id) = ids;
            let (reason, private) = (reason::INVALID_COMM_ID, [0; private::REJ]);
            let rej = Message::Rej { local_id, remote_id, about: About::Rep, reason, private };
            self.transmit(path, transaction, rej);
            return true;
        };
        match self.conns.get_mut(&id) {
            Some(conn) if conn.state == ReqSent => {
                (conn.state, conn.remote_id, conn.remote_qpn) = (RepReceived, rep.local_id, rep.qpn);
                conn.last = None;
                self.set_due(id, None);
                self.connected.insert((path, rep.qpn), id);
                let terms = Terms {
                    qpn: rep.qpn,
                    psn: rep.psn,
                    ca_guid: rep.ca_guid,
                    responder_resources: rep.responder_resources,
                    initiator_depth: rep.initiator_depth,
                    flow_control: rep.flow_control,
                    rnr_retry_count: rep.rnr_retry_count,
                    srq: rep.srq,
                    ..Terms::default()
                };
                self.event(id, Event::Accepted { terms, private: rep.private.to_vec() });
            }
            Some(conn) if conn.state == RepReceived => {
                let (remote_id, service_timeout) = (conn.remote_id, times::MRA_TIMEOUT);
                self.send_once(id, Message::Mra { local_id: id, remote_id, about: About::Rep, service_timeout });
            }
            Some(conn) if conn.state == Established => self.repeat(id),
            // The DREQ says it all.
            _ => {}
        }
        true
    }

    fn dreq_came(&mut self, path: Path, transaction: u64, (own, theirs): (u32, u32), qpn: u32, now_ps: u64) -> bool {
        use State::{DreqSent, Established, RepReceived, RepSent, TimeWait};
        let found = self.find(path, (own, theirs), &[RepSent, RepReceived, Established, DreqSent, TimeWait]);
        let found = found.filter(|id| self.conns.get(id).is_some_and(|conn| conn.qpn == qpn));
        // One that is not known has ended before, and its answer was lost.
        self.transmit(path, transaction, Message::Drep { local_id: own, remote_id: theirs });
        let Some(id) = found else { return true };
        match self.conns.get(&id).map(|conn| conn.state) {
            // The other end has had the answer, and what it said to that was lost.
            Some(RepSent) => {
                self.confirmed(id);
                self.ended(id, now_ps);
            }
            Some(TimeWait) | None => {}
            Some(_) => self.ended(id, now_ps),
        }
        true
    }

    /// A connection has ended: its numbers stay taken for a while.
    fn ended(&mut self, id: u32, now_ps: u64) {
        self.event(id, Event::Disconnected);
        if let Some(conn) = self.conns.get_mut(&id) {
            (conn.state, conn.last) = (State::TimeWait, None);
            self.set_due(id, Some(now_ps.saturating_add(times::TIME_WAIT_PS)));
        }
    }

    fn sidr_req_came(
        &mut self,
        path: Path,
        transaction: u64,
        (request_id, service_id): (u32, u64),
        private: &[u8],
    ) -> bool {
        if let Some(id) = self.asked(path, request_id) {
            self.repeat(id);
            return true;
        }
        let known = Service::from_id(service_id).filter(|service| service.space == Space::Udp);
        let listener = known.and_then(|_| self.listener(path, service_id));
        let header = Header::decode(private).filter(|header| header.source == path.remote);
        let (Some((service, listener)), Some(header)) = (listener, header) else {
            let (status, private) = (sidr_status::INVALID_SERVICE_ID, [0; private::SIDR_REP]);
            let rep = Message::SidrRep { request_id, status, qpn: 0, service_id, qkey: 0, private };
            self.transmit(path, transaction, rep);
            return true;
        };
        if listener.pending >= listener.backlog {
            // It will ask again.
            return false;
        }
        let listener = listener.id;
        let Ok(id) = self.insert(path, State::SidrReceived, transaction) else { return false };
        self.waits(service, listener);
        if let Some(conn) = self.conns.get_mut(&id) {
            (conn.remote_id, conn.service, conn.pending) = (request_id, service_id, Some(listener));
        }
        self.asked.insert((path, request_id), id);
        let private = private[HEADER_BYTES..].to_vec();
        let (wanted, port) = (Wanted::Datagrams, header.port);
        self.report(id, Event::Request(Box::new(Request { listener, path, service, port, wanted, private })));
        true
    }

    /// Time has come to `now_ps`: repeats what has had no answer, and ends what has ended.
    pub fn tick(&mut self, now_ps: u64) {
        while let Some(&(due_ps, id)) = self.timers.first()
            && due_ps <= now_ps
        {
            self.set_due(id, None);
            self.due(id, now_ps);
        }
    }

    fn due(&mut self, id: u32, now_ps: u64) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let (path, transaction, remote_id) = (conn.path, conn.transaction, conn.remote_id);
        let rej = |about| Message::Rej {
            local_id: id,
            remote_id,
            about,
            reason: reason::TIMEOUT,
            private: [0; private::REJ],
        };
        match conn.state {
            State::ReqSent | State::RepSent | State::DreqSent | State::SidrSent if conn.tries > 0 => {
                conn.tries -= 1;
                let due_ps = now_ps.saturating_add(conn.interval_ps);
                self.repeat(id);
                self.set_due(id, Some(due_ps));
            }
            State::ReqSent => {
                self.transmit(path, transaction, rej(About::Req));
                self.finish(id, Event::Unreachable);
            }
            State::RepSent => {
                self.transmit(path, transaction, rej(About::Other));
                self.finish(id, Event::Unreachable);
            }
            State::SidrSent => self.finish(id, Event::Unreachable),
            State::DreqSent => self.ended(id, now_ps),
            State::TimeWait => self.finish(id, Event::TimeWaitOver),
            State::Answered => {
                self.remove(id);
            }
            State::ReqReceived | State::RepReceived | State::Established | State::SidrReceived => {}
        }
    }
}
