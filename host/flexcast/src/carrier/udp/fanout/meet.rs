//! Set-up of a fan-out: the group's sockets and memory for the ranks of one computer, and what wakes them.
//!
//! The lowest of them hands sockets and memory to each of the others. If all of them can use both, they do; if one
//! cannot, each has sockets of its own, as ranks of different computers have. What they say are datagrams between Unix
//! sockets without a place in the file system, with a tag under the communicator's key. The tag is of the random
//! numbers that sender and receiver have drawn for their sockets of this communicator, too: what was said to another
//! rank, or in another meeting, has no effect. Processes of other users are not heard.

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
/// Time between two looks for what the others say.
const LOOK: Duration = Duration::from_micros(200);

/// A rank of this computer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::carrier::udp) struct Member {
    pub(in crate::carrier::udp) rank: u32,
    /// The random number of its door.
    door: u64,
    address: UnixAddr,
}

impl Member {
    /// A rank, by the number of its door.
    pub(in crate::carrier::udp) fn new(rank: u32, door: u64) -> io::Result<Self> {
        Ok(Self { rank, door, address: address(door)? })
    }
}

/// The address of the bell beside a door.
fn address(door: u64) -> io::Result<UnixAddr> {
    Ok(UnixAddr::new_abstract(format!("flexcast-{door:016x}-bell").as_bytes())?)
}

/// What wakes a rank.
#[derive(Debug)]
pub(in crate::carrier::udp) struct Bell(UnixDatagram);

