//! The wire format before outside witnesses: Wireshark's dissector (`tshark`), and Scapy for the check sequence.
//!
//! A capture of every packet kind there is goes through a captured link into a file. The dissector must find nothing
//! wrong with it, and must read in it what was sent. No released dissector recomputes the invariant check sequence of
//! RoCEv2, so that is done here bit by bit (both networks) and by Scapy's `contrib/roce` (IPv4).
//!
//! Each test says on stderr that it skips where its detecting rank is not installed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use emu_fabric::{BackToBack, CaptureWriter, Captured, Link, LinkConfig};
use emu_nic::{
    Acknowledgement, Address, DEFAULT_PKEY, Extension, Gid, Network, Operation, Packet, RoceVersion, Transport, wire,
};
use flexcast_tests::harness::{installed, skipped};

const IPV6_BYTES: usize = 40;
const ETHERNET_BYTES: usize = 14;
/// The packets leave the link's two ports in turn, at this interval.
const STEP_PS: u64 = 1_234_567_891_000;

/// One of every kind: opcodes by transport, place in the message, immediate and extended header, with the opcode of the
/// specification.
fn kinds() -> Vec<(u8, Packet)> {
    use Operation::{Acknowledge, AtomicAcknowledge, CompareSwap, FetchAdd, ReadRequest, ReadResponse, Send, Write};
    const FIRST: (bool, bool) = (true, false);
    const MIDDLE: (bool, bool) = (false, false);
    const LAST: (bool, bool) = (false, true);
    const ONLY: (bool, bool) = (true, true);
    let remote = Extension::Remote { address: 0x0000_7F12_3456_789A, rkey: 0x0102_0304, len: 0x0001_0203 };
    let ack = |acknowledgement| Extension::Acknowledge(acknowledgement);
    let positive = ack(Acknowledgement::Positive);
    let atomic = |swap_or_add, compare| Extension::Atomic {
        address: 0x0000_7F00_0000_1008,
        rkey: 0x0A0B_0C0D,
        swap_or_add,
        compare,
    };
    let mut kinds = Vec::new();
    let mut add = |opcode, transport, operation, place, extension| {
        kinds.push((opcode, blank(transport, operation, place, extension)));
    };
    for (service, transport) in [(0x00, Transport::Rc), (0x20, Transport::Uc)] {
        add(service, transport, Send, FIRST, Extension::None);
        add(service | 0x01, transport, Send, MIDDLE, Extension::None);
        add(service | 0x02, transport, Send, LAST, Extension::None);
        add(service | 0x04, transport, Send, ONLY, Extension::None);
        add(service | 0x06, transport, Write, FIRST, remote);
        add(service | 0x07, transport, Write, MIDDLE, Extension::None);
        add(service | 0x08, transport, Write, LAST, Extension::None);
        add(service | 0x0A, transport, Write, ONLY, remote);
    }
    add(0x0C, Transport::Rc, ReadRequest, ONLY, remote);
    add(0x0D, Transport::Rc, ReadResponse, FIRST, positive);
    add(0x0E, Transport::Rc, ReadResponse, MIDDLE, Extension::None);
    add(0x0F, Transport::Rc, ReadResponse, LAST, positive);
    add(0x10, Transport::Rc, ReadResponse, ONLY, positive);
    add(0x11, Transport::Rc, Acknowledge, ONLY, positive);
    add(0x11, Transport::Rc, Acknowledge, ONLY, ack(Acknowledgement::ReceiverNotReady { timer: 21 }));
    add(0x11, Transport::Rc, Acknowledge, ONLY, ack(Acknowledgement::SequenceError));
    add(0x11, Transport::Rc, Acknowledge, ONLY, ack(Acknowledgement::InvalidRequest));
    add(0x11, Transport::Rc, Acknowledge, ONLY, ack(Acknowledgement::RemoteAccess));
    add(0x11, Transport::Rc, Acknowledge, ONLY, ack(Acknowledgement::RemoteOperation));
    let original = 0x1122_3344_5566_7788;
    add(0x12, Transport::Rc, AtomicAcknowledge, ONLY, Extension::AtomicAcknowledge { original });
    add(0x13, Transport::Rc, CompareSwap, ONLY, atomic(0xA1A2_A3A4_A5A6_A7A8, 0xB1B2_B3B4_B5B6_B7B8));
    add(0x14, Transport::Rc, FetchAdd, ONLY, atomic(0xC1C2_C3C4_C5C6_C7C8, 0));
    let datagram = Extension::Datagram { qkey: 0x8001_0203, source_qpn: 0x00_ABCD };
    add(0x64, Transport::Ud, Send, ONLY, datagram);

    // The same with an immediate, or with a key to invalidate.
    let with_immediate =
        kinds.clone().into_iter().filter(|(opcode, _)| matches!(opcode & 0x1F, 0x02 | 0x04 | 0x08 | 0x0A));
    let with_immediate = with_immediate
        .map(|(opcode, packet)| (opcode + 1, Packet { immediate: Some([0xDE, 0xAD, 0xBE, opcode]), ..packet }));
    let with_key = kinds.clone().into_iter().filter(|(opcode, _)| matches!(opcode, 0x02 | 0x04));
    let with_key = with_key.map(|(opcode, packet)| {
        (if opcode == 0x02 { 0x16 } else { 0x17 }, Packet { invalidate: Some(0xFEED_F00D), ..packet })
    });
    let more: Vec<_> = with_immediate.chain(with_key).collect();
    kinds.extend(more);
    kinds
}

