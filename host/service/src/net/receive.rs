//! Receive side of the TCP connections of a service process: greetings, heartbeats, goodbyes.

use std::time::{Duration, Instant};

use flexcast_proto::service::ConnectionError;
use flexcast_proto::service::wire::{self, Body, Heartbeat, Hello, Rejection, Role, Welcome};

use super::conn::{Conn, Ended, Kept, Phase};
use super::frames::Filled;
use super::greeting::{GreetingError, Step};
use super::life::Life;
use super::server::Server;
use crate::error::Result;

/// Reads of one connection before others have their turn.
const READS: u32 = 8;

impl Server {
    pub(super) fn read(&mut self, conn: &mut Conn, now: Instant) -> Result<Kept> {
        for _ in 0..READS {
            match conn.frames.fill(&mut conn.stream) {
                Ok(Filled::Some) => {}
                Ok(Filled::Nothing) => break,
                Ok(Filled::Ended) | Err(_) => return Ok(Err(Ended::Gone)),
            }
            loop {
                let bytes = match conn.frames.next() {
                    Ok(Some(bytes)) => bytes,
                    Ok(None) => break,
                    Err(error) => return Ok(Err(Ended::Refused(error))),
                };
                let kept = match wire::decode(&bytes) {
                    Ok(packet) => self.receive(conn, &packet.body, now)?,
                    Err(error) => Err(Ended::Refused(GreetingError::Format(error))),
                };
                // After a goodbye comes the end of the stream: what the goodbye asks for is done first.
                if kept.is_err() || std::mem::take(&mut conn.pauses) {
                    return Ok(kept);
                }
            }
        }
        Ok(Ok(()))
    }

    fn receive(&mut self, conn: &mut Conn, body: &Body<'_>, now: Instant) -> Result<Kept> {
        if let Some(life) = &mut conn.life {
            life.received(if let Body::Heartbeat(heartbeat) = body { Some(heartbeat) } else { None }, now);
        }
        let far = if let Phase::In(incoming) = &conn.phase { incoming.far() } else { None };
        let step = match &mut conn.phase {
            Phase::Live => return self.receive_live(conn, body),
            Phase::Tcp => return Ok(Ok(())),
            Phase::In(_) if self.stops.is_some() => Err(GreetingError::Rejected(Rejection::Stopping)),
            Phase::In(incoming) => incoming.receive(body, &self.settings.secret),
            Phase::Out(outgoing) => outgoing.receive(body),
        };
        let is_own = matches!(conn.phase, Phase::Out(_));
        match step {
            Err(error) => Ok(Err(Ended::Refused(error))),
            Ok(Step::Say(body)) => Ok(conn.say(body)),
            Ok(Step::Decide(hello)) => self.decide(conn, &hello, now),
            Ok(Step::Establish(session)) => {
                conn.establish(&session);
                Ok(Ok(()))
            }
            Ok(Step::Open) => self.open(conn),
            Ok(Step::Far(_)) if !is_own => self.open(conn),
            Ok(Step::Far(far)) => {
                let Some(peer) = conn.peer else { return Ok(Err(Ended::Gone)) };
                if self.agent.link(peer, far.into()).is_err() {
                    return Ok(Err(Ended::Refused(GreetingError::Order {
                        expected: "a queue pair that can be reached",
                    })));
                }
                Ok(self.beat(conn, now))
            }
            Ok(Step::There) if is_own => self.begin(conn, true),
            Ok(Step::There) => {
                let (Some(peer), Some(far)) = (conn.peer, far) else { return Ok(Err(Ended::Gone)) };
                if self.agent.link(peer, far.into()).is_err() {
                    return Ok(Err(Ended::Refused(GreetingError::Order {
                        expected: "a queue pair that can be reached",
                    })));
                }
                let kept = self.beat(conn, now);
                if kept.is_err() { Ok(kept) } else { self.begin(conn, false) }
            }
        }
    }

    fn receive_live(&mut self, conn: &mut Conn, body: &Body<'_>) -> Result<Kept> {
        match (body, conn.endpoint) {
            (Body::Heartbeat(_), _) => Ok(Ok(())),
            // What was said before it has come by the queue pair.
            (Body::Goodbye, Some(endpoint)) => {
                self.agent.progress()?;
                self.agent.receives_goodbye(endpoint);
                conn.pauses = true;
                Ok(Ok(()))
            }
            (Body::Goodbye, None) => {
                self.agent.progress()?;
                Ok(Err(Ended::Goodbye))
            }
            _ => Ok(Err(Ended::Refused(GreetingError::Order { expected: "HEARTBEAT or GOODBYE" }))),
        }
    }

