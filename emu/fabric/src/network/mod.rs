//! Hosts, switches and cables at work.
//!
//! A frame that a port may send at once, or as soon as those before it are sent, is given its time on the wire when it
//! joins the queue; only frames that lack credit wait for an event. So the way through a switch costs one event, and a
//! copy for a host none. That holds until frames of a second priority come (see [`Priorities`]): from then on a frame
//! has its time when its turn has come, since others may overtake it until then; those that have theirs keep it. Where
//! all are of one priority both ways give the same times.

mod calendar;
mod port;
mod room;
mod serve;
mod slab;
mod sums;
mod transit;

use std::collections::BTreeMap;

use calendar::{Calendar, Due};
use port::{Credit, NEVER_PS, NONE, Payload, Port};
pub use room::{PORT_FREE_BYTES, PORT_FULL_BYTES};
use slab::Slab;
use sums::Sums;
use transit::{Hold, To, Transit};

use crate::arbiter::Arbiter;
use crate::config::{FlowControl, Priorities, SwitchConfig};
use crate::counters::PRIORITIES;
use crate::counters::{NetworkTotals, PortCounters};
use crate::fabric::{Fabric, FabricEffects, FabricError};
use crate::fault::{self, FaultError, FaultScript};
use crate::groups::{GroupError, Groups};
use crate::link::LinkError;
use crate::routes::Routes;
use crate::topology::{End, Node, Topology};
use crate::{Destination, NetworkFrame};

/// A network of a topology. Port `h` of [`Fabric`] is that of host `h`.
///
/// What a host sends waits in its port, which reports when it is full and when it is free again (see
/// [`FabricEffects::rooms`]) but refuses nothing; [`Network::backlog_bytes`] gives the bytes that wait.
#[derive(Clone, Debug)]
pub struct Network<F> {
    hosts: usize,
    /// Number of the first port of each switch, and of the port after the last.
    bases: Vec<u32>,
    ports: Vec<Port>,
    routes: Routes,
    groups: Groups,
    addresses: BTreeMap<u64, u32>,
    switching: SwitchConfig,
    frames: Slab<Transit<F>>,
    sums: Sums<F>,
    holds: Slab<Hold>,
    calendar: Calendar,
    /// The earliest time that was asked for and has not come.
    armed_ps: u64,
    /// Queues that frames have been for, a bit each.
    classes: u8,
    /// Egress ports of the frame at hand.
    ways: Vec<u32>,
}

impl<F: NetworkFrame> Network<F> {
    /// A network without faults, in virtual time 0.
    #[must_use]
    pub fn new(topology: &Topology) -> Self {
        let hosts = topology.hosts().len();
        let switching = topology.switching();
        let arbiter = Arbiter::new(switching.priorities, switching.weights);
        let mut ports: Vec<Port> = vec![Port::new(NONE, arbiter.clone()); hosts];
        let mut bases = Vec::with_capacity(topology.switches().len() + 1);
        for (number, switch) in topology.switches().iter().enumerate() {
            bases.push(ports.len() as u32);
            ports.extend((0..switch.ports).map(|_| Port::new(number as u32, arbiter.clone())));
        }
        bases.push(ports.len() as u32);
        debug_assert_eq!(ports.len(), topology.port_count());
        for cable in topology.cables() {
            let (a, b) = (topology.port_id(cable.a), topology.port_id(cable.b));
            for (from, to) in [(a, b), (b, a)] {
                let to_switch = ports[to as usize].switch != NONE;
                let port = &mut ports[from as usize];
                port.rate = cable.config.rate;
                port.latency_ps = cable.config.latency_ps;
                port.peer = to;
                if to_switch && switching.flow_control == FlowControl::Lossless {
                    port.credit = Some(Box::new([(); PRIORITIES].map(|()| Credit::new(switching.buffer_bytes))));
                }
            }
        }
        Self {
            hosts,
            bases,
            ports,
            routes: topology.routes().clone(),
            groups: Groups::default(),
            addresses: BTreeMap::new(),
            switching,
            frames: Slab::default(),
            sums: Sums::default(),
            holds: Slab::default(),
            calendar: Calendar::default(),
            armed_ps: NEVER_PS,
            classes: 0,
            ways: Vec::new(),
        }
    }

