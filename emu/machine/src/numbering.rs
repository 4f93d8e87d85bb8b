//! Addresses of cards, one rule for all of them.

use emu_fabric::Rate;
use emu_nic::{Address, Gid, GidEntry, Mtu, NicConfig, NicTiming, RoceVersion};

/// Most cards of a machine.
pub const MAX_CARDS: usize = 1024;

/// Largest number of a card, from 0: the Ethernet address has two bytes for it.
pub(crate) const LAST_CARD: usize = 0xFFFE;

/// The address of a card by its number, counted from 0 over all machines that are joined: of the number plus one, in
/// two bytes `HH` and `LL`, the Ethernet address is 02:00:00:00:HH:LL (locally administered) and the identifier that of
/// IPv4 address 198.18.HH.LL (the range of RFC 2544 for benchmarks). Of a larger number than 65534 only the low bits
/// count.
#[must_use]
pub fn address(card: usize) -> Address {
    let [high, low] = ((card as u32 + 1) as u16).to_be_bytes();
    Address { mac: [0x02, 0, 0, 0, high, low], gid: Gid::from_ipv4([198, 18, high, low]) }
}

/// The address of the function of a card's Arm cores, by the card's number as for [`address`]: 02:00:00:01:HH:LL, and
/// IPv4 address 198.19.HH.LL (the other half of the same range).
#[must_use]
pub fn arm_address(card: usize) -> Address {
    let [high, low] = ((card as u32 + 1) as u16).to_be_bytes();
    Address { mac: [0x02, 0, 0, 1, high, low], gid: Gid::from_ipv4([198, 19, high, low]) }
}

/// The identifiers of a port, as Linux gives them to one with an IPv4 address: its link-local IPv6 address and that
/// address, each for RoCE version 1 and then for version 2.
#[must_use]
pub fn gid_table(address: Address) -> Vec<GidEntry> {
    let versions = |gid| [RoceVersion::V1, RoceVersion::V2].map(|version| GidEntry { gid, version });
    [Gid::link_local(address.mac), address.gid].into_iter().flat_map(versions).collect()
}

/// The address of the card's function that has an identifier by the same rules; `None` if none can have it.
#[must_use]
pub fn card_with_gid(gid: Gid) -> Option<Address> {
    if let Some(mac) = gid.link_local_mac() {
        let card = card_with_mac(mac)?;
        return [address(card), arm_address(card)].into_iter().find(|address| address.mac == mac);
    }
    let [_, _, high, low] = gid.ipv4()?;
    let card = usize::from(u16::from_be_bytes([high, low])).checked_sub(1)?;
    [address(card), arm_address(card)].into_iter().find(|address| address.gid == gid && card <= LAST_CARD)
}

/// The number of the card with a function that has an Ethernet address by the same rules; `None` if none can have it.
#[must_use]
pub fn card_with_mac(mac: [u8; 6]) -> Option<usize> {
    let [.., high, low] = mac;
    let card = usize::from(u16::from_be_bytes([high, low])).checked_sub(1)?;
    Some(card).filter(|&card| [address(card).mac, arm_address(card).mac].contains(&mac) && card <= LAST_CARD)
}

/// Addresses, rate, times and seed of a card's network side.
pub(crate) fn nic_config(card: usize, port_rate: Rate, timing: NicTiming) -> NicConfig {
    let address = address(card);
    NicConfig {
        mac: address.mac,
        gids: gid_table(address),
        port_mtu: Mtu::B4096,
        timing: NicTiming { port_rate, ..timing },
        seed: card as u64 + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_card_has_its_address() {
        assert_eq!(address(0).mac, [2, 0, 0, 0, 0, 1]);
        assert_eq!(address(0).gid.ipv4(), Some([198, 18, 0, 1]));
        let shown =
            gid_table(address(0)).iter().map(|entry| format!("{} {:?}", entry.gid, entry.version)).collect::<Vec<_>>();
        let (link_local, ipv4) = ("fe80::ff:fe00:1", "::ffff:198.18.0.1");
        assert_eq!(
            shown,
            [link_local, link_local, ipv4, ipv4]
                .iter()
                .zip(["V1", "V2"].iter().cycle())
                .map(|(gid, version)| format!("{gid} {version}"))
                .collect::<Vec<_>>()
        );
        assert_eq!(address(0x1233).gid.ipv4(), Some([198, 18, 0x12, 0x34]));
        let all: std::collections::BTreeSet<_> = (0..=LAST_CARD).map(address).collect();
        assert_eq!(all.len(), LAST_CARD + 1);
    }

    #[test]
    fn an_identifier_leads_back_to_its_card() {
        for card in [0, 1, 255, 1023, LAST_CARD] {
            assert_eq!(card_with_gid(address(card).gid), Some(address(card)), "card {card}");
            assert_eq!(card_with_mac(address(card).mac), Some(card));
            assert_eq!(card_with_gid(arm_address(card).gid), Some(arm_address(card)), "Arm cores of card {card}");
            assert_eq!(card_with_mac(arm_address(card).mac), Some(card));
            for own in [address(card), arm_address(card)] {
                assert!(gid_table(own).iter().all(|entry| card_with_gid(entry.gid) == Some(own)), "card {card}");
            }
        }
        for ip in [[198, 18, 0, 0], [198, 19, 0, 0], [198, 20, 0, 1], [192, 0, 2, 1]] {
            assert_eq!(card_with_gid(Gid::from_ipv4(ip)), None, "{ip:?}");
        }
        assert_eq!(card_with_gid(Gid([0xFE; 16])), None);
        assert_eq!((card_with_mac([2, 0, 0, 0, 0, 0]), card_with_mac([2, 0, 0, 2, 0, 1])), (None, None));
    }
}