    /// Whether who knows the secret is taken.
    fn decide(&mut self, conn: &mut Conn, hello: &Hello, now: Instant) -> Result<Kept> {
        let refuse = |rejection| Ok(Err(Ended::Refused(GreetingError::Rejected(rejection))));
        let limit = self.settings.limits.peers;
        if self.conns.values().filter(|conn| conn.admitted).count() >= limit as usize {
            return refuse(Rejection::Connections { limit });
        }
        if let Role::Process { listens } = hello.role {
            if listens == self.endpoint {
                return refuse(Rejection::Format);
            }
            let mut accepted = self.agent.accept(listens);
            if accepted == Err(ConnectionError::Twice) {
                // It would not come again if it still had the first one.
                let old = self.conns.iter().find(|(_, conn)| conn.endpoint == Some(listens)).map(|(id, _)| *id);
                if let Some(old) = old.and_then(|id| self.conns.remove(&id)) {
                    self.end(old, Ended::Gone)?;
                }
                accepted = self.agent.accept(listens);
            }
            match accepted {
                Ok(()) => {
                    conn.endpoint = Some(listens);
                    // An earlier connection of the same process ends now: a goodbye that still comes on it is not one
                    // of this.
                    self.follow(now)?;
                }
                Err(ConnectionError::Full { limit }) => return refuse(Rejection::Connections { limit }),
                Err(_) => return refuse(Rejection::Crossing),
            }
        }
        conn.admitted = true;
        let limits = self.settings.limits.machine;
        let welcome = Welcome {
            epoch: self.settings.epoch,
            heartbeat_ms: u32::try_from(self.settings.heartbeat.as_millis()).unwrap_or(u32::MAX).max(1),
            groups: limits.groups,
            collectives: limits.collectives,
        };
        let Phase::In(incoming) = &mut conn.phase else { return Ok(Err(Ended::Gone)) };
        let Some((proof, session)) = incoming.accept() else { return Ok(Err(Ended::Gone)) };
        let said = conn.say(proof);
        conn.establish(&session);
        Ok(said.and_then(|()| conn.say(Body::Welcome(welcome))))
    }

    /// Opens the own queue pair, and announces it.
    fn open(&mut self, conn: &mut Conn) -> Result<Kept> {
        self.drop_parted();
        let opened = match conn.endpoint {
            Some(endpoint) => self.agent.open_process(endpoint),
            None => self.agent.open_program(),
        };
        let (peer, end) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                tracing::warn!(%error, "there is no queue pair for a connection");
                let limit = self.conns.len() as u32;
                return Ok(Err(Ended::Refused(GreetingError::Rejected(Rejection::Connections { limit }))));
            }
        };
        conn.peer = Some(peer);
        conn.admitted = true;
        Ok(conn.say(Body::Link(end.into())))
    }

    /// The first heartbeat: this side's queue pair is connected.
    fn beat(&self, conn: &mut Conn, now: Instant) -> Kept {
        let mut every = self.settings.heartbeat;
        if let Phase::Out(outgoing) = &conn.phase
            && let Some(welcome) = outgoing.welcome()
        {
            every = Duration::from_millis(welcome.heartbeat_ms.into());
        }
        let mut life = Life::new(every, now);
        let heartbeat = life.due(now).unwrap_or(Heartbeat { number: 1, seen: 0 });
        conn.life = Some(life);
        conn.say(Body::Heartbeat(heartbeat))
    }

    /// Both queue pairs are connected.
    fn begin(&mut self, conn: &mut Conn, own: bool) -> Result<Kept> {
        conn.phase = Phase::Live;
        if own {
            self.counts.set_up += 1;
        } else {
            self.counts.taken += 1;
        }
        if let (Some(endpoint), Some(peer)) = (conn.endpoint, conn.peer) {
            self.set_ups.remove(&endpoint);
            self.agent.is_made(peer, own)?;
        }
        Ok(Ok(()))
    }
}
