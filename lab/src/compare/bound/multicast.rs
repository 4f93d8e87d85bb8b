//! Sockets for multicast datagrams, with segmentation offloads or several datagrams a system call.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::sys::socket::{
    ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, recvmsg, sendmmsg, sendmsg, setsockopt, sockopt,
};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 255, 70, 67);
const PORT: u16 = 47_470;
/// Room for what arrives while others run: losses are overflows of it.
const RECEIVE_BUFFER: usize = 64 << 20;
/// Most bytes of one datagram, before it is cut into segments.
const SUPER_PACKET: usize = 65_507;
/// Datagrams of one system call without offloads.
const BATCH: usize = 32;
/// Sequence number, rank and offset, before each payload.
const HEADER: usize = 16;

/// Two sockets: one connected to the group, one that receives what is sent to it.
pub(super) struct Socket {
    sender: UdpSocket,
    receiver: UdpSocket,
    /// Bytes of a datagram, header included.
    datagram: usize,
    plain: bool,
    /// Where the kernel puts what arrives.
    staging: Vec<Vec<u8>>,
    control: Vec<u8>,
}

impl Socket {
    pub(super) fn new(datagram: usize, plain: bool) -> io::Result<Self> {
        let sender = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        sender.set_multicast_loop_v4(false)?;
        sender.connect((GROUP, PORT))?;
        let receiver = UdpSocket::bind((GROUP, PORT))?;
        receiver.join_multicast_v4(&GROUP, &Ipv4Addr::UNSPECIFIED)?;
        setsockopt(&receiver, sockopt::RcvBufForce, &RECEIVE_BUFFER)?;
        if !plain {
            setsockopt(&sender, sockopt::UdpGsoSegment, &i32::try_from(datagram).unwrap_or(i32::MAX))?;
            setsockopt(&receiver, sockopt::UdpGroSegment, &true)?;
        }
        let staging = if plain { vec![vec![0; datagram]; BATCH] } else { vec![vec![0; 1 << 16]] };
        Ok(Self { sender, receiver, datagram, plain, staging, control: nix::cmsg_space!(i32) })
    }

    /// Sends some of the bytes from `from` on; how many.
    pub(super) fn send(&self, sequence: u32, rank: usize, bytes: &[u8], from: usize) -> io::Result<usize> {
        let payload = self.datagram - HEADER;
        let most = if self.plain { BATCH } else { SUPER_PACKET / self.datagram };
        let bytes = &bytes[from..];
        let parts: Vec<&[u8]> = bytes.chunks(payload).take(most).collect();
        let headers: Vec<[u8; HEADER]> =
            (0..parts.len()).map(|part| header(sequence, rank, from + part * payload)).collect();
        let fd = self.sender.as_raw_fd();
        let datagrams: Vec<[IoSlice<'_>; 2]> =
            headers.iter().zip(&parts).map(|(header, part)| [IoSlice::new(header), IoSlice::new(part)]).collect();
        let sent = if self.plain {
            let mut headers = MultiHeaders::<SockaddrIn>::preallocate(datagrams.len(), None);
            let addresses = vec![None; datagrams.len()];
            repeat(|| sendmmsg(fd, &mut headers, &datagrams, &addresses, [], MsgFlags::empty()).map(Iterator::count))?
        } else {
            let flat = datagrams.as_flattened();
            repeat(|| sendmsg::<SockaddrIn>(fd, flat, &[], MsgFlags::empty(), None))?;
            parts.len()
        };
        Ok(parts.iter().take(sent).map(|part| part.len()).sum())
    }

    /// Hands what has arrived to `take`, which says how much of it was new; none where nothing has.
    pub(super) fn receive(
        &mut self,
        mut take: impl FnMut(u32, usize, usize, &[u8]) -> usize,
    ) -> io::Result<Option<usize>> {
        let fd = self.receiver.as_raw_fd();
        let mut read = |datagram: &[u8]| {
            let Some((header, payload)) = datagram.split_first_chunk::<HEADER>() else { return 0 };
            let [s0, s1, s2, s3, r0, r1, r2, r3, offset @ ..] = *header;
            let (sequence, from) = (u32::from_be_bytes([s0, s1, s2, s3]), u32::from_be_bytes([r0, r1, r2, r3]));
            take(sequence, from as usize, u64::from_be_bytes(offset) as usize, payload)
        };
        let lengths: Vec<(usize, usize)> = {
            let mut slices: Vec<[IoSliceMut<'_>; 1]> =
                self.staging.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
            let arrived = if self.plain {
                let mut headers = MultiHeaders::<SockaddrIn>::preallocate(slices.len(), None);
                recvmmsg(fd, &mut headers, slices.iter_mut(), MsgFlags::MSG_DONTWAIT, None)
                    .map(|messages| messages.map(|message| (message.bytes, self.datagram)).collect())
            } else {
                recvmsg::<SockaddrIn>(fd, &mut slices[0], Some(&mut self.control), MsgFlags::MSG_DONTWAIT).map(
                    |message| {
                        let segment = message.cmsgs().ok().and_then(|mut all| {
                            all.find_map(|one| match one {
                                ControlMessageOwned::UdpGroSegments(bytes) => usize::try_from(bytes).ok(),
                                _ => None,
                            })
                        });
                        vec![(message.bytes, segment.unwrap_or(message.bytes))]
                    },
                )
            };
            match arrived {
                Ok(lengths) => lengths,
                Err(Errno::EAGAIN) => return Ok(None),
                Err(Errno::EINTR) => return Ok(Some(0)),
                Err(error) => return Err(error.into()),
            }
        };
        let datagrams = self.staging.iter().zip(&lengths);
        // The last segment of a super-packet may be shorter.
        let taken = datagrams
            .map(|(buffer, (bytes, segment))| buffer[..*bytes].chunks((*segment).max(1)).map(&mut read).sum::<usize>());
        Ok(Some(taken.sum()))
    }
}

/// Again where a signal has come between.
fn repeat<T>(mut call: impl FnMut() -> nix::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            ended => return Ok(ended?),
        }
    }
}

fn header(sequence: u32, rank: usize, offset: usize) -> [u8; HEADER] {
    let mut bytes = [0; HEADER];
    bytes[..4].copy_from_slice(&sequence.to_be_bytes());
    bytes[4..8].copy_from_slice(&(rank as u32).to_be_bytes());
    bytes[8..].copy_from_slice(&(offset as u64).to_be_bytes());
    bytes
}
