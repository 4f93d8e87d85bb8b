//! The process behind a machine: who it is, and whether it is still there.

/// A process of this computer, or of another: a number is given again, but not with the same time of start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Process {
    /// Its number; 0 if it is not known.
    pub(crate) pid: u32,
    /// When it was started, in clock ticks since the computer was.
    pub(crate) started: u64,
}

/// State and start of a process, as `/proc` has them.
fn stat(pid: u32) -> Option<(char, u64)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    parse(&text)
}

/// `proc(5)`: the name, which may hold anything, is in parentheses; behind it fields from the third on.
fn parse(text: &str) -> Option<(char, u64)> {
    let mut fields = text.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

/// A number of this process that no other one of this computer has, also after it has ended: for numbers that must
/// differ from run to run.
#[must_use]
pub fn process_number() -> u64 {
    let Process { pid, started } = Process::own();
    started.rotate_left(22) ^ u64::from(pid)
}

impl Process {
    /// The calling one.
    pub(crate) fn own() -> Self {
        Self::of(std::process::id())
    }

    /// Another one of this computer, as it is now.
    pub(crate) fn of(pid: u32) -> Self {
        stat(pid).map_or_else(Self::default, |(_, started)| Self { pid, started })
    }

    /// Whether there was one.
    pub(crate) fn is_known(self) -> bool {
        self.pid != 0
    }

    /// Whether it can be inspected from here: it is on this computer, and this process may see it.
    pub(crate) fn is_seen(self) -> bool {
        self.pid != 0 && stat(self.pid).is_some_and(|(_, started)| started == self.started)
    }

    /// Whether one that was seen has ended.
    pub(crate) fn has_ended(self) -> bool {
        stat(self.pid).is_none_or(|(state, started)| started != self.started || matches!(state, 'Z' | 'X'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Command, Stdio};

    #[test]
    fn names_do_not_confuse() {
        let text = "7 (a) R) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 4711 2 3";
        assert_eq!(parse(text), Some(('S', 4711)));
        assert_eq!(parse("7 (a) S 1 7"), None);
        assert_eq!(parse(""), None);
    }

    #[test]
    fn a_process_is_seen_until_it_ends() {
        assert!(Process::own().is_seen() && !Process::own().has_ended());
        assert!(!Process::default().is_seen());
        let mut child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap();
        let pid = child.id();
        let process = Process { pid, started: stat(pid).unwrap().1 };
        assert!(process.is_seen() && !process.has_ended());
        assert!(!Process { started: process.started + 1, ..process }.is_seen(), "another one of that number");
        child.kill().unwrap();
        while !process.has_ended() {
            std::thread::yield_now();
        }
        // Not waited for yet: it has ended all the same.
        assert!(std::path::Path::new(&format!("/proc/{pid}")).exists());
        child.wait().unwrap();
        assert!(process.has_ended());
    }
}
