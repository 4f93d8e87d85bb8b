//! File descriptors that a process has run out of.

use std::io;

/// A process, or the system, that has no file descriptor left for a socket.
///
/// Whoever opens sockets between ranks gives it in the place of the system's error: a program that reads "connection
/// failed" suspects a firewall.
#[derive(Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptorsUsedUp {
    /// The process has as many open files as it may have.
    #[error("this process has no file descriptor left{}: raise the limit with `ulimit -n` before it is started, or \
        close files", of(*.limit))]
    Process {
        /// Its limit; none if it has none.
        limit: Option<u64>,
    },
    /// All processes of this computer together have.
    #[error(
        "this computer has no file descriptor left for any process: raise `sysctl fs.file-max`, or end other programs"
    )]
    System,
}

flexcast_error::debug_as_display!(DescriptorsUsedUp);

impl DescriptorsUsedUp {
    /// What an error of the system is, if it is about file descriptors.
    #[must_use]
    pub fn find(error: &io::Error) -> Option<Self> {
        let code = rustix::io::Errno::from_raw_os_error(error.raw_os_error()?);
        match code {
            rustix::io::Errno::MFILE => {
                let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
                Some(Self::Process { limit })
            }
            rustix::io::Errno::NFILE => Some(Self::System),
            _ => None,
        }
    }

    /// What helps against an error of a socket: more file descriptors, if it is about those, and else `otherwise`.
    #[must_use]
    pub fn next_step(error: &io::Error, otherwise: &'static str) -> &'static str {
        match Self::find(error) {
            Some(Self::Process { .. }) => "raise the number of files that the process may open (`ulimit -n`)",
            Some(Self::System) => "raise the number of files that all processes may open (`sysctl fs.file-max`)",
            None => otherwise,
        }
    }
}

fn of(limit: Option<u64>) -> String {
    limit.map_or_else(String::new, |limit| format!(", of the {limit} that it may have"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_about_descriptors_name_the_limit_and_others_are_none() {
        let of = |code: rustix::io::Errno| DescriptorsUsedUp::find(&io::Error::from_raw_os_error(code.raw_os_error()));
        let text = of(rustix::io::Errno::MFILE).unwrap().to_string();
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap();
        assert!(text.contains(&format!("of the {limit} that it may have")) && text.contains("`ulimit -n`"), "{text}");
        assert!(of(rustix::io::Errno::NFILE).unwrap().to_string().contains("fs.file-max"));
        assert_eq!(of(rustix::io::Errno::CONNREFUSED), None);
        let next = |code: rustix::io::Errno| {
            DescriptorsUsedUp::next_step(&io::Error::from_raw_os_error(code.raw_os_error()), "check the firewall")
        };
        assert!(next(rustix::io::Errno::MFILE).contains("ulimit -n"));
        assert_eq!(next(rustix::io::Errno::TIMEDOUT), "check the firewall");
        assert_eq!(DescriptorsUsedUp::find(&io::Error::other("something")), None);
    }
}
