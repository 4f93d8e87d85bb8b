//! Connections that say nothing, and ranks that have to connect again.

use super::*;

/// Connections that say nothing for as long as they are kept.
fn silent(address: &str, count: usize) -> Vec<TcpStream> {
    // Once the ranks are together nobody listens any more.
    (0..count).filter_map(|_| TcpStream::connect(address).ok()).collect()
}

/// Ranks 1 to `size` - 1 join at `address`, each some time after the one before; all exchange once.
fn meet(server: thread::JoinHandle<Result<TcpStore, StoreError>>, size: u32, address: &str, secret: Option<&Secret>) {
    let others: Vec<_> = (1..size)
        .map(|rank| {
            let config = config(rank, size, address, LONG).secret(secret.cloned());
            thread::spawn(move || TcpStore::join(config).unwrap().exchange("x", &rank.to_le_bytes()).unwrap())
        })
        .collect();
    let mut store = server.join().unwrap().unwrap();
    let all = store.exchange("x", &0u32.to_le_bytes()).unwrap();
    assert_eq!(all, (0..size).map(|rank| rank.to_le_bytes().to_vec()).collect::<Vec<_>>());
    for other in others {
        assert_eq!(other.join().unwrap(), all);
    }
}

#[test]
fn two_hundred_silent_connections_do_no_harm() {
    for secret in [None, Some(secrets::secret(b'a'))] {
        let (listener, address) = listener();
        let first = config(0, 4, &address, LONG).secret(secret.clone());
        let server = thread::spawn(move || TcpStore::with_listener(listener, first));
        let began = Instant::now();
        let before = silent(&address, 200);
        // More come while the ranks do.
        let during = thread::spawn({
            let address = address.clone();
            move || silent(&address, 200)
        });
        meet(server, 4, &address, secret.as_ref());
        assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
        drop((before, during.join().unwrap()));
    }
}

#[test]
fn a_rank_that_is_dropped_connects_again() {
    let (listener, address) = listener();
    let other = thread::spawn({
        let config = config(1, 2, &address, LONG);
        move || TcpStore::join(config).unwrap().exchange("x", b"1").unwrap()
    });
    // As if rank 0 had too many strangers.
    for _ in 0..3 {
        drop(listener.accept().unwrap());
    }
    let mut store = TcpStore::with_listener(listener, config(0, 2, &address, LONG)).unwrap();
    assert_eq!(store.exchange("x", b"0").unwrap(), other.join().unwrap());
}

#[test]
fn a_program_that_ends_every_connection_is_not_taken_for_rank_0() {
    let (listener, address) = listener();
    let other = thread::spawn({
        let config = config(1, 2, &address, SHORT);
        move || error(TcpStore::join(config))
    });
    while !other.is_finished() {
        listener.set_nonblocking(true).unwrap();
        drop(listener.accept());
        thread::sleep(Duration::from_millis(1));
    }
    let error = other.join().unwrap();
    assert!(matches!(&error, StoreError::Dropped { times, .. } if *times > 1), "{error}");
    assert!(error.to_string().contains("or another program has the port"), "{error}");
}

#[test]
fn a_stranger_holds_little_memory() {
    let (listener, address) = listener();
    let mut sender = TcpStream::connect(&address).unwrap();
    let (stream, peer) = listener.accept().unwrap();
    let mut link = link::Link::new(stream, peer.to_string(), 0).unwrap();
    sender.set_nonblocking(true).unwrap();
    let mut sent = 0;
    for _ in 0..50 {
        sent += sender.write(&[b'F'; 1 << 16]).unwrap_or(0);
        link.pump();
    }
    assert!(sent > 1 << 16 && link.incoming.len() < 512, "{} of {sent}", link.incoming.len());
}