fn blank(transport: Transport, operation: Operation, (first, last): (bool, bool), extension: Extension) -> Packet {
    let acknowledges = matches!(extension, Extension::Acknowledge(_) | Extension::AtomicAcknowledge { .. });
    Packet {
        source: Address::default(),
        destination: Address::default(),
        network: Network::default(),
        pkey: DEFAULT_PKEY,
        transport,
        operation,
        first,
        last,
        solicited: false,
        ack_request: false,
        destination_qpn: 0,
        psn: 0,
        immediate: None,
        invalidate: None,
        message_number: if acknowledges { 0x00_0102 } else { 0 },
        extension,
        payload: Arc::default(),
        damage: None,
    }
}

/// Every kind over both networks with every padding, and datagrams to groups.
fn packets() -> Vec<(u8, Packet)> {
    let v4 = |last| Gid::from_ipv4([192, 0, 2, last]);
    let v6 = |first, last| Gid([first, 1, 0x0D, 0xB8, 0, 0, 0, 0, 0, 0, 0, 0, 0x11, 0x22, 0x33, last]);
    let group4 = Gid::from_ipv4([239, 192, 7, 8]);
    let mut packets = Vec::new();
    for (opcode, kind) in kinds() {
        let mut ways = vec![(v4(1), v4(2)), (v6(0xFD, 1), v6(0xFD, 2))];
        if kind.transport == Transport::Ud {
            ways.extend([(v4(1), group4), (v6(0xFD, 1), v6(0xFF, 3))]);
        }
        let lengths: &[usize] = match kind.operation {
            Operation::Send | Operation::Write | Operation::ReadResponse => &[256, 61, 2, 31, 1, 0, 4096],
            _ => &[0],
        };
        for (way, (source, destination)) in ways.into_iter().enumerate() {
            for &bytes in lengths {
                let n = packets.len() as u32;
                let mut packet = kind.clone();
                packet.source = Address { mac: [2, 0, 0, 0, 0, 1], gid: source };
                let mac = wire::group_mac(destination).unwrap_or([2, 0, 0, 0, 0, 2]);
                packet.destination = Address { mac, gid: destination };
                packet.destination_qpn = if way < 2 { 0x01_0000 + n } else { emu_nic::MULTICAST_QPN };
                packet.psn = (0xFF_FF00 + n) & 0xFF_FFFF;
                packet.solicited = n.is_multiple_of(3);
                packet.ack_request = n.is_multiple_of(2);
                packet.pkey = if n.is_multiple_of(5) { 0x8123 } else { DEFAULT_PKEY };
                packet.network = Network {
                    version: RoceVersion::V2,
                    traffic_class: (n % 64) as u8 * 4 + 2,
                    hop_limit: 64 - (n % 3) as u8,
                    flow_label: if destination.ipv4().is_some() { 0 } else { 0x5_0000 + n },
                    identification: if destination.ipv4().is_some() { (0xFF00 + n) as u16 } else { 0 },
                    dont_fragment: true,
                    udp_source_port: wire::entropy_port(0x00_0800 + n, packet.destination_qpn),
                };
                packet.payload = (0..bytes).map(|i| b'a' + (i % 26) as u8).collect();
                packets.push((opcode, packet));
            }
        }
    }
    packets
}

