//! Identity of the port: its addresses, one set for each function of the card, and its partition keys (InfiniBand
//! specification, volume 1, 10.9: partitioning).
//!
//! A port has a table of partition keys, and each queue pair names an entry. A packet is for a queue pair if both have
//! the same partition (bits 14:0) and at least one of them is a full member (bit 15); others are dropped in silence,
//! whatever the transport: an RC requester learns of it by its timeout.

use std::sync::Arc;

use crate::address::{Address, GidEntry, RoceVersion};
use crate::error::NicError;
use crate::packet::{DEFAULT_PKEY, Extension, Network, Operation, Packet};
use crate::queue_pair::QueuePair;
use crate::transport::Transport;

/// Entries a partition key table may have (mlx5: 128).
const MAX_PKEYS: usize = 128;
/// A partition key without this bit is that of a limited member.
const FULL_MEMBER: u16 = 1 << 15;

/// Whether a packet with the key `packet` may reach a queue pair with the key `own`.
pub(crate) fn same_partition(packet: u16, own: u16) -> bool {
    (packet ^ own) & !FULL_MEMBER == 0 && (packet | own) & FULL_MEMBER != 0 && packet & !FULL_MEMBER != 0
}

/// The addresses by which a function of the card is reached at the port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortAddresses {
    /// Ethernet address.
    pub mac: [u8; 6],
    /// Table of identifiers.
    pub gids: Vec<GidEntry>,
}

impl PortAddresses {
    /// The entry that stands for the port where nothing names one: as programs choose, the last IPv4 address, or the
    /// last of all.
    pub(crate) fn usual(&self) -> GidEntry {
        let ipv4 = self.gids.iter().rfind(|entry| entry.gid.ipv4().is_some());
        ipv4.or(self.gids.last()).copied().unwrap_or_default()
    }
}

/// The addresses and partition keys of the port.
#[derive(Debug)]
pub(crate) struct Identity {
    /// By virtual HCA, counted from the card's first one, which is at index 0 and always has addresses.
    functions: Vec<Option<PortAddresses>>,
    /// Index 0 is the default one.
    pkeys: Vec<u16>,
}

impl Identity {
    pub(crate) fn new(mac: [u8; 6], gids: Vec<GidEntry>) -> Self {
        Self { functions: vec![Some(PortAddresses { mac, gids })], pkeys: vec![DEFAULT_PKEY] }
    }

    /// Gives addresses to the virtual HCA of this index.
    pub(crate) fn set_addresses(&mut self, function: u16, addresses: PortAddresses) {
        let index = usize::from(function);
        if self.functions.len() <= index {
            self.functions.resize(index + 1, None);
        }
        self.functions[index] = Some(addresses);
    }

    /// The addresses of the virtual HCA of this index. One without addresses of its own has those of the card's first.
    pub(crate) fn addresses(&self, function: u16) -> Option<&PortAddresses> {
        let own = self.functions.get(usize::from(function)).and_then(Option::as_ref);
        own.or_else(|| self.functions.first()?.as_ref())
    }

    /// Address of the card's first virtual HCA, with its usual identifier.
    pub(crate) fn address(&self) -> Address {
        let addresses = self.addresses(0);
        addresses.map(|own| Address { mac: own.mac, gid: own.usual().gid }).unwrap_or_default()
    }

    /// An address of the virtual HCA of index `function`, with the identifier at `gid_index` of its table, and how
    /// packets from it are packed.
    pub(crate) fn source(&self, function: u16, gid_index: usize) -> Option<(Address, RoceVersion)> {
        let PortAddresses { mac, gids } = self.addresses(function)?;
        let GidEntry { gid, version } = *gids.get(gid_index)?;
        Some((Address { mac: *mac, gid }, version))
    }

    pub(crate) fn is_own(&self, destination: &Address) -> bool {
        let names = |own: &PortAddresses| {
            destination.mac == own.mac || own.gids.iter().any(|entry| entry.gid == destination.gid)
        };
        self.functions.iter().flatten().any(names)
    }

    /// Whether a queue pair's packets turn round inside the card. A datagram's address decides on its own.
    pub(crate) fn turns_round(&self, qp: &QueuePair) -> bool {
        qp.path.force_loopback
            || (matches!(qp.attr.transport, Transport::Rc | Transport::Uc) && self.is_own(&qp.peer()))
    }

    pub(crate) fn pkeys(&self) -> &[u16] {
        &self.pkeys
    }

    pub(crate) fn set_pkey(&mut self, index: usize, pkey: u16) -> Result<(), NicError> {
        if pkey & !FULL_MEMBER == 0 {
            return Err(NicError::PkeyInvalid { pkey });
        }
        let entries = self.pkeys.len();
        match self.pkeys.get_mut(index) {
            Some(entry) => *entry = pkey,
            None if index == entries && entries < MAX_PKEYS => self.pkeys.push(pkey),
            None => return Err(NicError::PkeyIndex { index, entries, limit: MAX_PKEYS }),
        }
        Ok(())
    }

    /// The key that a queue pair sends with and is reached by.
    pub(crate) fn pkey(&self, qp: &QueuePair) -> u16 {
        self.pkeys.get(usize::from(qp.path.pkey_index)).copied().unwrap_or(DEFAULT_PKEY)
    }

    /// A packet to the peer of a connected queue pair: a message of its own, without payload.
    pub(crate) fn packet(&self, qp: &QueuePair, operation: Operation, psn: u32) -> Packet {
        let source = self.source(qp.function, usize::from(qp.path.sgid_index));
        let (source, version) = source.unwrap_or_else(|| (self.address(), RoceVersion::V2));
        Packet {
            source,
            destination: qp.peer(),
            network: Network { version, ..qp.path.network() },
            pkey: self.pkey(qp),
            transport: qp.attr.transport,
            operation,
            first: true,
            last: true,
            solicited: false,
            ack_request: false,
            destination_qpn: qp.path.dest_qpn,
            psn,
            immediate: None,
            invalidate: None,
            message_number: 0,
            extension: Extension::None,
            payload: Arc::default(),
            damage: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::same_partition;

    #[test]
    fn members_of_a_partition_meet_unless_both_are_limited() {
        assert!(same_partition(0xFFFF, 0xFFFF));
        assert!(same_partition(0x7FFF, 0xFFFF), "a limited member reaches a full one");
        assert!(same_partition(0xFFFF, 0x7FFF), "and the other way round");
        assert!(!same_partition(0x7FFF, 0x7FFF), "two limited members do not meet");
        assert!(!same_partition(0x8001, 0x8002));
        assert!(!same_partition(0x8000, 0x8000), "partition 0 is none");
    }
}
