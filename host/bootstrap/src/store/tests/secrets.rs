//! Ranks with a secret, with another one, and without.

use super::*;
use crate::store::channel::tests::secret as of_letter;

pub(super) fn secret(letter: u8) -> Secret {
    of_letter(letter)
}

/// Two ranks of three with these secrets, of which the second comes some time after the first. Rank 2 has that of rank
/// 0.
fn join_in_turn(first: Option<u8>, second: Option<u8>) -> [StoreError; 3] {
    let (listener, address) = listener();
    let with = |rank, letter: Option<u8>| config(rank, 3, &address, LONG).secret(letter.map(secret));
    let began = Instant::now();
    let server = {
        let config = with(0, first);
        thread::spawn(move || TcpStore::with_listener(listener, config))
    };
    let others = [with(1, second), with(2, first)].map(|config| thread::spawn(|| error(TcpStore::join(config))));
    let [one, two] = others.map(|other| other.join().unwrap());
    let zero = error(server.join().unwrap());
    assert!(began.elapsed() < LONG / 2, "{:?}", began.elapsed());
    [zero, one, two]
}

#[test]
fn secrets_that_differ_are_named_by_both_sides_at_once() {
    let cases = [
        (
            Some(b'a'),
            Some(b'b'),
            "rank 1 at # has another secret than rank 0",
            "rank 0 at # has another secret than rank 1",
        ),
        (
            Some(b'a'),
            None,
            "rank 1 at # has no secret, and rank 0 has one",
            "rank 0 at # has a secret, and rank 1 has none",
        ),
        (
            None,
            Some(b'b'),
            "rank 1 at # has a secret, and rank 0 has none",
            "rank 0 at # has no secret, and rank 1 has one",
        ),
    ];
    let check = |(first, second, at_first, at_second): (_, _, &str, &str)| {
        let [zero, one, two] = join_in_turn(first, second);
        let StoreError::SecretDiffers { rank: 1, own: 0, at, .. } = &zero else { panic!("{zero}") };
        let text = format!("{}: give all ranks the same FLEXCAST_SECRET_FILE", at_first.replace('#', at));
        assert_eq!(zero.to_string(), text);
        assert_eq!(two.to_string(), format!("rank 0 says: {text}"));
        let StoreError::SecretDiffers { rank: 0, own: 1, at, .. } = &one else { panic!("{one}") };
        assert_eq!(
            one.to_string(),
            format!("{}: give all ranks the same FLEXCAST_SECRET_FILE", at_second.replace('#', at))
        );
    };
    thread::scope(|scope| cases.map(|case| scope.spawn(move || check(case))).map(|case| case.join().unwrap()));
}

/// All that goes over one connection between two ranks, either way.
fn recorded(secret: Option<Secret>, contribution: &'static [u8]) -> Vec<u8> {
    let (listener, address) = listener();
    let (between, between_address) = super::listener();
    let recorder = thread::spawn(move || {
        let (mut one, _) = between.accept().unwrap();
        let mut two = TcpStream::connect(address).unwrap();
        let mut back = [two.try_clone().unwrap(), one.try_clone().unwrap()];
        let record = |from: &mut TcpStream, to: &mut TcpStream| {
            let (mut all, mut part) = (Vec::new(), [0; 1 << 16]);
            while let Ok(count @ 1..) = from.read(&mut part) {
                all.extend(&part[..count]);
                let _ = to.write_all(&part[..count]);
            }
            let _ = to.shutdown(std::net::Shutdown::Write);
            all
        };
        let [from, to] = &mut back;
        thread::scope(|scope| {
            let answers = scope.spawn(|| record(from, to));
            [record(&mut one, &mut two), answers.join().unwrap()].concat()
        })
    });
    let other = thread::spawn({
        let config = config(1, 2, &between_address, LONG).secret(secret.clone());
        move || TcpStore::join(config).unwrap().exchange("the name", contribution).unwrap()
    });
    let first = config(0, 2, "", LONG).secret(secret);
    let all = TcpStore::with_listener(listener, first).unwrap().exchange("the name", b"zero").unwrap();
    assert_eq!(all, [b"zero".to_vec(), contribution.to_vec()]);
    assert_eq!(other.join().unwrap(), all);
    recorder.join().unwrap()
}

#[test]
fn with_a_secret_whoever_reads_along_learns_nothing_of_an_exchange() {
    let contains = |all: &[u8], part: &[u8]| all.windows(part.len()).any(|window| window == part);
    const KEY: &[u8] = b"the key of the communicator, 256 bits";
    let clear = recorded(None, KEY);
    assert!(contains(&clear, KEY) && contains(&clear, b"the name"), "the recorder works");
    let encrypted = recorded(Some(secret(b'a')), KEY);
    assert!(!contains(&encrypted, KEY) && !contains(&encrypted, b"the name") && !contains(&encrypted, b"zero"));
    // The same again is another text.
    assert!(contains(&encrypted, b"FXCSTORE") && recorded(Some(secret(b'a')), KEY) != encrypted);
}

