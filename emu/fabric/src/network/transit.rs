//! The way of a frame: through a switch, into a queue, over a link.

use super::Network;
use super::calendar::Due;
use super::port::{NEVER_PS, NONE, Payload, Waiting};
use crate::NetworkFrame;
use crate::config::{FlowControl, Forwarding, Routing};
use crate::fabric::FabricEffects;
use crate::link::Delivery;
use crate::routes::Routes;

/// Bytes that a cut-through switch has read when it decides: headers of Ethernet, IPv4 and UDP and the preamble. An
/// assumption; it is 2.6 ns at 200 Gbit/s.
const CUT_THROUGH_BYTES: u64 = 64;

/// Where a frame goes, determined once.
#[derive(Clone, Copy, Debug)]
pub(super) enum To {
    Host(u32),
    Group(u32),
    /// A sum for a member of a group.
    Sum {
        group: u32,
        host: u32,
        tag: u64,
    },
    Nobody,
}

/// A frame inside, shared by all its copies.
#[derive(Clone, Debug)]
pub(super) struct Transit<F> {
    pub(super) frame: F,
    pub(super) to: To,
    pub(super) flow: u64,
    pub(super) bytes: u64,
    pub(super) payload: Payload,
    /// The queue it is for at every port.
    pub(super) class: usize,
    /// Queues and links it is in.
    pub(super) copies: u32,
    /// Credit was taken for the link it is on. Not so for what a fault doubled.
    pub(super) credited: bool,
}

/// Room that a frame takes in the buffer of a switch until its last copy has left.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hold {
    /// The port at the other end of the link it came by.
    sender: u32,
    class: usize,
    bytes: u64,
    copies: u32,
    free_ps: u64,
}

impl<F: NetworkFrame> Network<F> {
    /// A switch can pass on a frame that came in at one of its ports.
    pub(super) fn arrive(&mut self, now_ps: u64, ingress: u32, slot: u32, fx: &mut FabricEffects<F>) {
        let Some(transit) = self.frames.get_mut(slot) else { return };
        let Transit { to, flow, bytes, payload, class, .. } = *transit;
        let credited = std::mem::replace(&mut transit.credited, true);
        let port = &mut self.ports[ingress as usize];
        port.receive(bytes, payload);
        let (rate, sender, switch) = (port.rate, port.peer, port.switch as usize);

        let mut ways = std::mem::take(&mut self.ways);
        ways.clear();
        let mut taken = false;
        match to {
            To::Host(host) => ways.extend(self.way(now_ps, switch, host as usize, flow).filter(|&way| way != ingress)),
            To::Group(group) => self.groups.ways(group, switch, ingress, &mut ways),
            To::Sum { group, host, tag } => taken = self.sum((switch, ingress), slot, (group, host, tag), &mut ways),
            To::Nobody => {}
        }

        let lossless = self.switching.flow_control == FlowControl::Lossless && credited;
        let mut hold = NONE;
        if let Some(transit) = self.frames.get_mut(slot)
            && !ways.is_empty()
        {
            // One was the copy that came in.
            transit.copies += ways.len() as u32 - 1;
        }
        if ways.is_empty() {
            if !taken {
                self.ports[ingress as usize].counters.drops.no_receiver += 1;
            }
            self.drop_copy(slot);
            if lossless {
                self.return_credit(now_ps, sender, now_ps, class, bytes);
            }
        } else if lossless {
            hold = self.holds.insert(Hold { sender, class, bytes, copies: ways.len() as u32, free_ps: now_ps });
        }
        let whole_ps = match self.switching.forwarding {
            Forwarding::StoreAndForward => now_ps,
            Forwarding::CutThrough => {
                now_ps + rate.serialisation_ps(bytes) - rate.serialisation_ps(bytes.min(CUT_THROUGH_BYTES))
            }
        };
        for &egress in &ways {
            // A faster link would run dry in the middle of the frame.
            let faster = self.ports[egress as usize].rate.gbit_per_s() > rate.gbit_per_s();
            self.offer(now_ps, egress, slot, hold, if faster { whole_ps } else { now_ps }, fx);
        }
        self.ways = ways;
    }

