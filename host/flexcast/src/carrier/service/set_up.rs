//! Agreement of the ranks of a communicator on their service processes, or on using none.

use std::net::{SocketAddr, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use flexcast_proto::service::wire::{Group, NO_CORE, Place, Secret};
use flexcast_proto::service::{Delivery, Locality, Topology, polled_rank};
use flexcast_service::{MemoryId, Session, SessionTiming, endpoint_of, read_secret};
use flexio::ProtectionDomain;

use super::offload::{Agreed, ServiceOffload};
use super::segment::{Handle, Made, Segment};
use super::settings::{SETTINGS_BYTES, Settings};
use crate::bootstrap::Exchange;
use crate::carrier::Parts;
use crate::engine::datapath::Waiter;
use crate::error::{Error, Result};
use crate::op::config::Control;
use crate::op::service_options::{ControlReport, ServiceOptions};

/// Exchanges of [`set_up`].
pub(crate) const EXCHANGES: u32 = 4;

/// Begins what a rank sends that goes on without.
const WITHOUT: &[u8] = b"without: ";
/// Longest reason that is sent.
const REASON_BYTES: usize = 512;

/// What a rank has, or why it goes on without.
type Attempt<T> = std::result::Result<T, String>;

/// What a rank sends in an exchange.
fn encoded<T>(own: &Attempt<T>, encode: impl FnOnce(&T) -> Vec<u8>) -> Vec<u8> {
    match own {
        Ok(own) => encode(own),
        Err(reason) => [WITHOUT, &reason.as_bytes()[..reason.len().min(REASON_BYTES)]].concat(),
    }
}

/// The first rank that goes on without, and why.
fn without(all: &[Vec<u8>]) -> Attempt<()> {
    match (0..).zip(all).find_map(|(rank, bytes)| Some((rank, bytes.strip_prefix(WITHOUT)?))) {
        None => Ok(()),
        Some((rank, reason)) => Err(format!("rank {rank}: {}", String::from_utf8_lossy(reason))),
    }
}

/// Where the service processes of this rank's host listen, and their secret.
fn own_processes(options: &ServiceOptions) -> Attempt<(Vec<SocketAddr>, Secret)> {
    let Some(first) = options.endpoints.first() else {
        return Err("no service process is named: give host:port (FLEXCAST_SERVICE)".to_owned());
    };
    let resolve = |name: &String| {
        let found = name.to_socket_addrs().map_err(|error| format!("{name}: {error}"))?.next();
        found.ok_or_else(|| format!("{name} has no address"))
    };
    let addresses: Vec<SocketAddr> = if options.endpoints.len() > 1 {
        options.endpoints.iter().map(resolve).collect::<Attempt<_>>()?
    } else {
        let first = resolve(first)?;
        let port = |index: u32| u16::try_from(u32::from(first.port()) + index);
        let ports = (0..options.processes).map(port).collect::<std::result::Result<Vec<u16>, _>>();
        let ports = ports.map_err(|_| format!("{first} has not {} ports behind it", options.processes))?;
        ports.into_iter().map(|port| SocketAddr::new(first.ip(), port)).collect()
    };
    if let Some(address) = addresses.iter().find(|address| address.port() == 0 || address.ip().is_unspecified()) {
        return Err(format!("{address} is nowhere to connect to: give the daemon's address and port"));
    }
    let secret = read_secret(&options.secret).map_err(|error| error.to_string())?;
    Ok((addresses, secret))
}

/// Who is where, by what all ranks have sent.
struct Map {
    topology: Topology,
    places: Vec<Place>,
    processes: u32,
    /// Random: the service process may serve other jobs.
    group: u32,
    communicator: u64,
}

/// Ranks that name the same service processes are of one host.
fn map(all: &[Vec<u8>]) -> Attempt<Map> {
    let mut hosts: Vec<&[u8]> = Vec::new();
    let mut lists: Vec<Vec<SocketAddr>> = Vec::new();
    let mut localities = Vec::new();
    let mut communicator = None;
    let mut first = None;
    for (rank, bytes) in all.iter().enumerate() {
        let (number, rest) = bytes.split_first_chunk().ok_or_else(|| format!("rank {rank} gives no addresses"))?;
        communicator.get_or_insert(u64::from_le_bytes(*number));
        let settings = rest.split_first_chunk::<SETTINGS_BYTES>();
        let settings = settings.and_then(|(settings, addresses)| Some((Settings::decode(settings)?, addresses)));
        let (settings, addresses) = settings.ok_or_else(|| format!("rank {rank} gives no settings"))?;
        let expected = *first.get_or_insert(settings);
        if settings != expected {
            return Err(format!("rank {rank} has {settings}, but rank 0 {expected}: give all ranks the same"));
        }
        let host = hosts.iter().position(|known| *known == addresses).unwrap_or_else(|| {
            hosts.push(addresses);
            hosts.len() - 1
        });
        if lists.len() < hosts.len() {
            let text = std::str::from_utf8(addresses).map_err(|_| format!("rank {rank} gives no addresses"))?;
            let list = text.split(',').map(str::parse).collect::<std::result::Result<_, _>>();
            lists.push(list.map_err(|error| format!("rank {rank}: {error}"))?);
        }
        localities.push(Locality { host: host as u32, socket: 0 });
    }
    let processes = lists.iter().map(Vec::len).min().unwrap_or(0) as u32;
    let topology = Topology::new(&localities, processes).map_err(|error| error.to_string())?;
    let places = (0..).zip(&localities).map(|(rank, locality)| {
        let first = topology.processes_of(locality.host).start;
        let index = topology.process_of(rank).unwrap_or(first) - first;
        let process = endpoint_of(lists[locality.host as usize][index as usize]);
        Place { locality: *locality, core: NO_CORE, process }
    });
    let places = places.collect();
    let communicator = communicator.unwrap_or_default();
    Ok(Map { topology, places, processes, group: communicator as u32, communicator })
}

/// Announces the group, and waits until all of its processes take part.
fn join(
    session: &mut Session,
    group: &Group,
    (number, rank): (u32, u32),
    bound: Duration,
    waiter: &dyn Waiter,
) -> Attempt<()> {
    let text = |error: flexcast_service::Error| error.to_string();
    session.client().join(group).map_err(text)?;
    let begun = Instant::now();
    loop {
        let moved = session.progress().map_err(text)?;
        if session.client().has_joined(number, rank).map_err(text)? {
            return Ok(());
        }
        if begun.elapsed() > bound {
            return Err(format!("the service processes have not formed the group within {} ms", bound.as_millis()));
        }
        if !moved {
            waiter.wait(Duration::ZERO);
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

/// Memory of the first rank of a host, which the session's keys are of: it has to be there for as long as the session.
struct Own {
    made: Made,
    id: MemoryId,
    /// Whether the service process knows it.
    known: Attempt<()>,
}

/// Makes the segment of a host on its first rank, and waits until its service process knows it.
fn make_segment(
    session: &mut Session,
    (map, rank): (&Map, u32),
    pd: &ProtectionDomain,
    (bytes, bound): (u64, Duration),
    waiter: &dyn Waiter,
) -> Attempt<Own> {
    let text = |error: flexcast_service::Error| error.to_string();
    let made = Made::new(session.client().segment_bytes(map.group, rank, bytes).map_err(text)?)?;
    let id = session.client().share(made.region(pd)?).map_err(text)?;
    let known = wait_for_key(session, id, bound, waiter);
    Ok(Own { made, id, known })
}

fn wait_for_key(session: &mut Session, id: MemoryId, bound: Duration, waiter: &dyn Waiter) -> Attempt<()> {
    let text = |error: flexcast_service::Error| error.to_string();
    let begun = Instant::now();
    while session.client().key(id).map_err(text)?.is_none() {
        if begun.elapsed() > bound {
            return Err(format!("its service process does not know its segment within {} ms", bound.as_millis()));
        }
        if !session.progress().map_err(text)? {
            waiter.wait(Duration::ZERO);
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    Ok(())
}

/// Opens the segment of the host on a rank that is not its first. `handles`: what the ranks have sent of what they
/// have made.
fn open_segment(
    session: &mut Session,
    (map, rank): (&Map, u32),
    handles: &[Vec<u8>],
    pd: &ProtectionDomain,
    bytes: u64,
) -> Attempt<Segment> {
    let first = polled_rank(&map.topology, Delivery::Hierarchical, rank);
    let handle = handles.get(first as usize).and_then(|handle| Handle::decode(handle));
    let handle = handle.ok_or_else(|| format!("rank {first}, the first of its host, has no memory to share"))?;
    let bytes = session.client().segment_bytes(map.group, rank, bytes).map_err(|error| error.to_string())?;
    Segment::open(&handle, bytes, pd)
}

/// Offloads operations of a communicator to service processes, if all ranks have theirs. Collective: four exchanges,
/// whatever comes of it.
///
/// # Errors
/// [`Error::Exchange`](crate::Error::Exchange). That there is no service process is none.
pub(crate) fn set_up(parts: Parts, exchange: &mut dyn Exchange) -> Result<(Parts, ControlReport)> {
    let Parts { endpoint, mut datapath, waiter, footprint } = parts;
    let options = datapath.core().config.service.clone();
    let settings = Settings::of(&options);
    let rank = exchange.rank();
    let own = own_processes(&options);
    let mut number = [0; 8];
    getrandom::fill(&mut number)
        .map_err(|error| Error::Argument { operation: "random numbers", reason: error.to_string() })?;
    let encode = |(addresses, _): &(Vec<SocketAddr>, Secret)| {
        let texts: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
        [number.as_slice(), &settings.encode(), texts.join(",").as_bytes()].concat()
    };
    let all = exchange.exchange("flexcast service processes", &encoded(&own, encode))?;
    let agreed = without(&all).and_then(|()| map(&all));

    let connected = agreed.as_ref().map_err(Clone::clone).and_then(|map| {
        let (_, secret) = own.as_ref().map_err(Clone::clone)?;
        let pd = endpoint.pd().ok_or("the card reaches no memory")?;
        let timing = SessionTiming { connect: options.connect, greeting: options.connect };
        let keys = u16::try_from(options.bound_keys).unwrap_or(u16::MAX);
        Session::connect_with_keys(pd, map.places[rank as usize].process, secret, timing, keys)
            .map_err(|error| error.to_string())
    });
    let all = exchange.exchange("flexcast service sessions", &encoded(&connected, |_| Vec::new()))?;
    // What a rank sends that has no map is what all know by then.
    let agreed = agreed.and_then(|map| without(&all).map(|()| map));

    let joined = agreed.as_ref().map_err(Clone::clone).and_then(|map| {
        let mut session = connected?;
        let group = Group::new(map.group, map.communicator, rank, map.processes, &map.places);
        let group = group.map_err(|error| error.to_string())?;
        join(&mut session, &group, (map.group, rank), options.connect, &*waiter)?;
        let is_first = polled_rank(&map.topology, Delivery::Hierarchical, rank) == rank;
        let made = (is_first && settings.may_share(&map.topology)).then(|| {
            let pd = endpoint.pd().ok_or("the card reaches no memory")?;
            let bounds = (settings.segment_bytes, options.connect);
            make_segment(&mut session, (map, rank), pd, bounds, &*waiter)
        });
        Ok((session, made))
    });
    let encode = |(_, made): &(Session, Option<Attempt<Own>>)| match made {
        Some(Ok(Own { made, known: Ok(()), .. })) => made.handle().encode(),
        _ => Vec::new(),
    };
    let all = exchange.exchange("flexcast service groups", &encoded(&joined, encode))?;
    let agreed = agreed.and_then(|map| without(&all).map(|()| map)).and_then(|map| Ok((map, joined?)));

    // Of each rank its part in the segment, and whether it can be used.
    let joined = agreed.map(|(map, (mut session, made))| {
        let (segment, usable) = match made {
            _ if !settings.may_share(&map.topology) => (None, Ok(())),
            Some(Ok(Own { made, id, known })) => (Some(made.shared(id)), known),
            Some(Err(reason)) => (None, Err(reason)),
            None => {
                let pd = endpoint.pd().ok_or_else(|| "the card reaches no memory".to_owned());
                let opened =
                    pd.and_then(|pd| open_segment(&mut session, (&map, rank), &all, pd, settings.segment_bytes));
                opened.map_or_else(|reason| (None, Err(reason)), |segment| (Some(segment), Ok(())))
            }
        };
        (map, session, segment, usable)
    });
    let usable = joined.as_ref().map_or(Ok(()), |(.., usable)| usable.clone());
    let all = exchange.exchange("flexcast service segments", &encoded(&usable, |()| Vec::new()))?;
    let (map, session, segment) = match joined {
        Ok((map, session, mut segment, _)) => {
            let usable = without(&all);
            if let Err(reason) = &usable {
                tracing::warn!(%reason, "ranks of a host cannot share memory: no delivery is hierarchical");
            }
            // The session's keys are of it: it stays also where it is not used.
            segment.iter_mut().for_each(|segment| segment.settle(usable.is_ok()));
            (map, session, segment)
        }
        Err(reason) => {
            tracing::warn!(%reason, "not all ranks have a service process: the hosts carry the operations out");
            let report = ControlReport { control: Control::Host, reason: Some(reason) };
            return Ok((Parts { endpoint, datapath, waiter, footprint }, report));
        }
    };
    let agreed = Agreed { session, topology: map.topology, group: map.group, segment };
    let offload = ServiceOffload::new(datapath.core(), endpoint.clone(), agreed);
    datapath.set_offload(Box::new(offload));
    let parts = Parts { endpoint, datapath, waiter, footprint };
    Ok((parts, ControlReport::of(Control::Service)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::service_options::ServiceDelivery;

    #[test]
    fn ranks_that_name_the_same_processes_are_of_one_host() {
        let with = |options: &ServiceOptions, text: &str| {
            [7u64.to_le_bytes().as_slice(), &Settings::of(options).encode(), text.as_bytes()].concat()
        };
        let with_default = |text: &str| with(&ServiceOptions::default(), text);
        let (a, b) = (with_default("10.0.0.1:1,10.0.0.1:2"), with_default("10.0.0.2:1,10.0.0.2:2,10.0.0.2:3"));
        let other =
            with(&ServiceOptions::default().delivery(ServiceDelivery::Flat), "10.0.0.2:1,10.0.0.2:2,10.0.0.2:3");
        let error = map(&[a.clone(), b.clone(), other]).map(|_| ()).unwrap_err();
        assert!(error.starts_with("rank 2 has delivery flat, ") && error.contains("rank 0 delivery auto, "), "{error}");
        let map = map(&[a.clone(), b.clone(), a, b]).unwrap();
        assert_eq!((map.group, map.communicator), (7, 7));
        assert_eq!((map.processes, map.topology.hosts(), map.topology.ranks_of(1)), (2, 2, &[1, 3][..]));
        let ports: Vec<u16> = map.places.iter().map(|place| place.process.port).collect();
        assert_eq!(ports, [1, 1, 2, 2]);
    }

    #[test]
    fn the_first_rank_without_is_named() {
        let own: Attempt<()> = Err("no room".to_owned());
        assert_eq!(without(&[vec![], encoded(&own, |()| vec![])]), Err("rank 1: no room".to_owned()));
        assert_eq!(without(&[vec![], vec![1]]), Ok(()));
        let options = ServiceOptions::new(vec!["127.0.0.1:65535".to_owned()], "");
        assert!(own_processes(&options).unwrap_err().contains("4 ports"));
        assert!(own_processes(&ServiceOptions::default()).unwrap_err().contains("FLEXCAST_SERVICE"));
        assert!(own_processes(&options.processes(1)).unwrap_err().contains("secret"));
    }
}
