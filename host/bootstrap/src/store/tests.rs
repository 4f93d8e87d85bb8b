use std::ffi::OsString;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use super::frame::{Frame, Hello, Taken, What};
use super::*;

mod anything;
mod secrets;
mod strangers;

/// Long enough for a busy machine, short enough for a test of what does not come.
const SHORT: Duration = Duration::from_millis(800);
const LONG: Duration = Duration::from_secs(30);

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    (listener, address)
}

fn config(rank: u32, size: u32, address: &str, timeout: Duration) -> StoreConfig {
    StoreConfig { timeout, job: "job 7".to_owned(), ..StoreConfig::new(rank, size, address) }
}

/// Says hello as a rank would, on a socket of the test's own.
fn hello(address: &str, change: impl FnOnce(&mut Hello)) -> TcpStream {
    let mut hello = Hello { build: Build::OWN, rank: 1, size: 3, job: "job 7".to_owned(), handshake: None };
    change(&mut hello);
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.write_all(&hello.encode()).unwrap();
    stream
}

/// What rank 0 answers until it ends the connection.
fn answers(stream: &mut TcpStream) -> Vec<Frame> {
    let mut bytes = Vec::new();
    // A connection that is reset has been read before.
    let _ = stream.read_to_end(&mut bytes);
    let mut frames = Vec::new();
    while let Taken::Whole(frame) = Frame::take(&mut bytes, 1 << 20) {
        frames.push(frame);
    }
    frames
}

fn reason(stream: &mut TcpStream) -> String {
    let frames = answers(stream);
    let last = frames.last().expect("rank 0 says why");
    assert_eq!(last.what, What::Failed);
    String::from_utf8(last.body.clone()).unwrap()
}

/// Rank 0 of `size` on a thread, and its address.
fn first(size: u32, timeout: Duration) -> (thread::JoinHandle<Result<TcpStore, StoreError>>, String) {
    let (listener, address) = listener();
    let config = config(0, size, &address, timeout);
    (thread::spawn(move || TcpStore::with_listener(listener, config)), address)
}

fn error(joined: Result<TcpStore, StoreError>) -> StoreError {
    joined.err().expect("the ranks cannot have come together")
}

/// Runs something on each rank of a group that has come together.
fn group(size: u32, timeout: Duration, run: impl Fn(TcpStore) + Send + Sync) {
    let (listener, address) = listener();
    let mut listener = Some(listener);
    thread::scope(|scope| {
        for rank in 0..size {
            let (config, listener, run) = (config(rank, size, &address, timeout), listener.take(), &run);
            scope.spawn(move || match listener {
                Some(listener) => run(TcpStore::with_listener(listener, config).unwrap()),
                None => run(TcpStore::join(config).unwrap()),
            });
        }
    });
}

/// Rank 0, which has joined in peace, has little timeout from now on.
fn hurry(store: &mut TcpStore) {
    if let Side::First(server) = &mut store.side {
        server.timeout = SHORT;
    }
}

#[test]
fn every_rank_gets_what_every_rank_gave() {
    for size in [1, 2, 3, 17] {
        group(size, LONG, |mut store| {
            for round in 0..20u32 {
                let piece = |rank: u32| vec![rank as u8; ((rank * 37 + round * 1000) % 5000) as usize];
                let all = store.exchange(&format!("round {round}"), &piece(store.rank())).unwrap();
                assert_eq!(all, (0..size).map(piece).collect::<Vec<_>>());
            }
        });
    }
}

#[test]
fn the_longest_contributions_pass() {
    group(4, LONG, |mut store| {
        let all = store.exchange("long", &vec![store.rank() as u8; MAX_CONTRIBUTION_BYTES]).unwrap();
        assert!(
            (0..)
                .zip(&all)
                .all(|(rank, one)| one.len() == MAX_CONTRIBUTION_BYTES && one.iter().all(|byte| *byte == rank))
        );
    });
}