    /// The port through which a switch sends a frame to a host.
    #[inline]
    fn way(&mut self, now_ps: u64, switch: usize, host: usize, flow: u64) -> std::option::IntoIter<u32> {
        if let Some((at, port)) = self.routes.attachment(host)
            && at == switch
        {
            return Some(port).into_iter();
        }
        let ways = self.routes.ways(switch, host);
        if ways.is_empty() {
            return None.into_iter();
        }
        let first = Routes::hashed(ways, switch, flow, self.switching.hash_seed);
        let mut best = ways[first];
        if self.switching.routing == Routing::Adaptive {
            let mut least = self.ports[best as usize].backlog_bytes(now_ps);
            for step in 1..ways.len() {
                if least == 0 {
                    break;
                }
                let port = ways[(first + step) % ways.len()];
                let load = self.ports[port as usize].backlog_bytes(now_ps);
                if load < least {
                    (best, least) = (port, load);
                }
            }
        }
        Some(best).into_iter()
    }

    /// A copy of a frame joins the queue of a port, to leave at `ready_ps` at the earliest.
    pub(super) fn offer(
        &mut self,
        now_ps: u64,
        egress: u32,
        slot: u32,
        hold: u32,
        ready_ps: u64,
        fx: &mut FabricEffects<F>,
    ) {
        let Some(&Transit { bytes, class, .. }) = self.frames.get(slot) else { return };
        let mixed = self.is_mixed();
        let port = &mut self.ports[egress as usize];
        port.backlog_bytes(now_ps);
        let tail_drop = self.switching.flow_control == FlowControl::TailDrop && port.switch != NONE;
        if tail_drop && port.class_bytes[class] + bytes > self.switching.buffer_bytes {
            port.counters.drops.queue_full += 1;
            self.drop_copy(slot);
            return;
        }
        port.enqueue(class, bytes);
        if mixed {
            port.waiting[class].push_back(Waiting { slot, hold, ready_ps, bytes });
            self.serve(now_ps, egress, fx);
        } else if port.waiting[class].is_empty() && port.take_credit(now_ps, class, bytes) {
            self.send(now_ps, egress, (slot, hold), ready_ps, fx);
        } else {
            port.waiting[class].push_back(Waiting { slot, hold, ready_ps, bytes });
            if let Some(at_ps) = port.plan_wake(now_ps) {
                self.calendar.push(at_ps, egress, Due::Credit);
            }
        }
    }

    /// Credit has come back to a port.
    pub(super) fn wake(&mut self, now_ps: u64, egress: u32, fx: &mut FabricEffects<F>) {
        if self.ports[egress as usize].wake_ps <= now_ps {
            self.ports[egress as usize].wake_ps = NEVER_PS;
        }
        if self.is_mixed() {
            return self.serve(now_ps, egress, fx);
        }
        let class = self.classes.checked_ilog2().unwrap_or(0) as usize;
        loop {
            let port = &mut self.ports[egress as usize];
            let Some(&Waiting { slot, hold, ready_ps, bytes }) = port.waiting[class].front() else { break };
            if !port.take_credit(now_ps, class, bytes) {
                break;
            }
            port.waiting[class].pop_front();
            port.backlog_bytes(now_ps);
            self.send(now_ps, egress, (slot, hold), ready_ps.max(now_ps), fx);
        }
        if let Some(at_ps) = self.ports[egress as usize].plan_wake(now_ps) {
            self.calendar.push(at_ps, egress, Due::Credit);
        }
        self.plan_room(now_ps, egress);
    }

