//! Connections to other service processes that this one sets up.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use flexcast_proto::service::ConnectionAction;
use flexcast_proto::service::wire::{Body, Endpoint, HelloError, Rejection, Role};
use nix::sys::epoll::{EpollEvent, EpollFlags};
use socket2::{Domain, Protocol, Socket, Type};

use super::conn::{Conn, Ended, Kept, Phase};
use super::greeting::{GreetingError, Outgoing};
use super::server::Server;
use super::{address_of, nonce};
use crate::error::{Error, Result};

/// Until a process that has no room is asked again.
const AGAIN: Duration = Duration::from_millis(20);

/// A connection that is to be there by some time.
#[derive(Debug)]
pub(super) struct SetUp {
    until: Instant,
    /// When to try again.
    again: Option<Instant>,
}

impl Server {
    pub(super) fn act(&mut self, action: ConnectionAction<Endpoint>, now: Instant) -> Result<()> {
        match action {
            ConnectionAction::Connect(endpoint) => {
                let until = now + self.settings.connect;
                self.set_ups.insert(endpoint, SetUp { until, again: None });
                self.set_up(endpoint, now)
            }
            ConnectionAction::Cancel(endpoint) => {
                self.set_ups.remove(&endpoint);
                self.drop_own(endpoint)
            }
            ConnectionAction::Goodbye(endpoint) => {
                self.say_goodbye(endpoint);
                Ok(())
            }
            ConnectionAction::Close(endpoint) => {
                self.close(endpoint);
                Ok(())
            }
        }
    }

    /// The own set-up to a process, if one is under way, is given up.
    fn drop_own(&mut self, endpoint: Endpoint) -> Result<()> {
        let is_it = |conn: &Conn| matches!(conn.phase, Phase::Tcp | Phase::Out(_)) && conn.endpoint == Some(endpoint);
        let id = self.conns.iter().find(|(_, conn)| is_it(conn)).map(|(id, _)| *id);
        match id.and_then(|id| self.conns.remove(&id)) {
            Some(conn) => self.free(&conn),
            None => Ok(()),
        }
    }

    fn set_up(&mut self, endpoint: Endpoint, now: Instant) -> Result<()> {
        let Some(SetUp { until, .. }) = self.set_ups.get(&endpoint) else { return Ok(()) };
        let until = *until;
        match begin(address_of(endpoint)) {
            Ok(socket) => {
                let mut conn = Conn::new(socket.into(), address_of(endpoint).ip(), Phase::Tcp, now, until);
                conn.endpoint = Some(endpoint);
                self.add(conn, EpollFlags::EPOLLOUT)?;
                Ok(())
            }
            Err(error) => {
                tracing::warn!(to = %address_of(endpoint), %error, "another service process cannot be reached");
                self.is_unreachable(endpoint)
            }
        }
    }

    /// The system has connected, or has not.
    pub(super) fn is_connected(&mut self, id: u64, conn: &mut Conn) -> Result<Kept> {
        if !matches!(conn.stream.take_error(), Ok(None)) || conn.stream.set_nodelay(true).is_err() {
            return Ok(Err(Ended::Gone));
        }
        let role = Role::Process { listens: self.endpoint };
        let nonce = nonce().map_err(Error::socket("getrandom"))?;
        let (outgoing, hello) = Outgoing::new(&self.settings.secret, role, self.settings.epoch, nonce);
        conn.phase = Phase::Out(outgoing);
        let mut event = EpollEvent::new(EpollFlags::EPOLLIN, id);
        self.epoll.modify(&conn.stream, &mut event).map_err(Error::socket_errno("epoll_ctl"))?;
        Ok(conn.say(hello))
    }

    /// The own set-up is over without a connection.
    pub(super) fn has_failed(&mut self, mut conn: Conn, ended: Ended) -> Result<()> {
        let Some(endpoint) = conn.endpoint else { return Ok(()) };
        if let Ended::Refused(GreetingError::Hello(HelloError::Tag)) = ended {
            _ = conn.say(Body::Rejected(Rejection::Secret));
        }
        self.free(&conn)?;
        match ended {
            // Its own set-up is on its way; the bound stays.
            Ended::Refused(GreetingError::Rejected(Rejection::Crossing)) => {
                self.agent.has_crossed(endpoint);
                return Ok(());
            }
            // One that ends there makes room.
            Ended::Refused(GreetingError::Rejected(Rejection::Connections { .. } | Rejection::Crowded { .. })) => {
                if let Some(set_up) = self.set_ups.get_mut(&endpoint) {
                    set_up.again = Some(Instant::now() + AGAIN);
                    return Ok(());
                }
            }
            _ => {}
        }
        tracing::warn!(to = %address_of(endpoint), ?ended, "another service process cannot be reached");
        self.is_unreachable(endpoint)
    }

    fn is_unreachable(&mut self, endpoint: Endpoint) -> Result<()> {
        self.set_ups.remove(&endpoint);
        self.counts.set_ups_failed += 1;
        self.agent.is_unreachable(endpoint)
    }

    /// Set-ups that have had their time are over, and others are tried again.
    pub(super) fn hurry(&mut self, now: Instant) -> Result<()> {
        let late = self.set_ups.iter().filter(|(_, set_up)| now >= set_up.until).map(|(endpoint, _)| *endpoint);
        for endpoint in late.collect::<Vec<_>>() {
            self.drop_own(endpoint)?;
            self.is_unreachable(endpoint)?;
        }
        let (until, wanted) = (now + self.settings.connect, self.agent.wanted());
        self.wanted.retain(|endpoint, _| wanted.contains(endpoint));
        wanted.into_iter().for_each(|endpoint| _ = self.wanted.entry(endpoint).or_insert(until));
        let late: Vec<Endpoint> =
            self.wanted.iter().filter(|(_, until)| now >= **until).map(|(endpoint, _)| *endpoint).collect();
        for endpoint in late {
            self.wanted.remove(&endpoint);
            self.agent.give_up(endpoint)?;
        }
        let again = self.set_ups.iter_mut().filter(|(_, set_up)| set_up.again.is_some_and(|at| now >= at));
        let again: Vec<Endpoint> = again
            .map(|(endpoint, set_up)| {
                set_up.again = None;
                *endpoint
            })
            .collect();
        again.into_iter().try_for_each(|endpoint| self.set_up(endpoint, now))
    }
}

/// A socket that connects, without waiting for it.
fn begin(to: SocketAddr) -> std::io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM.cloexec().nonblocking(), Some(Protocol::TCP))?;
    match socket.connect(&to.into()) {
        Err(error) if error.raw_os_error() != Some(nix::errno::Errno::EINPROGRESS as i32) => Err(error),
        _ => Ok(socket),
    }
}