#[test]
fn what_is_too_long_is_refused_and_the_others_learn_of_it() {
    group(3, LONG, |mut store| {
        let bytes = if store.rank() == 1 { MAX_CONTRIBUTION_BYTES + 1 } else { 1 };
        let error = store.try_exchange("much", &vec![0; bytes]).unwrap_err().to_string();
        match store.rank() {
            1 => assert_eq!(error, "contribution of 1048577 bytes: the limit is 1048576"),
            0 => assert!(error.starts_with("rank 1 at 127.0.0.1:"), "{error}"),
            _ => assert!(error.starts_with("rank 0 says: rank 1 at 127.0.0.1:"), "{error}"),
        }
        let again = store.try_exchange("again", &[]).unwrap_err();
        assert!(matches!(again, StoreError::Broken { .. }), "{again}");
    });
    let mut alone = TcpStore::join(StoreConfig::new(0, 1, "")).unwrap();
    let tag = "x".repeat(256);
    assert_eq!(
        alone.try_exchange(&tag, &[]).unwrap_err(),
        StoreError::TooLong { what: "name of an exchange", found: 256, limit: 255 }
    );
}

#[test]
fn missing_ranks_are_named_to_all_within_the_bound() {
    let (server, address) = first(4, SHORT);
    let began = Instant::now();
    let other = TcpStore::join(config(2, 4, &address, SHORT));
    let text = error(other).to_string();
    assert!(began.elapsed() < SHORT + GRACE, "{:?}", began.elapsed());
    let StoreError::Missing { missing, size: 4, waited, turned_away, .. } = error(server.join().unwrap()) else {
        panic!("{text}")
    };
    assert_eq!((missing, turned_away), (vec![1, 3], vec![]));
    assert!(waited >= SHORT && waited < SHORT + Duration::from_secs(2));
    assert!(text.starts_with("rank 0 says: ranks 1 and 3 of 4 did not come within 0."), "{text}");
    let hint = format!("Rank 0 listens at {address}, where only processes of its own computer reach it");
    assert!(
        text.contains("; see whether they run, and whether they have the address of rank 0. ") && text.contains(&hint),
        "{text}"
    );
}

#[test]
fn nobody_listens() {
    let (listener, address) = listener();
    drop(listener);
    let began = Instant::now();
    let error = error(TcpStore::join(config(1, 2, &address, SHORT)));
    assert!(began.elapsed() < SHORT + Duration::from_secs(4));
    let StoreError::Unreachable { waited, reason, .. } = &error else { panic!("{error}") };
    assert!(*waited >= SHORT && reason.contains("refused"), "{error}");
    assert!(error.to_string().starts_with(&format!("rank 0 was not found at {address} within 0.")), "{error}");
    assert!(error.to_string().ends_with("if rank 0 runs on another one, name that"), "{error}");
}

#[test]
fn rank_0_may_start_last() {
    let (listener, address) = listener();
    drop(listener);
    let other = thread::spawn({
        let config = config(1, 2, &address, LONG);
        move || TcpStore::join(config).unwrap().exchange("late", b"other").unwrap()
    });
    thread::sleep(Duration::from_millis(300));
    let all = TcpStore::join(config(0, 2, &address, LONG)).unwrap().exchange("late", b"first").unwrap();
    assert_eq!((&all, &all), (&other.join().unwrap(), &vec![b"first".to_vec(), b"other".to_vec()]));
}

#[test]
fn a_port_that_is_taken_is_named() {
    let (_listener, address) = listener();
    let error = error(TcpStore::join(config(0, 2, &address, SHORT)));
    assert_eq!(error, StoreError::InUse { address: address.clone() });
    let text = "another program listens there; is rank 0 started twice? If not, choose another port";
    assert_eq!(error.to_string(), format!("rank 0 cannot listen at {address}: {text}"));
}

#[test]
fn an_address_of_another_computer_cannot_be_listened_at() {
    // Of documentation (RFC 5737): nobody has it.
    let text = error(TcpStore::join(config(0, 2, "192.0.2.1:4711", SHORT))).to_string();
    assert!(text.starts_with("rank 0 cannot listen at 192.0.2.1:4711: Cannot assign requested address"), "{text}");
    assert!(text.ends_with("; it has to run on the computer that the address names"), "{text}");
}

