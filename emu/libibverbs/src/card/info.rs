//! Properties of cards, as the machine has them.

use emu_machine::nic::{Gid, Nic, PortAddresses};
use emu_machine::{World, card_with_gid};

use super::request::{CardInfo, PortInfo};
use crate::errno::{Errno, Result};

/// Longest message in bytes.
pub(crate) const MAX_MESSAGE_BYTES: u32 = 1 << 30;
/// Code of the longest time that the port takes to acknowledge.
pub(crate) const LOCAL_ACK_DELAY: u8 = 16;

/// The machine's cards, for another process.
pub(crate) fn cards(world: &mut World) -> Result<Vec<CardInfo>> {
    let cards = world.card_count();
    let of = |card: usize| {
        let nic = &world.card(card)?.nic;
        let PortAddresses { mac, gids } = nic.port_addresses(nic.vhca_id())?.clone();
        Ok(CardInfo { card, mac, gids, port: port_of(nic) })
    };
    (0..cards).map(of).collect()
}

pub(crate) fn port_of(nic: &Nic) -> PortInfo {
    let config = nic.config();
    PortInfo {
        mtu_code: config.port_mtu.code(),
        pkeys: nic.pkeys().to_vec(),
        gbit_per_s: config.timing.port_rate.gbit_per_s(),
    }
}

/// The Ethernet address of the card that has an identifier.
pub(crate) fn mac_of(world: &mut World, gid: Gid) -> Result<[u8; 6]> {
    for id in world.functions() {
        let vhca = world.vhca(id)?;
        let addresses = world.card(id.card)?.nic.port_addresses(vhca)?;
        if addresses.gids.iter().any(|entry| entry.gid == gid) {
            return Ok(addresses.mac);
        }
    }
    let outside = card_with_gid(gid).filter(|_| world.has_outside());
    let unreachable = || Errno::new(libc::EHOSTUNREACH, format!("no card has the GID {gid}"));
    outside.map(|address| address.mac).ok_or_else(unreachable)
}
