//! A packet generator: UDP datagrams with a number in each, of which it knows which come back and when.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;

use emu_config::{ConfigError, GeneratorTable};
use emu_machine::Station;
use emu_machine::nic::{FCS_BYTES, PREAMBLE_AND_GAP_BYTES, Packet};
use emu_machine::time::PS_PER_US;
use etherparse::PacketBuilder;
use serde::Serialize;

use crate::error::BridgeError;

/// What a generated frame ends with, before its number.
const MARK: [u8; 8] = *b"flexcast";
const NUMBER_BYTES: usize = 8;
/// Hop limit of the datagrams.
const HOPS: u8 = 64;

/// What a generator has seen. Times are virtual.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GeneratorReport {
    /// Frames sent.
    pub sent: u64,
    /// Frames that came back, each counted once.
    pub returned: u64,
    /// Frames that did not come back in time.
    pub lost: u64,
    /// How many of those came back after it.
    pub late: u64,
    /// Frames that came and were none of the sent ones, or came back again.
    pub others: u64,
    /// Bytes of a frame, header and check sequence included.
    pub frame_bytes: u32,
    /// From the first frame's sending to the last arrival, in picoseconds.
    pub took_ps: u64,
    /// Frames that came back per second.
    pub returned_per_s: f64,
    /// Least, median, 99th percentile and greatest time from a frame's sending to its return, in picoseconds.
    pub round_trip_ps: [u64; 4],
}

/// The generator.
#[derive(Debug)]
pub(crate) struct Generator {
    template: Vec<u8>,
    frames: u64,
    /// Another frame is sent when one comes back, if fewer than so many are under way.
    window: Option<u64>,
    interval_ps: u64,
    start_ps: u64,
    patience_ps: u64,
    report_file: Option<PathBuf>,
    /// Steering leads to a queue since then.
    ready_ps: Option<u64>,
    next_ps: u64,
    first_ps: Option<u64>,
    /// When each frame was sent that has not come back, by number.
    under_way: BTreeMap<u64, u64>,
    /// Numbers of lost frames.
    missing: BTreeSet<u64>,
    round_trips_ps: Vec<u64>,
    report: GeneratorReport,
    is_over: bool,
}

impl Generator {
    pub(crate) fn new(table: &GeneratorTable, destination: [u8; 6]) -> Result<Self, BridgeError> {
        let [source, destination] = table.addresses(destination).map_err(ConfigError::Generator)?;
        let wire_bits = (u64::from(table.frame_bytes) + PREAMBLE_AND_GAP_BYTES) * 8;
        // A bit takes 1000 ps at 1 Gbit/s.
        let interval_ps = table.gbit_per_s.map_or(0, |rate| (wire_bits as f64 * 1000.0 / rate).round() as u64);
        let window = table.gbit_per_s.is_none().then(|| table.in_flight.unwrap_or(1));
        Ok(Self {
            template: template(table, source, destination),
            frames: table.frames,
            window,
            interval_ps,
            start_ps: table.start_us * PS_PER_US,
            patience_ps: table.patience_us * PS_PER_US,
            report_file: table.report.clone(),
            ready_ps: None,
            next_ps: 0,
            first_ps: None,
            under_way: BTreeMap::new(),
            missing: BTreeSet::new(),
            round_trips_ps: Vec::new(),
            report: GeneratorReport { frame_bytes: table.frame_bytes, ..GeneratorReport::default() },
            is_over: false,
        })
    }

    /// The oldest frame's time is over then.
    fn deadline_ps(&self) -> Option<u64> {
        self.under_way.values().next().map(|sent_ps| sent_ps + self.patience_ps)
    }

    fn may_send(&self) -> bool {
        let room = self.window.is_none_or(|window| (self.under_way.len() as u64) < window);
        self.ready_ps.is_some() && self.report.sent < self.frames && room
    }

    fn end(&mut self) {
        self.is_over = true;
        self.round_trips_ps.sort_unstable();
        let at = |share: f64| {
            let last = self.round_trips_ps.len().saturating_sub(1);
            self.round_trips_ps.get((last as f64 * share) as usize).copied().unwrap_or(0)
        };
        self.report.round_trip_ps = [at(0.0), at(0.5), at(0.99), at(1.0)];
        if self.report.took_ps > 0 {
            self.report.returned_per_s = self.report.returned as f64 * 1e12 / self.report.took_ps as f64;
        }
        // Whoever reads neither has lost nothing of the run.
        let _ = writeln!(std::io::stderr(), "flexcast: {}", sentence(&self.report));
        if let Some(path) = &self.report_file
            && let Err(error) = write_report(path, &self.report)
        {
            tracing::warn!(path = %path.display(), %error, "the generator's report cannot be written");
        }
    }
}

