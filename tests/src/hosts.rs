//! Hosts as network namespaces at one bridge, for tests that cut their links. They are gone when they are dropped.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::harness::skipped;

/// Begins the names of namespaces, where `FLEXCAST_HOSTS` does not say another beginning.
const PREFIX: &str = "flexcast-hosts-";
/// Name of the interface of every host.
pub const INTERFACE: &str = "eth0";
/// Name of the interface of every host in a VLAN, where there is one.
pub const VLAN_INTERFACE: &str = "eth0.5";
/// The system's number for the state of a port that forwards.
const FORWARDING: &str = "3";
/// Longest that a link takes to come up again.
const LINK_UP: Duration = Duration::from_secs(10);

/// How the network of a host is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Its interface is taken down.
    Interface,
    /// The port of the switch is taken down.
    Port,
    /// All packets are dropped in both directions; interface and port stay up.
    Drop,
}

impl Cut {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Interface, Self::Port, Self::Drop];
}

/// How the switch treats multicast.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Snooping {
    /// It forwards it to the members of a group, and asks for them.
    #[default]
    Querier,
    /// It forwards it to the members of a group, does not ask, and forgets them a second after they have joined; other
    /// switches do so after minutes.
    Forgetful,
}

/// What the network of hosts is made of.
#[derive(Clone, Copy, Debug)]
pub struct Wiring {
    /// How the switch treats multicast.
    pub snooping: Snooping,
    /// MTU of the interfaces of hosts.
    pub host_mtu: u32,
    /// MTU of the ports of the switch.
    pub switch_mtu: u32,
    /// The interfaces of hosts cut and join packets.
    pub offloads: bool,
    /// Hosts have IPv4 addresses.
    pub ipv4: bool,
    /// Hosts have IPv6 addresses, not link-local ones alone.
    pub ipv6: bool,
    /// The addresses are those of interface [`VLAN_INTERFACE`], whose packets have a VLAN tag.
    pub vlan: bool,
}

impl Default for Wiring {
    fn default() -> Self {
        let (snooping, mtu) = (Snooping::Querier, 1500);
        Self { snooping, host_mtu: mtu, switch_mtu: mtu, offloads: true, ipv4: true, ipv6: true, vlan: false }
    }
}

/// Hosts and their switch.
#[derive(Debug)]
pub struct Hosts {
    prefix: String,
    count: u32,
}

impl Hosts {
    /// Makes so many hosts: `10.78.0.1` and `fd78::1`, and so on. Gives None, and says so in one line, where the system
    /// does not permit it.
    ///
    /// # Panics
    /// The system permits namespaces, and they cannot be connected.
    #[must_use]
    pub fn new(count: u32) -> Option<Self> {
        Self::wired(count, &Wiring::default())
    }

    /// The same with another network. Offloads cannot be off without ethtool.
    ///
    /// # Panics
    /// As [`Hosts::new`].
    #[must_use]
    pub fn wired(count: u32, wiring: &Wiring) -> Option<Self> {
        static NUMBER: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let begin = std::env::var("FLEXCAST_HOSTS").unwrap_or_else(|_| PREFIX.to_owned());
        let hosts = Self { prefix: format!("{begin}{}-{number}", std::process::id()), count };
        let probe = run("ip", &["netns", "add", &hosts.switch()]);
        let entered = probe.and_then(|_| hosts.within(&hosts.switch(), "true", &[]));
        if let Err(reason) = entered {
            skipped(format_args!("network namespaces cannot be made here: {}", reason.trim()));
            return None;
        }
        if !wiring.offloads && run("ethtool", &["--version"]).is_err() {
            skipped("ethtool, which switches offloads off, is not installed (Debian: ethtool)");
            return None;
        }
        hosts.connect(wiring).unwrap_or_else(|reason| panic!("hosts cannot be connected: {reason}"));
        Some(hosts)
    }

