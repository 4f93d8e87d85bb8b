//! Hosts of the demonstration: each with an emulated card, whose process is its daemon.

use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use emu_config::{AttachTable, BridgeTable, Machine, PeerTable, ShareTable};
use flexcast_service::daemon::status::{Status, ask};

use super::child::{Process, until};
use super::{ProcessError, ProcessSpec, Programs};

/// Port of the first service process of each host, as by default.
const PORT: u16 = 4870;
/// Port of each host's card on the network of the cards.
const BRIDGE_PORT: u16 = 7471;
/// Addresses that are tried.
const TRIES: u32 = 64;
/// How long another card may be silent before it counts as gone.
const PEER_TIMEOUT_MS: u64 = 500;
/// Longest that a daemon may take to start.
const STARTS: Duration = Duration::from_secs(30);

/// The hosts: addresses of the loopback network of their own, so that nobody else takes their ports while a daemon is
/// gone.
#[derive(Debug)]
pub(super) struct Hosts {
    folder: PathBuf,
    addresses: Vec<Ipv4Addr>,
    processes: u32,
    pub(super) daemons: Vec<Option<Process>>,
}

fn free_addresses(hosts: u32, processes: u32) -> Result<Vec<Ipv4Addr>, ProcessError> {
    let own = std::process::id();
    let mut last = None;
    for number in (0..TRIES).map(|turn| own.wrapping_add(turn * 257)) {
        let address = |host: u32| Ipv4Addr::new(127, 64 + (number >> 8 & 63) as u8, number as u8, 1 + host as u8);
        let addresses: Vec<Ipv4Addr> = (0..hosts).map(address).collect();
        let is_free = |ip: &Ipv4Addr| -> std::io::Result<()> {
            UdpSocket::bind((*ip, BRIDGE_PORT))?;
            (0..processes as u16).try_for_each(|process| TcpListener::bind((*ip, PORT + process)).map(drop))
        };
        match addresses.iter().try_for_each(is_free) {
            Ok(()) => return Ok(addresses),
            Err(error) => last = Some(error),
        }
    }
    let source = last.unwrap_or_else(|| std::io::ErrorKind::AddrInUse.into());
    Err(ProcessError::System { what: "ports of the loopback network 127.0.0.0/8".to_owned(), source })
}

impl Hosts {
    /// Files of all hosts in a folder. No daemon runs yet.
    pub(super) fn new(folder: &Path, spec: &ProcessSpec, programs: &Programs) -> Result<Self, ProcessError> {
        let processes = spec.processes_per_host();
        let addresses = free_addresses(spec.hosts, processes)?;
        let daemons = (0..spec.hosts).map(|_| None).collect();
        let this = Self { folder: folder.to_owned(), addresses, processes, daemons };
        let mut secret = [0; 32];
        getrandom::fill(&mut secret)
            .map_err(|error| ProcessError::system("random numbers", std::io::Error::other(error)))?;
        let digits: String = secret.iter().map(|byte| format!("{byte:02x}")).collect();
        let written = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(this.secret());
        let written = written.and_then(|mut file| {
            file.set_permissions(std::fs::Permissions::from_mode(0o600))?;
            writeln!(file, "{digits}")
        });
        written.map_err(|error| ProcessError::system("the file of the secret", error))?;
        for host in 0..spec.hosts {
            let text = this.configuration(host, programs.libraries.as_deref());
            std::fs::write(this.path(host, "toml"), text)
                .map_err(|error| ProcessError::system("the configuration of a daemon", error))?;
        }
        Ok(this)
    }

    pub(super) fn secret(&self) -> PathBuf {
        self.folder.join("secret")
    }

    fn path(&self, host: u32, end: &str) -> PathBuf {
        self.folder.join(format!("host{host}.{end}"))
    }

