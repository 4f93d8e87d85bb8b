//! Another computer, reached by the system's OpenSSH: commands there and copies both ways, each with a bound.

use std::fmt;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use crate::process;

/// `ssh://[USER@]HOST[:PORT]`
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    user: Option<String>,
    host: String,
    port: Option<u16>,
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |why: &str| format!("{why}; write ssh://[USER@]HOST[:PORT], such as ssh://ubuntu@192.168.100.2:22");
        let rest = text.strip_prefix("ssh://").ok_or_else(|| wrong("only ssh:// is understood"))?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (user, place) = match rest.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, rest),
        };
        let (host, port) = match place.strip_prefix('[').and_then(|inner| inner.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or_else(|| wrong("no port behind `]`"))?)),
            None => place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port))),
        };
        // Neither may be taken for an option of ssh, or for anything by a shell.
        let plain = |text: &str, more: &str| {
            text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_' || (c == ':' && more.contains(c)))
                && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c) || more.contains(c))
        };
        if !plain(host, ":%") {
            return Err(wrong(&format!("`{host}` is no name or address of a host")));
        }
        if let Some(user) = user.filter(|user| !plain(user, "")) {
            return Err(wrong(&format!("`{user}` is no user")));
        }
        let number = |port: &str| port.parse().ok().filter(|port| *port > 0);
        let port =
            port.map(|port| number(port).ok_or_else(|| wrong(&format!("port `{port}`: 1 to 65535")))).transpose()?;
        Ok(Self { user: user.map(str::to_owned), host: host.to_owned(), port })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
        let port = self.port.map(|port| format!(":{port}")).unwrap_or_default();
        if self.host.contains(':') {
            return write!(f, "ssh://{user}[{}]{port}", self.host);
        }
        write!(f, "ssh://{user}{}{port}", self.host)
    }
}

/// The computer at an address.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) address: Address,
    /// Configuration of OpenSSH in place of the user's.
    pub(crate) config: Option<PathBuf>,
    /// Longest copy, each way.
    pub(crate) copy_bound: Duration,
}

/// Longest command there that only handles files.
pub(crate) const COMMAND_BOUND: Duration = Duration::from_secs(60);
/// What ssh ends with where it failed itself.
const SSH_FAILED: i32 = 255;

impl Remote {
    /// A program of OpenSSH with options that keep it from asking anybody, and from waiting for a dead connection.
    fn program(&self, name: &str, port_option: &str) -> Command {
        let mut command = Command::new(name);
        if let Some(config) = &self.config {
            command.arg("-F").arg(config);
        }
        for option in [
            "BatchMode=yes",
            "StrictHostKeyChecking=yes",
            "ConnectTimeout=10",
            "ServerAliveInterval=5",
            "ServerAliveCountMax=3",
        ] {
            command.args(["-o", option]);
        }
        if let Some(port) = self.address.port {
            command.args([port_option, &port.to_string()]);
        }
        command
    }

    fn login(&self) -> String {
        match &self.address.user {
            Some(user) => format!("{user}@{}", self.address.host),
            None => self.address.host.clone(),
        }
    }

    /// The command that runs a script, which it takes from stdin, in the shell `sh` there.
    pub(crate) fn shell(&self) -> Command {
        let mut command = self.program("ssh", "-p");
        command.arg("-T").arg(self.login()).args(["sh", "-s"]);
        command
    }

    fn place(&self, path: &str) -> String {
        let login = if self.address.host.contains(':') {
            let user = self.address.user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
            format!("{user}[{}]", self.address.host)
        } else {
            self.login()
        };
        format!("{login}:{path}")
    }

    /// The command that copies a folder there.
    pub(crate) fn copy_there(&self, folder: &Path, to: &str) -> Command {
        let mut command = self.program("scp", "-P");
        command.args(["-q", "-r", "-p"]).arg(folder).arg(self.place(to));
        command
    }

    /// The command that brings a folder from there.
    pub(crate) fn copy_here(&self, from: &str, folder: &Path) -> Command {
        let mut command = self.program("scp", "-P");
        command.args(["-q", "-r", "-p"]).arg(self.place(from)).arg(folder);
        command
    }

    /// Runs a script there, and returns what it prints.
    ///
    /// # Errors
    /// The computer cannot be reached, the script failed (with its stderr), or it has not ended within a minute.
    pub(crate) fn script(&self, what: &str, script: &str) -> Result<String> {
        self.script_within(what, script, COMMAND_BOUND)
    }

    /// The same with another bound.
    pub(crate) fn script_within(&self, what: &str, script: &str, bound: Duration) -> Result<String> {
        let ended = bounded(&mut self.shell(), script, bound)?;
        self.judge(what, ended, bound)
    }

    /// Runs a command that copies.
    ///
    /// # Errors
    /// As [`Remote::script`], with the bound of copies.
    pub(crate) fn copy(&self, what: &str, mut command: Command) -> Result<()> {
        let ended = bounded(&mut command, "", self.copy_bound)?;
        self.judge(what, ended, self.copy_bound).map(drop)
    }

