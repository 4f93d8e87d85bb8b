//! A gdb server on the threads of a DPA process.
//!
//! The machine stops when the first event handler begins and waits for gdb; virtual time stands still while it is
//! stopped, so a debugged run gives the same results and times as any other. All threads of the process that stopped
//! are gdb's threads.

mod target;

use std::collections::BTreeSet;
use std::fmt::Arguments;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use emu_machine::{Action, Config, DebugStop, Debugger, MachineError, Resume, Stopped, World, thread_name, with_world};
use gdbstub::common::Signal;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{DisconnectReason, GdbStub, MultiThreadStopReason};

use target::DpaProcess;

/// The port of the vendor's gdb server.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:1981";

/// How often a waiting server checks whether gdb is there.
const CHECK_EVERY: Duration = Duration::from_millis(5);

/// Prints a line of what is going on; where stderr cannot be written there is nobody to read it.
fn note(text: Arguments<'_>) {
    drop(writeln!(std::io::stderr().lock(), "{text}"));
}

/// Why nothing can be debugged.
#[derive(Debug, thiserror::Error)]
pub enum GdbError {
    /// The address cannot be listened on.
    #[error("gdb server: {address} cannot be listened on: {source}; choose another, such as 127.0.0.1:0 for any port")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// The machine refused.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The session did not happen, or broke off; the run went on without it.
    #[error("gdb server: {0}")]
    Session(String),
}

/// What became of the session; shared with the server that the machine owns.
#[derive(Clone, Debug, Default)]
pub struct Session(Arc<Mutex<Progress>>);

#[derive(Debug, Default)]
struct Progress {
    stopped: bool,
    failure: Option<String>,
}

impl Session {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        // Plain data, whole after every statement.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends the session.
    ///
    /// # Errors
    /// Nobody connected, the connection broke, or there was nothing to debug.
    pub fn finish(&self) -> Result<(), GdbError> {
        with_world(|world| drop(world.detach_debugger()))?;
        let mut progress = self.progress();
        match progress.failure.take() {
            Some(failure) => Err(GdbError::Session(failure)),
            None if progress.stopped => Ok(()),
            None => Err(GdbError::Session("no event handler began, so there was nothing to debug".to_owned())),
        }
    }
}

type Machine = GdbStubStateMachine<'static, DpaProcess, TcpStream>;

struct Server {
    listener: TcpListener,
    address: SocketAddr,
    wait: Duration,
    session: Session,
    target: DpaProcess,
    /// Nothing before gdb has connected and after it has gone.
    machine: Option<Machine>,
    /// gdb has been there, or was waited for in vain.
    over: bool,
}

/// Listens on `address` (port 0: any) and attaches to the calling thread's machine; when the first event handler
/// begins, waits up to `wait` for gdb.
///
/// # Errors
/// The address cannot be listened on.
pub fn serve(address: &str, wait: Duration) -> Result<Session, GdbError> {
    let failed = |source| GdbError::Listen { address: address.to_owned(), source };
    let listener = TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    let session = Session::default();
    // Takes the place of the machine while gdb inspects that.
    let world = World::new(Config { cards: 1, ..Config::default() })?;
    let stop = Stopped { card: 0, process: 0, thread: 0, why: DebugStop::Begin };
    let target = DpaProcess { world, stop, breakpoints: BTreeSet::new(), action: Action::Continue };
    let server = Server { listener, address, wait, session: session.clone(), target, machine: None, over: false };
    with_world(|world| world.attach_debugger(Box::new(server)))??;
    note(format_args!("gdb server on {address}: stops when the first event handler begins"));
    Ok(session)
}

fn stop_reason(target: &DpaProcess) -> MultiThreadStopReason<u64> {
    let tid = target.stopped_thread();
    let signal = |signal| MultiThreadStopReason::SignalWithThread { tid, signal };
    match &target.stop.why {
        DebugStop::Begin => signal(Signal::SIGTRAP),
        DebugStop::Breakpoint => MultiThreadStopReason::SwBreak(tid),
        // With its thread: another may have been the current one.
        DebugStop::Step => signal(Signal::SIGTRAP),
        DebugStop::Interrupt => signal(Signal::SIGINT),
        DebugStop::Crash(_) => signal(Signal::SIGSEGV),
    }
}

impl Server {
    fn accept(&self) -> Result<TcpStream, String> {
        let begun = Instant::now();
        loop {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(|error| error.to_string())?;
                    return Ok(stream);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    if begun.elapsed() >= self.wait {
                        let seconds = self.wait.as_secs();
                        return Err(format!(
                            "nobody connected to {} within {seconds} s (--gdb-wait, or FLEXCAST_GDB_WAIT, is longer if \
                             need be)",
                            self.address
                        ));
                    }
                    std::thread::sleep(CHECK_EVERY);
                }
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    /// Waits for gdb and begins to talk to it.
    fn connect(&self) -> Result<GdbStub<'static, DpaProcess, TcpStream>, String> {
        let Stopped { card, process, thread, .. } = self.target.stop;
        let kind = self.target.world.process(card, process).and_then(|p| p.threads.get(&thread)).map(|t| t.kind);
        let name = kind.map_or_else(String::new, |kind| thread_name(kind, process, thread));
        note(format_args!(
            "{name} begins; waiting up to {} s: gdb-multiarch IMAGE.elf -ex 'target remote {}'",
            self.wait.as_secs(),
            self.address
        ));
        let stream = self.accept()?;
        Ok(GdbStub::new(stream))
    }

