//! Collectives over IP multicast on the loopback interface, ranks as threads: real sockets, every byte checked.

mod attacks;
mod bad_input;
mod collectives;
mod delivery;
mod faults;
mod group;
#[allow(dead_code, unreachable_pub)] // Tests of other packages have the rest.
#[path = "../../../../tests/src/harness.rs"]
mod harness;
mod sparse;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flexcast::bootstrap::{CallbackExchange, StoreConfig, TcpStore};
use flexcast::{Algorithm, Allgather, Communicator, Config, Endpoint, Error, Selection, UdpOptions};

use group::{Group, block, check};

/// By multicast, or eagerly.
fn multicast(config: Config) -> Config {
    config.algorithm(Selection::Multicast)
}

fn options() -> UdpOptions {
    UdpOptions::default().interface("lo")
}

/// The same with so many ranks on each computer: where there are several computers some of it goes over the network.
fn spread(ranks_per_computer: u32) -> UdpOptions {
    options().ranks_per_computer(NonZeroU32::new(ranks_per_computer).unwrap())
}

#[test]
fn allgathers_and_broadcasts_of_all_sizes_are_right() {
    let cases = [(1, 1, 1), (2, 2, 1), (3, 3, 1), (5, 5, 4), (5, 2, 1)];
    let cases = cases.into_iter().flat_map(|case| Selection::ALL.map(|selection| (case, selection)));
    let divided = [(3, 1, 2), (5, 2, 3), (2, 1, 16)].map(|case| (case, Selection::Multicast));
    for ((ranks, of_computer, subgroups), selection) in cases.chain(divided) {
        let options = spread(of_computer).subgroups(subgroups);
        Group::new(ranks, options, move |config| config.algorithm(selection)).run(|communicator, rank| {
            for bytes in [0, 1, 63, 5000, 20_000, 300_001] {
                let endpoint = communicator.endpoint().clone();
                let mut send = endpoint.buffer(bytes).unwrap();
                send.write(0, &block(rank, bytes)).unwrap();
                let receive = endpoint.buffer(bytes * ranks as usize).unwrap();
                let done = communicator.allgather(send, receive).unwrap().wait().unwrap();
                for other in 0..ranks {
                    check(&done.receive, other as usize * bytes, &block(other, bytes));
                }
                let small = bytes * ranks as usize <= 64 << 10;
                let algorithm = done.report.decision.algorithm();
                if selection == Selection::Multicast {
                    let expected = if small { Algorithm::Eager } else { Algorithm::Multicast };
                    assert_eq!(algorithm, expected, "{bytes} bytes");
                }
                let root = bytes as u32 % ranks;
                let mut buffer = endpoint.buffer(bytes).unwrap();
                if rank == root {
                    buffer.write(0, &block(root, bytes)).unwrap();
                }
                let done = communicator.broadcast(buffer, root).unwrap().wait().unwrap();
                check(&done.receive, 0, &block(root, bytes));
            }
        });
    }
}

#[test]
fn unequal_contributions_displacements_and_in_place_are_right() {
    const RANKS: u32 = 4;
    let counts = [100_000, 0, 7, 50_001u64];
    let displacements = [200_000, 5, 0, 100_003u64];
    let group = |of_computer| Group::new(RANKS, spread(of_computer), |config| multicast(config).chains(2));
    let gather = |communicator: &Communicator, rank: u32| {
        let endpoint = communicator.endpoint().clone();
        let own = counts[rank as usize] as usize;
        let mut send = endpoint.buffer(own).unwrap();
        send.write(0, &block(rank, own)).unwrap();
        let mut receive = endpoint.buffer(300_001).unwrap();
        receive.fill(0xA5);
        let request =
            communicator.post(Allgather::counts(&counts).displs(&displacements).buffers(send, receive)).unwrap();
        let done = request.wait().unwrap();
        for (other, (count, at)) in (0..).zip(counts.iter().zip(displacements)) {
            check(&done.receive, at as usize, &block(other, *count as usize));
        }
        check(&done.receive, 300_000, &[0xA5]);
        let mut receive = endpoint.buffer(RANKS as usize * 30_000).unwrap();
        receive.write(rank as usize * 30_000, &block(rank, 30_000)).unwrap();
        let done = communicator.post(Allgather::new().in_place(receive)).unwrap().wait().unwrap();
        (0..RANKS).for_each(|other| check(&done.receive, other as usize * 30_000, &block(other, 30_000)));
    };
    [3, 4].into_iter().for_each(|of_computer| group(of_computer).run(gather));
}