    /// Where all service processes listen, host by host.
    pub(super) fn endpoints(&self) -> Vec<SocketAddr> {
        let ports = || (0..self.processes as u16).map(|process| PORT + process);
        let of = |ip: &Ipv4Addr| ports().map(|port| SocketAddr::new(IpAddr::V4(*ip), port)).collect::<Vec<_>>();
        self.addresses.iter().flat_map(of).collect()
    }

    fn configuration(&self, host: u32, libraries: Option<&Path>) -> String {
        let shown = |path: PathBuf| toml::Value::String(path.display().to_string());
        let libraries = libraries.map_or_else(String::new, |path| format!("libraries = {}\n", shown(path.to_owned())));
        format!(
            "device = \"mlx5_0_arm\"\n{libraries}listen = \"{}\"\nport = {PORT}\nprocesses = {}\nsecret = \
             {}\nstatus_socket = {}\nlock_directory = {}\n",
            self.addresses[host as usize],
            self.processes,
            shown(self.secret()),
            shown(self.path(host, "status")),
            shown(self.folder.clone()),
        )
    }

    /// The card of a host, for its daemon.
    fn machine(&self, host: u32) -> Machine {
        let address = |host: usize| format!("{}:{BRIDGE_PORT}", self.addresses[host]);
        let others = (0..self.addresses.len()).filter(|other| *other != host as usize);
        let peers = others.map(|other| PeerTable { address: address(other), first_card: other, cards: 1 });
        let bridge = BridgeTable {
            listen: address(host as usize),
            peer: None,
            peer_timeout_ms: Some(PEER_TIMEOUT_MS),
            peers: peers.collect(),
        };
        Machine {
            cards: Some(1),
            first_card: Some(host as usize),
            arm_functions: true,
            share: Some(ShareTable { clients: 256, ..ShareTable::at(self.path(host, "card")) }),
            bridge: (self.addresses.len() > 1).then_some(bridge),
            ..Machine::default()
        }
    }

    /// What a rank of a host is given to use its card.
    pub(super) fn attach(&self, host: u32) -> Result<String, ProcessError> {
        let attach = AttachTable { socket: self.path(host, "card"), timeout_ms: None };
        text_of(&Machine { attach: Some(attach), ..Machine::default() })
    }

    /// Starts the daemon of a host; returns when it serves, with the time that it took.
    pub(super) fn start(
        &mut self,
        host: u32,
        programs: &Programs,
        stop: &AtomicBool,
    ) -> Result<Duration, ProcessError> {
        let begun = Instant::now();
        let mut command = Command::new(&programs.flexcast);
        command.args(["service", super::DAEMON_COMMAND, "--parent", &std::process::id().to_string(), "--config"]);
        command.arg(self.path(host, "toml")).stdin(Stdio::null()).stdout(Stdio::null());
        if let Some(daemon) = &programs.daemon {
            command.arg("--program").arg(daemon);
        }
        command.env("FLEXCAST_MACHINE", text_of(&self.machine(host))?);
        let name = format!("daemon {host}");
        let mut process = Process::start(&name, &self.folder, &mut command)?;
        let (socket, id) = (self.path(host, "status"), process.id());
        until(&format!("the start of {name}"), STARTS, stop, || match ask(&socket) {
            Ok(status) if status.pid == id => Ok(Some(())),
            _ if process.is_over() => Err(process.lost()),
            _ => Ok(None),
        })?;
        self.daemons[host as usize] = Some(process);
        Ok(begun.elapsed())
    }

    /// What a daemon says of itself.
    pub(super) fn status(&self, host: u32) -> Result<Status, ProcessError> {
        ask(&self.path(host, "status"))
            .map_err(|error| ProcessError::Rank { name: format!("daemon {host}"), said: error.to_string() })
    }
}

fn text_of(machine: &Machine) -> Result<String, ProcessError> {
    let text = toml::to_string(machine)
        .map_err(|error| ProcessError::system("a description of a card", std::io::Error::other(error)))?;
    Ok(format!("toml:{text}"))
}
