//! Rank 0: admits the others, and passes contributions round.

use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flexcast_proto::session::origin;

use super::channel;
use super::error::SecretDifference;
use super::frame::{Frame, Hello, Taken, Turned, What, collected};
use super::link::{Link, Pause, farewell};
use super::strangers::{Stranger, Strangers};
use super::{Build, MAX_CONTRIBUTION_BYTES, StoreConfig, StoreError};
use crate::DescriptorsUsedUp;

/// How long the rank that a stranger claims to be may still come and prove it. Then what is wrong with the stranger is
/// what is wrong with the rank.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(2);
/// How long rank 0 may lack file descriptors: the program may be about to close some.
const SHORTAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// How many of those who were turned away an error names.
const NAMED: usize = 4;
/// Most connections that are accepted before those that are there are polled.
const MOST_ACCEPTED: usize = 64;

/// Rank 0's end: connections to all others.
pub(super) struct Server {
    /// Of rank 1, 2 and so on.
    links: Vec<Link>,
    pub(super) timeout: Duration,
    exchanges: u32,
}

/// What somebody who has connected turns out to be.
enum Guest {
    /// It has not said all that is needed.
    Unknown,
    /// One of the ranks.
    Rank(u32),
    /// Not of this job.
    Stranger(String),
    /// Of this job, but it cannot be.
    Wrong(StoreError),
    /// It says that it is this rank, cannot be, and has not proved that it is of this job.
    Claims(u32, StoreError),
}

/// Where ranks are admitted.
pub(super) struct Admission<'a> {
    config: &'a StoreConfig,
    build: Build,
    /// Of rank 1, 2 and so on.
    pub(super) slots: Vec<Option<Link>>,
    /// What is wrong with somebody who has claimed to be rank 1, 2 and so on, and since when.
    claims: Vec<Option<(StoreError, Instant)>>,
    pub(super) strangers: Strangers,
    turned_away: Vec<String>,
    /// Since when no connection can be accepted for want of file descriptors.
    short_since: Option<(DescriptorsUsedUp, Instant)>,
}

impl Server {
    /// Waits for all other ranks.
    pub(super) fn admit(listener: TcpListener, config: &StoreConfig, build: Build) -> Result<Self, StoreError> {
        let socket = |error: std::io::Error| StoreError::Socket { reason: error.to_string() };
        listener.set_nonblocking(true).map_err(socket)?;
        let mut admission = Admission::new(config, build);
        let mut pause = Pause::until(config.timeout);
        let result = loop {
            let step = admission.accept(&listener).and_then(|moved| Ok(admission.poll()? || moved));
            let moved = match step.and_then(|moved| admission.check_claims().map(|()| moved)) {
                Ok(moved) => moved,
                Err(error) => break Err(error),
            };
            let missing: Vec<u32> =
                (1..).zip(&admission.slots).filter(|(_, slot)| slot.is_none()).map(|(rank, _)| rank).collect();
            if missing.is_empty() {
                break Ok(());
            }
            if pause.is_over() {
                let loopback = listener.local_addr().ok().filter(|address| address.ip().to_canonical().is_loopback());
                break Err(StoreError::Missing {
                    missing,
                    size: config.size,
                    waited: pause.waited(),
                    turned_away: std::mem::take(&mut admission.turned_away),
                    loopback: loopback.map(|address| address.to_string()),
                });
            }
            pause.wait(moved);
        };
        match result {
            Ok(()) => admission.welcome(),
            Err(error) => {
                admission.dismiss(&listener, &error);
                Err(error)
            }
        }
    }

    /// Whether all that is exchanged stays in this computer.
    pub(super) fn is_local(&self) -> bool {
        self.links.iter().all(Link::is_local)
    }

    /// Collects what all contribute, and gives it to all.
    pub(super) fn exchange(&mut self, tag: &str, own: &[u8]) -> Result<Vec<Vec<u8>>, StoreError> {
        self.exchanges += 1;
        let result = self.collect(tag, own).and_then(|all| {
            let body = collected(&all);
            let frame = Frame { what: What::Collected, number: self.exchanges, tag: tag.to_owned(), body };
            self.answer(tag, frame.encode().into())?;
            Ok(all)
        });
        if let Err(error) = &result {
            self.end(&error.to_string());
        }
        result
    }

    /// Ends the store for all ranks.
    pub(super) fn refuse(&mut self, reason: &str) {
        self.end(&StoreError::Refused { rank: 0, reason: reason.to_owned() }.to_string());
    }

    fn end(&mut self, reason: &str) {
        let frame: Arc<[u8]> = Frame::with_reason(What::Failed, reason).encode().into();
        self.links.iter_mut().for_each(|link| link.send(Arc::clone(&frame)));
        farewell(&mut self.links, |_| false);
    }