#[test]
fn a_second_rank_0_is_named_to_all_at_once() {
    let (server, address) = first(3, LONG);
    let other = thread::spawn({
        let address = address.clone();
        move || error(TcpStore::join(config(1, 3, &address, LONG)))
    });
    let began = Instant::now();
    let second = error(TcpStore::join(config(0, 3, &address, LONG)));
    let expected = format!("rank 0 came twice, from {address} and from 127.0.0.1:");
    for error in [second, other.join().unwrap()] {
        let StoreError::Reported { what } = &error else { panic!("{error}") };
        assert!(what.starts_with(&expected), "{what}");
    }
    let error = error(server.join().unwrap());
    assert!(matches!(error, StoreError::Duplicate { rank: 0, .. }), "{error}");
    assert!(began.elapsed() < LONG / 2);
}

#[test]
fn a_rank_that_there_is_not_is_named_to_all_at_once() {
    let (server, address) = first(3, LONG);
    let began = Instant::now();
    let own = error(TcpStore::join(config(7, 3, &address, LONG)));
    assert_eq!(own.to_string(), "rank 7 of 3: ranks run from 0 to 2");
    let error = error(server.join().unwrap());
    let StoreError::OutOfRange { rank: 7, size: 3, .. } = &error else { panic!("{error}") };
    assert!(error.to_string().ends_with(" is one of 3 ranks: they run from 0 to 2"), "{error}");
    assert!(began.elapsed() < LONG / 2);
}

#[test]
fn a_rank_that_cannot_go_on_is_named_to_all_at_once() {
    for who in [0, 2] {
        group(3, LONG, |mut store| {
            store.exchange("first", &[]).unwrap();
            let began = Instant::now();
            if store.rank() == who {
                store.refuse("no card: \x1b[2J give it one");
                let again = store.exchange("second", &[]).unwrap_err().to_string();
                assert!(again.contains("cannot go on: no card"), "{again}");
                return;
            }
            let text = store.exchange("second", &[]).unwrap_err().to_string();
            assert!(text.contains(&format!("rank {who} cannot go on: no card:  [2J give it one")), "{text:?}");
            assert!(began.elapsed() < LONG / 2);
        });
    }
}

#[test]
fn what_is_no_store_is_named() {
    let (listener, address) = listener();
    let web = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let error = error(TcpStore::join(config(1, 2, &address, LONG)));
    web.join().unwrap();
    assert_eq!(error, StoreError::NotAStore { address, answer: b"HTTP/1.1".to_vec() });
}

#[test]
fn one_who_accepts_and_says_nothing_is_left_within_the_bound() {
    let (_listener, address) = listener();
    let began = Instant::now();
    let error = error(TcpStore::join(config(1, 2, &address, Duration::from_millis(50))));
    assert!(matches!(&error, StoreError::Unanswered { waited, .. } if *waited < 2 * GRACE), "{error}");
    assert!(began.elapsed() < 2 * GRACE);
}

/// Two ranks that must not be together make both fail, and the third as well.
fn clash(change: impl FnOnce(&mut Hello)) -> (StoreError, String) {
    let (server, address) = first(3, LONG);
    let mut good = hello(&address, |hello| hello.rank = 2);
    let mut seated = [0; 16];
    good.read_exact(&mut seated).unwrap();
    let mut bad = hello(&address, change);
    let error = error(server.join().unwrap());
    let text = reason(&mut bad);
    assert_eq!(text, error.to_string());
    assert_eq!(reason(&mut good), text);
    (error, text)
}

#[test]
fn a_duplicate_rank_is_named_with_both_addresses() {
    let (error, text) = clash(|hello| hello.rank = 2);
    assert!(matches!(error, StoreError::Duplicate { rank: 2, .. }));
    assert!(text.starts_with("rank 2 came twice, from 127.0.0.1:") && text.contains(" and from 127.0.0.1:"), "{text}");
    assert!(matches!(clash(|hello| hello.rank = 0).0, StoreError::Duplicate { rank: 0, .. }));
}

