//! Creation of endpoints and communicators concurrent with the program.
//!
//! A thread of the library does it, which ends with it. What ranks send one another by functions of the program goes
//! through the program's own thread, whenever that asks how far the creation is ([`Creation::poll`]): a function is
//! never called by a thread that the program does not know.

use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::fault::{Fault, guard};
use crate::gather::Gather;
use crate::status::flexcast_status::*;

/// Longest that one poll waits.
const POLL: Duration = Duration::from_millis(2);

/// Something that is being made.
pub(crate) struct Creation<T> {
    made: Mutex<Receiver<Result<T, Fault>>>,
    /// The functions that its exchanges go by.
    gatherer: Option<Arc<Gatherer>>,
}

impl<T: Send + 'static> Creation<T> {
    /// Begins. `body` runs on a thread of its own.
    pub(crate) fn start(
        gatherer: Option<Arc<Gatherer>>,
        body: impl FnOnce() -> Result<T, Fault> + Send + 'static,
    ) -> Result<Self, Fault> {
        let (send, made) = sync_channel(1);
        let desk = gatherer.as_ref().map(|gatherer| Arc::clone(&gatherer.desk));
        let run = move || {
            // Nobody may be there any more to take it.
            let _ = send.send(guard(body));
            desk.iter().for_each(|desk| desk.changed.notify_all());
        };
        thread::Builder::new().name("flexcast-create".to_owned()).spawn(run).map_err(|error| {
            Fault::new(
                FLEXCAST_ERROR_LIMIT,
                format!("no thread can be started: {error}; see the limit of processes (`ulimit -u`)"),
            )
        })?;
        Ok(Self { made: Mutex::new(made), gatherer })
    }

    /// Goes on; what was made, once it is. Waits so long at most.
    pub(crate) fn poll(&self, most: Duration) -> Option<Result<T, Fault>> {
        let most = match &self.gatherer {
            Some(gatherer) => {
                gatherer.serve(most);
                Duration::ZERO
            }
            None => most,
        };
        // Another thread that has it will get what was made.
        let Ok(made) = self.made.try_lock() else { return None };
        match made.recv_timeout(most) {
            Ok(made) => Some(made),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                Some(Err(Fault::new(FLEXCAST_ERROR_INTERNAL, "a mistake of this library: what was made is lost")))
            }
        }
    }

    /// Goes on until it is over.
    pub(crate) fn wait(&self) -> Result<T, Fault> {
        loop {
            if let Some(made) = self.poll(POLL) {
                return made;
            }
        }
    }

    /// Nobody asks any more: its exchanges fail.
    pub(crate) fn abandon(&self) {
        self.gatherer.iter().for_each(|gatherer| gatherer.abandon());
    }
}

/// What the thread of a creation wants of the program's functions.
enum GatherState {
    None,
    /// This piece is to be gathered.
    Asked(Vec<u8>),
    UnderWay,
    Answered(Result<Vec<u8>, String>),
    /// There is nobody to run it.
    Abandoned,
}

/// Where the thread leaves what it wants gathered.
pub(crate) struct Desk {
    state: Mutex<GatherState>,
    changed: Condvar,
}

impl Desk {
    fn state(&self) -> MutexGuard<'_, GatherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a piece gathered, and waits for those of all ranks.
    pub(crate) fn gather(&self, mine: &[u8]) -> Result<Vec<u8>, String> {
        let mut state = self.state();
        if !matches!(*state, GatherState::Abandoned) {
            *state = GatherState::Asked(mine.to_vec());
            self.changed.notify_all();
        }
        loop {
            state = match std::mem::replace(&mut *state, GatherState::None) {
                GatherState::Answered(answer) => return answer,
                GatherState::Abandoned => {
                    *state = GatherState::Abandoned;
                    return Err("a creation by this bootstrap was abandoned: make another bootstrap".to_owned());
                }
                other => {
                    *state = other;
                    self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

/// Functions of the program, and what they are to do.
pub(crate) struct Gatherer {
    pub(crate) desk: Arc<Desk>,
    runner: Mutex<Runner>,
    /// Of one gather.
    timeout: Duration,
}

struct Runner {
    gather: Box<dyn Gather>,
    since: Instant,
}

impl Gatherer {
    pub(crate) fn new(gather: Box<dyn Gather>, timeout: Duration) -> Self {
        let desk = Desk { state: Mutex::new(GatherState::None), changed: Condvar::new() };
        let runner = Mutex::new(Runner { gather, since: Instant::now() });
        Self { desk: Arc::new(desk), runner, timeout }
    }

    /// Does what is to be done now, or waits for it so long at most. Only one thread does so, and none from inside of
    /// the program's functions.
    fn serve(&self, most: Duration) {
        let Ok(mut runner) = self.runner.try_lock() else { return };
        let asked = {
            let state = self.desk.state();
            let idle = |state: &mut GatherState| matches!(state, GatherState::None | GatherState::Answered(_));
            let (mut state, _) =
                self.desk.changed.wait_timeout_while(state, most, idle).unwrap_or_else(PoisonError::into_inner);
            match std::mem::replace(&mut *state, GatherState::UnderWay) {
                GatherState::Asked(mine) => Some(mine),
                GatherState::UnderWay => None,
                other => {
                    *state = other;
                    return;
                }
            }
        };
        // Outside of the lock: what is called is the program's.
        let begun = asked.map_or(Ok(()), |mine| {
            runner.since = Instant::now();
            runner.gather.start(mine)
        });
        let answer = match begun.and_then(|()| runner.gather.test()) {
            Ok(Some(all)) => Ok(all),
            Ok(None) if runner.since.elapsed() < self.timeout => {
                // Others need the processor.
                thread::sleep(most.min(Duration::from_micros(50)));
                return;
            }
            Ok(None) => {
                runner.gather.abandon();
                Err(format!(
                    "not all ranks came within {:.1} s: see whether all of them run",
                    self.timeout.as_secs_f64()
                ))
            }
            Err(error) => Err(error),
        };
        let mut state = self.desk.state();
        if matches!(*state, GatherState::UnderWay) {
            *state = GatherState::Answered(answer);
        }
        self.desk.changed.notify_all();
    }

    /// Whoever waits for an answer gets none, and nobody does later.
    fn abandon(&self) {
        if let Ok(mut runner) = self.runner.try_lock() {
            runner.gather.abandon();
        }
        *self.desk.state() = GatherState::Abandoned;
        self.desk.changed.notify_all();
    }
}