    /// Serves gdb while the machine is stopped. `None`: gdb is gone, or must be.
    fn talk(&mut self) -> Result<Option<Machine>, String> {
        let text = |error: &dyn std::fmt::Display| error.to_string();
        let target = &mut self.target;
        let mut machine = match self.machine.take() {
            None if self.over => return Ok(None),
            None => {
                self.over = true;
                let stub = self.connect()?;
                stub.run_state_machine(&mut self.target).map_err(|error| text(&error))?
            }
            Some(GdbStubStateMachine::Running(running)) => {
                let reason = stop_reason(target);
                running.report_stop(target, reason).map_err(|error| text(&error))?
            }
            Some(other) => other,
        };
        let target = &mut self.target;
        loop {
            machine = match machine {
                GdbStubStateMachine::Idle(mut idle) => {
                    let mut byte = [0];
                    match idle.borrow_conn().read(&mut byte) {
                        Ok(0) => return Err("gdb went away; the run went on without it".to_owned()),
                        Ok(_) => idle.incoming_data(target, byte[0]).map_err(|error| text(&error))?,
                        Err(error) if error.kind() == ErrorKind::Interrupted => idle.into(),
                        Err(error) => return Err(text(&error)),
                    }
                }
                GdbStubStateMachine::Running(running) => return Ok(Some(running.into())),
                GdbStubStateMachine::CtrlCInterrupt(interrupt) => {
                    let reason = stop_reason(target);
                    interrupt.interrupt_handled(target, Some(reason)).map_err(|error| text(&error))?
                }
                GdbStubStateMachine::Disconnected(gone) => {
                    if gone.get_reason() == DisconnectReason::Kill {
                        let Stopped { card, process, .. } = target.stop;
                        // It may be gone already, which is what was asked for.
                        drop(target.world.end_process(card, process));
                        return Err("gdb killed the process".to_owned());
                    }
                    return Ok(None);
                }
            };
        }
    }

    /// Reports to a gdb that waits for the process that it is gone.
    fn farewell(&mut self, reason: MultiThreadStopReason<u64>) {
        if let Some(GdbStubStateMachine::Running(running)) = self.machine.take() {
            // Whether gdb still receives it changes nothing.
            drop(running.report_stop(&mut self.target, reason));
        }
    }
}

impl Debugger for Server {
    fn stopped(&mut self, world: &mut World, stop: &Stopped) -> Resume {
        self.session.progress().stopped = true;
        self.target.stop = stop.clone();
        if let DebugStop::Crash(cause) = &stop.why {
            note(format_args!("thread {} died: {cause}", stop.thread));
        }
        std::mem::swap(world, &mut self.target.world);
        let outcome = self.talk();
        std::mem::swap(world, &mut self.target.world);
        self.machine = outcome.unwrap_or_else(|failure| {
            self.session.progress().failure.get_or_insert(failure);
            None
        });
        let action = if self.machine.is_some() { self.target.action } else { Action::Detach };
        Resume { action, breakpoints: self.target.breakpoints.clone() }
    }

    fn interrupted(&mut self) -> bool {
        let Some(GdbStubStateMachine::Running(mut running)) = self.machine.take() else { return false };
        let mut byte = [0];
        let stream = running.borrow_conn();
        let received = stream.set_nonblocking(true).and_then(|()| stream.read(&mut byte));
        let restored = stream.set_nonblocking(false);
        let next = match received {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(running.into()),
            Ok(0) => Err("gdb went away; the run went on without it".to_owned()),
            Ok(_) => running.incoming_data(&mut self.target, byte[0]).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };
        match next.and_then(|machine| restored.map(|()| machine).map_err(|error| error.to_string())) {
            Ok(machine) => {
                let stop = !matches!(machine, GdbStubStateMachine::Running(_));
                self.machine = Some(machine);
                stop
            }
            Err(failure) => {
                self.session.progress().failure.get_or_insert(failure);
                self.target.breakpoints.clear();
                // The stop that follows finds nobody and detaches.
                true
            }
        }
    }

    fn ended(&mut self, crashed: bool) {
        self.farewell(if crashed {
            MultiThreadStopReason::Terminated(Signal::SIGSEGV)
        } else {
            MultiThreadStopReason::Exited(0)
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.farewell(MultiThreadStopReason::Exited(0));
    }
}
