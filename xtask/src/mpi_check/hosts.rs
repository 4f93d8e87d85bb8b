//! Two hosts as network namespaces at one link of limited rate, which are gone when this program is, however it ends.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::process;

/// Name of the interface of both hosts.
pub(super) const INTERFACE: &str = "eth0";
/// Names of namespaces begin so; the owner's process id follows.
const PREFIX: &str = "flexcast-overlap-";
/// Waits until its owner closes its input, or is killed; then ends what runs in the namespaces named, and removes them.
const KEEPER: &str = "trap '' INT TERM HUP; cat > /dev/null; for name; do for turn in 1 2 3; do ip netns pids $name 2> \
    /dev/null | xargs -r kill -9 2> /dev/null; done; ip netns delete $name 2> /dev/null; done; true";
/// A program of a rank on its host: prefix of the hosts' names, then variables and the program. Prints the processor
/// time of the program on stderr.
pub(super) const ON_HOST: &str =
    "host=$1-$PMI_RANK; shift; ip netns exec $host env \"$@\"; code=$?; times >&2; exit $code";

/// The hosts 10.77.0.1 and 10.77.0.2.
pub(super) struct Hosts {
    prefix: String,
    keeper: Child,
}

impl Hosts {
    /// Makes them, with a link that carries `rate` each way, as `tc` writes it; else says why they cannot be made.
    pub(super) fn new(rate: &str) -> Result<Self, String> {
        for (program, package) in [("ip", "iproute2"), ("tc", "iproute2"), ("xargs", "findutils")] {
            if process::find(program).is_none() {
                return Err(format!("`{program}` is not installed; Debian: apt-get install {package}"));
            }
        }
        remove_leftovers();
        let prefix = format!("{PREFIX}{}", std::process::id());
        let names = [0, 1].map(|host| format!("{prefix}-{host}"));
        // Before anything is made: what is made is removed when its input is closed, by whatever ends this program.
        let mut keeper = Command::new("sh");
        keeper.args(["-c", KEEPER, "sh"]).args(&names).process_group(0);
        let keeper = keeper.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let hosts = Self { prefix, keeper: keeper.map_err(|error| format!("`sh` cannot be started: {error}"))? };
        for name in &names {
            run(&["ip", "netns", "add", name], "")?;
        }
        let [one, other] = &names;
        run(
            &["ip", "link", "add", INTERFACE, "netns", one, "type", "veth", "peer", "name", INTERFACE, "netns", other],
            "",
        )?;
        for (number, name) in (1..).zip(&names) {
            let lines = format!(
                "link set lo up\naddr add 10.77.0.{number}/24 dev {INTERFACE}\nlink set {INTERFACE} up\n\
                 route add 224.0.0.0/4 dev {INTERFACE}\n"
            );
            run(&["ip", "-n", name, "-batch", "-"], &lines)?;
            let limit = ["root", "tbf", "rate", rate, "burst", "256k", "latency", "20ms"];
            run(&[&["tc", "-n", name, "qdisc", "add", "dev", INTERFACE], &limit[..]].concat(), "")?;
        }
        Ok(hosts)
    }

    /// What the names of the hosts have in common; a rank's number follows.
    pub(super) fn prefix(&self) -> &str {
        &self.prefix
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        drop(self.keeper.stdin.take());
        // There is nothing to do about a keeper that has failed.
        let _ = self.keeper.wait();
    }
}

/// Removes what is left of owners that ended together with their keeper.
fn remove_leftovers() {
    let Ok(listed) = Command::new("ip").args(["netns", "list"]).output() else { return };
    let listed = String::from_utf8_lossy(&listed.stdout);
    for name in leftovers(&listed, |owner| Path::new(&format!("/proc/{owner}")).exists()) {
        let _ = Command::new("ip").args(["netns", "delete", name]).output();
    }
}

fn leftovers(listed: &str, is_alive: impl Fn(u32) -> bool) -> Vec<&str> {
    let owner = |name: &str| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse::<u32>().ok();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    names.filter(|name| owner(name).is_some_and(|owner| !is_alive(owner))).collect()
}

/// Runs a program with lines to its input; else says what it said.
fn run(words: &[&str], input: &str) -> Result<(), String> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let ended = command.spawn().and_then(|mut child| {
        if let Some(mut stdin) = child.stdin.take() {
            // One that has failed does not read.
            let _ = stdin.write_all(input.as_bytes());
        }
        child.wait_with_output()
    });
    match ended {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let said = String::from_utf8_lossy(&output.stderr);
            Err(format!("`{}`: {}", process::line(&command), said.lines().next().unwrap_or("no message")))
        }
        Err(error) => Err(format!("`{}`: {error}", process::line(&command))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dead_owners_have_left_is_recognised() {
        let listed = "flexcast-overlap-100-0 (id: \
            3)\nflexcast-overlap-200-1\nflexcast-overlap-x-1\nflexcast-compare-100-0\nother\n";
        assert_eq!(leftovers(listed, |owner| owner == 200), ["flexcast-overlap-100-0"]);
    }

    #[test]
    fn what_a_program_printed_is_reported() {
        assert_eq!(
            run(&["sh", "-c", "cat; echo no >&2; exit 2"], "x"),
            Err("`sh -c 'cat; echo no >&2; exit 2'`: no".to_owned())
        );
        assert_eq!(run(&["grep", "-q", "x"], "x\n"), Ok(()));
    }
}
