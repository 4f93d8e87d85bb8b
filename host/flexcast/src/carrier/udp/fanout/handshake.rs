//! Set-up of a fan-out: the group's sockets and memory for the ranks of one computer, and what wakes them.
//!
//! The lowest of them hands sockets and memory to each of the others. If all of them can use both, they do; if one
//! cannot, each has sockets of its own, as ranks of different computers have. Their messages are datagrams between Unix
//! sockets without a place in the file system, with a tag under the communicator's key. The tag is of the random
//! numbers that sender and receiver have drawn for their sockets of this communicator, too: a message to another rank,
//! or of another handshake, has no effect. Messages of processes of other users are dropped.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use flexcast_mesh::memory::{Layout, Memory, receive_from, send_with_to};
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, bind, recv, sendto, setsockopt, socket, sockopt,
};
use nix::unistd::geteuid;
use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{Fanout, layout};
use crate::carrier::udp::datagram::Secret;
use crate::error::{Error, Result};

const MAGIC: [u8; 4] = *b"FXFO";
const VERSION: u32 = 3;
/// Time between two polls for messages of the others.
const POLL: Duration = Duration::from_micros(200);

/// A rank of this computer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::carrier::udp) struct Member {
    pub(in crate::carrier::udp) rank: u32,
    /// The random number of its listener.
    listener: u64,
    address: UnixAddr,
}

impl Member {
    /// A rank, by the number of its listener.
    pub(in crate::carrier::udp) fn new(rank: u32, listener: u64) -> io::Result<Self> {
        Ok(Self { rank, listener, address: address(listener)? })
    }
}

/// The address of the wake-up socket of a rank whose listener has this number.
fn address(listener: u64) -> io::Result<UnixAddr> {
    Ok(UnixAddr::new_abstract(format!("flexcast-{listener:016x}-bell").as_bytes())?)
}

/// A datagram socket that wakes a rank.
#[derive(Debug)]
pub(in crate::carrier::udp) struct WakeUp(UnixDatagram);

impl WakeUp {
    /// The one of a rank whose listener has this number.
    pub(in crate::carrier::udp) fn new(listener: u64) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        // Before anything can come.
        setsockopt(&socket, sockopt::PassCred, &true)?;
        bind(socket.as_raw_fd(), &address(listener)?)?;
        Ok(Self(socket.into()))
    }

    /// Wakes another rank.
    pub(super) fn wake(&self, member: &Member) {
        // Where enough wake-ups wait there already, or the rank is gone, there is nothing to be done.
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = sendto(self.0.as_raw_fd(), &[1], &member.address, flags);
    }

    /// Takes what has woken this rank.
    pub(in crate::carrier::udp) fn drain(&self) {
        let mut byte = [0];
        // What is not a wake-up wakes as well. Bounded: others may go on sending.
        for _ in 0..64 {
            if recv(self.0.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT) == Err(Errno::EAGAIN) {
                break;
            }
        }
    }
}

impl AsFd for WakeUp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What the messages mean that ranks send before they share anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Here are memory and sockets.
    Offer = 1,
    /// There are none.
    Nothing,
    /// They can be used.
    Accept,
    /// They cannot.
    Refuse,
    /// All use them.
    Go,
    /// Nobody does.
    Stop,
}

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
struct Message {
    magic: [u8; 4],
    version: U32,
    communicator: U64,
    from: U32,
    to: U32,
    kind: U32,
    members: U32,
    tag: U64,
}

const MESSAGE_BYTES: usize = size_of::<Message>();

/// The ranks of one computer, before they share anything.
#[derive(Debug)]
pub(in crate::carrier::udp) struct Handshake {
    pub(in crate::carrier::udp) wake_up: WakeUp,
    /// All ranks of the computer, ascending.
    pub(in crate::carrier::udp) members: Vec<Member>,
    /// Number of this rank among them.
    pub(in crate::carrier::udp) own: usize,
    /// They are all ranks of the communicator.
    pub(in crate::carrier::udp) has_all: bool,
    pub(in crate::carrier::udp) subgroups: usize,
    pub(in crate::carrier::udp) communicator: u64,
    pub(in crate::carrier::udp) secret: Secret,
    pub(in crate::carrier::udp) timeout: Duration,
}

