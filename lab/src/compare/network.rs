//! Hosts as network namespaces at one bridge, which are gone when their owner is.
//!
//! The bridge has a namespace of its own, so that nothing of it is to be seen in that of the computer. Names of
//! namespaces hold the process id of their owner: what a killed owner has left is recognised by it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::CompareError;
use super::child::{self, ChildError};
use super::counters::{self, Counters};
use super::spec::Offloads;

/// Name of the interface of every host.
pub const INTERFACE: &str = "eth0";
/// Names of the ports of the switch begin so.
const PORT: &str = "port";
/// Names of namespaces begin so; the owner's process id follows.
const PREFIX: &str = "flexcast-compare-";
/// Largest packet of the links.
pub const MTU: u32 = 1500;
/// A querier that knows the members of a group after a tenth of a second. Before that it floods, for ten seconds by
/// default.
const QUERIER: &str =
    "link set br0 type bridge mcast_query_response_interval 10\nlink set br0 type bridge mcast_querier 1\n";
/// Longest time of a program that sets something up.
const LIMIT: Duration = Duration::from_secs(20);

/// Hosts and their switch.
#[derive(Debug)]
pub struct Network {
    prefix: String,
    /// Number of hosts.
    count: u32,
    /// Ranks of each.
    each: u32,
}

impl Network {
    /// Makes so many hosts, for `each` ranks: 10.77.0.1 and so on, loopback up, multicast routed to the switch, which
    /// forwards it to the members of a group and asks for them.
    ///
    /// # Errors
    /// [`CompareError`].
    pub fn new(count: u32, each: u32, gso: Offloads, loss_percent: f64) -> Result<Self, CompareError> {
        // Before anything is made: what is made is removed when it is dropped.
        let network = Self { prefix: prefix(std::process::id()), count, each };
        let switch = network.switch();
        let names: Vec<String> = network.names().chain([switch.clone()]).collect();
        network.ip(&[], &names.iter().map(|name| format!("netns add {name}\n")).collect::<String>(), "namespaces")?;
        for name in &names {
            // Nobody's router solicitations in the counters.
            let off =
                "for file in /proc/sys/net/ipv6/conf/*/disable_ipv6; do [ -e $file ] && echo 1 > $file; done; true";
            run("network namespace", within(name, "sh", &["-c", off]), "")?;
        }
        let links: String = (0..count)
            .map(|number| {
                let (host, mac) = (network.host(number), mac(number));
                format!(
                    "link add {INTERFACE} address {mac} mtu {MTU} netns {host} type veth peer name {PORT}{number} \
                    mtu {MTU} netns {switch}\n"
                )
            })
            .collect();
        network.ip(&[], &links, "links")?;
        let ports: String = (0..count).map(|host| format!("link set {PORT}{host} master br0 up\n")).collect();
        let bridge = format!(
            "link add br0 mtu {MTU} type bridge mcast_snooping 1 forward_delay 0\n{QUERIER}link set br0 up\n{ports}"
        );
        network.ip(&["-n", &switch], &bridge, "bridge")?;
        for host in 0..count {
            let peers = (0..count).filter(|peer| *peer != host);
            let peers: String = peers
                .map(|peer| {
                    format!(
                        "neigh replace {} lladdr {} nud permanent dev {INTERFACE}\n",
                        network.address(peer),
                        mac(peer)
                    )
                })
                .collect();
            let lines = format!(
                "link set lo up\naddr add {}/24 dev {INTERFACE}\nlink set {INTERFACE} up\nroute add 224.0.0.0/4 dev \
                 {INTERFACE}\n{peers}",
                network.address(host)
            );
            network.ip(&["-n", &network.host(host)], &lines, "addresses")?;
        }
        if gso == Offloads::Off {
            network.without_offloads()?;
        }
        if loss_percent > 0.0 {
            network.lose(loss_percent)?;
        }
        Ok(network)
    }

    /// Number of hosts.
    #[must_use]
    pub fn hosts(&self) -> u32 {
        self.count
    }

    /// Ranks of each host: the first ranks are those of the first.
    #[must_use]
    pub fn ranks_per_host(&self) -> u32 {
        self.each
    }