#[test]
fn another_size_is_named() {
    let (error, text) = clash(|hello| hello.size = 5);
    assert!(matches!(error, StoreError::OtherSize { rank: 1, theirs: 5, own: 3, .. }));
    assert!(text.ends_with(" is one of 5 ranks, rank 0 one of 3: give all the same size"), "{text}");
    let (error, _) = clash(|hello| hello.rank = 3);
    assert!(matches!(error, StoreError::OutOfRange { rank: 3, size: 3, .. }), "{error}");
}

#[test]
fn another_version_or_build_is_named() {
    let (error, text) = clash(|hello| hello.build.version = 9);
    assert!(matches!(error, StoreError::OtherVersion { rank: 1, theirs: 9, own: VERSION, .. }));
    assert!(
        text.ends_with(" speaks version 9 of the store, rank 0 version 2: run the same release on all ranks"),
        "{text}"
    );
    let (error, _) = clash(|hello| hello.build.abi ^= 1);
    assert!(matches!(error, StoreError::OtherBuild { rank: 1, .. }), "{error}");
}

/// Strangers are turned away, and the ranks come together all the same.
#[test]
fn another_job_and_garbage_do_no_harm() {
    let (server, address) = first(2, LONG);
    let mut strange = hello(&address, |hello| hello.job = "job 8".to_owned());
    assert_eq!(
        reason(&mut strange),
        "a rank of job \"job 8\" came to the store of job \"job 7\": give all ranks of a job the same job id, and each \
         job a port of its own"
    );
    let mut scanner = TcpStream::connect(&address).unwrap();
    scanner.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
    scanner.set_read_timeout(Some(LONG)).unwrap();
    answers(&mut scanner);
    drop(TcpStream::connect(&address).unwrap());
    let _silent = TcpStream::connect(&address).unwrap();
    let mut other = TcpStore::join(config(1, 2, &address, LONG)).unwrap();
    let first = thread::spawn(move || server.join().unwrap().unwrap().exchange("x", b"0"));
    assert_eq!(other.exchange("x", b"1").unwrap(), first.join().unwrap().unwrap());
}

#[test]
fn who_was_turned_away_is_named_when_ranks_are_missing() {
    let (server, address) = first(2, SHORT);
    for _ in 0..9 {
        TcpStream::connect(&address).unwrap().write_all(b"\x16\x03\x01 garbage").unwrap();
    }
    hello(&address, |hello| hello.job = "job 8".to_owned());
    let error = error(server.join().unwrap());
    let StoreError::Missing { missing, turned_away, .. } = &error else { panic!("{error}") };
    assert_eq!((missing.as_slice(), turned_away.len()), ([1].as_slice(), 4));
    assert!(turned_away[0].contains("it said [16, 03, 01"), "{error}");
}

#[test]
fn a_rank_that_dies_while_others_are_awaited_is_named() {
    let (server, address) = first(3, LONG);
    let mut dying = hello(&address, |_| ());
    dying.read_exact(&mut [0; 16]).unwrap();
    drop(dying);
    let error = error(server.join().unwrap());
    assert!(
        matches!(&error, StoreError::Died { rank: 1, during, .. } if during == "other ranks were awaited"),
        "{error}"
    );
}

#[test]
fn a_rank_that_dies_in_an_exchange_is_named_to_all() {
    group(4, LONG, |mut store| {
        store.exchange("first", &[]).unwrap();
        if store.rank() == 3 {
            return;
        }
        let error = store.try_exchange("second", &[]).unwrap_err();
        let text = error.to_string();
        let own =
            matches!(&error, StoreError::Died { rank: 3, during, .. } if during == "exchange \"second\" was under way");
        assert!(own == (store.rank() == 0), "{text}");
        assert!(own || text.starts_with("rank 0 says: rank 3 at 127.0.0.1:"), "{text}");
    });
}

#[test]
fn rank_0_dies() {
    group(3, LONG, |mut store| {
        store.exchange("first", &[]).unwrap();
        if store.rank() == 0 {
            return;
        }
        let error = store.try_exchange("second", &[]).unwrap_err();
        assert!(matches!(error, StoreError::FirstLost { .. }), "{error}");
    });
}

