//! The daemon: starts the service processes of a card, and answers signals and questions until they end.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::time::{Duration, Instant};

use flexcast_daemon::http::Http;
use flexcast_daemon::lock::{LockError, LockFile};
use flexcast_daemon::manager::{NotifyState, notify, notify_reload, watchdog_timeout};
use flexcast_daemon::signals::Signals;
use flexcast_daemon::status::StatusSocket;
use flexio::Provider;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::config::Config;
use super::metrics;
use super::reload::merged;
use super::status::{State, Status};
use super::{DaemonError, read_secret};
use crate::net::processes::Processes;

/// Between two checks of signals and of the processes.
const POLL_MS: u8 = 50;

/// A daemon that runs.
struct Daemon<'p> {
    path: &'p Path,
    config: Config,
    epoch: u64,
    card: u64,
    begun: Instant,
    state: State,
    processes: Processes,
    log: &'p dyn Fn(&str),
}

/// Runs the daemon with the configuration file at `path`, until it is asked to stop. `log` sets the level of the log,
/// when that changes.
///
/// # Errors
/// It cannot start, or a service process has failed.
pub fn serve(path: &Path, log: &dyn Fn(&str)) -> Result<(), DaemonError> {
    serve_on(path, log, |config| match &config.libraries {
        Some(folder) => Provider::from_folder(folder),
        None => Provider::rdma(),
    })
}

/// Runs the daemon as [`serve`] does, on the cards of the provider that `open` gives for its configuration.
///
/// # Errors
/// As [`serve`].
pub fn serve_on(
    path: &Path,
    log: &dyn Fn(&str),
    open: impl FnOnce(&Config) -> flexio::Result<Provider>,
) -> Result<(), DaemonError> {
    let signals = Signals::new().map_err(DaemonError::system("signals"))?;
    let config = Config::read(path)?;
    log(&config.log);
    let secret = read_secret(&config.secret)?;
    let provider = open(&config);
    let card_error = |error: flexio::Error| DaemonError::service(format!("`device` {}", config.device))(error.into());
    let device = provider.and_then(|provider| provider.open(&config.device)).map_err(card_error)?;
    let card = device.system_image_guid().map_err(card_error)?;
    // Until the end of this function.
    let _lock = lock(&config, card)?;
    let listeners = (0..config.processes as u16).map(|number| {
        let address = SocketAddr::new(config.listen, config.port + number);
        TcpListener::bind(address).map_err(DaemonError::system(format!("service process {number} on {address}")))
    });
    let listeners: Vec<TcpListener> = listeners.collect::<Result<_, _>>()?;
    let http = match config.metrics {
        Some(address) => Some(Http::new(address).map_err(DaemonError::system(format!("`metrics` {address}")))?),
        None => None,
    };
    let socket = StatusSocket::new(&config.status_socket)
        .map_err(DaemonError::system(format!("`status_socket` {}", config.status_socket.display())))?;
    let mut epoch = [0; 8];
    getrandom::fill(&mut epoch).map_err(|error| DaemonError::system("random numbers")(std::io::Error::other(error)))?;
    let epoch = u64::from_le_bytes(epoch);
    let processes = Processes::start(&device, listeners, config.settings(secret, epoch), config.pace());
    let processes = processes.map_err(DaemonError::service("the service processes"))?;
    let (begun, state) = (Instant::now(), State::Serving);
    let mut daemon = Daemon { path, config, epoch, card, begun, state, processes, log };
    tracing::info!(
        device = %daemon.config.device, card = %format!("{card:016x}"), processes = daemon.config.processes,
        listen = %daemon.config.listen, port = daemon.config.port, "serving"
    );
    notify(&[NotifyState::Ready]);
    let ended = daemon.run(&signals, &socket, http.as_ref());
    drop(socket);
    ended?;
    // Where one has failed, the others end with it.
    daemon.processes.end();
    daemon.processes.join().map_err(DaemonError::service("a service process has failed"))?;
    tracing::info!("stopped");
    Ok(())
}

/// Locks the card for this daemon.
fn lock(config: &Config, card: u64) -> Result<LockFile, DaemonError> {
    let path = config.lock_directory.join(format!("card-{card:016x}.lock"));
    LockFile::new(&path).map_err(|error| match error {
        LockError::Taken { pid, lock } => DaemonError::Taken { card, device: config.device.clone(), pid, lock },
        error => DaemonError::Lock(error),
    })
}

impl Daemon<'_> {
    fn status(&self) -> Status {
        Status {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            state: self.state,
            uptime_s: self.begun.elapsed().as_secs(),
            device: self.config.device.clone(),
            card: format!("{:016x}", self.card),
            limits: self.config.limits,
            times: self.config.times,
            processes: self.processes.statuses(),
        }
    }

    fn run(&mut self, signals: &Signals, socket: &StatusSocket, http: Option<&Http>) -> Result<(), DaemonError> {
        let watchdog = watchdog_timeout();
        let mut notified = Instant::now();
        let mut turns = Vec::new();
        loop {
            let mut fds = vec![PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
            fds.extend(http.map(|http| PollFd::new(http.as_fd(), PollFlags::POLLIN)));
            match poll(&mut fds, PollTimeout::from(POLL_MS)) {
                Ok(_) | Err(nix::errno::Errno::EINTR) => {}
                Err(errno) => return Err(DaemonError::system("poll")(errno.into())),
            }
            if signals.take_stop() {
                self.stop();
            }
            if signals.take_reload() {
                self.reload();
            }
            // Before the questions are answered, so that these find the end.
            let is_over = self.processes.are_over() || (self.state == State::Serving && self.processes.is_over());
            socket.serve(|| self.status());
            if let Some(http) = http {
                http.serve(|| metrics::text(&self.status()));
            }
            if is_over {
                return Ok(());
            }
            // The manager is notified while all processes go on.
            if watchdog.is_some_and(|bound| notified.elapsed() >= bound / 3) {
                let now = self.processes.turns();
                if now.iter().zip(&turns).all(|(now, before)| now != before) {
                    notify(&[NotifyState::Watchdog]);
                }
                (notified, turns) = (Instant::now(), now);
            }
        }
    }

    fn stop(&mut self) {
        if self.state == State::Stopping {
            tracing::warn!("asked to stop once more: ending at once");
            self.processes.end();
            return;
        }
        self.state = State::Stopping;
        let within = Duration::from_millis(self.config.times.stop_timeout_ms);
        tracing::info!(within_ms = self.config.times.stop_timeout_ms, "stopping: collectives under way may end");
        notify(&[NotifyState::Stopping]);
        self.processes.stop(within);
    }

    fn reload(&mut self) {
        notify_reload();
        match Config::read(self.path).and_then(|config| Ok((read_secret(&config.secret)?, config))) {
            Ok((secret, config)) => {
                let (merged, restart) = merged(&self.config, config);
                (self.log)(&merged.log);
                self.processes.reload(merged.settings(secret, self.epoch));
                self.config = merged;
                restart.iter().for_each(|line| tracing::warn!("{line}"));
                tracing::info!("configuration read again");
            }
            Err(error) => tracing::error!(%error, "the configuration stays as it was"),
        }
        notify(&[NotifyState::Ready]);
    }
}
