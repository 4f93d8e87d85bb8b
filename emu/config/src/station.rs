//! `[generator]`, `[reflector]`, `[replay]` and `[tap]` of a machine: what is at the free end of its card's cable.

use std::net::IpAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Frames that a generator may send.
pub(crate) const MOST_FRAMES: u64 = 10_000_000;
/// Bytes of a generated frame, header and check sequence included: that of a jumbo frame.
pub(crate) const FRAME_BYTES: [u32; 2] = [64, 9018];
/// Frames that may be under way at once.
pub(crate) const MOST_IN_FLIGHT: u64 = 65_536;
/// Longest wait for an answer, in microseconds.
pub(crate) const MOST_PATIENCE_US: u64 = 10_000_000;

/// `[generator]`: a packet generator, which sends UDP datagrams as soon as steering of the card leads frames to a
/// receive queue, and reports how many of them came back, and after how long.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GeneratorTable {
    /// Frames to send, 1 to 10,000,000.
    pub frames: u64,
    /// Bytes of a frame, header and check sequence included, 64 to 9018.
    pub frame_bytes: u32,
    /// Frames under way at once, 1 to 65,536: another is sent when one comes back. Not with `gbit_per_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub in_flight: Option<u64>,
    /// Rate on the wire in place of that, preamble and gap included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gbit_per_s: Option<f64>,
    /// Source and destination Ethernet address, such as `"02:00:00:00:00:01"`. Default an address of nobody, and that
    /// of the card.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macs: Option<[String; 2]>,
    /// Source and destination IP address, both IPv4 or both IPv6.
    pub ips: [IpAddr; 2],
    /// Source and destination UDP port.
    pub ports: [u16; 2],
    /// VLAN tag: priority, drop eligibility and number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vlan: Option<u16>,
    /// How long after steering is there the first one is sent, in virtual microseconds.
    pub start_us: u64,
    /// How long an answer may take, in virtual microseconds, before it counts as lost, 1 to 10 s.
    pub patience_us: u64,
    /// A file for the report, as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<PathBuf>,
}

impl Default for GeneratorTable {
    fn default() -> Self {
        Self {
            frames: 1000,
            frame_bytes: 64,
            in_flight: None,
            gbit_per_s: None,
            macs: None,
            ips: [[192, 0, 2, 1].into(), [192, 0, 2, 2].into()],
            ports: [4000, 4001],
            vlan: None,
            start_us: 0,
            patience_us: 1000,
            report: None,
        }
    }
}

/// An Ethernet address of six bytes in hexadecimal.
fn mac(text: &str) -> Option<[u8; 6]> {
    let mut mac = [0; 6];
    let mut parts = text.split(':');
    for byte in &mut mac {
        *byte = parts.next().filter(|part| part.len() == 2).and_then(|part| u8::from_str_radix(part, 16).ok())?;
    }
    parts.next().is_none().then_some(mac)
}

impl GeneratorTable {
    /// Source and destination address; `destination` if none are given.
    ///
    /// # Errors
    /// One is no Ethernet address.
    pub fn addresses(&self, destination: [u8; 6]) -> Result<[[u8; 6]; 2], String> {
        const NOBODY: [u8; 6] = [2, 0, 0, 0, 0xFF, 1];
        let Some(macs) = &self.macs else { return Ok([NOBODY, destination]) };
        let known = |text: &String| mac(text).ok_or_else(|| format!("macs: {text:?}: an address is xx:xx:xx:xx:xx:xx"));
        Ok([known(&macs[0])?, known(&macs[1])?])
    }

    pub(crate) fn check(&self) -> Result<(), String> {
        let range = |name: &str, value: u64, least: u64, most: u64| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(format!("{name} is {value}: {least} to {most} are possible"))
        };
        range("frames", self.frames, 1, MOST_FRAMES)?;
        range("frame_bytes", self.frame_bytes.into(), FRAME_BYTES[0].into(), FRAME_BYTES[1].into())?;
        range("in_flight", self.in_flight.unwrap_or(1), 1, MOST_IN_FLIGHT)?;
        range("patience_us", self.patience_us, 1, MOST_PATIENCE_US)?;
        range("start_us", self.start_us, 0, MOST_PATIENCE_US)?;
        self.addresses([0; 6])?;
        if let Some(rate) = self.gbit_per_s {
            if self.in_flight.is_some() {
                let text = "in_flight and gbit_per_s: give one, frames that answers let go or a rate";
                return Err(text.to_owned());
            }
            if !(0.000_001..=10_000.0).contains(&rate) {
                let text = format!("gbit_per_s is {rate}: 0.000001 to 10000 are possible");
                return Err(text);
            }
        }
        if self.ips[0].is_ipv4() != self.ips[1].is_ipv4() {
            let text = format!("ips are {} and {}: give two of one version", self.ips[0], self.ips[1]);
            return Err(text);
        }
        // Headers and what frames are known by.
        let least = if self.ips[0].is_ipv4() { 64 } else { 86 } + if self.vlan.is_some() { 4 } else { 0 };
        range("frame_bytes, with these headers,", self.frame_bytes.into(), least, FRAME_BYTES[1].into())
    }
}

/// `[reflector]`: each frame goes back to its sender, with both Ethernet addresses exchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ReflectorTable {
    /// How long it has a frame, in virtual nanoseconds, at most a second.
    pub delay_ns: u64,
}

impl ReflectorTable {
    pub(crate) fn check(&self) -> Result<(), String> {
        const SECOND_NS: u64 = 1_000_000_000;
        if self.delay_ns > SECOND_NS {
            return Err(format!("delay_ns is {}: 0 to {SECOND_NS}", self.delay_ns));
        }
        Ok(())
    }
}

/// `[replay]`: the frames of a capture, at the times between them, as soon as steering of the card leads frames to a
/// receive queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReplayTable {
    /// The capture: pcap or pcapng, of Ethernet.
    pub capture: PathBuf,
}

/// Longest name of a network interface, in bytes.
const INTERFACE_BYTES: usize = 15;

/// `[tap]`: a tap device of this computer, by which the card is in its network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TapTable {
    /// Its name, 1 to 15 bytes. One that is not there is made, which needs the rights for it, and goes with the
    /// program.
    pub interface: String,
}

impl TapTable {
    pub(crate) fn check(&self) -> Result<(), String> {
        let name = &self.interface;
        let fits = (1..=INTERFACE_BYTES).contains(&name.len());
        if !fits || !name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/:%".contains(&byte)) {
            return Err(format!(
                "interface is {name:?}: a name has 1 to {INTERFACE_BYTES} bytes of ASCII without blanks, `/`, `:` and \
                 `%`"
            ));
        }
        Ok(())
    }
}