    fn connect(&self, wiring: &Wiring) -> Result<(), String> {
        let Wiring { snooping, host_mtu, switch_mtu, offloads, ipv4, ipv6, vlan } = *wiring;
        let (switch, bridge) = (self.switch(), ["link", "set", "br0", "type", "bridge"]);
        let set = |options: &[&str]| self.within(&switch, "ip", &[&bridge, options].concat());
        let (host_mtu, switch_mtu) = (host_mtu.to_string(), switch_mtu.to_string());
        self.within(&switch, "ip", &["link", "add", "br0", "type", "bridge", "forward_delay", "0"])?;
        // In hundredths of a second. Before it has waited for answers a querier floods.
        set(&["mcast_snooping", "1", "mcast_query_response_interval", "10"])?;
        // A report that is lost while ports come up is asked for again, as by a querier that has been there for long.
        match snooping {
            Snooping::Forgetful => set(&["mcast_membership_interval", "100"])?,
            _ => set(&["mcast_query_interval", "50", "mcast_startup_query_interval", "50"])?,
        };
        set(&["mcast_querier", "1"])?;
        self.within(&switch, "ip", &["link", "set", "br0", "up"])?;
        for host in 0..self.count {
            let (name, port) = (self.host(host), port(host));
            let on_host = |words: &[&str]| self.within(&name, "ip", words);
            run("ip", &["netns", "add", &name])?;
            let link =
                ["link", "add", INTERFACE, "mtu", &host_mtu, "netns", &name, "type", "veth", "peer", "name", &port];
            run("ip", &[&link[..], &["mtu", &switch_mtu, "netns", &switch]].concat())?;
            self.within(&switch, "ip", &["link", "set", &port, "master", "br0", "up"])?;
            on_host(&["link", "set", "lo", "up"])?;
            if !offloads {
                self.within(&name, "ethtool", &["-K", INTERFACE, "tso", "off", "gso", "off", "gro", "off"])?;
            }
            let interface = if vlan { VLAN_INTERFACE } else { INTERFACE };
            if vlan {
                on_host(&["link", "add", "link", INTERFACE, "name", VLAN_INTERFACE, "type", "vlan", "id", "5"])?;
            }
            if ipv4 {
                on_host(&["addr", "add", &format!("{}/24", address(host)), "dev", interface])?;
            }
            if ipv6 {
                on_host(&["-6", "addr", "add", &format!("{}/64", address_v6(host)), "dev", interface, "nodad"])?;
            }
            on_host(&["link", "set", INTERFACE, "up"])?;
            if vlan {
                on_host(&["link", "set", VLAN_INTERFACE, "up"])?;
            }
        }
        // Before it carries packets, the report of a group that is joined is lost.
        (0..self.count).for_each(|host| self.await_link(host));
        Ok(())
    }

    /// Whether the system has interfaces of VLANs; if not, says so.
    #[must_use]
    pub fn has_vlans(&self) -> bool {
        let words = ["link", "add", "link", INTERFACE, "name", "probe", "type", "vlan", "id", "6"];
        let made = self.within(&self.host(0), "ip", &words);
        let _ = self.within(&self.host(0), "ip", &["link", "delete", "probe"]);
        if let Err(reason) = &made {
            skipped(format_args!("no VLANs can be made here: {}", reason.trim()));
        }
        made.is_ok()
    }

