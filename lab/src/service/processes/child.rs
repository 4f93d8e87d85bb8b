//! Processes of the demonstration, from the side of the one that starts them. None outlives it.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::ProcessError;
use super::words::{Answer, Order};

/// Between two polls.
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Lines of a log that an error shows.
const LOG_LINES: usize = 5;

/// Waits until something is so.
///
/// # Errors
/// [`ProcessError::Late`], [`ProcessError::Interrupted`], or what `poll` says.
pub(super) fn until<T>(
    what: &str,
    bound: Duration,
    stop: &AtomicBool,
    mut poll: impl FnMut() -> Result<Option<T>, ProcessError>,
) -> Result<T, ProcessError> {
    let begun = Instant::now();
    loop {
        if let Some(found) = poll()? {
            return Ok(found);
        }
        if stop.load(Ordering::Relaxed) {
            return Err(ProcessError::Interrupted);
        }
        if begun.elapsed() > bound {
            return Err(ProcessError::Late { what: what.to_owned(), waited_s: bound.as_secs() });
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// A process. Killed when it is dropped; it asks the system to be killed if the one that has started it ends in any
/// other way.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    name: String,
    log: PathBuf,
}

impl Process {
    /// Starts one whose log goes to a file in `folder`.
    pub(super) fn start(name: &str, folder: &Path, command: &mut Command) -> Result<Self, ProcessError> {
        let log = folder.join(format!("{}.log", name.replace(' ', "-")));
        let failed = |source| ProcessError::Start { name: name.to_owned(), source };
        let file = File::options().create(true).append(true).open(&log).map_err(failed)?;
        // An interrupt of the terminal is for the one that has started it.
        let child = command.stderr(file).process_group(0).spawn().map_err(failed)?;
        Ok(Self { child, name: name.to_owned(), log })
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn signal(&self, signal: Signal) -> Result<(), ProcessError> {
        let sent = kill(Pid::from_raw(self.child.id() as i32), signal);
        sent.map_err(|errno| ProcessError::Start { name: self.name.clone(), source: errno.into() })
    }

    /// Whether it has ended.
    pub(super) fn is_over(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// That it has ended although it should not have, with the end of its log.
    pub(super) fn lost(&mut self) -> ProcessError {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let said = lines[lines.len().saturating_sub(LOG_LINES)..].join("; ");
        ProcessError::Lost { name: self.name.clone(), said }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// A rank that answers orders.
#[derive(Debug)]
pub(super) struct RankProcess {
    pub(super) process: Process,
    input: Option<ChildStdin>,
    answers: Receiver<String>,
}

impl RankProcess {
    pub(super) fn start(name: &str, folder: &Path, mut command: Command) -> Result<Self, ProcessError> {
        let mut process = Process::start(name, folder, command.stdin(Stdio::piped()).stdout(Stdio::piped()))?;
        let (sender, answers) = channel();
        if let Some(output) = process.child.stdout.take() {
            // It ends with the process.
            std::thread::spawn(move || {
                for line in BufReader::new(output).lines().map_while(Result::ok) {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
            });
        }
        let input = process.child.stdin.take();
        Ok(Self { process, input, answers })
    }

    pub(super) fn send(&mut self, order: &Order) -> Result<(), ProcessError> {
        let line = serde_json::to_string(order).unwrap_or_default();
        let sent = self.input.as_mut().map(|input| writeln!(input, "{line}").and_then(|()| input.flush()));
        if matches!(sent, Some(Ok(()))) { Ok(()) } else { Err(self.process.lost()) }
    }

    /// The answer to an order.
    pub(super) fn answer(&mut self, bound: Duration, stop: &AtomicBool) -> Result<Answer, ProcessError> {
        let Self { process, answers, .. } = self;
        let name = process.name.clone();
        let line = until(&format!("an answer of {name}"), bound, stop, || match answers.recv_timeout(POLL_INTERVAL) {
            Ok(line) => Ok(Some(line)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(process.lost()),
        })?;
        match serde_json::from_str(&line) {
            Ok(Answer::Failed(said)) => Err(ProcessError::Rank { name, said }),
            Ok(answer) => Ok(answer),
            Err(_) => Err(ProcessError::Rank { name, said: line }),
        }
    }

    /// No more orders: it ends by itself.
    pub(super) fn close(&mut self, bound: Duration, stop: &AtomicBool) -> Result<(), ProcessError> {
        self.input = None;
        let process = &mut self.process;
        until(&format!("the end of {}", process.name.clone()), bound, stop, || Ok(process.is_over().then_some(())))
    }
}

/// Asks the system to kill this process when the one that has started it ends.
///
/// # Errors
/// That one has ended already.
pub fn end_with(parent: u32) -> std::io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
    if nix::unistd::getppid().as_raw().cast_unsigned() == parent {
        return Ok(());
    }
    Err(std::io::Error::other(format!(
        "process {parent} has not started this one, or has ended: run `flexcast service demo`"
    )))
}