    fn collect(&mut self, tag: &str, own: &[u8]) -> Result<Vec<Vec<u8>>, StoreError> {
        let mut all: Vec<Option<Vec<u8>>> = vec![None; self.links.len() + 1];
        all[0] = Some(own.to_vec());
        let mut pause = Pause::until(self.timeout);
        let during = format!("exchange {tag:?} was under way");
        loop {
            let mut moved = false;
            for (rank, link) in (1..).zip(&mut self.links) {
                moved |= link.pump();
                let slot = &mut all[rank as usize];
                let from = link.peer.clone();
                let nonsense = |what| StoreError::Nonsense { rank, from: from.clone(), during: during.clone(), what };
                match link.take() {
                    Taken::Part => {
                        if let Some(reason) = &link.closed {
                            let reason = reason.clone();
                            return Err(StoreError::Died { rank, from, during, reason });
                        }
                    }
                    Taken::Nonsense(what) => return Err(nonsense(what)),
                    Taken::Whole(frame) if frame.what == What::Refused => {
                        return Err(StoreError::Refused { rank, reason: frame.reason() });
                    }
                    Taken::Whole(frame) if frame.what != What::Contribution || slot.is_some() => {
                        return Err(nonsense(format!("{:?} {}, which is not due", frame.what, frame.number)));
                    }
                    Taken::Whole(frame) if frame.tag != tag => {
                        return Err(StoreError::OtherTag { rank, theirs: frame.tag, own: tag.to_owned() });
                    }
                    Taken::Whole(frame) if frame.number != self.exchanges => {
                        let what = format!(
                            "a contribution to exchange {}, but this is number {}",
                            frame.number, self.exchanges
                        );
                        return Err(nonsense(what));
                    }
                    Taken::Whole(frame) => *slot = Some(frame.body),
                }
            }
            let missing: Vec<u32> = (0..).zip(&all).filter(|(_, one)| one.is_none()).map(|(rank, _)| rank).collect();
            if missing.is_empty() {
                return Ok(all.into_iter().flatten().collect());
            }
            if pause.is_over() {
                return Err(StoreError::NotContributed { missing, tag: tag.to_owned(), waited: pause.waited() });
            }
            pause.wait(moved);
        }
    }

    /// Sends to all, until it has gone: this rank may drop the store next.
    fn answer(&mut self, tag: &str, answer: Arc<[u8]>) -> Result<(), StoreError> {
        self.links.iter_mut().for_each(|link| link.send(Arc::clone(&answer)));
        let mut pause = Pause::until(self.timeout);
        loop {
            let mut moved = false;
            for link in &mut self.links {
                moved |= link.pump();
            }
            let Some((rank, link)) = (1..).zip(&self.links).find(|(_, link)| !link.is_flushed()) else { return Ok(()) };
            if pause.is_over() {
                let (from, tag) = (link.peer.clone(), tag.to_owned());
                return Err(StoreError::NotRead { rank, from, tag, waited: pause.waited() });
            }
            pause.wait(moved);
        }
    }
}

impl<'a> Admission<'a> {
    pub(super) fn new(config: &'a StoreConfig, build: Build) -> Self {
        let others = config.size as usize - 1;
        Self {
            config,
            build,
            slots: (0..others).map(|_| None).collect(),
            claims: vec![None; others],
            strangers: Strangers::new(config.size),
            turned_away: Vec::new(),
            short_since: None,
        }
    }

    /// Takes connections that wait. Returns whether there were any.
    fn accept(&mut self, listener: &TcpListener) -> Result<bool, StoreError> {
        let mut moved = false;
        for _ in 0..MOST_ACCEPTED {
            match listener.accept() {
                Ok((stream, peer)) => {
                    // Until it has said who it is, it sends no more than a hello.
                    let link = Link::new(stream, peer.to_string(), 0)?;
                    self.strangers.add(link, origin(peer.ip()));
                    self.short_since = None;
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // A connection that was gone before it was accepted.
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    let Some(found) = DescriptorsUsedUp::find(&error) else {
                        let what = format!("rank 0 could not accept a connection: {error}");
                        if !self.turned_away.contains(&what) {
                            tracing::warn!(%error, "accept");
                            self.turn_away(what);
                        }
                        break;
                    };
                    if self.strangers.drop_oldest() {
                        continue;
                    }
                    let (found, since) = *self.short_since.get_or_insert((found, Instant::now()));
                    if since.elapsed() > SHORTAGE_TIMEOUT {
                        return Err(StoreError::Descriptors { rank: 0, found });
                    }
                    break;
                }
            }
        }
        Ok(moved)
    }

