//! Wires between the cards, at work: a cable, or a network of switches with its faults.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use emu_fabric::{
    BackToBack, CaptureError, Captured, Direct, Fabric, FabricEffects, FabricError, LinkError, Network, PortCounters,
    SeededDrop,
};
use emu_nic::{Gid, Nic, Packet, Transport};

use crate::config::wiring::{NetworkConfig, Wiring, wire};
use crate::error::MachineError;
use crate::numbering::{address, arm_address};

/// The longest packet on the wire: 4096 bytes of payload in a Write with immediate over IPv6, preamble and gap
/// included.
const LONGEST_PACKET_BYTES: u64 = 4096 + 18 + 40 + 24 + 16 + 4 + 20;

type Writer = Box<dyn Write + Send>;

/// A network as its cards see it: ports have the cards' numbers.
#[derive(Debug)]
struct Sites {
    network: Network<Packet>,
    /// Host of each card.
    hosts: Vec<usize>,
    /// Card at each host that has one.
    cards: BTreeMap<usize, usize>,
    /// The host at which the outer end is, if it is open, and the groups it has been known_groups to.
    outer: Option<(usize, BTreeSet<Gid>)>,
}

impl Sites {
    fn new(config: &NetworkConfig, first_card: usize, cards: usize) -> Result<Self, MachineError> {
        let switching = config.topology.switching();
        if !config.topology.switches().is_empty() && switching.buffer_bytes < LONGEST_PACKET_BYTES {
            return Err(MachineError::SwitchBuffer { bytes: switching.buffer_bytes, least: LONGEST_PACKET_BYTES });
        }
        let mut network = Network::with_faults(&config.topology, &config.faults)?;
        let hosts: Vec<usize> = (0..cards).map(|card| config.host(card)).collect();
        let mut at = BTreeMap::new();
        for (card, &host) in hosts.iter().enumerate() {
            if let Some(first) = at.insert(host, card) {
                return Err(MachineError::SharedHost { first, second: card, host });
            }
            // Frames find a card by the addresses of both functions, whether or not it has the second.
            for address in [address(first_card + card), arm_address(first_card + card)] {
                let known = network.set_address(address.mac_number(), host);
                known.map_err(|error| MachineError::Link(error.to_string()))?;
            }
        }
        Ok(Self { network, hosts, cards: at, outer: None })
    }

    /// Opens the outer end, at the first host behind those of the cards, if that is free.
    fn open_outer(&mut self, host: usize) -> bool {
        let free = self.outer.is_none() && host < self.network.ports() && !self.cards.contains_key(&host);
        if free {
            self.hosts.push(host);
            self.outer = Some((host, BTreeSet::new()));
        }
        free
    }

    /// A packet of a card to a group also leaves by the outer end: nobody here knows who listens there.
    fn let_out(&mut self, group: Gid) {
        let Some((host, groups)) = &mut self.outer else { return };
        if groups.contains(&group) {
            return;
        }
        match self.network.join(group.number(), *host) {
            Ok(()) => _ = groups.insert(group),
            Err(error) => tracing::warn!(%group, %error, "the group cannot leave by the outer end"),
        }
    }

    /// The card at a host; of no card's number for the outer end and where there is nobody.
    fn card(&self, host: usize) -> usize {
        self.cards.get(&host).copied().unwrap_or(usize::MAX)
    }

    /// Replaces the hosts in what `call` leads to by their cards. Without a switch a cable takes frames to a host that
    /// has none: they are lost.
    fn call<R>(
        &mut self,
        fx: &mut FabricEffects<Packet>,
        call: impl FnOnce(&mut Network<Packet>, &mut FabricEffects<Packet>) -> R,
    ) -> R {
        let (before, rooms) = (fx.deliveries.len(), fx.rooms.len());
        let result = call(&mut self.network, fx);
        let outer = self.outer.as_ref().map(|(host, _)| *host);
        let mut index = 0;
        fx.deliveries.retain_mut(|delivery| {
            index += 1;
            if index <= before {
                return true;
            }
            let (host, card) = (delivery.port, self.cards.get(&delivery.port).copied());
            delivery.port = card.unwrap_or(usize::MAX);
            card.is_some() || outer == Some(host)
        });
        for (port, ..) in &mut fx.rooms[rooms..] {
            *port = self.card(*port);
        }
        result
    }
}

