//! Tests of turns: threads that post, test and wait while another one is in a call of the datapath, or waits for the
//! network.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use flexcast_proto::RankInfo;

use super::Communicator;
use crate::api::request::{Request, Test};
use crate::carrier::Parts;
use crate::carrier::endpoint::Endpoint;
use crate::carrier::udp::UdpOptions;
use crate::engine::Core;
use crate::engine::datapath::Waiter;
use crate::engine::staged::Staged;
use crate::error::{Error, Result};
use crate::op::config::{Config, Control, ThreadOptions};
use crate::op::service_options::ControlReport;
use crate::plan::footprint::Footprint;

/// Longest that a thread is waited for which should not be held up.
const SOON: Duration = Duration::from_secs(10);

/// Counts the threads that wait for the network.
#[derive(Default)]
struct Counting {
    /// No time passes.
    is_virtual: bool,
    inside: AtomicU32,
    most: AtomicU32,
}

impl Waiter for Counting {
    fn wait(&self, most: Duration) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        std::thread::sleep(most.min(Duration::from_millis(1)));
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn wake(&self) {}

    fn blocks(&self) -> bool {
        !self.is_virtual
    }

    fn is_virtual(&self) -> bool {
        self.is_virtual
    }
}

fn staged(
    waiter: Arc<Counting>,
    configure: impl FnOnce(&mut Config),
    mut step: impl FnMut() -> Result<bool> + Send + 'static,
) -> (Endpoint, Communicator) {
    let endpoint = Endpoint::udp(&UdpOptions::default().interface("lo")).unwrap();
    let mut config = Config::for_endpoint(&endpoint);
    configure(&mut config);
    let core = Core::new(RankInfo::new(0, 1).unwrap(), 1, config);
    let staged = Staged::new(core, move || step().map(|ends| if ends { usize::MAX } else { 0 }));
    let (own, footprint) = (endpoint.clone(), Footprint::default());
    let parts = Parts { endpoint: own, datapath: Box::new(staged), waiter, footprint };
    (endpoint, Communicator::of(parts, ControlReport::of(Control::Host)).unwrap())
}

#[test]
fn one_of_those_who_wait_waits_for_the_network() {
    const CALLERS: u32 = 4;
    for thread in [false, true] {
        let (waiter, over) = (Arc::new(Counting::default()), Arc::new(AtomicBool::new(false)));
        let ends = Arc::clone(&over);
        let configure = |config: &mut Config| config.progress_thread = thread.then(ThreadOptions::default);
        let (endpoint, communicator) = staged(Arc::clone(&waiter), configure, move || Ok(ends.load(Ordering::SeqCst)));
        // The thread stays away as soon as somebody is about to wait.
        let attendance = communicator.attend();
        std::thread::sleep(Duration::from_millis(30));
        waiter.most.store(0, Ordering::SeqCst);
        std::thread::scope(|scope| {
            for _ in 0..CALLERS {
                let request = communicator.broadcast(endpoint.buffer(8).unwrap(), 0).unwrap();
                scope.spawn(|| request.wait().unwrap());
            }
            std::thread::sleep(Duration::from_millis(30));
            assert_eq!(communicator.0.attending.load(Ordering::SeqCst), 1 + CALLERS);
            over.store(true, Ordering::SeqCst);
        });
        assert_eq!(waiter.most.load(Ordering::SeqCst), 1, "with a progress thread: {thread}");
        drop(attendance);
        assert_eq!(communicator.0.attending.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn nobody_waits_for_a_thread_that_is_in_a_call() {
    let (begun, has_begun): (Sender<()>, _) = channel();
    let (end, ends): (_, Receiver<()>) = channel();
    let step = move || {
        begun.send(()).unwrap();
        // Bounded, so that the test fails rather than hangs.
        ends.recv_timeout(2 * SOON).map(|()| true).map_err(|_| Error::RequestOver { request: 0 })
    };
    // No call more than the test makes.
    let waiter = Counting { is_virtual: true, ..Counting::default() };
    let (endpoint, communicator) = staged(Arc::new(waiter), |_| {}, step);
    let post = || communicator.broadcast(endpoint.buffer(8).unwrap(), 0).unwrap();
    let tested = |request: Request| match request.test().unwrap() {
        Test::Done(_) => panic!("it cannot be over"),
        Test::Pending(request) => request,
    };
    let (communicator, endpoint, post) = (&communicator, &endpoint, &post);
    std::thread::scope(|scope| {
        let first = post();
        let caller = scope.spawn(|| first.wait().unwrap());
        has_begun.recv_timeout(SOON).unwrap();
        // The caller is in the datapath. Posts, tests and calls of `progress` return all the same.
        let (send_request, posted) = channel();
        let other = scope.spawn(move || {
            let second = tested(post());
            assert!(!communicator.progress().unwrap() && !communicator.is_done(&second));
            // What cannot be is refused at once.
            let refused = communicator.broadcast(endpoint.buffer(8).unwrap(), 1).unwrap_err();
            assert!(refused.to_string().contains("root 1 of 1 ranks"), "{refused}");
            send_request.send(second).unwrap();
        });
        let second = posted.recv_timeout(SOON);
        end.send(()).unwrap();
        other.join().unwrap();
        caller.join().unwrap();
        // What was posted meanwhile has been taken on by the one who was there, and ends with the next call.
        end.send(()).unwrap();
        communicator.wait(second.unwrap()).unwrap();
    });
}