    /// Puts a copy on the wire as soon as the port is free.
    pub(super) fn send(
        &mut self,
        now_ps: u64,
        egress: u32,
        (slot, hold): (u32, u32),
        ready_ps: u64,
        fx: &mut FabricEffects<F>,
    ) {
        let Some(transit) = self.frames.get(slot) else { return };
        let Transit { bytes, payload, class, .. } = *transit;
        let port = &mut self.ports[egress as usize];
        let (start_ps, end_ps) = port.depart(ready_ps, class, bytes, payload);
        let arrival_ps = end_ps + port.latency_ps;
        let peer = port.peer;
        let priority = payload.priority();
        let fate = port.line.as_mut().map(|line| line.carry(start_ps, end_ps, arrival_ps, bytes, priority));
        self.release(now_ps, hold, end_ps);

        let Some(fate) = fate else {
            self.land(peer, slot, arrival_ps, fx);
            return;
        };
        if let Some(cause) = fate.lost {
            self.ports[peer as usize].lose(cause);
            self.return_credit(now_ps, egress, arrival_ps, class, bytes);
            self.drop_copy(slot);
            return;
        }
        let arrival_ps = arrival_ps + fate.delay_ps;
        let mut slot = slot;
        if let Some(seed) = fate.corrupt {
            self.ports[peer as usize].counters.corrupted_frames += 1;
            slot = self.separate(slot);
            if let Some(transit) = self.frames.get_mut(slot) {
                transit.frame.corrupt(seed);
            }
        }
        if fate.duplicate
            && let Some(transit) = self.frames.get(slot)
        {
            self.ports[peer as usize].counters.duplicated_frames += 1;
            let double = Transit { copies: 1, credited: false, ..transit.clone() };
            let double = self.frames.insert(double);
            self.land(peer, slot, arrival_ps, fx);
            self.land(peer, double, arrival_ps + (end_ps - start_ps), fx);
        } else {
            self.land(peer, slot, arrival_ps, fx);
        }
    }

    /// A frame will be complete at a port at `arrival_ps`.
    fn land(&mut self, port: u32, slot: u32, arrival_ps: u64, fx: &mut FabricEffects<F>) {
        let Some(transit) = self.frames.get_mut(slot) else { return };
        let end = &mut self.ports[port as usize];
        if end.switch != NONE {
            let decided_ps = match self.switching.forwarding {
                Forwarding::StoreAndForward => arrival_ps,
                Forwarding::CutThrough => {
                    let bytes = transit.bytes;
                    arrival_ps + end.rate.serialisation_ps(bytes.min(CUT_THROUGH_BYTES))
                        - end.rate.serialisation_ps(bytes)
                }
            };
            self.calendar.push(decided_ps + self.switching.latency_ps, port, Due::Arrival(slot));
            return;
        }
        end.receive(transit.bytes, transit.payload);
        transit.copies -= 1;
        let frame = if transit.copies > 0 {
            Some(transit.frame.clone())
        } else {
            self.frames.remove(slot).map(|transit| transit.frame)
        };
        fx.deliveries.extend(frame.map(|frame| Delivery { at_ps: arrival_ps, port: port as usize, frame }));
    }

    /// A copy has left the buffer it was held in.
    #[inline]
    fn release(&mut self, now_ps: u64, hold: u32, end_ps: u64) {
        if hold == NONE {
            return;
        }
        let Some(held) = self.holds.get_mut(hold) else { return };
        held.copies -= 1;
        held.free_ps = held.free_ps.max(end_ps);
        if held.copies == 0
            && let Some(Hold { sender, class, bytes, free_ps, .. }) = self.holds.remove(hold)
        {
            self.return_credit(now_ps, sender, free_ps, class, bytes);
        }
    }

    /// Room is free at the other end of a port's link from `free_ps` on; the port learns of it one latency later.
    fn return_credit(&mut self, now_ps: u64, port: u32, free_ps: u64, class: usize, bytes: u64) {
        let sender = &mut self.ports[port as usize];
        sender.give_credit(free_ps + sender.latency_ps, class, bytes);
        if let Some(at_ps) = sender.plan_wake(now_ps) {
            self.calendar.push(at_ps, port, Due::Credit);
        }
    }

    /// The copy as a frame of its own.
    fn separate(&mut self, slot: u32) -> u32 {
        match self.frames.get_mut(slot) {
            Some(transit) if transit.copies > 1 => {
                transit.copies -= 1;
                let own = Transit { copies: 1, ..transit.clone() };
                self.frames.insert(own)
            }
            _ => slot,
        }
    }

    fn drop_copy(&mut self, slot: u32) {
        if let Some(transit) = self.frames.get_mut(slot) {
            transit.copies -= 1;
            if transit.copies == 0 {
                self.frames.remove(slot);
            }
        }
    }
}