/// The packets through a captured cable into a file, each from its port at its time.
fn capture(packets: &[(u8, Packet)], folder: &Path) -> PathBuf {
    let path = folder.join("every-kind.pcapng");
    let file = std::fs::File::create(&path).expect("a file in a folder of our own");
    let cable = BackToBack::new(LinkConfig::default());
    let mut link = Captured::new(cable, 2, std::io::BufWriter::new(file)).expect("room for the header");
    let mut arrived = Vec::new();
    for (n, (_, packet)) in packets.iter().enumerate() {
        link.transmit(n as u64 * STEP_PS, n % 2, packet.clone(), &mut arrived).expect("ports 0 and 1");
    }
    assert_eq!((link.frames(), link.unwritable_frames()), (packets.len() as u64, 0));
    link.finish().expect("room for the rest");
    path
}

const FIELDS: [&str; 45] = [
    "frame.interface_name",
    "frame.time_epoch",
    "frame.len",
    "eth.src",
    "eth.dst",
    "ip.src",
    "ip.dst",
    "ip.len",
    "ip.ttl",
    "ip.dsfield",
    "ip.id",
    "ip.flags.df",
    "ip.checksum.status",
    "ipv6.src",
    "ipv6.dst",
    "ipv6.plen",
    "ipv6.hlim",
    "ipv6.tclass",
    "ipv6.flow",
    "udp.srcport",
    "udp.dstport",
    "udp.length",
    "infiniband.bth.opcode",
    "infiniband.bth.se",
    "infiniband.bth.m",
    "infiniband.bth.padcnt",
    "infiniband.bth.tver",
    "infiniband.bth.p_key",
    "infiniband.bth.destqp",
    "infiniband.bth.a",
    "infiniband.bth.psn",
    "infiniband.deth.q_key",
    "infiniband.deth.srcqp",
    "infiniband.reth.va",
    "infiniband.reth.r_key",
    "infiniband.reth.dmalen",
    "infiniband.atomiceth.swapdt",
    "infiniband.atomiceth.cmpdt",
    "infiniband.aeth.syndrome",
    "infiniband.aeth.msn",
    "infiniband.atomicacketh.origremdt",
    "infiniband.immdt",
    "infiniband.ieth",
    "infiniband.invariant.crc",
    "_ws.expert.message",
];

/// What the dissector sees in one frame: field by field, only those that are there.
type Dissected = BTreeMap<String, String>;

/// Protocols above that the dissector guesses at from the first bytes of the payload, and that stumble when there are
/// fewer than four, as they would over any card. They are none of the wire format's business.
const GUESSES: [&str; 3] = ["eth_over_ib", "rpcrdma_infiniband", "mellanox_eoib"];

fn tshark(file: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .arg("-n")
        // RoCEv2 sends no UDP checksum, over IPv6 either; the dissector complains unless it is configured so.
        .args(["-o", "udp.ignore_ipv6_zero_checksum:TRUE", "-o", "ip.check_checksum:TRUE"])
        .args(GUESSES.into_iter().flat_map(|guess| ["--disable-heuristic", guess]))
        .arg("-r")
        .arg(file)
        .args(arguments)
        .output()
        .expect("tshark was there a moment ago");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "tshark failed: {complaint}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

fn dissect(file: &Path) -> Vec<Dissected> {
    let mut arguments = vec!["-T", "fields", "-E", "separator=/t", "-E", "occurrence=l"];
    for field in FIELDS {
        arguments.extend(["-e", field]);
    }
    let lines = tshark(file, &arguments);
    let row = |line: &str| {
        let values: Vec<&str> = line.split('\t').collect();
        assert_eq!(values.len(), FIELDS.len(), "{line}");
        FIELDS
            .iter()
            .zip(values)
            .filter(|(_, value)| !value.is_empty())
            .map(|(field, value)| ((*field).to_owned(), value.to_owned()))
            .collect()
    };
    lines.lines().map(row).collect()
}

fn mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16),
        None if text == "True" => Ok(1),
        None if text == "False" => Ok(0),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("{text:?} is no number"))
}