#[test]
fn different_names_are_reported_to_all() {
    group(3, LONG, |mut store| {
        let tag = if store.rank() == 2 { "keys" } else { "queue pairs" };
        let text = store.exchange(tag, &[]).unwrap_err().to_string();
        let expected =
            "rank 2 is at exchange \"keys\", rank 0 at \"queue pairs\": all ranks must do the same in the same order";
        assert!(text.ends_with(expected), "{text}");
        assert!(text.starts_with(&format!("exchange {tag:?}: ")), "{text}");
    });
}

#[test]
fn a_rank_that_does_not_take_part_is_named_to_all_within_the_bound() {
    let done = std::sync::Barrier::new(3);
    group(3, LONG, |mut store| {
        hurry(&mut store);
        if store.rank() != 1 {
            let began = Instant::now();
            let text = store.exchange("keys", &[]).unwrap_err().to_string();
            assert!(text.contains("rank 1 did not contribute to exchange \"keys\" within 0."), "{text}");
            assert!(began.elapsed() < SHORT + GRACE);
        }
        done.wait();
    });
}

#[test]
fn nonsense_in_an_exchange_is_named() {
    for (bytes, expected) in [
        (b"what is this?".to_vec(), "[77, 68, 61, 74, 20, 69, 73, 20] instead of a frame".to_owned()),
        (Frame::new(What::Welcome).encode(), "Welcome 0, which is not due".to_owned()),
        (
            Frame { number: 5, tag: "x".to_owned(), ..Frame::new(What::Contribution) }.encode(),
            "a contribution to exchange 5, but this is number 1".to_owned(),
        ),
        (
            [b"FXCF\x03\0\0\0\x01\0\0\0".as_slice(), &u32::MAX.to_le_bytes()].concat(),
            format!("a frame of {} bytes, but {MAX_CONTRIBUTION_BYTES} are the limit", u32::MAX),
        ),
        (b"FXCF\x0A\0\0\0\x01\0\0\0\0\0\0\0".to_vec(), "a frame of kind 10, but kinds run from 1 to 9".to_owned()),
    ] {
        let (server, address) = first(2, LONG);
        let mut peer = hello(&address, |hello| hello.size = 2);
        peer.write_all(&bytes).unwrap();
        let error = server.join().unwrap().unwrap().try_exchange("x", &[]).unwrap_err();
        let StoreError::Nonsense { rank: 1, what, .. } = &error else { panic!("{error}") };
        assert_eq!(*what, expected);
        assert_eq!(reason(&mut peer), error.to_string());
    }
}

#[test]
fn ranks_that_come_after_a_failure_learn_why() {
    let (server, address) = first(4, LONG);
    // One that dies before the others come.
    drop(hello(&address, |hello| hello.size = 4));
    thread::sleep(Duration::from_millis(100));
    let late = [2, 3].map(|rank| {
        let address = address.clone();
        thread::spawn(move || TcpStore::join(config(rank, 4, &address, LONG)))
    });
    for rank in late {
        let error = error(rank.join().unwrap());
        assert!(matches!(&error, StoreError::Reported { what } if what.contains("rank 1")), "{error}");
    }
    assert!(matches!(error(server.join().unwrap()), StoreError::Died { rank: 1, .. }));
}

#[test]
fn a_rank_that_reads_nothing_is_named() {
    let (server, address) = first(2, LONG);
    let mut peer = hello(&address, |hello| hello.size = 2);
    let contribution = Frame { number: 1, body: vec![1; 1 << 20], ..Frame::new(What::Contribution) };
    // The answers are more than sockets hold.
    let mut store = server.join().unwrap().unwrap();
    hurry(&mut store);
    let mut error = None;
    for number in 1..=64 {
        let sent = peer.write_all(&Frame { number, ..contribution.clone() }.encode());
        error = store.try_exchange("", &vec![0; 1 << 20]).err();
        if error.is_some() || sent.is_err() {
            break;
        }
    }
    let error = error.expect("64 answers of 2 MiB do not fit");
    assert!(matches!(&error, StoreError::NotRead { rank: 1, waited, .. } if *waited >= SHORT), "{error}");
}

