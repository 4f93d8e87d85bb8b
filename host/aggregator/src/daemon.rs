//! The daemon: serves until it is asked to stop, and answers those who ask for its status.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd as _;
use std::path::Path;

use crate::server::{Server, Settings, Status};
use flexcast_bootstrap::Secret;
use flexcast_daemon::http::Http;
use flexcast_daemon::manager::{NotifyState, notify};
use flexcast_daemon::signals::Signals;
use flexcast_daemon::status::StatusSocket;
use flexcast_daemon::{log, status};
use flexio::{ProtectionDomain, Provider};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::AggregatorError;
use crate::options::{LISTEN, ServeArgs, StatusArgs};

/// Between two checks of signals.
const POLL_MS: u8 = 50;

/// Serves until it is asked to stop.
///
/// # Errors
/// It cannot start, or a thread has failed.
pub fn serve(args: &ServeArgs) -> Result<(), AggregatorError> {
    let args = args.clone().with_file()?;
    let signals = Signals::new().map_err(AggregatorError::system("signals", ""))?;
    log::start()(args.log.as_deref().unwrap_or("info"));
    let local = || LISTEN.parse::<SocketAddr>().unwrap_or_else(|_| SocketAddr::from(([127, 0, 0, 1], 0)));
    let address = args.listen.unwrap_or_else(local);
    let what = format!("--listen {address}");
    let next = ": give an address of this computer, and a port that nobody else has";
    let listener = TcpListener::bind(address).map_err(AggregatorError::system(what, next))?;
    let http = match args.metrics {
        Some(address) => Some(Http::new(address).map_err(AggregatorError::system(format!("--metrics {address}"), ""))?),
        None => None,
    };
    let socket = match &args.status_socket {
        Some(path) => {
            let what = format!("--status-socket {}", path.display());
            Some(StatusSocket::new(path).map_err(AggregatorError::system(what, ""))?)
        }
        None => None,
    };
    let settings = Settings { secret: Secret::from_env()?, ..args.settings() };
    let (threads, memory_bytes, jobs) = (settings.threads, settings.memory_bytes, settings.jobs);
    let secret = if settings.secret.is_some() { "shared" } else { "none" };
    let server = match &args.device {
        Some(device) => Server::with_card(listener, settings, &card(device, args.libraries.as_deref())?)?,
        None => Server::start(listener, settings)?,
    };
    tracing::info!(
        listen = %server.address(), device = args.device.as_deref().unwrap_or("none"), threads, memory_bytes, jobs, secret,
        "serving"
    );
    notify(&[NotifyState::Ready]);
    let ended = run(&server, &signals, socket.as_ref(), http.as_ref());
    notify(&[NotifyState::Stopping]);
    server.stop();
    ended?;
    tracing::info!("stopped");
    Ok(())
}

/// Opens an RDMA card.
fn card(device: &str, libraries: Option<&Path>) -> Result<ProtectionDomain, AggregatorError> {
    let provider = match libraries {
        Some(folder) => Provider::from_folder(folder),
        None => Provider::rdma(),
    };
    provider
        .and_then(|provider| ProtectionDomain::new(&provider.open_plain(device)?))
        .map_err(|source| AggregatorError::Device { device: device.to_owned(), source })
}

fn run(
    server: &Server,
    signals: &Signals,
    socket: Option<&StatusSocket>,
    http: Option<&Http>,
) -> Result<(), AggregatorError> {
    loop {
        let mut fds = Vec::new();
        fds.extend(socket.map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN)));
        fds.extend(http.map(|http| PollFd::new(http.as_fd(), PollFlags::POLLIN)));
        match poll(&mut fds, PollTimeout::from(POLL_MS)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(AggregatorError::system("poll", "")(errno.into())),
        }
        if let Some(socket) = socket {
            socket.serve(|| server.status());
        }
        if let Some(http) = http {
            http.serve(|| crate::metrics::text(&server.status()));
        }
        if !server.is_alive() {
            return Err(AggregatorError::Died);
        }
        if signals.take_stop() {
            return Ok(());
        }
        if signals.take_reload() {
            tracing::warn!("nothing is read again: stop the daemon, and start it");
        }
    }
}

/// Asks a daemon that runs.
///
/// # Errors
/// It does not answer.
pub fn ask(socket: &Path) -> Result<Status, AggregatorError> {
    Ok(status::ask(socket, "flexcast-aggregator")?)
}

/// Prints what a daemon that runs is doing.
///
/// # Errors
/// It does not answer.
pub fn print_status(args: &StatusArgs) -> Result<(), AggregatorError> {
    let status = ask(&args.socket)?;
    if args.json {
        let text = serde_json::to_string(&status).unwrap_or_default();
        println!("{text}");
        return Ok(());
    }
    let Status {
        address,
        device,
        threads,
        memory_bytes,
        reserved_bytes,
        connected,
        accepted,
        refused,
        strangers,
        jobs,
    } = status;
    let device = device.map_or_else(String::new, |device| format!(" with {device}"));
    println!("{address}{device}: {threads} threads, {reserved_bytes} of {memory_bytes} bytes for sums taken");
    println!("{connected} workers are connected; of {accepted} connections, {refused} refused, {strangers} strangers");
    for job in jobs {
        let waits = match (job.operation, job.waits_for) {
            (None, _) => "idle".to_owned(),
            (Some(number), None) => format!("operation {number} ends"),
            (Some(number), Some(rank)) => format!("operation {number} waits for rank {rank}"),
        };
        println!(
            "job {}: aggregator {} of {}, {} of {} workers by {}, {waits}; {} operations, {} bytes received, {} bytes \
             for sums",
            job.job,
            job.aggregator,
            job.aggregators,
            job.connected,
            job.workers,
            job.carrier,
            job.operations,
            job.received_bytes,
            job.reserved_bytes
        );
    }
    Ok(())
}