    /// A network whose links go wrong as a script says.
    ///
    /// # Errors
    /// A script that does not fit the topology.
    pub fn with_faults(topology: &Topology, script: &FaultScript) -> Result<Self, FaultError> {
        let mut network = Self::new(topology);
        for (cable, [forward, backward]) in topology.cables().iter().zip(fault::lines(topology, script)?) {
            network.ports[topology.port_id(cable.a) as usize].line = forward;
            network.ports[topology.port_id(cable.b) as usize].line = backward;
        }
        Ok(network)
    }

    /// Adds a host to a multicast group; once is enough, but it leaves as often as it joined. Takes effect at once.
    ///
    /// # Errors
    /// No such host, or a topology without a switch above all hosts.
    pub fn join(&mut self, group: u128, host: usize) -> Result<(), GroupError> {
        self.check_host(host)?;
        self.groups.join(&self.routes, self.switching.hash_seed, group, host)
    }

    /// Takes a host out of a multicast group.
    ///
    /// # Errors
    /// No such host, or one that is not in the group.
    pub fn leave(&mut self, group: u128, host: usize) -> Result<(), GroupError> {
        self.check_host(host)?;
        self.groups.leave(&self.routes, group, host)
    }

    /// Hosts in a group, in order.
    pub fn members(&self, group: u128) -> impl Iterator<Item = usize> + '_ {
        self.groups.members(group)
    }

    /// Binds a link-layer address to a host; the last binding holds.
    ///
    /// # Errors
    /// No such host.
    pub fn set_address(&mut self, address: u64, host: usize) -> Result<(), GroupError> {
        self.check_host(host)?;
        self.addresses.insert(address, host as u32);
        Ok(())
    }

    fn check_host(&self, host: usize) -> Result<(), GroupError> {
        if host < self.hosts { Ok(()) } else { Err(GroupError::NoHost { host, last: self.hosts - 1 }) }
    }

    /// Bytes that a host's port was given and has not sent.
    pub fn backlog_bytes(&mut self, now_ps: u64, host: usize) -> u64 {
        self.ports[..self.hosts].get_mut(host).map_or(0, |port| port.backlog_bytes(now_ps))
    }

    /// Frames inside: on a link towards a switch, or in a queue. What is on its way to a host has been delivered
    /// already.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.frames.len()
    }

    /// Sums of [`Destination::Sum`] that a switch has begun and that lack frames.
    #[must_use]
    pub fn open_sums(&self) -> usize {
        self.sums.len()
    }

    /// Counters of any port; all zero for a port that is not there or has no cable.
    #[must_use]
    pub fn port_counters(&self, end: End) -> PortCounters {
        let port = match end.node {
            Node::Host(host) if host < self.hosts && end.port == 0 => Some(host),
            Node::Switch(switch) if switch + 1 < self.bases.len() => {
                let port = u64::from(self.bases[switch]) + u64::from(end.port);
                (port < u64::from(self.bases[switch + 1])).then_some(port as usize)
            }
            _ => None,
        };
        port.map(|port| self.ports[port].counters).unwrap_or_default()
    }

    /// Sum over the ports of a switch; all zero for one that is not there.
    #[must_use]
    pub fn switch_counters(&self, switch: usize) -> PortCounters {
        match self.bases.get(switch..switch.saturating_add(2)) {
            Some(&[from, to]) => sum(&self.ports[from as usize..to as usize]),
            _ => PortCounters::default(),
        }
    }

    /// Sums over all switches and over all hosts.
    #[must_use]
    pub fn totals(&self) -> NetworkTotals {
        NetworkTotals { switches: sum(&self.ports[self.hosts..]), hosts: sum(&self.ports[..self.hosts]) }
    }

    /// Whether frames may have to let others pass.
    #[inline]
    fn is_mixed(&self) -> bool {
        self.classes.count_ones() > 1
    }

    fn resolve(&self, destination: Destination) -> To {
        match destination {
            Destination::Host(host) if host < self.hosts => To::Host(host as u32),
            Destination::Host(_) => To::Nobody,
            Destination::Address(address) => self.addresses.get(&address).map_or(To::Nobody, |host| To::Host(*host)),
            Destination::Group(group) => self.groups.number(group).map_or(To::Nobody, To::Group),
            Destination::Sum { group, to, tag } if to < self.hosts => {
                self.groups.number(group).map_or(To::Nobody, |group| To::Sum { group, host: to as u32, tag })
            }
            Destination::Sum { .. } => To::Nobody,
        }
    }

    /// Does what is due by then, in order.
    fn advance(&mut self, by_ps: u64, fx: &mut FabricEffects<F>) {
        while let Some((at_ps, port, due)) = self.calendar.pop_by(by_ps) {
            match due {
                Due::Arrival(slot) => self.arrive(at_ps, port, slot, fx),
                Due::Credit => self.wake(at_ps, port, fx),
                Due::Room => self.check_for_room(at_ps, port, fx),
                Due::Serve => self.serve(at_ps, port, fx),
            }
        }
    }

    /// Asks for the time of the next event, if nothing earlier was asked for.
    fn arm(&mut self, fx: &mut FabricEffects<F>) {
        if let Some(at_ps) = self.calendar.next_ps()
            && at_ps < self.armed_ps
        {
            self.armed_ps = at_ps;
            fx.timers_ps.push(at_ps);
        }
    }
}