    /// Number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.count * self.each
    }

    /// Address of a host.
    #[must_use]
    pub fn address(&self, host: u32) -> String {
        address(host)
    }

    /// Name of a host's namespace.
    #[must_use]
    pub fn host(&self, host: u32) -> String {
        format!("{}-{host}", self.prefix)
    }

    /// What the names of hosts' namespaces have in common; its number follows.
    #[must_use]
    pub fn host_prefix(&self) -> String {
        format!("{}-", self.prefix)
    }

    /// A program of a rank, on its host.
    #[must_use]
    pub fn on(&self, rank: u32, program: &Path) -> Command {
        within(&self.host(rank / self.each), program.as_os_str(), &[])
    }

    /// What the switch has received and sent over its ports.
    ///
    /// # Errors
    /// [`CompareError::Network`].
    pub fn counters(&self) -> Result<Counters, CompareError> {
        let text = run("counters of the switch", within(&self.switch(), "cat", &["/proc/self/net/dev"]), "")?;
        Ok(counters::sum(&counters::parse(&text, PORT)))
    }

    /// Kills every process on the hosts, those that have left their process groups too.
    pub fn kill_all(&self) {
        self.names().for_each(|name| kill_within(&name));
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.prefix)
    }

    fn names(&self) -> impl Iterator<Item = String> {
        (0..self.count).map(|host| self.host(host))
    }

    fn ip(&self, options: &[&str], lines: &str, what: &str) -> Result<(), CompareError> {
        let mut command = Command::new("ip");
        command.args(options).args(["-batch", "-"]);
        run(&format!("{what} of {} hosts", self.count), command, lines).map(drop)
    }

    fn without_offloads(&self) -> Result<(), CompareError> {
        let ports = (0..self.count).map(|host| (self.switch(), format!("{PORT}{host}")));
        for (name, interface) in self.names().map(|name| (name, INTERFACE.to_owned())).chain(ports) {
            let words = ["-K", interface.as_str(), "tso", "off", "gso", "off", "gro", "off"];
            run(&format!("offloads of {interface}"), within(&name, "ethtool", &words), "")?;
        }
        Ok(())
    }

    fn lose(&self, percent: f64) -> Result<(), CompareError> {
        let rules = loss_rules(percent);
        self.names().try_for_each(|name| run("loss of packets", within(&name, "nft", &["-f", "-"]), &rules).map(drop))
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.names().chain([self.switch()]) {
            remove(&name);
        }
    }
}

/// Whether network namespaces may be made; removes what owners that are no more have left.
///
/// # Errors
/// [`CompareError::NotPermitted`] where not, others where a tool is missing.
pub fn prepare() -> Result<(), CompareError> {
    let hint = "apt-get install iproute2";
    if child::find("ip").is_none() {
        return Err(CompareError::Missing { program: "ip", purpose: "makes the hosts", hint });
    }
    let mut list = Command::new("ip");
    list.args(["netns", "list"]);
    let listed = child::output(list, LIMIT).unwrap_or_default();
    let names = listed.lines().filter_map(|line| line.split_whitespace().next());
    let own = std::process::id();
    let is_alive = |owner: u32| owner != own && Path::new(&format!("/proc/{owner}")).exists();
    leftovers(names, is_alive).iter().for_each(|name| remove(name));
    let probe = format!("{}-probe", prefix(own));
    let mut add = Command::new("ip");
    add.args(["netns", "add", &probe]);
    let made = child::output(add, LIMIT);
    // A namespace that could be made may still not be entered.
    let entered = made.and_then(|_| child::output(within(&probe, "true", &[]), LIMIT));
    remove(&probe);
    match entered {
        Ok(_) => Ok(()),
        Err(ChildError::Failed { message }) if is_refusal(&message) => Err(CompareError::NotPermitted(message)),
        Err(error) => Err(CompareError::Network { what: "a network namespace".to_owned(), reason: error.to_string() }),
    }
}

fn is_refusal(message: &str) -> bool {
    ["not permitted", "ermission denied", "Read-only file system"].iter().any(|words| message.contains(words))
}

