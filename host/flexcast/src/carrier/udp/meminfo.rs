//! Counter of the datagrams that a socket has had no room for.
#![allow(unsafe_code)] // A socket option for which there is no safe function.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use nix::errno::Errno;
use nix::libc;

/// Words of `SO_MEMINFO`: `SK_MEMINFO_VARS` of linux/sock_diag.h.
const WORDS: usize = 9;
/// That of the datagrams for which there was no room: `SK_MEMINFO_DROPS`.
const DROPS: usize = 8;

/// Datagrams that a socket has had no room for since it was made; goes round. None where the system does not count
/// them.
pub(super) fn drops(socket: BorrowedFd<'_>) -> Option<u32> {
    let mut words = [0_u32; WORDS];
    let mut len = size_of_val(&words) as libc::socklen_t;
    // SAFETY: the system writes at most `len` bytes to `words`, which has so many and outlives the call, and how many
    // it has written to `len`.
    let result = unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO, (&raw mut words).cast(), &raw mut len)
    };
    Errno::result(result).ok()?;
    (len as usize > DROPS * size_of::<u32>()).then_some(words[DROPS])
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn what_finds_no_room_is_counted() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        nix::sys::socket::setsockopt(&receiver, nix::sys::socket::sockopt::RcvBuf, &4096).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        assert_eq!(drops(receiver.as_fd()), Some(0));
        for _ in 0..100 {
            sender.send_to(&[7; 1000], receiver.local_addr().unwrap()).unwrap();
        }
        receiver.set_nonblocking(true).unwrap();
        let mut room = [0; 2000];
        let came = std::iter::from_fn(|| receiver.recv(&mut room).ok()).count();
        assert!(came > 0 && came < 100, "{came}");
        assert_eq!(drops(receiver.as_fd()), Some(100 - came as u32));
    }
}
