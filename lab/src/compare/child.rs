//! Child processes with a time bound, each the leader of a process group that ends with it.

use std::fs::File;
use std::io::{Read as _, Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

/// Time between two polls of the processes.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// How long the others of a set may go on when one has failed: they have more to say of it, or end by themselves.
const GRACE: Duration = Duration::from_secs(2);
/// Longest message of a program that is passed on.
const MOST_CHARACTERS: usize = 400;

/// Why a set of processes has not ended well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChildError {
    /// One could not be started.
    #[error("`{program}` cannot be started: {reason}")]
    Start {
        /// Which.
        program: String,
        /// Why not.
        reason: String,
    },
    /// One has failed.
    #[error("{message}")]
    Failed {
        /// What it said last, or how it ended.
        message: String,
    },
    /// They took too long.
    #[error("not ended after {limit_s} s; give a greater --limit, or smaller --sizes")]
    TimeLimit {
        /// The bound.
        limit_s: u64,
    },
    /// A signal to this program.
    #[error("interrupted")]
    Interrupted,
}

/// Processes that run together; those still there when it is dropped are killed with their groups.
#[derive(Debug, Default)]
pub struct Group {
    children: Vec<One>,
}

#[derive(Debug)]
struct One {
    child: Child,
    stdout: File,
    stderr: File,
    ended: Option<ExitStatus>,
}

impl One {
    fn start(mut command: Command, stdin: impl FnOnce() -> Stdio) -> Result<Self, ChildError> {
        let start = || {
            let (stdout, stderr) = (tempfile::tempfile()?, tempfile::tempfile()?);
            command.stdin(stdin()).stdout(stdout.try_clone()?).stderr(stderr.try_clone()?).process_group(0);
            Ok(Self { child: command.spawn()?, stdout, stderr, ended: None })
        };
        let started = start();
        started.map_err(|error: std::io::Error| ChildError::Start {
            program: command.get_program().to_string_lossy().into_owned(),
            reason: error.to_string(),
        })
    }
}

impl Group {
    /// Starts them, with no input, and with files for what they print.
    ///
    /// # Errors
    /// [`ChildError::Start`].
    pub fn start(commands: impl IntoIterator<Item = Command>) -> Result<Self, ChildError> {
        let mut group = Self::default();
        for command in commands {
            group.children.push(One::start(command, Stdio::null)?);
        }
        Ok(group)
    }

    /// Waits until all have ended well, one has failed, `limit` is over or `stop` is set; then none is left.
    ///
    /// # Errors
    /// [`ChildError`].
    pub fn wait(&mut self, limit: Duration, stop: &AtomicBool) -> Result<(), ChildError> {
        let started = Instant::now();
        let mut failed_at = None;
        loop {
            for one in self.children.iter_mut().filter(|one| one.ended.is_none()) {
                // A process that cannot be waited for has ended, as far as is known.
                one.ended = match one.child.try_wait() {
                    Ok(status) => status,
                    Err(_) => Some(ExitStatus::default()),
                };
            }
            let (failed, running) = (self.first_failure(), self.children.iter().any(|one| one.ended.is_none()));
            if failed.is_some() {
                failed_at.get_or_insert_with(Instant::now);
            }
            let given_up = failed_at.is_some_and(|at: Instant| at.elapsed() > GRACE);
            let result = match failed {
                _ if stop.load(Ordering::Relaxed) => Err(ChildError::Interrupted),
                Some(index) if !running || given_up => Err(ChildError::Failed { message: self.message(index) }),
                _ if !running => Ok(()),
                _ if started.elapsed() > limit => Err(ChildError::TimeLimit { limit_s: limit.as_secs() }),
                _ => {
                    std::thread::sleep(POLL_INTERVAL);
                    continue;
                }
            };
            self.kill();
            return result;
        }
    }

    fn first_failure(&self) -> Option<usize> {
        self.children.iter().position(|one| one.ended.is_some_and(|status| !status.success()))
    }

    /// What one of them has printed on stdout.
    #[must_use]
    pub fn stdout(&mut self, index: usize) -> String {
        self.children.get_mut(index).map_or_else(String::new, |one| text_of(&mut one.stdout))
    }

    /// Warnings of Flexcast's log that they have printed on stderr, each with the index of its process.
    #[must_use]
    pub fn warnings(&mut self) -> Vec<(usize, String)> {
        let mut all = Vec::new();
        for (index, one) in self.children.iter_mut().enumerate() {
            let text = text_of(&mut one.stderr);
            all.extend(
                text.lines().map(str::trim).filter(|line| is_warning(line)).map(|line| (index, line.to_owned())),
            );
        }
        all
    }

    /// Why one has failed: what it said, or its status.
    fn message(&mut self, index: usize) -> String {
        let one = &mut self.children[index];
        let said = message(&text_of(&mut one.stderr)).or_else(|| message(&text_of(&mut one.stdout)));
        said.unwrap_or_else(|| one.ended.map_or_else(|| "no message".to_owned(), |status| status.to_string()))
    }

