//! Operations between their post and their end, as those who post and wait see them.
//!
//! This is what threads share: its lock is held for a few instructions, never across a system call or a call of a
//! library. What carries the operations is held by one thread at a time, and nobody waits for that: whoever finds it
//! taken leaves what it posts here.

use std::collections::VecDeque;
use std::fmt;
use std::task::{Poll, Waker};
use std::time::Duration;

use flexcast_proto::{Cause, Failure};

use super::{Posted, Task};
use crate::error::Error;
use crate::op::outcome::{Failed, Outcome};
use crate::op::report::Report;
use crate::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The requests of a communicator. A clone is the same.
#[derive(Clone, Debug, Default)]
pub(crate) struct Requests(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    desk: Mutex<Desk>,
    /// Operations have ended.
    ended: Condvar,
}

#[derive(Default)]
struct Desk {
    opened: u64,
    /// Operations that wait for a thread to take them on, in the order of their posts.
    posted: VecDeque<Posted<Task>>,
    /// Finished operations that nobody has asked for yet, by request.
    done: Vec<(u64, Outcome)>,
    /// Operations that nobody will ask for.
    abandoned: Vec<u64>,
    /// Who is to be notified of the end of a request.
    wakers: Vec<(u64, Waker)>,
    /// Threads that sleep until operations have ended.
    sleepers: u32,
    /// Why no operation can be posted any more.
    broken: Option<Failure>,
    /// What two ranks have called, in words, if that is because it differs.
    calls: Option<String>,
    /// What is wrong with the connection that the failure is of, as this rank has found.
    connection: Option<String>,
    /// The aggregators that are no ranks, as they were given to this one.
    aggregators: Vec<String>,
    /// An operation has ended, or a library call failed, since those who wait were last notified.
    ended: bool,
    /// A library call has failed.
    useless: bool,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Desk").field("opened", &self.opened).field("done", &self.done.len()).finish_non_exhaustive()
    }
}

impl Desk {
    fn is_done(&self, request: u64) -> bool {
        self.done.iter().any(|(number, _)| *number == request)
    }

    fn take_done(&mut self, request: u64) -> Option<Outcome> {
        let at = self.done.iter().position(|(number, _)| *number == request)?;
        Some(self.done.swap_remove(at).1)
    }

    fn finish(&mut self, request: u64, outcome: Outcome) {
        self.ended = true;
        match self.abandoned.iter().position(|abandoned| *abandoned == request) {
            Some(at) => _ = self.abandoned.swap_remove(at),
            None => self.done.push((request, outcome)),
        }
    }
}

impl Requests {
    fn desk(&self) -> MutexGuard<'_, Desk> {
        self.0.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of a request.
    pub(crate) fn open(&self) -> u64 {
        let mut desk = self.desk();
        desk.opened += 1;
        desk.opened
    }

    /// Leaves an operation for whoever takes it on; the number of its request.
    pub(crate) fn leave(&self, mut posted: Posted<Task>) -> u64 {
        let mut desk = self.desk();
        desk.opened += 1;
        posted.request = desk.opened;
        desk.posted.push_back(posted);
        desk.opened
    }

    /// The first operation that nobody has taken on.
    pub(crate) fn take_posted(&self) -> Option<Posted<Task>> {
        self.desk().posted.pop_front()
    }

    /// Whether there is one.
    pub(crate) fn has_posted(&self) -> bool {
        !self.desk().posted.is_empty()
    }

    /// Why no operation can be posted any more, if so.
    pub(crate) fn broken(&self) -> Option<Failure> {
        self.desk().broken
    }

    /// The aggregator that a failure names.
    fn aggregator(&self, failure: Failure) -> Option<String> {
        match failure.cause {
            Cause::Aggregator(number) => self.desk().aggregators.get(usize::from(number)).cloned(),
            _ => None,
        }
    }

    /// The error of operations that are posted although the communicator has failed.
    pub(crate) fn refusal(&self, failure: Failure) -> Error {
        Error::Broken {
            failure,
            aggregator: self.aggregator(failure),
            calls: self.calls(),
            connection: self.desk().connection.clone(),
        }
    }

    /// The error of an operation that has failed. `found`: what this rank has found of the aggregator that the failure
    /// names; none: another rank has.
    pub(crate) fn failed(&self, operation: &'static str, failure: Failure, found: Option<String>) -> Error {
        let Some(address) = self.aggregator(failure) else {
            return Error::Failed { operation, failure, calls: self.calls() };
        };
        let reported = || format!("failed, as rank {} says: see whether it runs, and its log", failure.detecting_rank);
        Error::Aggregator { operation, address, reason: found.unwrap_or_else(reported), failure }
    }

