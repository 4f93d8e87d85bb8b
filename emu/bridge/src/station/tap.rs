//! A tap device: frames that the card sends enter the computer's network, and frames that the computer sends to the
//! device reach the card.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;

use emu_config::TapTable;
use emu_machine::Station;
use emu_machine::nic::{Packet, wire};
use emu_machine::time::PS_PER_US;
use nix::libc::{
    __c_anonymous_ifr_ifru, IFF_NO_PI, IFF_TAP, IFF_UP, O_CLOEXEC, O_NONBLOCK, SIOCGIFFLAGS, SIOCSIFFLAGS, TUNSETIFF,
    c_short, ifreq, ioctl,
};

use crate::error::BridgeError;
use crate::fault_sink::say;

/// How often the device is read, in virtual time, which follows the wall clock.
const POLL_PS: u64 = 50 * PS_PER_US;
/// Most frames that are read at once: the card's own work goes on in between.
const BURST: u32 = 64;
/// Least bytes of a frame on the wire, without its check sequence: shorter ones are padded with zeros.
const LEAST_BYTES: usize = 60;
/// Longest frame that is read.
const MOST_BYTES: usize = 10_000;

/// The device.
#[derive(Debug)]
pub(crate) struct Tap {
    name: String,
    /// `None` once it is gone.
    device: Option<File>,
    due_ps: u64,
    read: u32,
    buffer: Vec<u8>,
    /// Whether the last frame for the device was refused.
    refuses: bool,
    /// Whether a frame of the device was longer than a card takes.
    is_too_long: bool,
}

impl Tap {
    /// Opens the device, which is made if there is none of this name, and brings it up.
    ///
    /// # Errors
    /// The computer has no tap devices, or the user may not use this one.
    pub(crate) fn open(table: &TapTable) -> Result<Self, BridgeError> {
        let name = table.interface.clone();
        let refused = |source| BridgeError::Tap { interface: name.clone(), source };
        let no_tun = |source| BridgeError::Tun { interface: name.clone(), source };
        let mut options = OpenOptions::new();
        options.read(true).write(true).custom_flags(O_NONBLOCK | O_CLOEXEC);
        let device = options.open("/dev/net/tun").map_err(no_tun)?;
        let mut request = named(&name);
        request.ifr_ifru.ifru_flags = (IFF_TAP | IFF_NO_PI) as c_short;
        // SAFETY: the descriptor is open; the request is of the type that this command reads and writes.
        if unsafe { ioctl(device.as_raw_fd(), TUNSETIFF, &raw mut request) } < 0 {
            return Err(refused(io::Error::last_os_error()));
        }
        // A user without the right to do so has brought it up before, or reads why the first frame is refused.
        let _ = bring_up(&name);
        Ok(Self::of(name, device))
    }

    fn of(name: String, device: File) -> Self {
        Self {
            name,
            device: Some(device),
            due_ps: 0,
            read: 0,
            buffer: vec![0; MOST_BYTES + 1],
            refuses: false,
            is_too_long: false,
        }
    }

    /// The next frame of the device; `None` if there is none now, or if so many have been read as a burst may have.
    fn next(&mut self) -> Option<Packet> {
        while self.read < BURST {
            self.read += 1;
            let device = self.device.as_mut()?;
            match device.read(&mut self.buffer) {
                Ok(0) => return None,
                // The rest of it is lost: a card would not take it either.
                Ok(bytes) if bytes > MOST_BYTES => {
                    if !self.is_too_long {
                        say(format_args!(
                            "frames of more than {MOST_BYTES} bytes from the tap {} are dropped; `ip link set {} mtu \
                             9000`",
                            self.name, self.name
                        ));
                    }
                    self.is_too_long = true;
                }
                Ok(bytes) => {
                    let padded = bytes.max(LEAST_BYTES);
                    self.buffer[bytes..padded].fill(0);
                    // What a card cannot take is lost, as on a cable.
                    if let Ok(packet) = wire::decode_any(&self.buffer[..padded]) {
                        return Some(packet);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    say(format_args!("the tap {} is gone ({error}): the cable is cut from here on", self.name));
                    self.device = None;
                }
            }
        }
        None
    }
}

/// A request for the interface of a name, which has been checked to fit.
fn named(name: &str) -> ifreq {
    let mut request = ifreq { ifr_name: [0; 16], ifr_ifru: __c_anonymous_ifr_ifru { ifru_flags: 0 } };
    for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
        *to = from.cast_signed();
    }
    request
}

