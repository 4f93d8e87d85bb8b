//! A reflector: each frame goes back to its sender, with both Ethernet addresses exchanged.

use std::collections::VecDeque;
use std::sync::Arc;

use emu_config::ReflectorTable;
use emu_machine::Station;
use emu_machine::nic::{Packet, Transport};
use emu_machine::time::PS_PER_NS;

/// The reflector.
#[derive(Debug)]
pub(crate) struct Reflector {
    delay_ps: u64,
    /// When each frame goes back.
    waiting: VecDeque<(u64, Packet)>,
}

impl Reflector {
    pub(crate) fn new(table: &ReflectorTable) -> Self {
        Self { delay_ps: table.delay_ns * PS_PER_NS, waiting: VecDeque::new() }
    }
}

impl Station for Reflector {
    fn due_ps(&self) -> Option<u64> {
        self.waiting.front().map(|(at_ps, _)| *at_ps)
    }

    fn send(&mut self, now_ps: u64) -> Option<Packet> {
        self.waiting.pop_front_if(|(at_ps, _)| *at_ps <= now_ps).map(|(_, packet)| packet)
    }

    fn arrive(&mut self, now_ps: u64, packet: Packet) {
        if packet.transport != Transport::Ethernet {
            return;
        }
        let frame = &packet.payload;
        let back = [&frame[6..12], &frame[..6], &frame[12..]].concat();
        if let Some(packet) = Packet::ethernet(Arc::from(back)) {
            self.waiting.push_back((now_ps + self.delay_ps, packet));
        }
    }

    fn steered(&mut self, _: u64, _: bool) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_goes_back_later_to_where_it_came_from() {
        let mut reflector = Reflector::new(&ReflectorTable { delay_ns: 5 });
        let frame: Vec<u8> = (0..60).collect();
        reflector.arrive(1_000, Packet::ethernet(Arc::from(frame.clone())).expect("a frame"));
        assert_eq!(reflector.due_ps(), Some(6_000));
        assert!(reflector.send(5_999).is_none());
        let back = reflector.send(6_000).expect("it goes back").payload;
        assert_eq!((&back[..6], &back[6..12], &back[12..]), (&frame[6..12], &frame[..6], &frame[12..]));
        assert_eq!(reflector.due_ps(), None);
    }
}