/// What the dissector must see: texts as they are, numbers in whatever base.
struct Expected {
    texts: BTreeMap<&'static str, String>,
    numbers: BTreeMap<&'static str, u64>,
}

fn expected(n: usize, opcode: u8, packet: &Packet, frame: &[u8]) -> Expected {
    let at_ns = n as u64 * STEP_PS / 1_000;
    let mut texts = BTreeMap::from([
        ("frame.interface_name", format!("port {}", n % 2)),
        ("frame.time_epoch", format!("{}.{:09}", at_ns / 1_000_000_000, at_ns % 1_000_000_000)),
        ("eth.src", mac(packet.source.mac)),
        ("eth.dst", mac(packet.destination.mac)),
    ]);
    // The frame check sequence is not captured.
    let frame_bytes = packet.frame_bytes() - 4;
    let ip_bytes = datagram(frame).len() as u64;
    let udp_bytes;
    let mut numbers = BTreeMap::from([("frame.len", frame_bytes)]);
    let network = packet.network;
    if let (Some(source), Some(destination)) = (packet.source.gid.ipv4(), packet.destination.gid.ipv4()) {
        texts.insert("ip.src", std::net::Ipv4Addr::from(source).to_string());
        texts.insert("ip.dst", std::net::Ipv4Addr::from(destination).to_string());
        numbers.extend([
            ("ip.len", ip_bytes),
            ("ip.ttl", network.hop_limit.into()),
            ("ip.dsfield", network.traffic_class.into()),
            ("ip.id", network.identification.into()),
            ("ip.flags.df", network.dont_fragment.into()),
            // 1 is "good".
            ("ip.checksum.status", 1),
        ]);
        udp_bytes = ip_bytes - 20;
    } else {
        texts.insert("ipv6.src", packet.source.gid.to_string());
        texts.insert("ipv6.dst", packet.destination.gid.to_string());
        udp_bytes = ip_bytes - IPV6_BYTES as u64;
        numbers.extend([
            ("ipv6.plen", udp_bytes),
            ("ipv6.hlim", network.hop_limit.into()),
            ("ipv6.tclass", network.traffic_class.into()),
            ("ipv6.flow", network.flow_label.into()),
        ]);
    }
    let pad = packet.payload.len().next_multiple_of(4) - packet.payload.len();
    numbers.extend([
        ("udp.srcport", network.udp_source_port.into()),
        ("udp.dstport", wire::UDP_PORT.into()),
        ("udp.length", udp_bytes),
        ("infiniband.bth.opcode", opcode.into()),
        ("infiniband.bth.se", packet.solicited.into()),
        ("infiniband.bth.m", 1),
        ("infiniband.bth.padcnt", pad as u64),
        ("infiniband.bth.tver", 0),
        ("infiniband.bth.p_key", packet.pkey.into()),
        ("infiniband.bth.destqp", packet.destination_qpn.into()),
        ("infiniband.bth.a", packet.ack_request.into()),
        ("infiniband.bth.psn", packet.psn.into()),
        ("infiniband.invariant.crc", u32::from_be_bytes(check_sequence(frame)).into()),
    ]);
    match packet.extension {
        Extension::None => {}
        Extension::Datagram { qkey, source_qpn } => {
            numbers.extend([("infiniband.deth.q_key", qkey.into()), ("infiniband.deth.srcqp", source_qpn.into())]);
        }
        Extension::Remote { address, rkey, len } => {
            numbers.extend([
                ("infiniband.reth.va", address),
                ("infiniband.reth.r_key", rkey.into()),
                ("infiniband.reth.dmalen", len.into()),
            ]);
        }
        Extension::Acknowledge(acknowledgement) => {
            numbers.insert("infiniband.aeth.syndrome", acknowledgement.syndrome().into());
        }
        Extension::Atomic { address, rkey, swap_or_add, compare } => {
            numbers.extend([
                ("infiniband.reth.va", address),
                ("infiniband.reth.r_key", rkey.into()),
                ("infiniband.atomiceth.swapdt", swap_or_add),
                ("infiniband.atomiceth.cmpdt", compare),
            ]);
        }
        Extension::AtomicAcknowledge { original } => {
            numbers.extend([
                ("infiniband.aeth.syndrome", Acknowledgement::Positive.syndrome().into()),
                ("infiniband.atomicacketh.origremdt", original),
            ]);
        }
    }
    if numbers.contains_key("infiniband.aeth.syndrome") {
        numbers.insert("infiniband.aeth.msn", packet.message_number.into());
    }
    let hex = |bytes: [u8; 4]| bytes.map(|byte| format!("{byte:02x}")).concat();
    if let Some(immediate) = packet.immediate {
        texts.insert("infiniband.immdt", hex(immediate));
    }
    if let Some(rkey) = packet.invalidate {
        texts.insert("infiniband.ieth", hex(rkey.to_be_bytes()));
    }
    Expected { texts, numbers }
}