    /// None yet, of a communicator with these aggregators that are no ranks.
    pub(crate) fn of(aggregators: &[String]) -> Self {
        let requests = Self::default();
        requests.desk().aggregators = aggregators.to_vec();
        requests
    }

    /// The communicator has failed. `calls`: what two ranks have called, in words, if that is because it differs.
    pub(crate) fn break_by(&self, failure: Failure, calls: Option<String>) {
        let mut desk = self.desk();
        (desk.broken, desk.calls) = (Some(failure), calls);
    }

    /// What two ranks have called, in words, if the communicator has failed because that differs.
    pub(crate) fn calls(&self) -> Option<String> {
        self.desk().calls.clone()
    }

    /// What is wrong with the connection that this failure is of.
    pub(crate) fn explain(&self, connection: String) {
        self.desk().connection.get_or_insert(connection);
    }

    pub(crate) fn is_done(&self, request: u64) -> bool {
        self.desk().is_done(request)
    }

    /// The end of an operation, which is given once.
    pub(crate) fn take_done(&self, request: u64) -> Option<Outcome> {
        self.desk().take_done(request)
    }

    /// The same, or the one who asks is notified as soon as it has ended.
    pub(crate) fn poll_done(&self, request: u64, waker: &Waker) -> Poll<Outcome> {
        let mut desk = self.desk();
        if let Some(outcome) = desk.take_done(request) {
            return Poll::Ready(outcome);
        }
        match desk.wakers.iter_mut().find(|(number, _)| *number == request) {
            Some((_, known)) => known.clone_from(waker),
            None => desk.wakers.push((request, waker.clone())),
        }
        Poll::Pending
    }

    /// Sleeps until operations have ended, at most so long, unless that one has.
    pub(crate) fn sleep(&self, request: Option<u64>, most: Duration) {
        let mut desk = self.desk();
        if !request.is_some_and(|request| desk.is_done(request)) {
            desk.sleepers += 1;
            let (mut desk, _) = self.0.ended.wait_timeout(desk, most).unwrap_or_else(PoisonError::into_inner);
            desk.sleepers -= 1;
        }
    }

    /// Wakes one of those who sleep until operations have ended.
    pub(crate) fn wake_one(&self) {
        self.0.ended.notify_one();
    }

    /// Nobody will ask for the end of an operation: its buffers are dropped then.
    pub(crate) fn abandon(&self, request: u64) {
        let mut desk = self.desk();
        desk.wakers.retain(|(number, _)| *number != request);
        let done = desk.take_done(request);
        if done.is_none() {
            desk.abandoned.push(request);
        }
        drop(desk);
        // Outside of the lock: buffers are given back to the system.
        drop(done);
    }

    pub(crate) fn finish(&self, request: u64, outcome: Outcome) {
        self.desk().finish(request, outcome);
    }

    /// Refuses operations that wait for their turn.
    pub(crate) fn refuse<P>(&self, waiting: impl IntoIterator<Item = Posted<P>>, failure: Failure) {
        for Posted { request, send, receive, .. } in waiting {
            let report = Report { failure: Some(failure), ..Report::default() };
            let error = self.refusal(failure);
            self.finish(request, Err(Box::new(Failed { error, send, receive: Some(receive), report })));
        }
    }

    /// A library call has failed: whoever waits is to poll by itself, since nothing may end any more.
    pub(crate) fn give_up(&self) {
        let mut desk = self.desk();
        (desk.useless, desk.ended) = (true, true);
    }

    /// Notifies those who wait, if operations have ended since the last call. Not to be called by whoever holds what
    /// carries the operations: who is notified may poll at once.
    pub(crate) fn notify_ended(&self) {
        let mut desk = self.desk();
        if !std::mem::take(&mut desk.ended) {
            return;
        }
        let Desk { wakers, done, useless, .. } = &mut *desk;
        let is_over = |(request, _): &mut (u64, Waker)| *useless || done.iter().any(|(number, _)| number == request);
        let woken: Vec<_> = wakers.extract_if(.., is_over).collect();
        let sleep = desk.sleepers > 0;
        drop(desk);
        if sleep {
            self.0.ended.notify_all();
        }
        woken.into_iter().for_each(|(_, waker)| waker.wake());
    }
}
