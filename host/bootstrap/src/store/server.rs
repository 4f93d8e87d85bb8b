//! Rank 0: admits the others, and passes contributions round.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::frame::{Frame, Hello, Taken, What, collected};
use super::link::{Link, Pause, farewell};
use super::{Build, MAX_CONTRIBUTION_BYTES, StoreConfig, StoreError};

/// How long somebody may take to say who it is.
const HELLO_PATIENCE: Duration = Duration::from_secs(10);
/// How many of those who were turned away an error names.
const NAMED: usize = 4;

/// Rank 0's end: connections to all others.
pub(super) struct Server {
    /// Of rank 1, 2 and so on.
    links: Vec<Link>,
    pub(super) timeout: Duration,
    exchanges: u32,
}

/// Somebody who has connected.
enum Guest {
    /// One of the ranks.
    Rank(u32),
    /// Not of this job.
    Stranger(String),
    /// Of this job, but it cannot be.
    Wrong(StoreError),
}

struct Door<'a> {
    config: &'a StoreConfig,
    build: Build,
    slots: Vec<Option<Link>>,
    unknown: VecDeque<(Link, Instant)>,
    turned_away: Vec<String>,
}

impl Server {
    /// Waits for all other ranks.
    pub(super) fn admit(listener: TcpListener, config: &StoreConfig, build: Build) -> Result<Self, StoreError> {
        let socket = |error: std::io::Error| StoreError::Socket { reason: error.to_string() };
        listener.set_nonblocking(true).map_err(socket)?;
        let slots = (1..config.size).map(|_| None).collect();
        let mut door = Door { config, build, slots, unknown: VecDeque::new(), turned_away: Vec::new() };
        let mut pause = Pause::until(config.timeout);
        let result = loop {
            let mut moved = false;
            // As many strangers at a time as there are ranks; more wait in the system's queue.
            while door.unknown.len() < 2 * config.size as usize + 16 {
                match listener.accept() {
                    Ok((stream, peer)) => {
                        let link = Link::new(stream, peer.to_string(), MAX_CONTRIBUTION_BYTES)?;
                        door.unknown.push_back((link, Instant::now()));
                        moved = true;
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    // A connection that was gone before it was accepted; or too many open files, which may pass.
                    Err(error) => {
                        let what = format!("rank 0 could not accept a connection: {error}");
                        if error.kind() != ErrorKind::ConnectionAborted && !door.turned_away.contains(&what) {
                            tracing::warn!(%error, "accept");
                            door.turn_away(what);
                        }
                        break;
                    }
                }
            }
            match door.look() {
                Ok(more) => moved |= more,
                Err(error) => break Err(error),
            }
            let missing: Vec<u32> =
                (1..).zip(&door.slots).filter(|(_, slot)| slot.is_none()).map(|(rank, _)| rank).collect();
            if missing.is_empty() {
                break Ok(());
            }
            if pause.is_over() {
                let (size, waited, turned_away) = (config.size, pause.waited(), std::mem::take(&mut door.turned_away));
                break Err(StoreError::Missing { missing, size, waited, turned_away });
            }
            pause.wait(moved);
        };
        let mut links: Vec<Link> = door.slots.into_iter().flatten().collect();
        if let Err(error) = result {
            // Those who have not said who they are yet are told, too: one of them may be what is wrong.
            links.extend(door.unknown.into_iter().map(|(link, _)| link));
            let text: Arc<[u8]> = failed(&error).into();
            links.iter_mut().for_each(|link| link.send(Arc::clone(&text)));
            // So are ranks that come only now, rather than find nobody; those that are missing have had their time.
            let expected = if matches!(error, StoreError::Missing { .. }) { 0 } else { config.size as usize - 1 };
            farewell(&mut links, |links| {
                while links.len() < expected
                    && let Ok((stream, peer)) = listener.accept()
                    && let Ok(mut link) = Link::new(stream, peer.to_string(), MAX_CONTRIBUTION_BYTES)
                {
                    link.send(Arc::clone(&text));
                    links.push(link);
                }
                links.len() < expected
            });
            return Err(error);
        }
        let welcome: Arc<[u8]> = Frame::new(What::Welcome).encode().into();
        for link in &mut links {
            link.send(Arc::clone(&welcome));
            link.pump();
        }
        Ok(Self { links, timeout: config.timeout, exchanges: 0 })
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
            let text: Arc<[u8]> = failed(error).into();
            self.links.iter_mut().for_each(|link| link.send(Arc::clone(&text)));
            farewell(&mut self.links, |_| false);
        }
        result
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

impl Door<'_> {
    /// Looks at everybody who is there. Tells whether anything has moved.
    fn look(&mut self) -> Result<bool, StoreError> {
        let mut moved = false;
        for (rank, link) in (1..).zip(&mut self.slots) {
            let Some(link) = link else { continue };
            moved |= link.pump();
            if let Some(reason) = link.closed.clone() {
                let during = "other ranks were awaited".to_owned();
                return Err(StoreError::Died { rank, from: link.peer.clone(), during, reason });
            }
        }
        for _ in 0..self.unknown.len() {
            let Some((mut link, since)) = self.unknown.pop_front() else { break };
            moved |= link.pump();
            let guest = match Hello::take(&mut link.incoming) {
                Taken::Whole(hello) => self.judge(&hello, &link.peer),
                Taken::Nonsense(what) => Guest::Stranger(what),
                Taken::Part if link.closed.is_some() => Guest::Stranger("it left without saying who it is".to_owned()),
                Taken::Part if since.elapsed() > HELLO_PATIENCE => {
                    Guest::Stranger("it did not say who it is".to_owned())
                }
                Taken::Part => {
                    self.unknown.push_back((link, since));
                    continue;
                }
            };
            match guest {
                Guest::Rank(rank) => {
                    link.send(Frame::new(What::Seated).encode());
                    link.pump();
                    self.slots[rank as usize - 1] = Some(link);
                    moved = true;
                }
                Guest::Stranger(why) => {
                    tracing::warn!(peer = link.peer, why, "turned away");
                    self.turn_away(format!("{}: {why}", link.peer));
                    // Its own fault or another job's: told in one go, or not at all.
                    let what = Frame { body: why.into_bytes(), ..Frame::new(What::Failed) };
                    link.send(what.encode());
                    link.pump();
                }
                Guest::Wrong(error) => {
                    self.unknown.push_back((link, since));
                    return Err(error);
                }
            }
        }
        Ok(moved)
    }

    fn turn_away(&mut self, what: String) {
        if self.turned_away.len() < NAMED {
            self.turned_away.push(what);
        }
    }

    fn judge(&self, hello: &Hello, peer: &str) -> Guest {
        let Hello { build, rank, size, job } = hello;
        let (rank, from) = (*rank, peer.to_owned());
        if *job != self.config.job {
            let error = StoreError::OtherJob { theirs: job.clone(), own: self.config.job.clone() };
            return Guest::Stranger(error.to_string());
        }
        Guest::Wrong(if build.version != self.build.version {
            StoreError::OtherVersion { rank, from, theirs: build.version, own: self.build.version }
        } else if build.abi != self.build.abi {
            StoreError::OtherBuild { rank, from, theirs: build.abi, own: self.build.abi }
        } else if *size != self.config.size {
            StoreError::OtherSize { rank, from, theirs: *size, own: self.config.size }
        } else if rank == 0 {
            StoreError::Duplicate { rank, first: self.config.address.clone(), second: from }
        } else {
            match self.slots.get(rank as usize - 1) {
                Some(None) => return Guest::Rank(rank),
                Some(Some(seated)) => StoreError::Duplicate { rank, first: seated.peer.clone(), second: from },
                None => {
                    let what = format!("it is one of {size} ranks");
                    StoreError::Nonsense { rank, from, during: "it joined".to_owned(), what }
                }
            }
        })
    }
}

fn failed(error: &StoreError) -> Vec<u8> {
    Frame { body: error.to_string().into_bytes(), ..Frame::new(What::Failed) }.encode()
}