fn frame(packet: &Packet) -> Vec<u8> {
    let mut frame = Vec::new();
    wire::encode(packet, &mut frame).expect("a packet of the table");
    frame
}

/// A frame's IP datagram with its check sequence, without what fills a short frame up.
fn datagram(frame: &[u8]) -> &[u8] {
    let ip = &frame[ETHERNET_BYTES..];
    let bytes = match ip[0] >> 4 {
        4 => usize::from(u16::from_be_bytes([ip[2], ip[3]])),
        _ => IPV6_BYTES + usize::from(u16::from_be_bytes([ip[4], ip[5]])),
    };
    &ip[..bytes]
}

fn check_sequence(frame: &[u8]) -> [u8; 4] {
    *datagram(frame).last_chunk().expect("longer than its check sequence")
}

/// The check sequence of a frame from its definition: CRC-32 bit by bit over eight bytes of ones and the datagram with
/// ones in the fields that may change on the way.
fn check_sequence_by_hand(frame: &[u8]) -> [u8; 4] {
    let datagram = datagram(frame);
    let mut pseudo = [&[0xFF; 8], &datagram[..datagram.len() - 4]].concat();
    let ip = &mut pseudo[8..];
    let udp = if ip[0] >> 4 == 4 { 20 } else { IPV6_BYTES };
    let changing: &[usize] = if udp == 20 { &[1, 8, 10, 11] } else { &[1, 2, 3, 7] };
    for &at in changing.iter().chain(&[udp + 6, udp + 7, udp + 8 + 4]) {
        ip[at] = 0xFF;
    }
    if udp == IPV6_BYTES {
        ip[0] = 0x6F;
    }
    let crc = pseudo.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| if crc & 1 == 1 { crc >> 1 ^ 0xEDB8_8320 } else { crc >> 1 })
    });
    (!crc).to_le_bytes()
}

#[test]
fn the_dissector_reads_what_was_sent() {
    if !installed("tshark", "tshark") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let packets = packets();
    let file = capture(&packets, folder.path());
    let dissected = dissect(&file);
    assert_eq!(dissected.len(), packets.len());
    let mut opcodes = std::collections::BTreeSet::new();
    for (n, ((opcode, packet), seen)) in packets.iter().zip(&dissected).enumerate() {
        let frame = frame(packet);
        let expected = expected(n, *opcode, packet, &frame);
        let mut left = seen.clone();
        for (field, text) in expected.texts {
            assert_eq!(left.remove(field).as_ref(), Some(&text), "{field} of frame {} {packet:?}", n + 1);
        }
        for (field, value) in expected.numbers {
            let found = left.remove(field).unwrap_or_else(|| panic!("no {field} in frame {} {packet:?}", n + 1));
            assert_eq!(number(&found), value, "{field} of frame {} {packet:?}", n + 1);
        }
        assert_eq!(left, Dissected::new(), "fields that were not sent, in frame {} {packet:?}", n + 1);
        assert_eq!(check_sequence(&frame), check_sequence_by_hand(&frame), "frame {} {packet:?}", n + 1);
        opcodes.insert(*opcode);
    }
    let every: Vec<u8> = (0x00..=0x14).chain([0x16, 0x17]).chain(0x20..=0x2B).chain([0x64, 0x65]).collect();
    assert_eq!(opcodes.into_iter().collect::<Vec<_>>(), every, "a kind of packet is missing");
    assert_eq!(remarks(&file), "", "the dissector remarks upon these frames");
}

