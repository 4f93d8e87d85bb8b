//! NUMA nodes of this computer, and which of them a thread works on: near the card whose packets it handles, so that
//! what the card writes, and the memory that the thread makes, is on one side.

use std::net::IpAddr;
use std::path::Path;

use nix::ifaddrs::getifaddrs;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Where Linux lists nodes.
const ROOT: &str = "/sys/devices/system/node";
/// Where it lists network interfaces, and RDMA devices.
const INTERFACES: &str = "/sys/class/net";
const DEVICES: &str = "/sys/class/infiniband";

/// A node and its processors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Node {
    number: u32,
    processors: Vec<usize>,
}

/// Nodes with processors that this process may run on, by their numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Nodes(Vec<Node>);

/// Numbers of a list such as `0-3,8,10-11`; none if it is not one.
fn list(text: &str) -> Option<Vec<usize>> {
    let mut all = Vec::new();
    for part in text.trim().split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last >= CpuSet::count() {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}

/// The node of the card of an interface, or of an RDMA device; none of one without.
fn of_card(all: &Path, name: &str) -> Option<u32> {
    // It is -1 where the computer does not know.
    std::fs::read_to_string(all.join(name).join("device/numa_node")).ok()?.trim().parse().ok()
}

impl Nodes {
    /// Those on which this thread may run.
    pub fn of_this_thread() -> Self {
        let allowed = sched_getaffinity(Pid::from_raw(0)).ok();
        let is_allowed = |processor: usize| allowed.is_none_or(|set| set.is_set(processor).unwrap_or(false));
        Self::read(Path::new(ROOT), is_allowed)
    }

    fn read(root: &Path, is_allowed: impl Fn(usize) -> bool) -> Self {
        let node = |number: usize| {
            let text = std::fs::read_to_string(root.join(format!("node{number}/cpulist"))).ok()?;
            let mut processors = list(&text)?;
            processors.retain(|processor| is_allowed(*processor));
            // Some nodes are memory alone.
            (!processors.is_empty()).then_some(Node { number: number as u32, processors })
        };
        let online = std::fs::read_to_string(root.join("online")).ok().and_then(|text| list(&text));
        Self(online.into_iter().flatten().filter_map(node).collect())
    }

    /// The node of thread `number` of several that handle packets of a card at node `near`: that one as long as it has
    /// a processor for each, then the others in turn. None where there is nothing to choose.
    fn of(&self, number: usize, near: Option<u32>) -> Option<&Node> {
        let Self(nodes) = self;
        if nodes.len() < 2 {
            return None;
        }
        let (first, others): (Vec<_>, Vec<_>) = nodes.iter().partition(|node| Some(node.number) == near);
        let on_first = first.first().map_or(0, |node| node.processors.len());
        match number.checked_sub(on_first) {
            None => first.first().copied(),
            Some(behind) => others.get(behind % others.len()).copied(),
        }
    }

    /// Binds the calling thread to its node, before it makes the memory that it works on; `near`: that of the card.
    /// Returns that node; none where nothing was chosen: on a computer with one node, or in a process that is
    /// bound to one.
    pub fn bind_this_thread(&self, number: usize, near: Option<u32>) -> Option<u32> {
        let node = self.of(number, near)?;
        let mut set = CpuSet::new();
        for processor in &node.processors {
            set.set(*processor).ok()?;
        }
        match sched_setaffinity(Pid::from_raw(0), &set) {
            Ok(()) => Some(node.number),
            Err(error) => {
                tracing::warn!(node = node.number, %error, "a thread cannot be bound to its node: it runs anywhere");
                None
            }
        }
    }
}

/// The node of the card that has an address of this computer.
pub fn of_address(address: IpAddr) -> Option<u32> {
    let mut all = getifaddrs().ok()?;
    let is_it = |storage: &nix::sys::socket::SockaddrStorage| match address {
        IpAddr::V4(address) => storage.as_sockaddr_in().is_some_and(|of| of.ip() == address),
        IpAddr::V6(address) => storage.as_sockaddr_in6().is_some_and(|of| of.ip() == address),
    };
    let interface = all.find(|entry| entry.address.as_ref().is_some_and(is_it))?;
    of_card(Path::new(INTERFACES), &interface.interface_name)
}

/// The node of an RDMA device.
pub fn of_device(name: &str) -> Option<u32> {
    of_card(Path::new(DEVICES), name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A computer whose nodes have such processors.
    fn computer(nodes: &[(u32, &str)]) -> (tempfile::TempDir, Nodes) {
        let folder = tempfile::tempdir().unwrap();
        let numbers: Vec<String> = nodes.iter().map(|(number, _)| number.to_string()).collect();
        std::fs::write(folder.path().join("online"), numbers.join(",") + "\n").unwrap();
        for (number, processors) in nodes {
            let node = folder.path().join(format!("node{number}"));
            std::fs::create_dir(&node).unwrap();
            std::fs::write(node.join("cpulist"), format!("{processors}\n")).unwrap();
        }
        let nodes = Nodes::read(folder.path(), |processor| processor != 7);
        (folder, nodes)
    }

    #[test]
    fn lists_are_read_and_what_is_none_is_not() {
        assert_eq!(list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(list("\n"), Some(Vec::new()));
        for wrong in ["x", "3-1", "1-", "-", "0-99999999999"] {
            assert_eq!(list(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn threads_fill_the_node_of_their_card_first() {
        let (_folder, nodes) = computer(&[(0, "0-3"), (1, "4-5,7"), (3, "8"), (4, "")]);
        let of = |near| (0..6).map(|number| nodes.of(number, near).map(|node| node.number)).collect::<Vec<_>>();
        assert_eq!(of(Some(1)), [1, 1, 0, 3, 0, 3].map(Some), "processor 7 is not this process's");
        assert_eq!(of(None), [0, 1, 3, 0, 1, 3].map(Some));
        assert_eq!(of(Some(9)), of(None));
    }

    #[test]
    fn one_node_is_no_choice() {
        let (_folder, nodes) = computer(&[(0, "0-3"), (1, "7")]);
        assert_eq!(nodes.of(0, Some(0)), None);
        assert_eq!(Nodes::read(Path::new("/nothing/here"), |_| true), Nodes::default());
    }

    /// On this computer, however many it has: a thread that is bound runs where its node is, one that is not runs
    /// wherever it could before.
    #[test]
    fn a_thread_is_bound_to_its_node_or_not_at_all() {
        std::thread::spawn(|| {
            let affinity = || {
                let set = sched_getaffinity(Pid::from_raw(0)).unwrap();
                (0..CpuSet::count()).filter(|processor| set.is_set(*processor).unwrap()).collect::<Vec<_>>()
            };
            let (before, nodes) = (affinity(), Nodes::of_this_thread());
            let node = nodes.bind_this_thread(0, of_address(IpAddr::from([127, 0, 0, 1])));
            let expected = nodes.0.iter().find(|of| Some(of.number) == node).map_or(before, |of| of.processors.clone());
            assert_eq!((affinity(), node.is_some()), (expected, nodes.0.len() > 1));
        })
        .join()
        .unwrap();
    }
}