impl Handshake {
    fn message(&self, from: &Member, to: &Member, kind: Kind) -> Message {
        let mut message = Message {
            magic: MAGIC,
            version: VERSION.into(),
            communicator: self.communicator.into(),
            from: from.rank.into(),
            to: to.rank.into(),
            kind: (kind as u32).into(),
            members: (self.members.len() as u32).into(),
            tag: U64::ZERO,
        };
        let listeners = [from.listener, to.listener].map(u64::to_le_bytes).concat();
        message.tag = self.secret.tag([&message.as_bytes()[..MESSAGE_BYTES - 8], &listeners]).into();
        message
    }

    fn failed(&self, member: &Member, reason: &str) -> Error {
        Error::Peer {
            rank: member.rank,
            reason: format!("{reason}; FLEXCAST_SHM=0 on all ranks of this computer does without shared memory"),
        }
    }

    fn silent(&self, number: usize) -> Error {
        let reason = format!("of this computer has not said within {:?} whether it shares memory", self.timeout);
        self.failed(&self.members[number], &reason)
    }

    /// Sends a message to a member. Blocks, at most until `deadline`, while it has not taken the messages of others.
    fn send(&self, to: &Member, kind: Kind, files: &[BorrowedFd<'_>], deadline: Instant) -> Result<()> {
        let message = self.message(&self.members[self.own], to, kind);
        loop {
            match send_with_to(&self.wake_up, &to.address, message.as_bytes(), files) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(POLL);
                }
                Err(error) => {
                    return Err(self.failed(to, &format!("of this computer cannot be sent anything ({error})")));
                }
            }
        }
    }

    /// The message of a member, one of `expected`, and the descriptors that came with it; none yet if no such message
    /// has come. Others are dropped.
    fn receive(&self, expected: &[Kind]) -> Option<(usize, Kind, Vec<OwnedFd>)> {
        let mut bytes = [0; MESSAGE_BYTES + 1];
        let (len, files, user) = receive_from(&self.wake_up, &mut bytes).ok()?;
        if user != Some(geteuid().as_raw()) {
            return None;
        }
        let own = &self.members[self.own];
        self.members
            .iter()
            .enumerate()
            .find_map(|(number, member)| {
                let is_it = |kind: &&Kind| bytes[..len] == *self.message(member, own, **kind).as_bytes();
                Some((number, *expected.iter().find(is_it)?))
            })
            .map(|(number, kind)| (number, kind, files))
    }

    /// Waits until a member sends one of `expected`.
    fn wait(&self, from: usize, expected: &[Kind], deadline: Instant) -> Result<(Kind, Vec<OwnedFd>)> {
        loop {
            match self.receive(expected) {
                Some((number, kind, files)) if number == from => return Ok((kind, files)),
                Some(_) => {}
                None if Instant::now() < deadline => std::thread::sleep(POLL),
                None => return Err(self.silent(from)),
            }
        }
    }

    /// Hands sockets and memory over, or takes them; `make` makes the sockets, one for each subgroup. None: the ranks
    /// of this computer share nothing. Blocks, at most for the timeout.
    pub(in crate::carrier::udp) fn run(
        self,
        make: impl FnOnce() -> Result<Vec<UdpSocket>>,
    ) -> Result<Option<(Fanout, Vec<UdpSocket>)>> {
        let deadline = Instant::now() + self.timeout;
        if self.own == 0 { self.offer(make, deadline) } else { self.accept(deadline) }
    }

    fn share(self, memory: Memory) -> Fanout {
        Fanout::new(memory, Some(self.wake_up), (self.members, self.own), self.subgroups, self.has_all)
    }

    fn layout(&self) -> Layout {
        layout(self.members.len(), self.subgroups)
    }

    fn offer(
        self,
        make: impl FnOnce() -> Result<Vec<UdpSocket>>,
        deadline: Instant,
    ) -> Result<Option<(Fanout, Vec<UdpSocket>)>> {
        let others = &self.members[1..];
        let made = make().and_then(|sockets| {
            let failed =
                |source| Error::Socket { what: "shared memory".to_owned(), source, next: "set FLEXCAST_SHM=0" };
            Memory::create(self.layout()).map(|(memory, file)| (sockets, memory, file)).map_err(failed)
        });
        let (sockets, memory, file) = match made {
            Ok(made) => made,
            Err(error) => {
                tracing::warn!(%error, "the ranks of this computer have sockets of their own");
                others.iter().try_for_each(|member| self.send(member, Kind::Nothing, &[], deadline))?;
                return Ok(None);
            }
        };
        let files: Vec<BorrowedFd<'_>> =
            std::iter::once(file.as_fd()).chain(sockets.iter().map(|socket| socket.as_fd())).collect();
        for member in others {
            self.send(member, Kind::Offer, &files, deadline)?;
        }
        // They answer in any order.
        let mut answers = vec![None; self.members.len()];
        answers[0] = Some(Kind::Accept);
        while let Some(silent) = answers.iter().position(Option::is_none) {
            match self.receive(&[Kind::Accept, Kind::Refuse]) {
                Some((number, kind, _)) => answers[number] = Some(kind),
                None if Instant::now() < deadline => std::thread::sleep(POLL),
                None => return Err(self.silent(silent)),
            }
        }
        let all = answers.iter().all(|answer| *answer == Some(Kind::Accept));
        let verdict = if all { Kind::Go } else { Kind::Stop };
        others.iter().try_for_each(|member| self.send(member, verdict, &[], deadline))?;
        Ok(all.then(|| (self.share(memory), sockets)))
    }

    /// Sends the refusal of this rank, which cannot share, and waits for the end of the handshake.
    fn stay_out(&self, deadline: Instant) -> Result<()> {
        self.send(&self.members[0], Kind::Refuse, &[], deadline)?;
        self.wait(0, &[Kind::Stop], deadline).map(drop)
    }

    /// The same for a rank that has received nothing yet.
    #[cfg(test)]
    pub(super) fn refuse(self, deadline: Instant) -> Result<()> {
        self.wait(0, &[Kind::Offer], deadline)?;
        self.stay_out(deadline)
    }

    fn accept(self, deadline: Instant) -> Result<Option<(Fanout, Vec<UdpSocket>)>> {
        let (kind, files) = self.wait(0, &[Kind::Offer, Kind::Nothing], deadline)?;
        if kind == Kind::Nothing {
            return Ok(None);
        }
        let mut files = files.into_iter();
        let memory = match files.next() {
            Some(memory) if files.len() == self.subgroups => Memory::open(&memory, self.layout()),
            _ => Err(ErrorKind::InvalidData.into()),
        };
        let Ok(memory) =
            memory.inspect_err(|error| tracing::warn!(%error, "the memory of this computer's ranks cannot be used"))
        else {
            self.stay_out(deadline)?;
            return Ok(None);
        };
        self.send(&self.members[0], Kind::Accept, &[], deadline)?;
        let (kind, _) = self.wait(0, &[Kind::Go, Kind::Stop], deadline)?;
        Ok((kind == Kind::Go).then(|| (self.share(memory), files.map(UdpSocket::from).collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The handshake of two ranks with these listeners, as the second sees it.
    fn handshake(listeners: [u64; 2]) -> Handshake {
        let member = |(listener, rank)| Member::new(rank, listener).unwrap();
        let members = listeners.into_iter().zip(3..).map(member).collect();
        Handshake {
            wake_up: WakeUp::new(listeners[1]).unwrap(),
            members,
            own: 1,
            has_all: true,
            subgroups: 1,
            communicator: 5,
            secret: Secret([1, 2, 3, 4]),
            timeout: Duration::from_secs(1),
        }
    }

    #[test]
    fn a_message_of_another_handshake_is_dropped() {
        let number = |at: u64| u64::from(std::process::id()) << 32 | at;
        let (one, other) = (handshake([number(1), number(2)]), handshake([number(1), number(3)]));
        let offer =
            |handshake: &Handshake| handshake.message(&handshake.members[0], &handshake.members[1], Kind::Offer);
        let sender = WakeUp::new(number(4)).unwrap();
        let send =
            |message: &Message| send_with_to(&sender, &other.members[1].address, message.as_bytes(), &[]).unwrap();
        // The same ranks, communicator and key; the receiver has another socket.
        send(&offer(&one));
        assert!(other.receive(&[Kind::Offer]).is_none());
        send(&offer(&other));
        assert!(matches!(other.receive(&[Kind::Offer]), Some((0, Kind::Offer, _))));
        // The system reports whose process has sent something.
        send(&offer(&other));
        let (_, _, user) = receive_from(&other.wake_up, &mut [0; MESSAGE_BYTES]).unwrap();
        assert_eq!(user, Some(geteuid().as_raw()));
    }
}
