//! Choice of a delivery: what all ranks must give alike, and what follows from it for an operation.

use std::fmt;

use flexcast_proto::service::{Delivery, Thresholds, Topology};

use crate::op::config::Control;
use crate::op::service_options::{NAMES, ServiceDelivery, ServiceOptions};
use crate::plan::{Kind, Plan};

/// Bytes of [`Settings::encode`].
pub(super) const SETTINGS_BYTES: usize = 22;

/// What all ranks give alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Settings {
    delivery: ServiceDelivery,
    thresholds: Thresholds,
    pub(super) segment_bytes: u64,
    /// Control of the datapath inside: host or device.
    datapath: Control,
}

/// How an operation goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// By alias keys, as an Allgatherv.
    Keys,
    /// As a staged collective.
    Staged(Delivery),
}

impl Settings {
    pub(super) const fn of(options: &ServiceOptions) -> Self {
        let thresholds = Thresholds { ranks_per_host: options.hierarchical_ranks, bytes: options.hierarchical_bytes };
        let ServiceOptions { delivery, segment_bytes, datapath_control: datapath, .. } = *options;
        Self { delivery, thresholds, segment_bytes, datapath }
    }

    pub(super) fn encode(&self) -> [u8; SETTINGS_BYTES] {
        let Self { delivery, thresholds: Thresholds { ranks_per_host, bytes }, segment_bytes, datapath } = self;
        let mut all = [0; SETTINGS_BYTES];
        all[0] = NAMES.iter().position(|(known, _)| known == delivery).unwrap_or(0) as u8;
        all[1..5].copy_from_slice(&ranks_per_host.to_le_bytes());
        all[5..13].copy_from_slice(&bytes.to_le_bytes());
        all[13..21].copy_from_slice(&segment_bytes.to_le_bytes());
        all[21] = u8::from(*datapath == Control::Device);
        all
    }

    pub(super) fn decode(all: &[u8; SETTINGS_BYTES]) -> Option<Self> {
        let large = |at: usize| u64::from_le_bytes(std::array::from_fn(|index| all[at + index]));
        let (delivery, _) = *NAMES.get(usize::from(all[0]))?;
        let ranks_per_host = u32::from_le_bytes(std::array::from_fn(|index| all[1 + index]));
        let datapath = *[Control::Host, Control::Device].get(usize::from(all[21]))?;
        let thresholds = Thresholds { ranks_per_host, bytes: large(5) };
        Some(Self { delivery, thresholds, segment_bytes: large(13), datapath })
    }

    /// Whether any operation of a group may be hierarchical.
    pub(super) fn may_share(&self, topology: &Topology) -> bool {
        match self.delivery {
            ServiceDelivery::Hierarchical => true,
            ServiceDelivery::Auto => self.thresholds.delivery(topology, u64::MAX) == Delivery::Hierarchical,
            ServiceDelivery::Flat | ServiceDelivery::Direct => false,
        }
    }

    /// How a Broadcast or an Allgather goes, alike on all ranks. `room`: bytes of data that the segment has, none
    /// without; `staging`: service processes have staging memory.
    pub(super) fn way(&self, plan: &Plan, topology: &Topology, room: Option<u64>, staging: bool) -> Way {
        let (bytes, all, otherwise) = match plan.kind {
            Kind::Broadcast { bytes, .. } => (bytes, bytes, Way::Staged(Delivery::Flat)),
            Kind::Allgather { bytes } if staging && bytes > 0 => (bytes, plan.receive_bytes(), Way::Keys),
            Kind::Allgather { .. } | Kind::Allgatherv { .. } => return Way::Keys,
        };
        let hierarchical = match self.delivery {
            ServiceDelivery::Flat => return Way::Staged(Delivery::Flat),
            ServiceDelivery::Direct if otherwise == Way::Keys => return Way::Keys,
            ServiceDelivery::Direct => return Way::Staged(Delivery::Direct),
            ServiceDelivery::Hierarchical => true,
            ServiceDelivery::Auto => self.thresholds.delivery(topology, bytes) == Delivery::Hierarchical,
        };
        let has_room = room.is_some_and(|room| all <= room);
        if hierarchical && has_room { Way::Staged(Delivery::Hierarchical) } else { otherwise }
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { delivery, thresholds: Thresholds { ranks_per_host, bytes }, segment_bytes, datapath } = self;
        let name = NAMES.iter().find(|(known, _)| known == delivery).map_or("", |(_, name)| name);
        write!(
            f,
            "delivery {name}, thresholds {ranks_per_host},{bytes}, segments of {segment_bytes} bytes, datapath with \
             control {datapath}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_decoded_as_they_were_encoded() {
        for (delivery, name) in NAMES {
            let options = ServiceOptions::default().delivery(delivery).thresholds(3, 1 << 40).segment_bytes(12345);
            let options = options.datapath_control(Control::Device);
            let settings = Settings::of(&options);
            assert_eq!(Settings::decode(&settings.encode()), Some(settings));
            assert_eq!(
                settings.to_string(),
                format!(
                    "delivery {name}, thresholds 3,1099511627776, segments of 12345 bytes, datapath with control device"
                )
            );
            assert_eq!(name.parse::<ServiceDelivery>().unwrap(), delivery);
        }
        assert_eq!(Settings::decode(&[4; SETTINGS_BYTES]), None);
        assert!("tree".parse::<ServiceDelivery>().is_err());
    }
}
