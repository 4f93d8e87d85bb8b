use std::fs::File;
use std::io::Write as _;

use super::*;
use crate::memory::receive_with;

fn refusal(file: OwnedFd) -> ErrorKind {
    let (socket, _other) = UnixStream::pair().unwrap();
    SharedStream::accept(socket, &file).unwrap_err().kind()
}

#[test]
fn bytes_go_both_ways_and_behind_them_comes_the_end() {
    let (one, mut other) = pair();
    let mut bytes = [0; 16];
    let mut read = |stream: &SharedStream| {
        stream.read_vectored(&mut [IoSliceMut::new(&mut bytes)]).map(|len| bytes[..len].to_vec())
    };
    assert_eq!(read(&one).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert_eq!(other.write_vectored(&[IoSlice::new(b"to"), IoSlice::new(b" one")]).unwrap(), 6);
    assert_eq!(read(&one).unwrap(), b"to one");
    assert_eq!(one.write_vectored(&[IoSlice::new(b"to the other")]).unwrap(), 12);
    drop(one);
    other.attend();
    assert_eq!(other.write_vectored(&[IoSlice::new(b"x")]).unwrap_err().kind(), ErrorKind::BrokenPipe);
    assert_eq!(read(&other).unwrap(), b"to the other");
    assert_eq!(read(&other).unwrap(), b"");
}

#[test]
fn a_full_stream_would_block_and_whoever_sleeps_finds_its_socket_readable() {
    let (one, mut other) = pair();
    let bytes = vec![7; 3 << 20];
    assert_eq!(one.write_vectored(&[IoSlice::new(&bytes)]).unwrap(), RING_BYTES);
    assert_eq!(one.write_vectored(&[IoSlice::new(&bytes)]).unwrap_err().kind(), ErrorKind::WouldBlock);
    let (mut there, mut room) = ([0; 1], vec![0; 2 << 20]);
    let peek = |stream: &SharedStream, byte: &mut [u8]| {
        recv(stream.socket.as_raw_fd(), byte, MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT)
    };
    one.rings().want(true, true);
    assert!(!one.rings().arm());
    assert_eq!(peek(&one, &mut there), Err(Errno::EAGAIN));
    assert_eq!(other.read_vectored(&mut [IoSliceMut::new(&mut room)]).unwrap(), RING_BYTES);
    assert_eq!(peek(&one, &mut there), Ok(1));
    other.attend();
    assert!(!other.is_over);
}

#[test]
fn memory_that_could_be_cut_or_has_another_layout_is_refused() {
    let unsealed = || {
        let file = nix::sys::memfd::memfd_create("test", nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING).unwrap();
        nix::unistd::ftruncate(&file, 4096 + (2 << 20)).unwrap();
        file
    };
    assert_eq!(refusal(unsealed()), ErrorKind::InvalidData);
    for bytes in [0, 4096, 4096 + (2 << 20) - 1, 4096 + (2 << 20) + 1, 4096 + (1 << 40)] {
        let file = unsealed();
        nix::unistd::ftruncate(&file, bytes).unwrap();
        let seals = nix::fcntl::SealFlag::F_SEAL_SHRINK;
        nix::fcntl::fcntl(&file, nix::fcntl::FcntlArg::F_ADD_SEALS(seals)).unwrap();
        assert_eq!(refusal(file), ErrorKind::InvalidData, "{bytes} bytes");
    }
    // No memory at all: the system says which error.
    let file = OwnedFd::from(File::open("/proc/self/exe").unwrap());
    let _ = refusal(file);
}

#[test]
fn descriptors_come_with_their_bytes_and_strange_ones_are_closed() {
    let (one, other) = UnixStream::pair().unwrap();
    let (mut reader, writer) = std::io::pipe().unwrap();
    send_with(&one, b"hello", &[OwnedFd::from(writer).as_fd()]).unwrap();
    let mut bytes = [0; 16];
    let (len, files) = receive_with(&other, &mut bytes).unwrap();
    assert_eq!((&bytes[..len], files.len()), (&b"hello"[..], 1));
    let mut writer = File::from(files.into_iter().next().unwrap());
    writer.write_all(b"by the pipe").unwrap();
    drop(writer);
    // The end comes only when no descriptor is left open.
    let mut text = String::new();
    std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
    assert_eq!(text, "by the pipe");
    assert_eq!(receive_with(&other, &mut bytes).unwrap_err().kind(), ErrorKind::WouldBlock);
}