/// Namespaces that belong to no living owner.
#[must_use]
pub fn leftovers<'a>(names: impl IntoIterator<Item = &'a str>, is_alive: impl Fn(u32) -> bool) -> Vec<String> {
    let owner = |name: &str| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse::<u32>().ok();
    names.into_iter().filter(|name| owner(name).is_some_and(|owner| !is_alive(owner))).map(str::to_owned).collect()
}

fn prefix(owner: u32) -> String {
    format!("{PREFIX}{owner}")
}

fn address(rank: u32) -> String {
    format!("10.77.0.{}", rank + 1)
}

fn mac(rank: u32) -> String {
    format!("02:fc:00:00:00:{:02x}", rank + 1)
}

/// A program within a namespace.
fn within(name: &str, program: impl AsRef<std::ffi::OsStr>, words: &[&str]) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", name]).arg(program).args(words);
    command
}

fn run(what: &str, command: Command, input: &str) -> Result<String, CompareError> {
    let failed = |error: ChildError| CompareError::Network { what: what.to_owned(), reason: error.to_string() };
    child::output_of(command, input, LIMIT).map_err(failed)
}

/// Ends what runs in a namespace and removes it; of a namespace that is not there nothing is said.
fn remove(name: &str) {
    kill_within(name);
    let mut delete = Command::new("ip");
    delete.args(["netns", "delete", name]);
    let _ = child::output(delete, LIMIT);
}

fn kill_within(name: &str) {
    // A process may have started another between the list and its end.
    for _ in 0..20 {
        let mut list = Command::new("ip");
        list.args(["netns", "pids", name]);
        let found = child::output(list, LIMIT).unwrap_or_default();
        let pids: Vec<i32> =
            found.split_whitespace().filter_map(|pid| pid.parse().ok()).filter(|pid| *pid > 1).collect();
        if pids.is_empty() {
            return;
        }
        for pid in pids {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Rules of nftables that drop so many UDP packets at random, in steps of a hundredth of a percent.
fn loss_rules(percent: f64) -> String {
    let of_10000 = ((percent * 100.0).round() as u32).max(1);
    format!(
        "table inet flexcast {{\n chain loss {{\n  type filter hook prerouting priority -150;\n  \
         meta l4proto udp numgen random mod 10000 < {of_10000} drop\n }}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_dead_owners_have_left_is_recognised() {
        let names = [
            "flexcast-compare-100-0",
            "flexcast-compare-100-switch",
            "flexcast-compare-200-11",
            "flexcast-compare-300-probe",
            "flexcast-compare-0",
            "flexcast-compare--5",
            "flexcast-compare-x-0",
            "flexcast",
            "somebody-else",
            "other-flexcast-compare-100-0",
        ];
        let left = leftovers(names, |owner| owner == 200);
        assert_eq!(left, ["flexcast-compare-100-0", "flexcast-compare-100-switch", "flexcast-compare-300-probe"]);
        let own = Network { prefix: prefix(7), count: 0, each: 1 };
        assert_eq!(
            leftovers([own.host(3).as_str(), own.switch().as_str()], |_| false).len(),
            2,
            "own names are recognised"
        );
    }

    #[test]
    fn hosts_have_addresses() {
        assert_eq!(
            (address(0), address(31), mac(31)),
            ("10.77.0.1".into(), "10.77.0.32".into(), "02:fc:00:00:00:20".into())
        );
    }

    #[test]
    fn losses_are_counted_in_ten_thousands() {
        assert!(loss_rules(1.0).contains("mod 10000 < 100 drop"), "{}", loss_rules(1.0));
        assert!(loss_rules(0.001).contains("< 1 drop"), "a loss that was asked for is one");
    }

    #[test]
    fn refusals_are_distinguished_from_failures() {
        assert!(is_refusal("mount --make-shared /run/netns failed: Operation not permitted"));
        assert!(is_refusal("mkdir /run/netns failed: Permission denied"));
        assert!(!is_refusal("Cannot create namespace file \"/run/netns/x\": File exists"));
    }
}