impl<F: NetworkFrame> Fabric<F> for Network<F> {
    fn transmit(&mut self, now_ps: u64, port: usize, frame: F, fx: &mut FabricEffects<F>) -> Result<(), FabricError> {
        if port >= self.hosts {
            return Err(LinkError::NoPort { port, last: self.hosts - 1 }.into());
        }
        let bytes = frame.wire_bytes();
        let limit = self.switching.buffer_bytes;
        if bytes > limit && self.ports[self.ports[port].peer as usize].switch != NONE {
            return Err(FabricError::FrameTooLong { bytes, limit });
        }
        // What is due before now comes first, should the caller be late.
        self.advance(now_ps.saturating_sub(1), fx);
        let class = match self.switching.priorities {
            Priorities::Shared => 0,
            Priorities::Strict | Priorities::Weighted => usize::from(frame.priority()) % PRIORITIES,
        };
        self.classes |= 1 << class;
        let transit = Transit {
            to: self.resolve(frame.destination()),
            flow: frame.flow(),
            bytes,
            payload: Payload { bytes: frame.payload_bytes(), priority: frame.priority() },
            class,
            copies: 1,
            credited: true,
            frame,
        };
        let slot = self.frames.insert(transit);
        self.offer(now_ps, port as u32, slot, NONE, now_ps, fx);
        self.check_room(now_ps, port as u32, class, fx);
        self.arm(fx);
        Ok(())
    }

    fn handle_timer(&mut self, now_ps: u64, fx: &mut FabricEffects<F>) {
        if now_ps >= self.armed_ps {
            self.armed_ps = NEVER_PS;
        }
        self.advance(now_ps, fx);
        self.arm(fx);
    }

    fn ports(&self) -> usize {
        self.hosts
    }

    fn counters(&self, port: usize) -> PortCounters {
        self.ports[..self.hosts].get(port).map(|port| port.counters).unwrap_or_default()
    }
}

fn sum(ports: &[Port]) -> PortCounters {
    let mut total = PortCounters::default();
    for port in ports {
        total += port.counters;
    }
    total
}