#[test]
fn long_contributions_pass_encrypted() {
    let (listener, address) = listener();
    let piece = |rank: u8| {
        (0..=MAX_CONTRIBUTION_BYTES).map(|at| (at as u8).wrapping_mul(rank + 3)).skip(1).collect::<Vec<u8>>()
    };
    let run = move |mut store: TcpStore| {
        let all = store.exchange("long", &piece(store.rank() as u8)).unwrap();
        assert!((0..3).map(piece).eq(all));
    };
    let others = [1, 2].map(|rank| {
        let config = config(rank, 3, &address, LONG).secret(Some(secret(b'a')));
        thread::spawn(move || run(TcpStore::join(config).unwrap()))
    });
    run(TcpStore::with_listener(listener, config(0, 3, "", LONG).secret(Some(secret(b'a')))).unwrap());
    for other in others {
        other.join().unwrap();
    }
}

/// A hello of rank 1 with a secret, recorded, and what rank 0 answers when it is sent again.
#[test]
fn who_replays_a_hello_is_no_rank() {
    let (listener, address) = listener();
    let first = config(0, 2, &address, LONG).secret(Some(secret(b'a')));
    let mut hello = Hello { build: Build::OWN, rank: 1, size: 2, job: "job 7".to_owned(), handshake: None };
    let (_, message) = channel::Opening::new(&secret(b'a'), &hello.prologue(true)).unwrap();
    hello.handshake = Some(message);
    let server = thread::spawn(move || TcpStore::with_listener(listener, first));
    let mut replays: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for stream in &mut replays {
        stream.write_all(&hello.encode()).unwrap();
        // As a rank would go on, which has the keys.
        stream.write_all(&[34, 0]).unwrap();
        stream.write_all(&[7; 34]).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
    }
    for stream in &mut replays {
        let frames = answers(stream);
        assert_eq!(frames[0].what, What::Answer);
        assert!(frames.iter().all(|frame| frame.what != What::Seated));
    }
    let other = TcpStore::join(config(1, 2, &address, LONG).secret(Some(secret(b'a'))));
    assert_eq!(other.err(), None, "the real one is taken");
    server.join().unwrap().unwrap();
}

#[test]
fn a_stranger_that_claims_to_be_a_rank_does_not_keep_the_rank_out() {
    let (listener, address) = listener();
    let first = config(0, 3, &address, LONG).secret(Some(secret(b'a')));
    let server = thread::spawn(move || TcpStore::with_listener(listener, first));
    // Without the secret, with another one, of another version, as rank 0, and as one that there is not.
    let mut strangers = vec![
        super::hello(&address, |_| ()),
        super::hello(&address, |hello| hello.handshake = Some([7; 48])),
        super::hello(&address, |hello| hello.build.version = 9),
        super::hello(&address, |hello| hello.rank = 0),
        super::hello(&address, |hello| hello.rank = u32::MAX),
    ];
    for stranger in &mut strangers {
        assert_ne!(answers(stranger).last().expect("an answer").what, What::Seated);
    }
    let others = [1, 2].map(|rank| {
        let config = config(rank, 3, &address, LONG).secret(Some(secret(b'a')));
        thread::spawn(move || TcpStore::join(config).unwrap().exchange("x", &[]).unwrap())
    });
    server.join().unwrap().unwrap().exchange("x", &[]).unwrap();
    for other in others {
        other.join().unwrap();
    }
}

#[test]
fn a_record_that_is_changed_on_the_way_ends_the_store_and_is_not_taken() {
    let (listener, address) = listener();
    let (between, between_address) = super::listener();
    thread::spawn(move || {
        let (mut one, _) = between.accept().unwrap();
        let mut two = TcpStream::connect(address).unwrap();
        let (mut from, mut to) = (two.try_clone().unwrap(), one.try_clone().unwrap());
        thread::spawn(move || std::io::copy(&mut from, &mut to));
        let (mut part, mut records) = ([0; 4096], 0);
        while let Ok(count @ 1..) = one.read(&mut part) {
            records += 1;
            // The hello, the first record, the contribution.
            part[count - 1] ^= u8::from(records == 3);
            two.write_all(&part[..count]).unwrap();
        }
    });
    let other = thread::spawn({
        let config = config(1, 2, &between_address, LONG).secret(Some(secret(b'a')));
        move || TcpStore::join(config).unwrap().try_exchange("x", b"other").unwrap_err()
    });
    let first = config(0, 2, "", LONG).secret(Some(secret(b'a')));
    let error = TcpStore::with_listener(listener, first).unwrap().try_exchange("x", b"first").unwrap_err();
    assert!(
        matches!(&error, StoreError::Died { rank: 1, reason, .. } if reason.contains("changed on the way")),
        "{error}"
    );
    assert!(matches!(other.join().unwrap(), StoreError::Reported { .. }));
}