/// Frames that are malformed, or that the dissector remarks upon in any way, from a chat to an error.
fn remarks(file: &Path) -> String {
    tshark(file, &["-Y", "_ws.malformed || _ws.expert"])
}

/// The dissector can find fault: otherwise its silence would mean nothing.
#[test]
fn the_dissector_remarks_upon_broken_frames() {
    if !installed("tshark", "tshark") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let good = packets().into_iter().map(|(_, packet)| frame(&packet)).find(|frame| frame.len() > 80);
    let good = good.expect("some frame has payload");
    // Cut within the base transport header, its lengths with it; and with one bit of the IPv4 checksum flipped.
    let mut short = good[..48].to_vec();
    short[16..18].copy_from_slice(&34_u16.to_be_bytes());
    short[38..40].copy_from_slice(&14_u16.to_be_bytes());
    let mut corrupt = good.clone();
    corrupt[24] ^= 1;
    for (frame, remarked) in [(good, false), (short, true), (corrupt, true)] {
        let path = folder.path().join("one-frame.pcapng");
        let file = std::fs::File::create(&path).expect("a file in a folder of our own");
        let mut writer = CaptureWriter::new(file, 1).expect("room for the header");
        writer.frame(0, 0, &frame, None).expect("room for a frame");
        writer.finish().expect("room for the rest");
        let remarks = remarks(&path);
        assert_eq!(!remarks.is_empty(), remarked, "{remarks}");
    }
}

/// The payload is where it belongs. The dissector of Wireshark 4.0 shows its padding along with it.
#[test]
fn the_dissector_finds_the_payload() {
    if !installed("tshark", "tshark") {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let packets = packets();
    let file = capture(&packets, folder.path());
    let lines = tshark(&file, &["-T", "fields", "-e", "data.data"]);
    let shown: Vec<&str> = lines.lines().collect();
    assert_eq!(shown.len(), packets.len());
    for (n, ((_, packet), shown)) in packets.iter().zip(shown).enumerate() {
        let sent: String = packet.payload.iter().map(|byte| format!("{byte:02x}")).collect();
        let padding = shown.strip_prefix(&sent).unwrap_or_else(|| panic!("frame {} {packet:?}: {shown}", n + 1));
        assert!("000000".starts_with(padding), "frame {} {packet:?}: {padding} after the payload", n + 1);
    }
}

/// Prints the check sequence of every IPv4 frame of a capture as Scapy computes it, and `-` for the others.
const SCAPY: &str = r#"
import sys
from scapy.all import rdpcap, IP, Ether
from scapy.contrib.roce import BTH
for frame in rdpcap(sys.argv[1]):
    frame = Ether(bytes(frame))
    if IP not in frame:
        print("-")
        continue
    ip = IP(bytes(frame[IP])[:frame[IP].len])
    ip[BTH].icrc = None
    print(bytes(ip)[-4:].hex())
"#;

#[test]
fn scapy_computes_the_same_check_sequences() {
    let knows_roce = |python: &&str| {
        let probe = Command::new(python).args(["-c", "import scapy.contrib.roce"]).stderr(Stdio::null()).status();
        probe.is_ok_and(|status| status.success())
    };
    // The distribution's packages belong to the distribution's Python, whatever stands before it on the path.
    let Some(python) = ["python3", "/usr/bin/python3"].into_iter().find(|python| knows_roce(python)) else {
        skipped("Scapy is not installed (Debian: python3-scapy)");
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let packets = packets();
    let file = capture(&packets, folder.path());
    let output = Command::new(python).args(["-c", SCAPY]).arg(&file).output().expect("it was there a moment ago");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).expect("UTF-8");
    let computed: Vec<&str> = lines.lines().collect();
    assert_eq!(computed.len(), packets.len());
    let mut compared = 0;
    for (n, ((_, packet), computed)) in packets.iter().zip(computed).enumerate() {
        if computed != "-" {
            let ours = check_sequence(&frame(packet)).map(|byte| format!("{byte:02x}")).concat();
            assert_eq!(ours, computed, "frame {} {packet:?}", n + 1);
            compared += 1;
        }
    }
    let ipv4 = packets.iter().filter(|(_, packet)| packet.destination.gid.ipv4().is_some()).count();
    assert_eq!(compared, ipv4);
}
