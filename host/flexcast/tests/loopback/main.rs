//! Collectives in the memory of one process: every rank is a thread, and every byte is compared.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use flexcast::reduce::{DataType, Operator, Reduction};
use flexcast::{Communicator, Config, Endpoint, Error, Pending};

fn sum() -> Reduction {
    Reduction::new(Operator::Sum, DataType::U32).unwrap()
}

/// Ranks that exchange their connection information and run `body`.
fn ranks<R: Send + 'static>(
    ranks: u32,
    configure: impl Fn(Config) -> Config,
    body: impl Fn(Communicator) -> R + Send + Sync + 'static,
) -> Vec<R> {
    let (endpoint, body) = (Endpoint::loopback(), Arc::new(body));
    let parts: Vec<Pending> = (0..ranks)
        .map(|rank| Pending::new(&endpoint, rank, ranks, configure(Config::for_endpoint(&endpoint))).unwrap())
        .collect();
    let infos: Arc<Vec<Vec<u8>>> = Arc::new(parts.iter().map(Pending::connect_info).collect());
    // No rank may post before all are connected.
    let connected = Arc::new(Barrier::new(ranks as usize));
    let threads: Vec<_> = parts
        .into_iter()
        .map(|part| {
            let (infos, body, connected) = (Arc::clone(&infos), Arc::clone(&body), Arc::clone(&connected));
            thread::spawn(move || {
                let communicator = part.connect(&infos).unwrap();
                connected.wait();
                body(communicator)
            })
        })
        .collect();
    threads.into_iter().map(|thread| thread.join().unwrap()).collect()
}

fn pattern(rank: u32, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at as u32).wrapping_mul(31).wrapping_add(rank * 7 + 1) as u8).collect()
}

fn words(rank: u32, count: usize) -> Vec<u32> {
    (0..count as u32).map(|at| at * 3 + rank).collect()
}

fn bytes_of(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

#[test]
fn every_collective_has_every_byte_on_one_to_five_ranks_short_and_long() {
    for count in 1..=5 {
        for len in [0, 4, 256, 100_000] {
            ranks(
                count,
                |config| config,
                move |communicator| {
                    let (own, ranks) = (communicator.rank(), communicator.size());
                    let endpoint = communicator.endpoint().clone();
                    let of = |bytes: &[u8]| {
                        let mut buffer = endpoint.buffer(bytes.len()).unwrap();
                        buffer.write(0, bytes).unwrap();
                        buffer
                    };
                    let nothing = |len: usize| endpoint.buffer(len).unwrap();
                    for root in 0..ranks {
                        let buffer = if root == own { of(&pattern(root, len)) } else { nothing(len) };
                        let request = communicator.broadcast(buffer, root).unwrap();
                        assert_eq!(request.wait().unwrap().receive.to_vec().unwrap(), pattern(root, len));
                    }
                    let all: Vec<u8> = (0..ranks).flat_map(|rank| pattern(rank, len)).collect();
                    let request =
                        communicator.allgather(of(&pattern(own, len)), nothing(len * ranks as usize)).unwrap();
                    assert_eq!(request.wait().unwrap().receive.to_vec().unwrap(), all);
                    let count = len / 4;
                    let sums: Vec<u32> =
                        (0..count as u32).map(|at| (0..ranks).map(|rank| at * 3 + rank).sum()).collect();
                    let request =
                        communicator.allreduce(of(&bytes_of(&words(own, count))), nothing(len), sum()).unwrap();
                    assert_eq!(request.wait().unwrap().receive.to_vec().unwrap(), bytes_of(&sums));
                    let to_all: Vec<u8> = (0..ranks).flat_map(|to| pattern(own * 16 + to, len)).collect();
                    let from_all: Vec<u8> = (0..ranks).flat_map(|from| pattern(from * 16 + own, len)).collect();
                    let request = communicator.alltoall(of(&to_all), nothing(len * ranks as usize)).unwrap();
                    assert_eq!(request.wait().unwrap().receive.to_vec().unwrap(), from_all);
                    let request = communicator.barrier().unwrap();
                    request.wait().unwrap();
                },
            );
        }
    }
}

#[test]
fn calls_that_differ_fail_on_all_ranks_and_name_both() {
    let texts = ranks(
        3,
        |config| config,
        |communicator| {
            let endpoint = communicator.endpoint().clone();
            // One rank takes a message of another length.
            let len = if communicator.rank() == 1 { 8 } else { 4 };
            let request =
                communicator.allreduce(endpoint.buffer(len).unwrap(), endpoint.buffer(len).unwrap(), sum()).unwrap();
            request.wait().unwrap_err().to_string()
        },
    );
    for text in texts {
        assert!(text.contains("rank 1") && text.contains('4') && text.contains('8'), "{text}");
    }
}

#[test]
fn a_rank_that_goes_fails_those_that_wait_for_it_and_no_others() {
    let (gone, left): (Sender<()>, Receiver<()>) = channel();
    let left = std::sync::Mutex::new(left);
    let texts = ranks(
        2,
        |config| config,
        move |communicator| {
            if communicator.rank() == 1 {
                drop(communicator);
                gone.send(()).unwrap();
                return None;
            }
            left.lock().unwrap().recv_timeout(Duration::from_secs(10)).unwrap();
            let request = communicator.barrier().unwrap();
            Some(request.wait().unwrap_err().to_string())
        },
    );
    let text = texts[0].as_ref().unwrap();
    assert!(text.contains("rank 1"), "{text}");
}

#[test]
fn what_memory_has_not_is_refused_by_name() {
    let endpoint = Endpoint::loopback();
    let refused = |config: Config| Pending::new(&endpoint, 0, 2, config).map(|_| ()).unwrap_err().to_string();
    let text = refused(Config::for_endpoint(&endpoint).control(flexcast::Control::Device));
    assert!(text.contains("control") && text.contains("host"), "{text}");
    let text = refused(Config::for_endpoint(&endpoint).aggregators(vec!["127.0.0.1:7".to_owned()]));
    assert!(text.contains("aggregators"), "{text}");
    let text = refused(Config::for_endpoint(&endpoint).receive_threads(7));
    assert!(
        text.contains("receive_threads is 7") && text.contains("datapath loopback; only endpoints with dpa use it"),
        "{text}"
    );
    let network = Endpoint::udp(&flexcast::UdpOptions::default().interface("lo")).unwrap();
    let config = Config::for_endpoint(&network).placement(flexcast::ThreadPlacement::Spread);
    let text = Pending::new(&network, 0, 2, config).map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("placement") && text.contains("only endpoints with dpa or verbs use it"), "{text}");
    // Threads go with subgroups, which there are of each of these.
    for number in [1, 3, 16] {
        Pending::new(&network, 0, 2, Config::for_endpoint(&network).with_subgroups(number)).unwrap();
        Pending::new(&endpoint, 0, 2, Config::for_endpoint(&endpoint).with_subgroups(number)).unwrap();
    }
    // What nobody has changed is no reason.
    Pending::new(&network, 0, 2, Config::default()).unwrap();
    Pending::new(&endpoint, 0, 2, Config::default()).unwrap();
    let text = refused(Config::for_endpoint(&endpoint).control(flexcast::Control::Service));
    assert!(text.contains("control") || text.contains("service"), "{text}");
}

