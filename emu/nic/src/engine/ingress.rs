//! The receive engine: it serves one packet from the port at a time, and the others wait.

use std::collections::VecDeque;

use super::pcie::Pcie;
use crate::cx::Cx;
use crate::effects::{Effects, Work};
use crate::packet::Packet;
use crate::timing::NicTiming;

/// The receive engine, and the buffer before it.
#[derive(Debug)]
pub(crate) struct ReceiveEngine {
    waiting: VecDeque<Packet>,
    busy_until_ps: u64,
    service_ps: u64,
    buffer_packets: usize,
}

impl ReceiveEngine {
    pub(crate) fn new(timing: &NicTiming) -> Self {
        let NicTiming { receive_service_ps: service_ps, receive_buffer_packets: buffer_packets, .. } = *timing;
        Self { waiting: VecDeque::new(), busy_until_ps: 0, service_ps, buffer_packets }
    }

    /// A packet for this card has arrived: gives it back if it is served now, and keeps or drops it otherwise.
    pub(crate) fn arrive(&mut self, packet: Packet, cx: &mut Cx<'_>) -> Option<Packet> {
        if self.waiting.is_empty() && self.busy_until_ps <= cx.now_ps {
            return Some(packet);
        }
        if self.waiting.len() < self.buffer_packets {
            if self.waiting.is_empty() {
                cx.fx.timer(self.busy_until_ps, Work::Receive);
            }
            self.waiting.push_back(packet);
        } else {
            let before = cx.log.before();
            cx.log.counters.rx_buffer_drops += 1;
            cx.log.note_drop(before, cx.now_ps, &packet);
        }
        None
    }

    /// Takes the next packet: the engine is free.
    pub(crate) fn next(&mut self) -> Option<Packet> {
        self.waiting.pop_front()
    }

    /// A packet has been served, for so many queue pairs.
    pub(crate) fn served(&mut self, copies: u64, pcie: &Pcie, now_ps: u64) {
        self.busy_until_ps = (now_ps + copies.max(1) * self.service_ps).max(pcie.ready_ps());
    }

    /// Has the next packet served, if one waits, when the engine is free.
    pub(crate) fn go_on(&self, fx: &mut Effects) {
        if !self.waiting.is_empty() {
            fx.timer(self.busy_until_ps, Work::Receive);
        }
    }
}
