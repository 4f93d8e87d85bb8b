//! Options of a measurement between two processes, each with a card of its own.

use clap::Args;
use flexcast_lab::options::whole;

/// All addresses of this computer.
const EVERYWHERE: &str = "0.0.0.0";

/// Which half of the run this process does, and where the two meet.
#[derive(Debug, Args)]
#[command(next_help_heading = "Two hosts")]
pub(crate) struct HostsArgs {
    /// Receive, and wait at this address of this computer for the process that sends (`--client`) [default: all
    /// addresses].
    #[arg(long, value_name = "ADDRESS", num_args = 0..=1, require_equals = true, default_missing_value = EVERYWHERE)]
    #[arg(conflicts_with_all = ["client", "receiver", "sender"])]
    server: Option<String>,
    /// Send to the process that was started with `--server` on this host.
    #[arg(long, value_name = "HOST", conflicts_with_all = ["receiver", "sender"])]
    client: Option<String>,
    /// Card of this process [default: the first].
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// TCP port at which the two meet; emulated cards exchange their frames at UDP ports from this number on.
    #[arg(long, value_parser = whole::<u16>(1, u16::MAX - 1), value_name = "PORT", default_value_t = 18515)]
    pub(crate) port: u16,
    /// Longest wait for the other process, in seconds.
    #[arg(long, value_parser = whole::<u64>(1, 3600), value_name = "S", default_value_t = 60)]
    pub(crate) wait: u64,
}

/// One of the two processes.
#[derive(Debug)]
pub(crate) struct Side {
    /// 0 receives, 1 sends.
    pub(crate) rank: u32,
    /// Where they meet.
    pub(crate) address: String,
}

impl HostsArgs {
    /// This process's half; none where one process has both cards.
    pub(crate) fn side(&self) -> Option<Side> {
        let (rank, host) = match (&self.server, &self.client) {
            (Some(address), _) => (0, address),
            (None, Some(host)) => (1, host),
            (None, None) => return None,
        };
        let host = if host.contains(':') && !host.starts_with('[') { format!("[{host}]") } else { host.clone() };
        Some(Side { rank, address: format!("{host}:{}", self.port) })
    }
}