#[test]
fn several_operations_and_communicators_run_side_by_side() {
    let group =
        Group::new(3, options(), |config| multicast(config).progress_thread(Some(flexcast::ThreadOptions::default())));
    group.run(|communicator, rank| {
        let endpoint = communicator.endpoint().clone();
        let mut requests = Vec::new();
        for turn in 0..4u32 {
            let bytes = 10_000 * (turn as usize + 1);
            let mut send = endpoint.buffer(bytes).unwrap();
            send.write(0, &block(rank + turn, bytes)).unwrap();
            requests.push((turn, bytes, communicator.allgather(send, endpoint.buffer(3 * bytes).unwrap()).unwrap()));
        }
        for (turn, bytes, request) in requests {
            let done = request.wait().unwrap();
            (0..3).for_each(|other| check(&done.receive, other as usize * bytes, &block(other + turn, bytes)));
        }
    });
}

#[test]
fn nothing_of_a_communicator_is_left_when_it_is_dropped_although_its_thread_is_at_work() {
    /// Is dropped with the communicator's engine.
    struct Last(Arc<AtomicBool>);
    impl flexcast::Tap for Last {
        fn take(&mut self, datagram: &[u8], deliver: &mut dyn FnMut(&[u8])) {
            deliver(datagram);
        }
    }
    impl Drop for Last {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    for turn in 0..100 {
        let is_gone = Arc::new(AtomicBool::new(false));
        let last = Arc::clone(&is_gone);
        let options = options().tap(Arc::new(move |_, _| Box::new(Last(Arc::clone(&last)))));
        let endpoint = Endpoint::udp(&options).unwrap();
        let config = Config::for_endpoint(&endpoint).progress_thread(Some(flexcast::ThreadOptions::default()));
        let mut alone = CallbackExchange::new(0, 1, |send: &[u8], receive: &mut [u8]| {
            receive.copy_from_slice(send);
            Ok(())
        })
        .unwrap();
        let communicator = Communicator::create(&endpoint, &mut alone, config).unwrap();
        // Its thread has something to do while it goes.
        drop(communicator.barrier().unwrap());
        drop(communicator);
        assert!(is_gone.load(Ordering::Acquire), "turn {turn}");
    }
}

#[test]
fn two_jobs_on_one_group_and_port_do_not_see_one_another() {
    let job = |first: u32| {
        let options = options().group([239, 77, 1, 1].into()).port(17_222);
        Group::new(3, options, multicast).run(|communicator, rank| {
            let endpoint = communicator.endpoint().clone();
            for turn in 0..20 {
                let bytes = 100_000;
                let mut send = endpoint.buffer(bytes).unwrap();
                send.write(0, &block(first + rank + turn, bytes)).unwrap();
                let request = communicator.allgather(send, endpoint.buffer(3 * bytes).unwrap()).unwrap();
                let done = request.wait().unwrap();
                (0..3).for_each(|other| {
                    check(&done.receive, other as usize * bytes, &block(first + other + turn, bytes))
                });
            }
        });
    };
    std::thread::scope(|scope| {
        scope.spawn(|| job(0));
        scope.spawn(|| job(1000));
    });
}

/// Threads of this process that receive for the subgroups.
fn workers() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("flexcast-sub")).count()
}