fn write_report(path: &std::path::Path, report: &GeneratorReport) -> std::io::Result<()> {
    std::fs::write(path, serde_json::to_string(report)?)
}

fn sentence(report: &GeneratorReport) -> String {
    let us = |ps: u64| ps as f64 / PS_PER_US as f64;
    let [_, median, slow, _] = report.round_trip_ps;
    let late = if report.late == 0 { String::new() } else { format!(" (of which {} came too late)", report.late) };
    format!(
        "the generator sent {} frames of {} bytes: {} came back ({:.0} per second), {} did not in time{late}, {} \
         others came; round trip {:.2} us at the median, {:.2} us at the 99th percentile (emulated)",
        report.sent,
        report.frame_bytes,
        report.returned,
        report.returned_per_s,
        report.lost,
        report.others,
        us(median),
        us(slow)
    )
}

/// The frame without its number.
fn template(table: &GeneratorTable, source: [u8; 6], destination: [u8; 6]) -> Vec<u8> {
    let mut frame = vec![0; table.frame_bytes as usize - FCS_BYTES as usize];
    let [from, to] = table.ports;
    let ethernet = PacketBuilder::ethernet2(source, destination);
    // Headers alone: the length of the payload follows from the frame's.
    let headers = 14 + if table.vlan.is_some() { 4 } else { 0 } + if table.ips[0].is_ipv4() { 28 } else { 48 };
    let payload = vec![0; frame.len() - headers];
    let udp = match (table.ips, table.vlan) {
        ([IpAddr::V4(a), IpAddr::V4(b)], None) => ethernet.ipv4(a.octets(), b.octets(), HOPS).udp(from, to),
        ([IpAddr::V6(a), IpAddr::V6(b)], None) => ethernet.ipv6(a.octets(), b.octets(), HOPS).udp(from, to),
        ([IpAddr::V4(a), IpAddr::V4(b)], Some(tag)) => {
            ethernet.single_vlan(vlan_number(tag)).ipv4(a.octets(), b.octets(), HOPS).udp(from, to)
        }
        ([IpAddr::V6(a), IpAddr::V6(b)], Some(tag)) => {
            ethernet.single_vlan(vlan_number(tag)).ipv6(a.octets(), b.octets(), HOPS).udp(from, to)
        }
        // The description has been checked.
        _ => return frame,
    };
    let written = udp.write_to_slice(&mut frame, &payload);
    debug_assert!(written.is_ok(), "the frame has room for its headers: {written:?}");
    if let Some(tag) = table.vlan {
        // The builder takes the number alone.
        frame[14..16].copy_from_slice(&tag.to_be_bytes());
    }
    let mark = frame.len() - NUMBER_BYTES - MARK.len();
    frame[mark..mark + MARK.len()].copy_from_slice(&MARK);
    // Right for no number at all: as a sender may, it leaves the checksum out (RFC 768).
    let at = headers - 2;
    frame[at..at + 2].fill(0);
    frame
}

fn vlan_number(tag: u16) -> etherparse::VlanId {
    etherparse::VlanId::try_new(tag & 0xFFF).unwrap_or_default()
}

impl Station for Generator {
    fn due_ps(&self) -> Option<u64> {
        if self.is_over {
            return None;
        }
        let next_ps = self.may_send().then_some(self.next_ps);
        [next_ps, self.deadline_ps()].into_iter().flatten().min()
    }

    fn send(&mut self, now_ps: u64) -> Option<Packet> {
        while self.deadline_ps().is_some_and(|deadline_ps| deadline_ps <= now_ps) {
            self.missing.extend(self.under_way.pop_first().map(|(number, _)| number));
            self.report.lost += 1;
        }
        if !self.may_send() || self.next_ps > now_ps {
            if self.report.sent == self.frames && self.under_way.is_empty() && !self.is_over {
                self.end();
            }
            return None;
        }
        let number = self.report.sent;
        let mut frame = self.template.clone();
        let at = frame.len() - NUMBER_BYTES;
        frame[at..].copy_from_slice(&number.to_be_bytes());
        self.report.sent += 1;
        self.first_ps.get_or_insert(now_ps);
        self.under_way.insert(number, now_ps);
        self.next_ps = now_ps + self.interval_ps;
        Packet::ethernet(Arc::from(frame))
    }

