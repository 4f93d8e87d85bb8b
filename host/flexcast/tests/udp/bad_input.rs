//! Groups, ports and sockets that are not as they should be.

use std::net::{Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use flexcast::bootstrap::CallbackExchange;
use flexcast::{Communicator, Config, Endpoint};

use crate::group::{Group, block, check};
use crate::{multicast, options};

/// Allgathers and Broadcasts, every byte checked.
fn gather(communicator: &Communicator, rank: u32, turns: u32, bytes: usize) {
    let (endpoint, ranks) = (communicator.endpoint().clone(), communicator.size());
    for turn in 0..turns {
        let mut send = endpoint.buffer(bytes).unwrap();
        send.write(0, &block(rank + turn, bytes)).unwrap();
        let request = communicator.allgather(send, endpoint.buffer(ranks as usize * bytes).unwrap()).unwrap();
        let done = request.wait().unwrap();
        (0..ranks).for_each(|other| check(&done.receive, other as usize * bytes, &block(other + turn, bytes)));
    }
}

#[test]
fn a_port_that_another_program_has_for_itself_is_refused_with_what_to_change() {
    let group = Ipv4Addr::new(239, 77, 2, 1);
    let other = UdpSocket::bind((group, 0)).unwrap();
    let options = options().group(group.into()).port(other.local_addr().unwrap().port());
    let endpoint = Endpoint::udp(&options).unwrap();
    let mut alone = CallbackExchange::new(0, 1, |send: &[u8], receive: &mut [u8]| {
        receive.copy_from_slice(send);
        Ok(())
    })
    .unwrap();
    let error =
        Communicator::create(&endpoint, &mut alone, Config::for_endpoint(&endpoint)).map(drop).unwrap_err().to_string();
    assert!(error.contains("239.77.2.1") && error.contains("FLEXCAST_PORT, FLEXCAST_GROUP"), "{error}");
}

#[test]
fn datagrams_of_another_program_on_the_same_group_and_port_change_nothing() {
    const PORT: u16 = 17_333;
    let group = Ipv4Addr::new(239, 77, 2, 2);
    let other = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    other.set_multicast_loop_v4(true).unwrap();
    socket2::SockRef::from(&other).set_multicast_if_v4(&Ipv4Addr::LOCALHOST).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0u32;
            while !over.load(Ordering::Relaxed) {
                // Of all lengths, headers that are nearly right among them.
                let mut bytes = block(number, number as usize % 9000);
                if number.is_multiple_of(3) && bytes.len() >= 2 {
                    bytes[..2].copy_from_slice(&[1, (number % 4) as u8]);
                }
                let _ = other.send_to(&bytes, (group, PORT));
                number += 1;
                std::thread::sleep(Duration::from_micros(50));
            }
        });
        let foreign = std::sync::atomic::AtomicU64::new(0);
        Group::new(3, options().group(group.into()).port(PORT), multicast).run(|communicator, rank| {
            gather(communicator, rank, 20, 100_000);
            let seen = communicator.receive_statistics().unwrap();
            foreign.fetch_add(seen.unexpected_opcode + seen.error_cqes + seen.wrong_id, Ordering::Relaxed);
        });
        over.store(true, Ordering::Relaxed);
        assert!(foreign.into_inner() > 0, "nothing of the other program was received");
    });
}

#[test]
fn with_the_shortest_socket_buffers_every_byte_comes() {
    let begun = Instant::now();
    for bytes in [4096, 2048] {
        Group::new(3, options().socket_buffer_bytes(bytes), multicast).run(|communicator, rank| {
            gather(communicator, rank, 3, 150_000);
        });
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}