#[test]
fn each_subgroup_carries_its_share_and_strangers_are_counted() {
    const RANKS: u32 = 2;
    const BYTES: usize = 1 << 20;
    let (group, port) = ([239, 77, 1, 3], 17_230);
    // Somebody else listens to all subgroups.
    let listeners: Vec<_> = (port..port + 4)
        .map(|port| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
            socket.set_reuse_address(true).unwrap();
            socket.bind(&std::net::SocketAddr::from((group, port)).into()).unwrap();
            socket.join_multicast_v4(&group.into(), &[127, 0, 0, 1].into()).unwrap();
            socket.set_recv_buffer_size(8 << 20).unwrap();
            let socket = std::net::UdpSocket::from(socket);
            socket.set_nonblocking(true).unwrap();
            socket
        })
        .collect();
    let options = spread(1).group(group.into()).port(port).subgroups(4);
    Group::new(RANKS, options, |config| multicast(config).chunk_bytes(1000)).run_once(true, |communicator, rank| {
        let endpoint = communicator.endpoint().clone();
        let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.send_to(b"nonsense", (std::net::Ipv4Addr::from(group), port + 2)).unwrap();
        for turn in 0..3 {
            let mut buffer = endpoint.buffer(BYTES).unwrap();
            if rank == 0 {
                buffer.write(0, &block(turn, BYTES)).unwrap();
            }
            let done = communicator.broadcast(buffer, 0).unwrap().wait().unwrap();
            check(&done.receive, 0, &block(turn, BYTES));
        }
        assert!(workers() >= 3);
        // One from each rank; the own one lay in front of the data.
        let refused = communicator.receive_statistics().unwrap().unexpected_opcode;
        assert!(rank == 0 || (1..=2).contains(&refused), "{refused} datagrams of strangers");
    });
    let shares: Vec<u64> = listeners
        .iter()
        .map(|listener| {
            let mut room = vec![0; 1 << 16];
            std::iter::from_fn(|| listener.recv(&mut room).ok()).map(|bytes| bytes as u64).sum()
        })
        .collect();
    // What a listener had no room for is lost to it alone.
    assert!(shares.iter().all(|share| *share > 50_000), "{shares:?} bytes in the subgroups");
}

#[test]
fn what_is_lost_changed_doubled_or_late_is_made_good() {
    for seed in faults::seeds() {
        // Where it fails, the last line names the seed.
        eprintln!("seed {seed}");
        let tap = faults::make(seed);
        let ranks = 2 + (seed % 4) as u32;
        let chains = (seed / 4 % 3) as u32;
        let subgroups = 1 + (seed / 3 % 3) as u32;
        let options = spread(1 + (seed % 5) as u32).tap(tap).unauthenticated(false).subgroups(subgroups);
        Group::new(ranks, options, move |config| multicast(config).chains(chains)).run(|communicator, rank| {
            let endpoint = communicator.endpoint().clone();
            for turn in 0..3u32 {
                let bytes = 40_000 + 13_001 * turn as usize;
                let mut send = endpoint.buffer(bytes).unwrap();
                send.write(0, &block(rank + turn, bytes)).unwrap();
                let receive = endpoint.buffer(bytes * ranks as usize).unwrap();
                let done = communicator.allgather(send, receive).unwrap().wait().unwrap();
                (0..ranks).for_each(|other| check(&done.receive, other as usize * bytes, &block(other + turn, bytes)));
                let root = turn % ranks;
                let mut buffer = endpoint.buffer(2 * bytes).unwrap();
                if rank == root {
                    buffer.write(0, &block(root, 2 * bytes)).unwrap();
                }
                let done = communicator.broadcast(buffer, root).unwrap().wait().unwrap();
                check(&done.receive, 0, &block(root, 2 * bytes));
            }
        });
    }
}

#[test]
fn without_multicast_everything_comes_from_the_neighbour() {
    let options = options().tap(faults::nothing_comes());
    let slack = |config: Config| {
        let overheads = flexcast::Overheads { cutoff_slack: Duration::from_millis(2), ..config.overheads };
        multicast(config).overheads(overheads)
    };
    Group::new(4, options, slack).run(|communicator, rank| {
        let endpoint = communicator.endpoint().clone();
        let mut send = endpoint.buffer(100_000).unwrap();
        send.write(0, &block(rank, 100_000)).unwrap();
        let request = communicator.allgather(send, endpoint.buffer(400_000).unwrap()).unwrap();
        let done = request.wait().unwrap();
        (0..4).for_each(|other| check(&done.receive, other as usize * 100_000, &block(other, 100_000)));
        assert_eq!(done.report.recovered_bytes, 300_000);
    });
}