fn bring_up(name: &str) -> io::Result<()> {
    // Interfaces are asked through any socket.
    let socket = std::net::UdpSocket::bind("127.0.0.1:0")?;
    let mut request = named(name);
    // SAFETY: the socket is open; the request is of the type that both commands take, and this one fills its flags.
    if unsafe { ioctl(socket.as_raw_fd(), SIOCGIFFLAGS, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the member that the call above has filled.
    let flags = unsafe { request.ifr_ifru.ifru_flags };
    request.ifr_ifru.ifru_flags = flags | IFF_UP as c_short;
    // SAFETY: as above; this command reads the request.
    if unsafe { ioctl(socket.as_raw_fd(), SIOCSIFFLAGS, &raw mut request) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

impl Station for Tap {
    fn due_ps(&self) -> Option<u64> {
        self.device.as_ref().map(|_| self.due_ps)
    }

    fn send(&mut self, now_ps: u64) -> Option<Packet> {
        let packet = self.next();
        if packet.is_none() {
            (self.read, self.due_ps) = (0, now_ps + POLL_PS);
        }
        packet
    }

    fn arrive(&mut self, _: u64, packet: Packet) {
        let Some(device) = &mut self.device else { return };
        let mut frame = Vec::new();
        if wire::encode(&packet, &mut frame).is_err() {
            return;
        }
        match device.write(&frame) {
            Ok(_) => self.refuses = false,
            // Once, and again after it has taken one: a full or closed device drops frames, as a switch does.
            Err(error) if !std::mem::replace(&mut self.refuses, true) => say(format_args!(
                "the tap {0} takes no frames ({error}): they are dropped; `ip link set {0} up`",
                self.name
            )),
            Err(_) => {}
        }
    }

    fn steered(&mut self, _: u64, _: bool) {}
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixDatagram;
    use std::sync::Arc;

    use super::*;

    /// A tap over one end of a pair of sockets, and the other end, which stands for the computer.
    fn pair() -> (Tap, UnixDatagram) {
        let (device, computer) = UnixDatagram::pair().expect("sockets");
        device.set_nonblocking(true).expect("a flag");
        computer.set_nonblocking(true).expect("a flag");
        (Tap::of("t0".to_owned(), File::from(OwnedFd::from(device))), computer)
    }

    fn frame(bytes: usize) -> Vec<u8> {
        let mut frame: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
        frame[12..14].copy_from_slice(&[0x88, 0xB5]);
        frame
    }

    #[test]
    fn frames_pass_both_ways_and_short_ones_are_padded() {
        let (mut tap, computer) = pair();
        computer.send(&frame(42)).expect("sent");
        computer.send(&frame(1514)).expect("sent");
        assert_eq!(tap.due_ps(), Some(0));
        let first = tap.send(7).expect("a frame").payload;
        assert_eq!((&first[..42], &first[42..]), (&frame(42)[..], &[0; 18][..]));
        assert_eq!(tap.send(7).expect("a frame").payload[..], frame(1514));
        assert!(tap.send(7).is_none());
        assert_eq!(tap.due_ps(), Some(7 + POLL_PS));
        tap.arrive(9, Packet::ethernet(Arc::from(frame(60))).expect("a frame"));
        let mut got = [0; 100];
        assert_eq!(computer.recv(&mut got).expect("a frame"), 60);
        assert_eq!(got[..60], frame(60));
    }

    #[test]
    fn no_frame_is_cut_short() {
        let (mut tap, computer) = pair();
        for bytes in [MOST_BYTES + 1, 20_014, MOST_BYTES] {
            computer.send(&frame(bytes)).expect("sent");
        }
        let whole = wire::decode_any(&frame(MOST_BYTES)).expect("a frame");
        assert_eq!(tap.send(0).expect("the third").frame_bytes(), whole.frame_bytes());
        assert!(tap.is_too_long && tap.send(0).is_none());
    }

    #[test]
    fn a_flood_leaves_the_card_its_time() {
        // It always has another frame, of as many bytes as are asked for.
        let flood = |bytes: usize, in_a_turn: usize| {
            let mut tap = Tap::of("t0".to_owned(), File::open("/dev/zero").expect("a device"));
            tap.buffer.truncate(bytes);
            for turn in 0..3 {
                let now_ps = turn * POLL_PS;
                assert_eq!(tap.due_ps(), Some(now_ps));
                assert_eq!(std::iter::from_fn(|| tap.send(now_ps)).count(), in_a_turn);
            }
        };
        flood(LEAST_BYTES, BURST as usize);
        // Those that are too long are read and dropped.
        flood(MOST_BYTES + 1, 0);
    }

    #[test]
    fn a_device_that_takes_no_frame_drops_it_and_one_that_cannot_be_read_is_gone() {
        let to_the_device = || Packet::ethernet(Arc::from(frame(60))).expect("a frame");
        let (mut tap, computer) = pair();
        drop(computer);
        tap.arrive(0, to_the_device());
        assert!(tap.refuses && tap.device.is_some());
        let only_written = File::options().write(true).open("/dev/null").expect("a device");
        let mut tap = Tap::of("t0".to_owned(), only_written);
        tap.arrive(0, to_the_device());
        assert!(!tap.refuses);
        assert!(tap.send(1).is_none());
        assert_eq!(tap.due_ps(), None, "the cable is cut");
        tap.arrive(2, to_the_device());
    }

    #[test]
    fn a_device_that_cannot_be_is_named() {
        // The loopback interface is none.
        let error = Tap::open(&TapTable { interface: "lo".to_owned() }).expect_err("no tap").to_string();
        assert!(error.contains("the tap lo cannot be used"), "{error}");
    }
}