    fn arrive(&mut self, now_ps: u64, packet: Packet) {
        let frame = &packet.payload;
        // A frame may come back with bytes behind it, but not in the middle.
        let number = frame.get(..self.template.len()).and_then(|frame| {
            let (rest, number) = frame.split_last_chunk::<NUMBER_BYTES>()?;
            rest.ends_with(&MARK).then(|| u64::from_be_bytes(*number))
        });
        match number.and_then(|number| self.under_way.remove(&number)) {
            None if number.is_some_and(|number| self.missing.remove(&number)) => self.report.late += 1,
            None => self.report.others += 1,
            Some(sent_ps) => {
                self.report.returned += 1;
                self.round_trips_ps.push(now_ps - sent_ps);
                self.report.took_ps = now_ps - self.first_ps.unwrap_or(now_ps);
                self.next_ps = if self.window.is_some() { now_ps } else { self.next_ps };
            }
        }
        if self.report.sent == self.frames && self.under_way.is_empty() && !self.is_over {
            self.end();
        }
    }

    fn steered(&mut self, now_ps: u64, to_queue: bool) {
        if to_queue && self.ready_ps.is_none() {
            self.ready_ps = Some(now_ps);
            self.next_ps = now_ps + self.start_ps;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn generator(table: &GeneratorTable) -> Generator {
        Generator::new(table, [2; 6]).expect("it can be")
    }

    fn swapped(packet: &Packet) -> Packet {
        let frame = &packet.payload;
        let back = [&frame[6..12], &frame[..6], &frame[12..]].concat();
        Packet::ethernet(Arc::from(back)).expect("a frame")
    }

    #[test]
    fn it_waits_for_steering_and_for_answers() {
        let mut generator = generator(&GeneratorTable { frames: 3, start_us: 5, ..GeneratorTable::default() });
        assert_eq!(generator.due_ps(), None);
        generator.steered(1_000, true);
        assert_eq!(generator.due_ps(), Some(5_001_000));
        let first = generator.send(5_001_000).expect("the first");
        assert_eq!(first.frame_bytes(), 64);
        assert!(generator.send(5_001_000).is_none(), "one is under way");
        assert_eq!(generator.due_ps(), Some(5_001_000 + 1_000_000_000), "its deadline");
        generator.arrive(7_000_000, swapped(&first));
        generator.arrive(7_000_000, swapped(&first));
        let second = generator.send(7_000_000).expect("the second");
        assert_eq!(generator.report.others, 1, "the first once more");
        // The second is lost, and the third takes its place.
        let third = generator.send(7_000_000 + 1_000_000_000).expect("the third");
        generator.arrive(1_020_000_000, swapped(&second));
        generator.arrive(1_021_000_000, swapped(&third));
        let report = &generator.report;
        assert_eq!((report.sent, report.returned, report.lost, report.late, report.others), (3, 2, 1, 1, 1));
        assert!(sentence(report).contains("2 came back"), "{}", sentence(report));
        assert!(
            sentence(report).contains("1 did not in time (of which 1 came too late), 1 others"),
            "{}",
            sentence(report)
        );
        assert_eq!(report.round_trip_ps, [1_999_000, 1_999_000, 1_999_000, 14_000_000]);
        assert_eq!(generator.due_ps(), None, "it is over");
    }

    #[test]
    fn a_rate_does_not_wait_for_answers() {
        let table = GeneratorTable { frames: 3, frame_bytes: 480, gbit_per_s: Some(4.0), ..GeneratorTable::default() };
        let mut generator = generator(&table);
        generator.steered(0, true);
        for at_ps in [0, 1_000_000, 2_000_000] {
            assert_eq!(generator.due_ps(), Some(at_ps));
            assert!(generator.send(at_ps).is_some());
            assert!(generator.send(at_ps).is_none());
        }
        assert_eq!(generator.due_ps(), Some(1_000_000_000));
        assert!(generator.send(1_002_000_000).is_none());
        assert_eq!((generator.report.lost, generator.due_ps()), (3, None));
    }

    #[test]
    fn tags_and_ipv6_are_possible() {
        let ips = ["2001:db8::1", "2001:db8::2"].map(|text| text.parse().expect("an address"));
        let table = GeneratorTable { vlan: Some(0xE007), ips, frame_bytes: 90, ..GeneratorTable::default() };
        let frame = generator(&table).template;
        assert_eq!(frame[12..18], [0x81, 0, 0xE0, 7, 0x86, 0xDD]);
        assert_eq!(frame.len(), 86);
    }
}