fn from(variables: &[(&str, &str)]) -> Result<StoreConfig, String> {
    let find = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| OsString::from(value));
    let found = StoreConfig::from_variables(find).and_then(|(config, secret)| {
        config.check().map_err(StoreError::of_variables)?;
        Ok(config.secret(secret?))
    });
    found.map_err(|error| error.to_string())
}

#[test]
fn configurations_from_the_environment() {
    let all =
        [("FLEXCAST_RANK", "2"), ("FLEXCAST_SIZE", " 4 "), ("FLEXCAST_STORE", "head:4000"), ("FLEXCAST_JOB", "a")];
    let config = from(&all).unwrap();
    assert_eq!(config, StoreConfig { job: "a".to_owned(), ..StoreConfig::new(2, 4, "head:4000") });
    assert_eq!(from(&all[..3]).unwrap().job, "");
    assert_eq!(from(&[("FLEXCAST_RANK", "0"), ("FLEXCAST_SIZE", "1")]).unwrap(), StoreConfig::new(0, 1, ""));
    let refused = |name: &str, value: &str, text: &str| {
        let changed: Vec<(&str, &str)> =
            all.iter().map(|(key, old)| (*key, if *key == name { value } else { *old })).collect();
        assert_eq!(from(&changed).unwrap_err(), text);
    };
    let behind = "(see FLEXCAST_RANK and FLEXCAST_SIZE, or what the launcher sets)";
    refused("FLEXCAST_RANK", "4", &format!("rank 4 of 4: ranks run from 0 to 3 {behind}"));
    refused(
        "FLEXCAST_RANK",
        "-1",
        "FLEXCAST_RANK is \"-1\": it has to be the rank of this process, from 0 to the number of ranks less one",
    );
    for size in [0, 1025, 2000] {
        let text = format!("{size} ranks: a communicator has 1 to 1024 {behind}");
        refused("FLEXCAST_SIZE", &size.to_string(), &text);
    }
    refused("FLEXCAST_SIZE", "two", "FLEXCAST_SIZE is \"two\": it has to be the number of ranks, 1 to 1024");
    for address in ["head", "head:", ":4000", "head:0", "head:70000", "::1:4000"] {
        let text = format!(
            "address {address:?} of the store: it has to be host:port, with a port from 1 to 65535 and an IPv6 address \
             in brackets"
        );
        refused("FLEXCAST_STORE", address, &text);
        // A rank alone meets nobody, and yet it does not take what cannot be.
        let alone = [("FLEXCAST_RANK", "0"), ("FLEXCAST_SIZE", "1"), ("FLEXCAST_STORE", address)];
        assert_eq!(from(&alone).unwrap_err(), text);
    }
    let secret = [&all[..], &[("FLEXCAST_SECRET", "swordfish")]].concat();
    assert!(
        from(&secret).unwrap_err().starts_with("the secret in FLEXCAST_SECRET has 9 bytes: at least 32 are needed")
    );
    let secret = [&all[..], &[("FLEXCAST_SECRET", "0123456789abcdef0123456789abcdef")]].concat();
    assert_eq!(from(&secret).unwrap().secret, Some(Secret::new(b"0123456789abcdef0123456789abcdef").unwrap()));
    refused("FLEXCAST_JOB", &"j".repeat(129), "job id of 129 bytes: the limit is 128");
    assert_eq!(from(&[]).unwrap_err(), "FLEXCAST_SIZE is not set: it has to be the number of ranks, 1 to 1024");
    let wanted = "FLEXCAST_STORE is not set: it has to be host:port, where rank 0 listens, the same on all ranks";
    assert_eq!(from(&all[..2]).unwrap_err(), wanted);
}

#[test]
fn only_rank_0_listens() {
    let (listener, _) = listener();
    let refused = TcpStore::with_listener(listener, StoreConfig::new(1, 2, ""));
    assert_eq!(error(refused), StoreError::NotFirst { rank: 1 });
}