    /// Receives from everybody who is there. Returns whether anything has moved.
    pub(super) fn poll(&mut self) -> Result<bool, StoreError> {
        let mut moved = false;
        for (rank, link) in (1..).zip(&mut self.slots) {
            let Some(link) = link else { continue };
            moved |= link.pump();
            let (from, during) = (link.peer.clone(), "other ranks were awaited".to_owned());
            match (link.take(), link.closed.clone()) {
                (Taken::Whole(frame), _) if frame.what == What::Refused => {
                    return Err(StoreError::Refused { rank, reason: frame.reason() });
                }
                (Taken::Whole(frame), _) => {
                    let what = format!("{:?}, which is not due", frame.what);
                    return Err(StoreError::Nonsense { rank, from, during, what });
                }
                (Taken::Nonsense(what), _) => return Err(StoreError::Nonsense { rank, from, during, what }),
                (Taken::Part, Some(reason)) => return Err(StoreError::Died { rank, from, during, reason }),
                (Taken::Part, None) => {}
            }
        }
        for _ in 0..self.strangers.len() {
            let Some(mut stranger) = self.strangers.take() else { break };
            moved |= stranger.link.pump();
            match self.examine(&mut stranger) {
                Guest::Unknown => self.strangers.put_back(stranger),
                Guest::Rank(rank) => {
                    let mut link = stranger.link;
                    link.set_limit(MAX_CONTRIBUTION_BYTES);
                    link.send(Frame::new(What::Seated).encode());
                    link.pump();
                    self.slots[rank as usize - 1] = Some(link);
                    self.claims[rank as usize - 1] = None;
                    moved = true;
                }
                Guest::Stranger(why) => {
                    // Its own fault or another job's: it learns in one go, or not at all.
                    stranger.link.send(Frame::with_reason(What::Failed, &why).encode());
                    stranger.link.pump();
                    let peer = &stranger.link.peer;
                    tracing::warn!(peer, why, "turned away");
                    self.turn_away(format!("{peer}: {why}"));
                }
                Guest::Claims(rank, error) => {
                    stranger.link.pump();
                    tracing::warn!(peer = stranger.link.peer, %error, "turned away");
                    self.turn_away(error.to_string());
                    if let Some(claim) = self.claims.get_mut((rank as usize).wrapping_sub(1)) {
                        claim.get_or_insert((error, Instant::now()));
                    }
                }
                Guest::Wrong(error) => {
                    self.strangers.put_back(stranger);
                    return Err(error);
                }
            }
        }
        Ok(moved)
    }

    /// A rank that has not come while somebody claims to be it, who cannot be.
    pub(super) fn check_claims(&self) -> Result<(), StoreError> {
        let mut claims = self.slots.iter().zip(&self.claims).filter(|(slot, _)| slot.is_none());
        match claims.find_map(|(_, claim)| claim.as_ref().filter(|(_, since)| since.elapsed() > CLAIM_TIMEOUT)) {
            Some((error, _)) => Err(error.clone()),
            None => Ok(()),
        }
    }

    fn turn_away(&mut self, what: String) {
        if self.turned_away.len() < NAMED {
            self.turned_away.push(what);
        }
    }

    /// What a stranger is by what has come from it.
    fn examine(&self, stranger: &mut Stranger) -> Guest {
        let taken = match stranger.hello.clone() {
            None => Hello::take(&mut stranger.link.incoming),
            Some(hello) => match stranger.link.take() {
                Taken::Whole(frame) if frame.what == What::Present => Taken::Whole(hello),
                Taken::Whole(frame) => Taken::Nonsense(format!("it sent {:?}, which is not due", frame.what)),
                Taken::Nonsense(what) => Taken::Nonsense(what),
                Taken::Part => Taken::Part,
            },
        };
        match taken {
            Taken::Whole(hello) if stranger.hello.is_some() => self.judge(&hello, &stranger.link.peer),
            Taken::Whole(hello) => self.answer(hello, stranger),
            Taken::Nonsense(what) => Guest::Stranger(what),
            Taken::Part if stranger.link.closed.is_some() => {
                Guest::Stranger("it left without saying who it is".to_owned())
            }
            Taken::Part if stranger.is_late() => Guest::Stranger("it did not say who it is".to_owned()),
            Taken::Part => Guest::Unknown,
        }
    }