#[test]
fn giving_up_too_early_costs_time_and_no_bytes() {
    // What is on its way counts as lost at once: it comes twice, by multicast and from the neighbour.
    let hasty = |config: Config| {
        let overheads = flexcast::Overheads { cutoff_slack: Duration::from_nanos(100), ..config.overheads };
        multicast(config).overheads(overheads).chunk_bytes(1000).chains(4)
    };
    let given_up = std::sync::atomic::AtomicU64::new(0);
    Group::new(4, options(), hasty).run(|communicator, rank| {
        let endpoint = communicator.endpoint().clone();
        for turn in 0..60 {
            let bytes = 200_000;
            let mut send = endpoint.buffer(bytes).unwrap();
            send.write(0, &block(rank + turn, bytes)).unwrap();
            let request = communicator.allgather(send, endpoint.buffer(4 * bytes).unwrap()).unwrap();
            let done = request.wait().unwrap();
            (0..4).for_each(|other| check(&done.receive, other as usize * bytes, &block(other + turn, bytes)));
            let count = u64::from(done.report.phases.cut_off().is_some());
            given_up.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
        }
    });
    assert!(given_up.into_inner() > 0, "nobody has given up");
}

#[test]
fn acknowledgements_that_never_come_only_slow_a_root_down() {
    // More chunks than any window.
    const BYTES: usize = 300_000;
    let options = options().tap(faults::no_acknowledgements());
    // How long it takes is not the matter: other tests may have the processors meanwhile.
    let patient = |config| multicast(config).recovery_timeout(Duration::from_secs(30)).chunk_bytes(64).chains(1);
    Group::new(3, options, patient).run(|communicator, rank| {
        let endpoint = communicator.endpoint().clone();
        let mut send = endpoint.buffer(BYTES).unwrap();
        send.write(0, &block(rank, BYTES)).unwrap();
        let request = communicator.allgather(send, endpoint.buffer(3 * BYTES).unwrap()).unwrap();
        let done = request.wait().unwrap();
        (0..3).for_each(|other| check(&done.receive, other as usize * BYTES, &block(other, BYTES)));
    });
}

#[test]
fn whoever_calls_something_else_or_leaves_is_named_and_buffers_come_back() {
    Group::new(3, options(), multicast).run(|communicator, rank| {
        let endpoint = communicator.endpoint().clone();
        let root = u32::from(rank == 2);
        let failed = communicator.broadcast(endpoint.buffer(100_000).unwrap(), root).unwrap().wait().unwrap_err();
        assert!(matches!(failed.error, Error::Failed { .. }), "{failed}");
        assert_eq!(failed.receive.map(|buffer| buffer.len()), Some(100_000));
        let refused = communicator.broadcast(endpoint.buffer(8).unwrap(), 0).unwrap_err();
        assert!(matches!(refused.error, Error::Broken { .. }), "{refused}");
    });
    Group::new(3, options(), multicast).run(|communicator, rank| {
        if rank == 1 {
            return;
        }
        let endpoint = communicator.endpoint().clone();
        let send = endpoint.buffer(50_000).unwrap();
        let failed = communicator.allgather(send, endpoint.buffer(150_000).unwrap());
        let failed = failed.and_then(|request| request.wait()).unwrap_err();
        let text = failed.to_string();
        assert!(text.contains("rank 1"), "{text}");
    });
}

#[test]
fn whoever_is_gone_before_a_call_is_named_at_once() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let make = |store: Result<TcpStore, flexcast::bootstrap::StoreError>, shared: bool| {
        let endpoint = Endpoint::udp(&options().shared_memory(shared)).unwrap();
        let config = Config::for_endpoint(&endpoint).progress_thread(Some(flexcast::ThreadOptions::default()));
        Communicator::create(&endpoint, &mut store.unwrap(), config).unwrap()
    };
    for shared in [false, true] {
        let listener = listener.try_clone().unwrap();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let other = make(TcpStore::join(StoreConfig::new(1, 2, &address)), shared);
                other.barrier().unwrap().wait().map(drop).unwrap_or_else(|failed| panic!("{failed}"));
                other
            });
            let communicator = make(TcpStore::with_listener(listener, StoreConfig::new(0, 2, "")), shared);
            communicator.barrier().unwrap().wait().map(drop).unwrap_or_else(|failed| panic!("{failed}"));
            let other = other.join().unwrap();
            // Without a word, as a process that is killed.
            let killed = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
                let _other = other;
                std::panic::resume_unwind(Box::new("killed"));
            }));
            assert!(killed.is_err());
            // The progress thread sees it, with nothing under way.
            std::thread::sleep(Duration::from_millis(100));
            let begun = std::time::Instant::now();
            let failed = communicator.barrier().and_then(|request| request.wait()).unwrap_err();
            assert!(failed.to_string().contains("rank 1") && begun.elapsed() < Duration::from_secs(3), "{failed}");
        });
    }
}

