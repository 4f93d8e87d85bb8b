//! Groups as their ranks announce them: topology, endpoints, agreement, flags, staging.

use flexcast_proto::service::wire::{
    Endpoint, Flags, FormatError, Group, GroupError, Place, Refused, StagingMemory, TAG_BYTES,
};
use flexcast_proto::service::{
    Locality, Multicast, Refusal, Region, StagedReader, StagedRefusal, Staging, TopologyError, flag,
};

use super::samples::{REGION, endpoint, place, refusals};

fn group(rank: u32, per_host: u32, places: &[Place]) -> Group {
    Group::new(5, 0x77, rank, per_host, places).unwrap()
}

/// Who serves whom, and where.
#[test]
fn a_group_says_who_serves_whom_and_where() {
    let places: Vec<Place> = (0..8).map(|rank| place(rank % 2, 9000 + (rank / 4) as u16)).collect();
    let (topology, endpoints) = group(0, 2, &places).topology().unwrap();
    assert_eq!((topology.ranks(), topology.hosts(), topology.processes()), (8, 2, 4));
    assert_eq!(topology.locality(3), Some(Locality { host: 1, socket: 1 }));
    let expected: Vec<Endpoint> =
        [(0, 9000), (0, 9001), (1, 9000), (1, 9001)].map(|(host, port)| endpoint(host, port)).into();
    assert_eq!(endpoints, expected);
    for rank in 0..8 {
        let process = topology.process_of(rank).unwrap();
        assert_eq!(endpoints[process as usize], places[rank as usize].process);
    }
}

#[test]
fn maps_that_cannot_be_are_named() {
    let gap = group(0, 1, &[place(0, 1), place(2, 1), place(2, 1)]);
    assert_eq!(gap.topology().err(), Some(Refused::Topology(TopologyError::NoRank { host: 1, hosts: 3 })));
    let two = group(0, 1, &[place(0, 1), place(0, 2)]);
    assert_eq!(two.topology().err(), Some(Refused::Group(GroupError::Endpoint { rank: 1, process: 0 })));
    let same = group(0, 2, &[place(0, 1), place(0, 1)]);
    assert_eq!(same.topology().err(), Some(Refused::Group(GroupError::SameEndpoint { process: 0, other: 1 })));
    let wrong = Group::new(5, 0x77, 0, 1, &[place(1024, 1)]).unwrap_err();
    assert_eq!(wrong, FormatError::Number { field: "host", found: 1024, least: 0, most: 1023 });
    assert!(Group::new(5, 0x77, 0, 1, &[]).is_err());
    // A rank that the group does not have has no parts.
    assert!(group(2, 1, &[place(0, 1), place(0, 1)]).parts().all(|part| part.is_err()));
}

#[test]
fn ranks_agree_or_are_named() {
    let places = [place(0, 1), place(1, 1)];
    let first = group(0, 1, &places);
    assert_eq!(first.agree(&group(1, 1, &places)), Ok(()));
    let other = [place(0, 1), place(1, 2)];
    for differing in [group(1, 2, &places), group(1, 1, &other), Group::new(5, 0x78, 1, 1, &places).unwrap()] {
        assert_eq!(first.agree(&differing), Err(GroupError::Differs { rank: 1 }));
    }
}

/// A rank polls its own memory. Flags of collectives under way at once are distinct, also where numbers begin again.
#[test]
fn flags_of_collectives_that_follow_one_another_are_distinct() {
    let flags = Flags::new(Region { bytes: 64, ..REGION }).unwrap();
    for first in [0u32, 5, u32::MAX - 3] {
        let mut places: Vec<u64> = (0..8).map(|step| flags.place(first.wrapping_add(step)).address).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!((places.len(), places[0], places[7]), (8, REGION.address, REGION.address + 56));
    }
    assert_eq!((flag(0), flags.place(9).bytes, flags.place(9).key), (1, 8, REGION.key));
    for bytes in [0, 4, 8 * 3, 8 << 32] {
        assert_eq!(Flags::new(Region { bytes, ..REGION }), Err(FormatError::Flags { bytes }));
    }
}

#[test]
fn settings_of_staging_are_compared() {
    let staging = Staging::default();
    let region = Region { bytes: staging.staging_bytes, ..REGION };
    let Staging { segments, scatter_bytes, reader, .. } = staging;
    let memory = StagingMemory { region, segments, scatter_bytes, reader, multicast: None };
    // A process that cannot multicast is no reason to refuse a group.
    assert!(memory.agrees(&Staging { multicast: Some(Multicast::default()), ..staging }));
    assert!(memory.agrees(&staging) && memory.agrees(&Staging { transfers: 1, collectives: 1, ..staging }));
    for other in [
        Staging { staging_bytes: 1, ..staging },
        Staging { segments: 3, ..staging },
        Staging { scatter_bytes: 0, ..staging },
        Staging { reader: StagedReader::First, ..staging },
    ] {
        assert!(!memory.agrees(&other));
    }
}

/// What can be offered again is distinguished from what cannot.
#[test]
fn only_too_early_calls_can_be_offered_again() {
    let transient: Vec<Refused> = refusals().into_iter().filter(Refused::is_transient).collect();
    assert!(matches!(
        transient[..],
        [Refused::Process(Refusal::Collectives { .. }), Refused::Staged(StagedRefusal::Collectives { .. })]
    ));
    assert!(refusals().iter().all(|refused| refused.to_string().len() > 10));
    assert_eq!(TAG_BYTES, 32);
}