    fn kill(&mut self) {
        for one in self.children.iter_mut().filter(|one| one.ended.is_none()) {
            // It is not waited for yet, so that nobody else has its number.
            if let Ok(leader) = i32::try_from(one.child.id()) {
                let _ = killpg(Pid::from_raw(leader), Signal::SIGKILL);
            }
            one.ended = one.child.wait().ok();
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

fn text_of(file: &mut File) -> String {
    let mut bytes = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
    if read.is_err() { String::new() } else { String::from_utf8_lossy(&bytes).into_owned() }
}

/// Whether a line is a warning or an error of Flexcast's log, in Rust or in C.
fn is_warning(line: &str) -> bool {
    ["WARN ", "ERROR ", "flexcast: warn: ", "flexcast: error: "].iter().any(|start| line.starts_with(start))
}

/// The line that says why a program has failed: the first that speaks of a failure, or begins with a rank as ours do,
/// else the last one.
fn message(said: &str) -> Option<String> {
    // Lines of the log are no reasons: the error comes behind them.
    let is_text = |line: &&str| line.chars().any(char::is_alphanumeric) && !is_warning(line);
    let lines = || said.lines().map(str::trim).filter(is_text);
    let is_reason = |line: &&str| {
        let lower = line.to_lowercase();
        let words = ["error", "cannot", "failed", "not permitted", "denied", "rtnetlink", "signal: "];
        lower.starts_with("rank ") || words.iter().any(|word| lower.contains(word))
    };
    let line = lines().find(is_reason).or_else(|| lines().next_back())?;
    Some(line.chars().take(MOST_CHARACTERS).collect())
}

/// Runs one program with a bound, and returns what it has printed.
///
/// # Errors
/// [`ChildError`].
pub fn output(command: Command, limit: Duration) -> Result<String, ChildError> {
    output_of(command, "", limit)
}

/// The same with lines to its stdin.
///
/// # Errors
/// [`ChildError`].
pub fn output_of(command: Command, input: &str, limit: Duration) -> Result<String, ChildError> {
    let stdin = tempfile::tempfile().and_then(|mut file| {
        file.write_all(input.as_bytes())?;
        file.rewind()?;
        Ok(file)
    });
    let program = || command.get_program().to_string_lossy().into_owned();
    let stdin = stdin.map_err(|error| ChildError::Start { program: program(), reason: error.to_string() })?;
    let mut group = Group { children: vec![One::start(command, || stdin.into())?] };
    group.wait(limit, &AtomicBool::new(false))?;
    Ok(group.stdout(0))
}

/// Where a program is on the search path.
#[must_use]
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| is_program(file))
}

/// Whether a file is there that can be executed.
#[must_use]
pub fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(30);

    fn shell(text: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", text]);
        command
    }

    fn run(texts: &[&str], limit: Duration) -> (Result<(), ChildError>, String) {
        let mut group = Group::start(texts.iter().map(|text| shell(text))).unwrap();
        let ended = group.wait(limit, &AtomicBool::new(false));
        (ended, group.stdout(0))
    }

    #[test]
    fn what_is_printed_is_kept_of_those_that_fail_too() {
        assert_eq!(run(&["echo one", "echo two"], LONG), (Ok(()), "one\n".to_owned()));
        let (ended, printed) =
            run(&["echo one; exec sleep 60", "echo 'error: no route' >&2; echo later >&2; exit 3"], LONG);
        assert_eq!(
            (ended, printed.as_str()),
            (Err(ChildError::Failed { message: "error: no route".to_owned() }), "one\n")
        );
    }

    #[test]
    fn nothing_outlives_its_bound() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pid");
        let started = Instant::now();
        let text = format!("sleep 60 & echo $! > {}; wait", file.display());
        let (ended, _) = run(&[&text], Duration::from_millis(300));
        assert_eq!(ended, Err(ChildError::TimeLimit { limit_s: 0 }));
        assert!(started.elapsed() < LONG);
        let grandchild = std::fs::read_to_string(&file).unwrap();
        // Gone, or dead and not yet reaped by its new parent.
        let state = || std::fs::read_to_string(format!("/proc/{}/stat", grandchild.trim())).unwrap_or_default();
        let gone = || state().split(") ").nth(1).is_none_or(|rest| rest.starts_with('Z'));
        while !gone() {
            assert!(started.elapsed() < LONG, "{}", state());
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    #[test]
    fn warnings_of_the_log_are_passed_on() {
        let mut group =
            Group::start([shell("echo ' WARN a: b' >&2; echo c >&2"), shell("echo 'flexcast: warn: d' >&2")]);
        let group = group.as_mut().unwrap();
        group.wait(LONG, &AtomicBool::new(false)).unwrap();
        assert_eq!(group.warnings(), [(0, "WARN a: b".to_owned()), (1, "flexcast: warn: d".to_owned())]);
    }

    #[test]
    fn a_signal_to_this_program_ends_them() {
        let mut group = Group::start([shell("exec sleep 60")]).unwrap();
        assert_eq!(group.wait(LONG, &AtomicBool::new(true)), Err(ChildError::Interrupted));
    }

    #[test]
    fn what_cannot_be_started_is_named() {
        let error = output(Command::new("./no-such-program"), LONG).unwrap_err();
        assert!(error.to_string().starts_with("`./no-such-program` cannot be started: "), "{error}");
        assert_eq!(output_of(Command::new("cat"), "a\nb\n", LONG), Ok("a\nb\n".to_owned()));
        assert_eq!(find("no-such-program"), None);
        assert!(find("sh").is_some_and(|file| is_program(&file)));
    }

    #[test]
    fn the_reason_is_found_among_much_text() {
        let said =
            "-----\nWARNING: x\nrank 2: the received bytes are not those sent\n-----\nMPI_ABORT was invoked\n----\n";
        assert_eq!(message(said).as_deref(), Some("rank 2: the received bytes are not those sent"));
        let signal = "[vm:1] *** Process received signal ***\n[vm:1] Signal: Segmentation fault (11)\n[vm:1] *** End \
            of error message ***\n";
        assert_eq!(message(signal).as_deref(), Some("[vm:1] Signal: Segmentation fault (11)"));
        assert_eq!(message("one\ntwo\n---\n").as_deref(), Some("two"));
        assert_eq!(message(" WARN x: y cannot be had\nerror: z\n").as_deref(), Some("error: z"));
        assert_eq!(message("---\n"), None);
    }
}
