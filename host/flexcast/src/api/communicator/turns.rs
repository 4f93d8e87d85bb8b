//! Tests of turns: threads that post and test while another one is in a call of the datapath.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use flexcast_abi::{SendReport, Statistics};
use flexcast_proto::{Cause, Disagreement, RankInfo};

use super::Communicator;
use crate::api::card::Card;
use crate::api::config::{Config, Control, Footprint};
use crate::api::outcome::{Done, Failed};
use crate::api::report::{MessageCounts, Report};
use crate::api::request::Test;
use crate::datapath::service::{ControlReport, Parts};
use crate::datapath::udp::UdpOptions;
use crate::datapath::{Admission, Datapath, Posted, Requests, Task, Waiter};
use crate::error::{Error, Result};
use crate::plan::stream::Stream;

/// Longest that a thread is waited for which should not be held up.
const SOON: Duration = Duration::from_secs(10);

/// A datapath whose calls take as long as the test wants, and end the operations that were taken on before.
struct Slow {
    card: Card,
    config: Config,
    requests: Requests,
    taken: Vec<Posted<Task>>,
    /// A call has begun.
    begun: Sender<()>,
    /// It may end.
    ends: Receiver<()>,
}

impl Datapath for Slow {
    fn place(&self) -> RankInfo {
        RankInfo::new(0, 1).unwrap()
    }

    fn id(&self) -> u64 {
        1
    }

    fn card(&self) -> Card {
        self.card.clone()
    }

    fn config(&self) -> &Config {
        &self.config
    }

    fn now_ps(&self) -> u64 {
        7
    }

    fn admission(&self) -> Admission {
        let stream = Stream { subgroup: 0, peer: None };
        Admission { registered: false, collectives: Ok(()), streams: vec![stream], psn_bits: 31, most_chunks: 1 << 20 }
    }

    fn take_on(&mut self, posted: Posted<Task>) -> Result<(), Box<Failed>> {
        assert_eq!(posted.posted_ps, 7);
        self.taken.push(posted);
        Ok(())
    }

    fn requests(&self) -> &Requests {
        &self.requests
    }

    fn progress(&mut self) -> Result<bool> {
        self.begun.send(()).unwrap();
        // Bounded, so that the test fails rather than hangs.
        self.ends.recv_timeout(2 * SOON).map_err(|_| Error::ForeignRequest { request: 0 })?;
        for Posted { request, send, receive, .. } in self.taken.drain(..) {
            self.requests.finish(request, Ok(Done { send, receive, report: Report::default() }));
        }
        Ok(false)
    }

    fn deadline_ps(&self) -> Option<u64> {
        None
    }

    fn is_idle(&self) -> bool {
        self.taken.is_empty()
    }

    fn fail_here(&mut self, _: Cause) {}

    fn fault(&mut self, _: Error) {}

    fn disagreement(&self) -> Option<Disagreement> {
        None
    }

    fn messages(&self) -> MessageCounts {
        MessageCounts::default()
    }

    fn receive_statistics(&self) -> Result<Statistics> {
        Ok(Statistics::default())
    }

    fn send_statistics(&self) -> Result<SendReport> {
        Ok(SendReport::default())
    }
}

struct Nothing;

impl Waiter for Nothing {
    fn wait(&self, _: Duration) {}

    fn wake(&self) {}

    fn blocks(&self) -> bool {
        false
    }

    fn is_virtual(&self) -> bool {
        // No call more than the test makes.
        true
    }
}

#[test]
fn nobody_waits_for_a_thread_that_is_in_a_call() {
    let card = Card::udp(&UdpOptions::default().interface("lo")).unwrap();
    let config = Config::for_card(&card);
    let (begun, has_begun) = channel();
    let (end, ends) = channel();
    let slow = Slow { card: card.clone(), config, requests: Requests::default(), taken: Vec::new(), begun, ends };
    let parts: Parts = (Box::new(slow), std::sync::Arc::new(Nothing), Footprint::default());
    let communicator = Communicator::of(parts, ControlReport::of(Control::Host)).unwrap();
    let post = || communicator.broadcast(card.buffer(8).unwrap(), 0).unwrap();
    let tested = |request| match communicator.test(request).unwrap() {
        Test::Done(_) => panic!("it cannot be over"),
        Test::Pending(request) => request,
    };
    let (communicator, card, post) = (&communicator, &card, &post);
    std::thread::scope(|scope| {
        let first = post();
        let caller = scope.spawn(|| communicator.wait(first).unwrap());
        has_begun.recv_timeout(SOON).unwrap();
        // The caller is in the datapath. Posts, tests and looks return all the same.
        let (told, has_told) = channel();
        let other = scope.spawn(move || {
            let second = tested(post());
            assert!(!communicator.progress().unwrap() && !communicator.is_done(&second));
            // What cannot be is refused at once.
            let refused = communicator.broadcast(card.buffer(8).unwrap(), 1).unwrap_err();
            assert!(refused.to_string().contains("root 1 of 1 ranks"), "{refused}");
            told.send(second).unwrap();
        });
        let second = has_told.recv_timeout(SOON);
        end.send(()).unwrap();
        other.join().unwrap();
        caller.join().unwrap();
        // What was posted meanwhile has been taken on by the one who was there, and ends with the next call.
        end.send(()).unwrap();
        communicator.wait(second.unwrap()).unwrap();
    });
}