#[test]
fn buffers_of_another_kind_of_card_are_refused() {
    Group::new(1, options(), multicast).run(|communicator, _| {
        let failed = communicator.broadcast(communicator.endpoint().buffer(9).unwrap(), 1).unwrap_err();
        assert!(failed.to_string().contains("root 1 of 1 ranks"), "{failed}");
        assert_eq!(communicator.endpoint().datapath().name(), "udp");
        assert!(communicator.endpoint().device().is_none());
    });
    let endpoint = Endpoint::udp(&options()).unwrap();
    assert_eq!(endpoint.interface().map(flexcast::Interface::name), Some("lo"));
}

#[test]
fn overflows_are_counted_separately_and_slow_the_root_down() {
    const BYTES: usize = 1 << 20;
    // Of operations; the first in which an overflow slows the root down is the last.
    const MOST: u32 = 500;
    let group: std::net::IpAddr = [239, 77, 1, 2].into();
    let port = 17_223;
    let is_over = std::sync::atomic::AtomicBool::new(false);
    let most = std::sync::Mutex::new((0, None));
    let relaxed = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        // A stranger fills the receive buffers.
        scope.spawn(|| {
            let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            while !is_over.load(relaxed) {
                // More than a buffer holds.
                for _ in 0..200 {
                    let _ = socket.send_to(&[0xEE; 900], (group, port));
                }
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        // The flood ends however the test does.
        let _end = faults::OnDrop(|| is_over.store(true, relaxed));
        let options = spread(2).group(group).port(port).socket_buffer_bytes(32 << 10);
        let config = |config| multicast(config).recovery_timeout(Duration::from_secs(30));
        Group::new(3, options, config).run(|communicator, rank| {
            let endpoint = communicator.endpoint().clone();
            for turn in 0..MOST {
                let mut buffer = endpoint.buffer(BYTES).unwrap();
                if rank == 0 {
                    let is_seen = matches!(*most.lock().unwrap(), (1.., Some(_)));
                    buffer.write(0, &block(turn, BYTES)).unwrap();
                    buffer.write(0, &[u8::from(is_seen || turn + 1 == MOST)]).unwrap();
                }
                let done = communicator.broadcast(buffer, 0).unwrap().wait().unwrap();
                check(&done.receive, 1, &block(turn, BYTES)[1..]);
                let report = done.report;
                {
                    let mut most = most.lock().unwrap();
                    most.0 = most.0.max(report.overflowed_datagrams);
                    most.1 = most.1.max(report.pace_mbit_per_s);
                }
                let mut last = [0];
                done.receive.read(0, &mut last).unwrap();
                if last == [1] {
                    break;
                }
            }
        });
    });
    let (overflowed, pace) = most.into_inner().unwrap();
    assert!(
        overflowed > 0 && pace.is_some(),
        "{overflowed} datagrams had no room, and the root sent at {pace:?} Mbit/s"
    );
}

#[test]
fn a_configured_rate_is_kept() {
    const BYTES: usize = 5 << 20;
    const TURNS: u32 = 10;
    Group::new(2, options(), |config| multicast(config).pacing_gbit_per_s(Some(1))).run(|communicator, rank| {
        let endpoint = communicator.endpoint().clone();
        let mut whole = 0;
        for turn in 0..TURNS {
            let mut buffer = endpoint.buffer(BYTES).unwrap();
            if rank == 0 {
                buffer.write(0, &block(turn, BYTES)).unwrap();
            }
            let done = communicator.broadcast(buffer, 0).unwrap().wait().unwrap();
            check(&done.receive, 0, &block(turn, BYTES));
            let report = done.report;
            // A root stops early when its receiver, which has not had a processor for long, reads the rest.
            if rank > 0 || report.fetches_served > 0 {
                continue;
            }
            whole += 1;
            let took = report.phases.sent().unwrap() - report.phases.sending().unwrap();
            // All but what a root may catch up with at once.
            let least = Duration::from_micros(BYTES as u64 * 8 / 1000) - Duration::from_millis(3);
            assert!(took >= least, "{took:?}, at least {least:?}");
            assert_eq!(report.pace_mbit_per_s, Some(1000));
        }
        assert!(rank > 0 || whole > 0, "no block of {TURNS} has been multicast to its end");
    });
}