    /// Answers a hello, which nothing has proved so far.
    fn answer(&self, hello: Hello, stranger: &mut Stranger) -> Guest {
        let (rank, at) = (hello.rank, stranger.link.peer.clone());
        if hello.job != self.config.job {
            let error = StoreError::OtherJob { theirs: hello.job, own: self.config.job.clone() };
            return Guest::Stranger(error.to_string());
        }
        if hello.build.version != self.build.version {
            let error =
                StoreError::OtherVersion { rank, from: at, theirs: hello.build.version, own: self.build.version };
            if self.config.secret.is_none() {
                return Guest::Wrong(error);
            }
            stranger.link.send(Frame::with_reason(What::Failed, &error.to_string()).encode());
            return Guest::Claims(rank, error);
        }
        let differs = |difference| StoreError::SecretDiffers { rank, at, own: 0, difference };
        let (turned, error) = match (&self.config.secret, hello.handshake) {
            (None, None) => return self.judge(&hello, &stranger.link.peer),
            (None, Some(_)) => (Turned::SecretUnknown, differs(SecretDifference::OwnMissing)),
            (Some(_), None) => (Turned::NoSecret, differs(SecretDifference::TheirsMissing)),
            (Some(secret), Some(message)) => match channel::answer(secret, &hello.prologue(true), &message) {
                Some((answer, channel)) => {
                    let frame = Frame { body: answer.to_vec(), ..Frame::new(What::Answer) };
                    stranger.link.send(frame.encode());
                    stranger.link.secure(channel);
                    stranger.link.pump();
                    stranger.hello = Some(hello);
                    return Guest::Unknown;
                }
                None => (Turned::OtherSecret, differs(SecretDifference::Other)),
            },
        };
        stranger.link.send(turned.frame().encode());
        match self.config.secret {
            None => Guest::Wrong(error),
            Some(_) => Guest::Claims(rank, error),
        }
    }

    /// What somebody is who is of this job.
    fn judge(&self, hello: &Hello, peer: &str) -> Guest {
        let Hello { build, rank, size, .. } = hello;
        let (rank, from) = (*rank, peer.to_owned());
        Guest::Wrong(if build.abi != self.build.abi {
            StoreError::OtherBuild { rank, from, theirs: build.abi, own: self.build.abi }
        } else if *size != self.config.size {
            StoreError::OtherSize { rank, from, theirs: *size, own: self.config.size }
        } else if rank == 0 {
            StoreError::Duplicate { rank, first: self.config.address.clone(), second: from }
        } else {
            match self.slots.get(rank as usize - 1) {
                Some(None) => return Guest::Rank(rank),
                Some(Some(seated)) => StoreError::Duplicate { rank, first: seated.peer.clone(), second: from },
                None => StoreError::OutOfRange { rank, from, size: *size },
            }
        })
    }

    /// All are there.
    pub(super) fn welcome(self) -> Result<Server, StoreError> {
        if self.strangers.dropped() > 0 {
            let dropped = self.strangers.dropped();
            tracing::warn!(dropped, "connections that did not say who they are were dropped for newer ones");
        }
        let mut links: Vec<Link> = self.slots.into_iter().flatten().collect();
        let welcome: Arc<[u8]> = Frame::new(What::Welcome).encode().into();
        for link in &mut links {
            link.send(Arc::clone(&welcome));
            link.pump();
        }
        Ok(Server { links, timeout: self.config.timeout, exchanges: 0 })
    }

    /// Lets everybody know why the ranks do not come together.
    fn dismiss(mut self, listener: &TcpListener, error: &StoreError) {
        let frame: Arc<[u8]> = Frame::with_reason(What::Failed, &error.to_string()).encode().into();
        // In clear nothing is said that only those may know who have the secret.
        let clear = match self.config.secret {
            None => Arc::clone(&frame),
            Some(_) => Turned::Over.frame().encode().into(),
        };
        let mut links: Vec<Link> = self.slots.into_iter().flatten().collect();
        links.iter_mut().for_each(|link| link.send(Arc::clone(&frame)));
        // Those who have not said yet who they are learn of it, too: one of them may be what is wrong.
        while let Some(Stranger { mut link, hello, .. }) = self.strangers.take() {
            link.send(Arc::clone(if hello.is_some() { &frame } else { &clear }));
            links.push(link);
        }
        // So do ranks that come only now, rather than find nobody; those that are missing, or were turned away, have
        // had their time.
        let turned_away = self.claims.iter().flatten().count();
        let mut awaited = match error {
            StoreError::Missing { .. } => 0,
            _ => (self.config.size as usize - 1).saturating_sub(links.len() + turned_away),
        };
        farewell(&mut links, |links| {
            while awaited > 0
                && let Ok((stream, peer)) = listener.accept()
                && let Ok(mut link) = Link::new(stream, peer.to_string(), MAX_CONTRIBUTION_BYTES)
            {
                awaited -= 1;
                link.send(Arc::clone(&clear));
                links.push(link);
            }
            awaited > 0
        });
    }
}