    fn judge(&self, what: &str, ended: Ended, bound: Duration) -> Result<String> {
        let said = ended.stderr.trim();
        let Some(status) = ended.status else {
            bail!("{what} at {}: not ended within {} s, and given up", self.address, bound.as_secs());
        };
        if status.success() {
            return Ok(ended.stdout);
        }
        let of_ssh = status.code() == Some(SSH_FAILED) || ended.program == "scp";
        let reason = if said.is_empty() { status.to_string() } else { said.to_owned() };
        match self.next_step(said).filter(|_| of_ssh) {
            Some(step) => bail!("{what} at {}: {reason}\n  {step}", self.address),
            None => bail!("{what} at {}: {reason}", self.address),
        }
    }

    /// What the user can do about a failure of ssh.
    fn next_step(&self, said: &str) -> Option<String> {
        let by_hand = {
            let mut command = Command::new("ssh");
            if let Some(port) = self.address.port {
                command.args(["-p", &port.to_string()]);
            }
            process::line(command.arg(self.login()))
        };
        let step = if said.contains("IDENTIFICATION HAS CHANGED") {
            "the host has another key than before: find out why; `ssh-keygen -R HOST` forgets the old one".to_owned()
        } else if said.contains("Host key verification failed") || said.contains("host key is known") {
            format!(
                "its host key is not known here: log in once by hand (`{by_hand}`) and compare the key's fingerprint"
            )
        } else if said.contains("Permission denied (") {
            format!(
                "no password is asked for: have a key of yours accepted there (`ssh-copy-id`) and offered by an agent, \
                 and try `{by_hand} -o BatchMode=yes`"
            )
        } else if said.contains("Could not resolve") {
            "is the name right?".to_owned()
        } else if said.contains("Connection refused") || said.contains("timed out") {
            "does an sshd listen there, on this port, and is the way to it open?".to_owned()
        } else if said.contains("Failure") || said.contains("No space") || said.contains("lost connection") {
            "the copy is not whole, and was not put in place: see whether there is room (`df`) and the connection holds"
                .to_owned()
        } else {
            return None;
        };
        Some(step)
    }
}

/// How a program ended; no status: it did not, and was killed.
struct Ended {
    program: String,
    status: Option<ExitStatus>,
    stdout: String,
    stderr: String,
}

/// Runs a program with this input for at most so long.
fn bounded(command: &mut Command, input: &str, bound: Duration) -> Result<Ended> {
    let line = process::line(command);
    let program = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let hint = || format!("{line}\n  OpenSSH's programs ssh and scp are needed (Debian: openssh-client)");
    let mut child = command.spawn().with_context(hint)?;
    // A pipe takes less than what a program may say; each is read by a thread of its own.
    let (mut stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    std::thread::scope(|scope| {
        let text = |pipe: Option<&mut dyn std::io::Read>| {
            let mut bytes = Vec::new();
            pipe.map(|pipe| pipe.read_to_end(&mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let mut stdout = stdout;
        let mut stderr = stderr;
        let out = scope.spawn(move || text(stdout.as_mut().map(|pipe| pipe as _)));
        let err = scope.spawn(move || text(stderr.as_mut().map(|pipe| pipe as _)));
        if let Some(mut pipe) = stdin.take() {
            // A program that has ended already says why on stderr.
            let _ = pipe.write_all(input.as_bytes());
        }
        let status = wait(&mut child, bound).with_context(|| line.clone())?;
        let joined = |thread: std::thread::ScopedJoinHandle<'_, String>| thread.join().unwrap_or_default();
        Ok(Ended { program, status, stdout: joined(out), stderr: joined(err) })
    })
}

/// The status of a program that ends in time; one that does not is killed.
pub(crate) fn wait(child: &mut Child, bound: Duration) -> Result<Option<ExitStatus>> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        if start.elapsed() > bound {
            child.kill()?;
            child.wait()?;
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_written() {
        for text in ["ssh://host", "ssh://me@host:2222", "ssh://me@[fe80::1%eth0]:22", "ssh://10.0.0.1"] {
            assert_eq!(text.parse::<Address>().expect(text).to_string(), text);
        }
        for (text, word) in [
            ("host", "only ssh://"),
            ("ssh://", "no name or address"),
            ("ssh://-oProxyCommand=x", "no name or address"),
            ("ssh://a b", "no name or address"),
            ("ssh://-l@host", "no user"),
            ("ssh://host:0", "port `0`"),
            ("ssh://host:99999", "port `99999`"),
            ("ssh://[::1]22", "no port behind"),
        ] {
            let refused = text.parse::<Address>().expect_err(text);
            assert!(refused.contains(word) && refused.contains("ssh://[USER@]HOST[:PORT]"), "{refused}");
        }
    }

    #[test]
    fn a_program_that_does_not_end_is_given_up() {
        let ended = bounded(Command::new("sleep").arg("600"), "", Duration::from_millis(50)).expect("started");
        assert!(ended.status.is_none());
        let ended = bounded(Command::new("sh").arg("-s"), "echo out; echo err >&2; exit 3", COMMAND_BOUND);
        let ended = ended.expect("started");
        assert_eq!((ended.stdout.as_str(), ended.stderr.as_str()), ("out\n", "err\n"));
        assert_eq!(ended.status.and_then(|status| status.code()), Some(3));
    }
}