    /// A program on a host.
    #[must_use]
    pub fn on(&self, host: u32, program: &Path) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host(host)]).arg(program);
        command
    }

    /// Runs a program on a host to its end, and gives what it prints.
    ///
    /// # Panics
    /// It fails.
    pub fn run(&self, host: u32, program: &str, words: &[&str]) -> String {
        self.within(&self.host(host), program, words).unwrap_or_else(|reason| panic!("{program} {words:?}: {reason}"))
    }

    /// Drops so many of 100 UDP packets that come to a host.
    ///
    /// # Panics
    /// There is no nftables.
    pub fn lose(&self, host: u32, percent: u32) {
        let rules = format!(
            "table inet loss {{ chain in {{ type filter hook prerouting priority -150; meta l4proto udp numgen random \
             mod 100 < {percent} drop; }}; }}"
        );
        self.run(host, "nft", &[&rules]);
    }

    /// Drops what is multicast to groups of 239.0.0.0/8 and comes to a host, if an expression of nftables matches it.
    ///
    /// # Panics
    /// There is no nftables.
    pub fn lose_multicast(&self, host: u32, matches: &str) {
        let hook = "type filter hook prerouting priority -150";
        let rules = format!("table inet lost {{ chain in {{ {hook}; ip daddr 239.0.0.0/8 {matches} drop; }}; }}");
        self.run(host, "nft", &[&rules]);
    }

    /// Cuts the network of a host.
    ///
    /// # Panics
    /// A program that does it is missing.
    pub fn cut(&self, host: u32, cut: Cut) {
        match cut {
            Cut::Interface => _ = self.run(host, "ip", &["link", "set", INTERFACE, "down"]),
            Cut::Port => self.port(host, "down"),
            Cut::Drop => {
                let chain = |hook: &str| {
                    format!(
                        "chain {hook} {{ type filter hook {hook} priority 0; oifname {INTERFACE} drop; iifname \
                         {INTERFACE} drop; }};"
                    )
                };
                _ = self.run(host, "nft", &[&format!("table inet cut {{ {} {} }}", chain("input"), chain("output"))]);
            }
        }
    }

    /// Undoes [`Hosts::cut`].
    ///
    /// # Panics
    /// As there.
    pub fn mend(&self, host: u32, cut: Cut) {
        match cut {
            Cut::Interface => {
                self.run(host, "ip", &["link", "set", INTERFACE, "up"]);
                // The system has taken it away with the link.
                let address = format!("{}/64", address_v6(host));
                self.run(host, "ip", &["-6", "addr", "replace", &address, "dev", INTERFACE, "nodad"]);
            }
            Cut::Port => self.port(host, "up"),
            Cut::Drop => _ = self.run(host, "nft", &["delete", "table", "inet", "cut"]),
        }
        self.await_link(host);
        // Where a host still asks for the address of another since it was cut, it gives up a moment later, and refuses
        // a new connection.
        for host in 0..self.count {
            self.run(host, "ip", &["neigh", "flush", "dev", INTERFACE]);
            self.run(host, "ip", &["-6", "neigh", "flush", "dev", INTERFACE]);
        }
    }

    /// Waits until the switch forwards what comes from a host: it notices a link some time after that is up.
    fn await_link(&self, host: u32) {
        let states = [
            (self.host(host), format!("{INTERFACE}/operstate"), "up"),
            (self.switch(), format!("{}/brport/state", port(host)), FORWARDING),
        ];
        let begun = Instant::now();
        for (name, file, wanted) in states {
            let path = format!("/sys/class/net/{file}");
            loop {
                let state = self.within(&name, "cat", &[&path]).unwrap_or_else(|reason| panic!("{path}: {reason}"));
                if state.trim() == wanted {
                    break;
                }
                assert!(
                    begun.elapsed() < LINK_UP,
                    "{path} of {name} is {} after {LINK_UP:?}, not {wanted}",
                    state.trim()
                );
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    fn port(&self, host: u32, state: &str) {
        let switch = self.switch();
        let set = self.within(&switch, "ip", &["link", "set", &port(host), state]);
        set.unwrap_or_else(|reason| panic!("port of host {host}: {reason}"));
    }

    /// Processes of a host.
    ///
    /// # Panics
    /// The host is gone.
    #[must_use]
    pub fn processes(&self, host: u32) -> Vec<i32> {
        let listed = run("ip", &["netns", "pids", &self.host(host)]).expect("the list of processes");
        listed.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    }

    fn switch(&self) -> String {
        format!("{}-s", self.prefix)
    }

    fn host(&self, host: u32) -> String {
        format!("{}-{host}", self.prefix)
    }

    fn within(&self, name: &str, program: &str, words: &[&str]) -> Result<String, String> {
        run("ip", &[&["netns", "exec", name, program], words].concat())
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for name in (0..self.count).map(|host| self.host(host)).chain([self.switch()]) {
            let _ = run("ip", &["netns", "delete", &name]);
        }
    }
}

/// Address of a host.
#[must_use]
pub fn address(host: u32) -> String {
    format!("10.78.0.{}", host + 1)
}

/// IPv6 address of a host.
#[must_use]
pub fn address_v6(host: u32) -> String {
    format!("fd78::{}", host + 1)
}

fn port(host: u32) -> String {
    format!("port{host}")
}

/// Runs a program to its end; what it prints, or why it failed.
fn run(program: &str, words: &[&str]) -> Result<String, String> {
    let output = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}