impl Fabric<Packet> for Sites {
    fn transmit(
        &mut self,
        now_ps: u64,
        port: usize,
        frame: Packet,
        fx: &mut FabricEffects<Packet>,
    ) -> Result<(), FabricError> {
        let no_port = LinkError::NoPort { port, last: self.hosts.len() - 1 };
        let host = *self.hosts.get(port).ok_or(no_port)?;
        if frame.destination.is_multicast() {
            self.let_out(frame.destination.gid);
        }
        self.call(fx, |network, fx| network.transmit(now_ps, host, frame, fx))
    }

    fn handle_timer(&mut self, now_ps: u64, fx: &mut FabricEffects<Packet>) {
        self.call(fx, |network, fx| network.handle_timer(now_ps, fx));
    }

    fn ports(&self) -> usize {
        self.hosts.len()
    }

    fn counters(&self, port: usize) -> PortCounters {
        self.hosts.get(port).map(|&host| self.network.counters(host)).unwrap_or_default()
    }
}

#[derive(Debug)]
enum Medium {
    Cable {
        cable: Direct<Captured<SeededDrop<BackToBack>, Writer>>,
        /// There is something at the other end.
        plugged: bool,
    },
    Network(Captured<Sites, Writer>),
}

/// The groups a card was last seen to be in.
#[derive(Debug, Default)]
struct KnownGroups {
    changes: u64,
    groups: BTreeSet<Gid>,
}

/// What joins the cards, at work.
#[derive(Debug)]
pub(crate) struct Wires {
    medium: Medium,
    least_latency_ps: u64,
    /// What the last call led to; the caller empties it.
    pub(crate) effects: FabricEffects<Packet>,
    known_groups: Vec<KnownGroups>,
    /// Cards whose groups may have changed.
    touched: BTreeSet<usize>,
}

impl Wires {
    pub(crate) fn new(wiring: &Wiring, first_card: usize, cards: usize) -> Result<Self, MachineError> {
        let medium = match wiring {
            Wiring::Cable(link) => {
                let lossy = SeededDrop::new(BackToBack::new(wire(link)?), link.drop_ppm, link.seed)?;
                if cards > 2 {
                    return Err(MachineError::Cards(cards));
                }
                Medium::Cable { cable: Direct(Captured::off(lossy)), plugged: cards == 2 }
            }
            Wiring::Network(config) => Medium::Network(Captured::off(Sites::new(config, first_card, cards)?)),
        };
        let known_groups = (0..cards).map(|_| KnownGroups::default()).collect();
        let least_latency_ps = wiring.least_latency_ps();
        let effects = FabricEffects::default();
        Ok(Self { medium, least_latency_ps, effects, known_groups, touched: BTreeSet::new() })
    }

    /// The least time in picoseconds in which anything comes from one card to another.
    pub(crate) fn least_latency_ps(&self) -> u64 {
        self.least_latency_ps
    }

    /// Whether a cable's other end is free, or a host of a network, by the number that a further card would have: then
    /// it carries frames from now on.
    pub(crate) fn plug(&mut self, host: usize) -> bool {
        match &mut self.medium {
            Medium::Cable { plugged, .. } => !std::mem::replace(plugged, true),
            Medium::Network(network) => network.inner_mut().open_outer(host),
        }
    }

    /// The card with this number is reached by the outer end. A cable asks no address.
    pub(crate) fn place_outside(&mut self, card: usize) {
        if let Medium::Network(captured) = &mut self.medium {
            let Sites { network, outer, .. } = captured.inner_mut();
            if let Some((host, _)) = outer {
                let known = network.set_address(address(card).mac_number(), *host);
                debug_assert!(known.is_ok(), "the outer end is at a host: {known:?}");
            }
        }
    }