#[test]
fn ranks_with_endpoints_of_two_kinds_are_refused_and_named() {
    let (memory, network) =
        (Endpoint::loopback(), Endpoint::udp(&flexcast::UdpOptions::default().interface("lo")).unwrap());
    let parts = [&memory, &network].map(|endpoint| {
        let rank = u32::from(endpoint.interface().is_some());
        Pending::new(endpoint, rank, 2, Config::for_endpoint(endpoint)).unwrap()
    });
    let infos: Vec<Vec<u8>> = parts.iter().map(Pending::connect_info).collect();
    let [memory, network] = parts.map(|part| part.connect(&infos).unwrap_err());
    assert!(matches!(memory, Error::Peer { rank: 1, .. }) && memory.to_string().contains("another kind"), "{memory}");
    assert!(matches!(network, Error::Peer { rank: 0, .. }), "{network}");
    // Another process, another number, too few.
    let endpoint = Endpoint::loopback();
    let part = || Pending::new(&endpoint, 0, 2, Config::for_endpoint(&endpoint)).unwrap();
    let stale = part().connect_info();
    let refused = |others: &[Vec<u8>]| {
        let part = part();
        let infos = [&[part.connect_info()], others].concat();
        part.connect(&infos).unwrap_err().to_string()
    };
    let text = refused(std::slice::from_ref(&stale));
    assert!(text.contains("rank 1") && text.contains("another number"), "{text}");
    let text = refused(&[]);
    assert!(text.contains("1 blocks of connection information for 2 ranks"), "{text}");
    let text = refused(&[Vec::new()]);
    assert!(text.contains("another kind"), "{text}");
    // What was exchanged for another communicator.
    let other = Pending::new(&endpoint, 1, 2, Config::for_endpoint(&endpoint)).unwrap().connect_info();
    let text = part().connect(&[stale, other]).unwrap_err().to_string();
    assert!(text.contains("rank 0") && text.contains("not what this rank has given"), "{text}");
}

#[test]
fn an_own_block_of_two_lengths_and_settings_of_others_are_refused() {
    for (sent, received) in [(8, 4), (4, 8)] {
        let texts = ranks(
            1,
            |config| config,
            move |comm| {
                let (send, receive) = (comm.endpoint().buffer(8).unwrap(), comm.endpoint().buffer(8).unwrap());
                let (send_counts, receive_counts) = ([sent], [received]);
                let blocks = |counts| flexcast::Blocks { counts, displs: &[0] };
                let call = flexcast::Alltoall::blocks(blocks(&send_counts), blocks(&receive_counts));
                let call = call.buffers(send, receive);
                comm.post(call).expect_err("two lengths").to_string()
            },
        );
        assert!(texts[0].contains(&format!("{sent} bytes where it is sent and {received} where")), "{}", texts[0]);
    }
    let endpoint = Endpoint::loopback();
    let mut config = Config::for_endpoint(&endpoint);
    config.set("service.endpoints", "127.0.0.1:4000").unwrap();
    let text = Pending::new(&endpoint, 0, 1, config).expect_err("another carrier").to_string();
    assert!(text.contains("service.endpoints") && text.contains("FLEXCAST_SERVICE"), "{text}");
}
