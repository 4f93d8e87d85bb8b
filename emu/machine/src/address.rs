//! The addresses of cards: one rule, so that machines in different processes know each other's without asking.
//!
//! Card number `n`, from 1, has the Ethernet address `02:00:` and `n` in four bytes (locally administered, unicast), and the
//! IPv4 address `192.0.2.n` (RFC 5737: for documentation) as long as that has room, `198.18.0.0 + n` (RFC 2544: for
//! benchmarks) from 255 on, as IPv4-mapped GID.

use emu_nic::{Address, Gid};

/// The greatest number of a card: 198.18.0.0/15 ends there.
pub const LAST_CARD_NUMBER: u32 = (1 << 17) - 2;

/// Numbers of the first network.
const DOCUMENTATION: u32 = 254;
const DOCUMENTATION_NET: [u8; 3] = [192, 0, 2];
const BENCHMARK_NET: u32 = u32::from_be_bytes([198, 18, 0, 0]);

/// The addresses of card `number`, which is cut to [`LAST_CARD_NUMBER`].
#[must_use]
pub fn card_address(number: u32) -> Address {
    let number = number.min(LAST_CARD_NUMBER);
    let [a, b, c, d] = number.to_be_bytes();
    let [x, y, z] = DOCUMENTATION_NET;
    let ip = if number <= DOCUMENTATION { [x, y, z, d] } else { (BENCHMARK_NET + number).to_be_bytes() };
    Address { mac: [0x02, 0, a, b, c, d], gid: Gid::from_ipv4(ip) }
}

/// The addresses of the card that has a GID by the rule; `None` for a GID that no card can have.
#[must_use]
pub fn card_with_gid(gid: Gid) -> Option<Address> {
    let ip @ [x, y, z, d] = gid.ipv4()?;
    let number = if [x, y, z] == DOCUMENTATION_NET {
        u32::from(d)
    } else {
        u32::from_be_bytes(ip).checked_sub(BENCHMARK_NET)?
    };
    (1..=LAST_CARD_NUMBER).contains(&number).then(|| card_address(number)).filter(|address| address.gid == gid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gid_leads_back_to_its_card() {
        assert_eq!(card_address(1).mac, [2, 0, 0, 0, 0, 1]);
        assert_eq!(card_address(2).gid.ipv4(), Some([192, 0, 2, 2]));
        assert_eq!(card_address(255).gid.ipv4(), Some([198, 18, 0, 255]));
        for number in [1, 2, 254, 255, 1024, LAST_CARD_NUMBER] {
            assert_eq!(card_with_gid(card_address(number).gid), Some(card_address(number)), "card {number}");
        }
        for ip in [[192, 0, 2, 0], [192, 0, 2, 255], [198, 18, 0, 7], [198, 20, 0, 0], [10, 0, 0, 1]] {
            assert_eq!(card_with_gid(Gid::from_ipv4(ip)), None, "{ip:?}");
        }
        assert_eq!(card_with_gid(Gid([0xFE; 16])), None);
    }
}