    /// A packet leaves a port: a card's, or the free end of a cable.
    pub(crate) fn transmit(&mut self, at_ps: u64, card: usize, packet: Packet) {
        let is_ethernet = packet.transport == Transport::Ethernet;
        let sent = match &mut self.medium {
            Medium::Cable { plugged: false, .. } => Ok(()),
            Medium::Cable { cable, .. } => cable.transmit(at_ps, card, packet, &mut self.effects),
            Medium::Network(network) => network.transmit(at_ps, card, packet, &mut self.effects),
        };
        if let Err(error) = sent {
            // Every card has a port, and every packet of RDMA fits a buffer; an Ethernet frame may be longer.
            debug_assert!(is_ethernet, "{error:?}");
            tracing::warn!(card, %error, "a frame is dropped");
        }
    }

    /// A packet has arrived at a card's port. A cable's capture has it already, from the other end.
    pub(crate) fn arrived(&mut self, at_ps: u64, card: usize, packet: &Packet) {
        if let Medium::Network(network) = &mut self.medium {
            network.arrival(at_ps, card, packet);
        }
    }

    /// A time that the fabric asked for has come.
    pub(crate) fn handle_timer(&mut self, at_ps: u64) {
        if let Medium::Network(network) = &mut self.medium {
            network.handle_timer(at_ps, &mut self.effects);
        }
    }

    /// Somebody can change the groups of a card from now on.
    pub(crate) fn touch(&mut self, card: usize) {
        if matches!(self.medium, Medium::Network(_)) {
            self.touched.insert(card);
        }
    }

    /// Reports to the network the groups that cards have joined or left. Called before anything happens in it.
    pub(crate) fn follow_groups<'a>(&mut self, nic: impl Fn(usize) -> &'a Nic) {
        if self.touched.is_empty() {
            return;
        }
        let Medium::Network(captured) = &mut self.medium else { return };
        let Sites { network, hosts, .. } = captured.inner_mut();
        for card in std::mem::take(&mut self.touched) {
            let (nic, known_groups, host) = (nic(card), &mut self.known_groups[card], hosts[card]);
            if nic.group_changes() == known_groups.changes {
                continue;
            }
            known_groups.changes = nic.group_changes();
            known_groups.groups.retain(|gid| {
                let stays = nic.has_joined(gid);
                if !stays {
                    let left = network.leave(gid.number(), host);
                    debug_assert!(left.is_ok(), "it had known_groups: {left:?}");
                }
                stays
            });
            for gid in nic.joined_groups() {
                if known_groups.groups.contains(&gid) {
                    continue;
                }
                match network.join(gid.number(), host) {
                    Ok(()) => _ = known_groups.groups.insert(gid),
                    // What is sent to the group ends at the first switch, and is counted there.
                    Err(error) => tracing::warn!(card, %gid, %error, "the group has no members for the network"),
                }
            }
        }
    }

    pub(crate) fn counters(&self, card: usize) -> PortCounters {
        match &self.medium {
            Medium::Cable { cable, .. } => Fabric::<Packet>::counters(cable, card),
            Medium::Network(network) => network.counters(card),
        }
    }

    pub(crate) fn network(&self) -> Option<&Network<Packet>> {
        match &self.medium {
            Medium::Network(network) => Some(&network.inner().network),
            Medium::Cable { .. } => None,
        }
    }

    pub(crate) fn start_capture(&mut self, cards: usize, writer: Writer) -> Result<(), CaptureError> {
        match &mut self.medium {
            Medium::Cable { cable, .. } => cable.0.start(cards, writer),
            Medium::Network(network) => network.start(cards, writer),
        }
    }

    /// Ends the capture; the frames in it.
    pub(crate) fn finish_capture(&mut self) -> Result<u64, CaptureError> {
        match &mut self.medium {
            Medium::Cable { cable, .. } => {
                let frames = cable.0.frames();
                cable.0.finish().map(|_| frames)
            }
            Medium::Network(network) => {
                let frames = network.frames();
                network.finish().map(|_| frames)
            }
        }
    }
}