impl Bell {
    /// The bell of a rank whose door has this number.
    pub(in crate::carrier::udp) fn new(door: u64) -> io::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let bell = socket(AddressFamily::Unix, SockType::Datagram, flags, None)?;
        // Before anything can come.
        setsockopt(&bell, sockopt::PassCred, &true)?;
        bind(bell.as_raw_fd(), &address(door)?)?;
        Ok(Self(bell.into()))
    }

    /// Wakes another rank.
    pub(super) fn ring(&self, member: &Member) {
        // Where its bell has rung often enough already, or it is gone, there is nothing to be done.
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = sendto(self.0.as_raw_fd(), &[1], &member.address, flags);
    }

    /// Takes what has woken this rank.
    pub(in crate::carrier::udp) fn attend(&self) {
        let mut byte = [0];
        // What is not a wake-up wakes as well. Bounded: others may ring on.
        for _ in 0..64 {
            if recv(self.0.as_raw_fd(), &mut byte, MsgFlags::MSG_DONTWAIT) == Err(Errno::EAGAIN) {
                break;
            }
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// What ranks say before they share anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
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
struct Said {
    magic: [u8; 4],
    version: U32,
    communicator: U64,
    from: U32,
    to: U32,
    what: U32,
    members: U32,
    tag: U64,
}

const SAID_BYTES: usize = size_of::<Said>();

/// The ranks of one computer, before they share anything.
#[derive(Debug)]
pub(in crate::carrier::udp) struct Meeting {
    pub(in crate::carrier::udp) bell: Bell,
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

impl Meeting {
    fn said(&self, from: &Member, to: &Member, what: What) -> Said {
        let mut said = Said {
            magic: MAGIC,
            version: VERSION.into(),
            communicator: self.communicator.into(),
            from: from.rank.into(),
            to: to.rank.into(),
            what: (what as u32).into(),
            members: (self.members.len() as u32).into(),
            tag: U64::ZERO,
        };
        let doors = [from.door, to.door].map(u64::to_le_bytes).concat();
        said.tag = self.secret.tag([&said.as_bytes()[..SAID_BYTES - 8], &doors]).into();
        said
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

    /// Says something to a member. Blocks, at most until `deadline`, while it has not taken what others have said.
    fn say(&self, to: &Member, what: What, files: &[BorrowedFd<'_>], deadline: Instant) -> Result<()> {
        let said = self.said(&self.members[self.own], to, what);
        loop {
            match send_with_to(&self.bell, &to.address, said.as_bytes(), files) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                    std::thread::sleep(LOOK);
                }
                Err(error) => {
                    return Err(self.failed(to, &format!("of this computer cannot be told anything ({error})")));
                }
            }
        }
    }

    /// What a member has said, one of `expected`, and the descriptors that came with it; none yet if nobody of those
    /// asked for has. Others are not listened to.
    fn receive(&self, expected: &[What]) -> Option<(usize, What, Vec<OwnedFd>)> {
        let mut bytes = [0; SAID_BYTES + 1];
        let (len, files, user) = receive_from(&self.bell, &mut bytes).ok()?;
        if user != Some(geteuid().as_raw()) {
            return None;
        }
        let own = &self.members[self.own];
        self.members
            .iter()
            .enumerate()
            .find_map(|(number, member)| {
                let what = expected.iter().find(|what| bytes[..len] == *self.said(member, own, **what).as_bytes())?;
                Some((number, *what))
            })
            .map(|(number, what)| (number, what, files))
    }

    /// Waits until a member says one of `expected`.
    fn wait(&self, from: usize, expected: &[What], deadline: Instant) -> Result<(What, Vec<OwnedFd>)> {
        loop {
            match self.receive(expected) {
                Some((number, what, files)) if number == from => return Ok((what, files)),
                Some(_) => {}
                None if Instant::now() < deadline => std::thread::sleep(LOOK),
                None => return Err(self.silent(from)),
            }
        }
    }

    /// Hands sockets and memory over, or takes them; `make` makes the sockets, one for each subgroup. None: the ranks
    /// of this computer share nothing. Blocks, at most for the timeout.
    pub(in crate::carrier::udp) fn meet(
        self,
        make: impl FnOnce() -> Result<Vec<UdpSocket>>,
    ) -> Result<Option<(Fanout, Vec<UdpSocket>)>> {
        let deadline = Instant::now() + self.timeout;
        if self.own == 0 { self.offer(make, deadline) } else { self.accept(deadline) }
    }

    fn share(self, memory: Memory) -> Fanout {
        Fanout::new(memory, Some(self.bell), (self.members, self.own), self.subgroups, self.has_all)
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
                others.iter().try_for_each(|member| self.say(member, What::Nothing, &[], deadline))?;
                return Ok(None);
            }
        };
        let files: Vec<BorrowedFd<'_>> =
            std::iter::once(file.as_fd()).chain(sockets.iter().map(|socket| socket.as_fd())).collect();
        for member in others {
            self.say(member, What::Offer, &files, deadline)?;
        }
        // They answer in any order.
        let mut answers = vec![None; self.members.len()];
        answers[0] = Some(What::Accept);
        while let Some(silent) = answers.iter().position(Option::is_none) {
            match self.receive(&[What::Accept, What::Refuse]) {
                Some((number, what, _)) => answers[number] = Some(what),
                None if Instant::now() < deadline => std::thread::sleep(LOOK),
                None => return Err(self.silent(silent)),
            }
        }
        let all = answers.iter().all(|answer| *answer == Some(What::Accept));
        let verdict = if all { What::Go } else { What::Stop };
        others.iter().try_for_each(|member| self.say(member, verdict, &[], deadline))?;
        Ok(all.then(|| (self.share(memory), sockets)))
    }

    /// Says that this rank cannot share, and waits for the end of the meeting.
    fn stay_out(&self, deadline: Instant) -> Result<()> {
        self.say(&self.members[0], What::Refuse, &[], deadline)?;
        self.wait(0, &[What::Stop], deadline).map(drop)
    }

    /// The same for a rank that has not listened yet.
    #[cfg(test)]
    pub(super) fn refuse(self, deadline: Instant) -> Result<()> {
        self.wait(0, &[What::Offer], deadline)?;
        self.stay_out(deadline)
    }

    fn accept(self, deadline: Instant) -> Result<Option<(Fanout, Vec<UdpSocket>)>> {
        let (what, files) = self.wait(0, &[What::Offer, What::Nothing], deadline)?;
        if what == What::Nothing {
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
        self.say(&self.members[0], What::Accept, &[], deadline)?;
        let (what, _) = self.wait(0, &[What::Go, What::Stop], deadline)?;
        Ok((what == What::Go).then(|| (self.share(memory), files.map(UdpSocket::from).collect())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The meeting of two ranks with these doors, as the second sees it.
    fn meeting(doors: [u64; 2]) -> Meeting {
        let members = doors.into_iter().zip(3..).map(|(door, rank)| Member::new(rank, door).unwrap()).collect();
        Meeting {
            bell: Bell::new(doors[1]).unwrap(),
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
    fn what_was_said_in_another_meeting_is_not_heard() {
        let number = |at: u64| u64::from(std::process::id()) << 32 | at;
        let (one, other) = (meeting([number(1), number(2)]), meeting([number(1), number(3)]));
        let said = |meeting: &Meeting| meeting.said(&meeting.members[0], &meeting.members[1], What::Offer);
        let sender = Bell::new(number(4)).unwrap();
        let send = |said: &Said| send_with_to(&sender, &other.members[1].address, said.as_bytes(), &[]).unwrap();
        // The same ranks, communicator and key; the receiver has another socket.
        send(&said(&one));
        assert!(other.receive(&[What::Offer]).is_none());
        send(&said(&other));
        assert!(matches!(other.receive(&[What::Offer]), Some((0, What::Offer, _))));
        // The system says whose process has sent something.
        send(&said(&other));
        let (_, _, user) = receive_from(&other.bell, &mut [0; SAID_BYTES]).unwrap();
        assert_eq!(user, Some(geteuid().as_raw()));
    }
}
