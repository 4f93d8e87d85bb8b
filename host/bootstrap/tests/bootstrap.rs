//! Exchanges between processes, over callbacks, and in subgroups.

use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use flexcast_bootstrap::{
    CallbackExchange, Exchange, ExchangeError, MAX_CONTRIBUTION_BYTES, StoreConfig, Subgroup, SubgroupError, TcpStore,
    accompany, split,
};

const LONG: Duration = Duration::from_secs(60);

/// Runs something on each rank of a store.
fn stores<T: Send>(size: u32, run: impl Fn(TcpStore) -> T + Send + Sync) -> Vec<T> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut listener = Some(listener);
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..size)
            .map(|rank| {
                let config = StoreConfig { timeout: LONG, ..StoreConfig::new(rank, size, address.as_str()) };
                let (listener, run) = (listener.take(), &run);
                scope.spawn(move || match listener {
                    Some(listener) => run(TcpStore::with_listener(listener, config).unwrap()),
                    None => run(TcpStore::join(config).unwrap()),
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// `MPI_Allgather` between threads.
struct Allgather {
    meeting: Barrier,
    pieces: Mutex<Vec<Vec<u8>>>,
}

impl Allgather {
    fn new(size: usize) -> Arc<Self> {
        Arc::new(Self { meeting: Barrier::new(size), pieces: Mutex::new(vec![Vec::new(); size]) })
    }

    fn gather(&self, rank: usize, send: &[u8], receive: &mut [u8]) {
        self.pieces.lock().unwrap()[rank] = send.to_vec();
        self.meeting.wait();
        receive.copy_from_slice(&self.pieces.lock().unwrap().concat());
        self.meeting.wait();
    }
}

type Gathered = Result<Vec<Vec<u8>>, ExchangeError>;

/// One exchange over callbacks; each rank has its tag and contribution.
fn over_callbacks(ranks: &[(&str, Vec<u8>)]) -> Vec<Gathered> {
    let allgather = Allgather::new(ranks.len());
    thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(ranks)
            .map(|(rank, (tag, contribution))| {
                let allgather = Arc::clone(&allgather);
                scope.spawn(move || {
                    let callback = |send: &[u8], receive: &mut [u8]| {
                        allgather.gather(rank as usize, send, receive);
                        Ok(())
                    };
                    let mut exchange = CallbackExchange::new(rank, ranks.len() as u32, callback).unwrap();
                    assert_eq!((exchange.rank(), exchange.size()), (rank, ranks.len() as u32));
                    exchange.exchange(tag, contribution)
                })
            })
            .collect();
        threads.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn callbacks_gather_contributions_of_any_lengths() {
    for lengths in [vec![0], vec![5], vec![0, 0, 0], vec![3, 0, 70_000, 1], vec![8; 9]] {
        let ranks: Vec<(&str, Vec<u8>)> =
            (1u8..).zip(&lengths).map(|(byte, length)| ("addresses", vec![byte; *length])).collect();
        for gathered in over_callbacks(&ranks) {
            assert!(gathered.unwrap().iter().eq(ranks.iter().map(|(_, contribution)| contribution)));
        }
    }
}

#[test]
fn callbacks_that_disagree_or_fail_are_reported() {
    let texts = |ranks: &[(&str, Vec<u8>)]| -> Vec<String> {
        over_callbacks(ranks).into_iter().map(|gathered| gathered.unwrap_err().to_string()).collect()
    };
    let other = texts(&[("keys", vec![]), ("queues", vec![]), ("keys", vec![])]);
    assert_eq!(other[0], "exchange \"keys\": rank 1 is at an exchange of another name: all ranks must do the same");
    assert_eq!(other[1], "exchange \"queues\": rank 0 is at an exchange of another name: all ranks must do the same");
    let long = texts(&[("keys", vec![]), ("keys", vec![0; MAX_CONTRIBUTION_BYTES + 1])]);
    assert_eq!(long[0], "exchange \"keys\": rank 1 contributes 1048577 bytes, but 1048576 are the limit");
    assert_eq!(long[0], long[1]);

    let mut failing = CallbackExchange::new(0, 2, |_: &[u8], _: &mut [u8]| Err("MPI_ERR_COMM".into())).unwrap();
    let text = failing.exchange("keys", &[]).unwrap_err().to_string();
    assert_eq!(text, "exchange \"keys\": the callback failed: MPI_ERR_COMM");
    let mut lazy = CallbackExchange::new(1, 2, |_: &[u8], _: &mut [u8]| Ok(())).unwrap();
    let text = lazy.exchange("keys", &[]).unwrap_err().to_string();
    assert_eq!(text, "exchange \"keys\": rank 0 is at its exchange 0, this rank at 1: all ranks must do the same");
    let mut crossed = CallbackExchange::new(1, 2, |send: &[u8], receive: &mut [u8]| {
        let mut other = send.to_vec();
        other[16] ^= 1;
        receive.copy_from_slice(&[send, &other].concat());
        Ok(())
    })
    .unwrap();
    let text = crossed.exchange("keys", &[]).unwrap_err().to_string();
    assert_eq!(text, "exchange \"keys\": the callback gave back something else than rank 1 sent");
    assert!(CallbackExchange::new(2, 2, |_: &[u8], _: &mut [u8]| Ok(())).is_err());
}

#[test]
fn subgroups_exchange_side_by_side_and_within_one_another() {
    let results = stores(7, |mut store| {
        let rank = store.rank();
        // Rank 6 is in no group; the others by parity, odd ones in reverse order.
        let colour = (rank != 6).then_some(rank % 2);
        let key = if rank % 2 == 1 { -i64::from(rank) } else { 0 };
        let Some(members) = split(&mut store, colour, key).unwrap() else {
            accompany(&mut store).unwrap();
            accompany(&mut store).unwrap();
            return (Vec::new(), Vec::new());
        };
        let mut group = Subgroup::new(&mut store, members).unwrap();
        let all = group.exchange("group", &[rank as u8; 3][..1 + rank as usize % 3]).unwrap();
        // A group in the group: its first two ranks.
        let inner = if group.rank() < 2 {
            let mut inner = Subgroup::new(&mut group, vec![1, 0]).unwrap();
            inner.exchange("inner", &[rank as u8]).unwrap()
        } else {
            accompany(&mut group).unwrap();
            Vec::new()
        };
        (all, inner)
    });
    let even = vec![vec![0; 1], vec![2; 3], vec![4; 2]];
    let odd = vec![vec![5; 3], vec![3; 1], vec![1; 2]];
    let (even_inner, odd_inner) = (vec![vec![2], vec![0]], vec![vec![3], vec![5]]);
    for (rank, (all, inner)) in results.iter().enumerate() {
        let expected = match rank {
            6 => (&vec![], &vec![]),
            0 | 2 => (&even, &even_inner),
            4 => (&even, &vec![]),
            3 | 5 => (&odd, &odd_inner),
            _ => (&odd, &vec![]),
        };
        assert_eq!((all, inner), expected, "rank {rank}");
    }
}

#[test]
fn members_that_disagree_are_reported() {
    let texts = stores(4, |mut store| {
        let rank = store.rank();
        let lists = [vec![0, 1, 2], vec![0, 1, 2], vec![1, 2, 0], vec![3]];
        let refused = match &lists[rank as usize] {
            list if rank < 3 => Subgroup::new(&mut store, list.clone()).unwrap().exchange("keys", &[]),
            list => Subgroup::new(&mut store, list.clone()).unwrap().exchange("other", &[]),
        };
        let tag = if rank == 1 { "queues" } else { "keys" };
        let named = match rank {
            3 => accompany(&mut store).map(|()| Vec::new()),
            _ => Subgroup::new(&mut store, vec![0, 1, 2]).unwrap().exchange(tag, &[]),
        };
        let absent = match rank {
            2 | 3 => accompany(&mut store).map(|()| Vec::new()),
            _ => Subgroup::new(&mut store, vec![0, 1, 2]).unwrap().exchange("keys", &[]),
        };
        [refused, named, absent].map(|gathered| gathered.err().map(|error| error.to_string()))
    });
    let expected = |rank: u32, what: &str| Some(format!("exchange \"keys\": rank {rank} of the parent {what}"));
    let list = "has another list of members: all members must give the same, in the same order";
    assert_eq!([&texts[0][0], &texts[1][0]], [&expected(2, list); 2]);
    assert_eq!(texts[2][0], expected(1, list));
    assert_eq!(texts[3], [None, None, None]);
    let name = "is at an exchange of another name: all members must do the same";
    assert_eq!([&texts[0][1], &texts[2][1]], [&expected(1, name); 2]);
    assert_eq!([&texts[0][2], &texts[1][2]], [&expected(2, "accompanies the exchange, but is a member here"); 2]);
}

#[test]
fn lists_that_make_no_group_are_refused() {
    let alone = || TcpStore::join(StoreConfig::new(0, 1, "")).unwrap();
    assert_eq!(Subgroup::new(alone(), vec![0, 1]).err(), Some(SubgroupError::Rank { rank: 1, size: 1 }));
    assert_eq!(Subgroup::new(alone(), vec![0, 0]).err(), Some(SubgroupError::Twice { rank: 0 }));
    assert_eq!(Subgroup::new(alone(), vec![]).err(), Some(SubgroupError::Outside { rank: 0, members: vec![] }));
    let mut group = Subgroup::new(alone(), vec![0]).unwrap();
    assert_eq!((group.rank(), group.size(), group.members()), (0, 1, &[0][..]));
    assert!(
        group.exchange("much", &vec![0; MAX_CONTRIBUTION_BYTES]).unwrap_err().to_string().contains("are the limits")
    );
}

/// Starts this test program again as a rank.
fn start(rank: u32, size: u32, address: &str, what: &str) -> Child {
    start_by(Command::new(std::env::current_exe().unwrap()), rank, size, address, what)
}

/// The same with this limit of descriptors.
fn start_limited(rank: u32, size: u32, address: &str, what: &str, limit: u32) -> Child {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("ulimit -n {limit} && exec \"$0\" \"$@\"")]).arg(std::env::current_exe().unwrap());
    start_by(shell, rank, size, address, what)
}

fn start_by(mut command: Command, rank: u32, size: u32, address: &str, what: &str) -> Child {
    command
        .args(["--ignored", "--exact", "--nocapture", "a_rank_in_a_process_of_its_own"])
        .env("FLEXCAST_RANK", rank.to_string())
        .env("FLEXCAST_SIZE", size.to_string())
        .env("FLEXCAST_STORE", address)
        .env("FLEXCAST_JOB", "processes")
        .env("FLEXCAST_TEST", what)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
#[ignore = "other tests start it in processes of its own: cargo test -p flexcast-bootstrap --test bootstrap"]
fn a_rank_in_a_process_of_its_own() {
    let what = std::env::var("FLEXCAST_TEST").expect("a rank of a test of processes");
    // All descriptors that the process may have, but so many.
    let spare = what.strip_prefix("short of descriptors, but ").map(|spare| spare.parse::<usize>().unwrap());
    let _taken = spare.map(|spare| {
        let mut taken: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
        taken.truncate(taken.len() - spare);
        taken
    });
    let mut store = TcpStore::from_env().unwrap();
    let (rank, size) = (store.rank(), store.size());
    let all = store.exchange("processes", &std::process::id().to_le_bytes()).unwrap();
    assert_eq!((all.len(), &all[rank as usize]), (size as usize, &std::process::id().to_le_bytes().to_vec()));
    if what == "hang" {
        println!("\nready");
        // Until it is killed.
        thread::sleep(LONG);
    }
    store.exchange("end", &[]).unwrap();
}

fn outcome(child: Child) -> (bool, String) {
    let output = child.wait_with_output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
}

/// A port that is free now. Somebody may take it before rank 0 does; then the rank says so.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

#[test]
fn processes_meet_by_their_environment() {
    let address = free_address();
    let ranks: Vec<Child> = (0..4).rev().map(|rank| start(rank, 4, &address, "meet")).collect();
    for child in ranks {
        let (success, text) = outcome(child);
        assert!(success, "{text}");
    }
}

#[test]
fn a_process_that_lacks_descriptors_names_the_limit() {
    let text = |rank: u32| {
        format!(
            "rank {rank} cannot connect to the others: this process has no file descriptor left, of the 64 that it may \
             have: raise"
        )
    };
    // To connect, to listen, and to accept.
    for (rank, spare) in [(1, 0), (0, 0), (0, 1)] {
        let address = free_address();
        let what = format!("short of descriptors, but {spare}");
        let short = start_limited(rank, 2, &address, &what, 64);
        let mut other = start(1 - rank, 2, &address, "meet");
        let (success, printed) = outcome(short);
        other.kill().unwrap();
        other.wait().unwrap();
        assert!(!success && printed.contains(&text(rank)), "rank {rank}, {spare} left: {printed}");
    }
}

#[test]
fn a_process_that_is_killed_is_named_by_all_others() {
    for victim in [0, 2] {
        let address = free_address();
        let mut ranks: Vec<Child> =
            (0..3).map(|rank| start(rank, 3, &address, if rank == victim { "hang" } else { "meet" })).collect();
        let mut killed = ranks.remove(victim as usize);
        let mut lines = BufReader::new(killed.stdout.as_mut().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "it ended by itself");
        killed.kill().unwrap();
        killed.wait().unwrap();
        let began = Instant::now();
        for child in ranks {
            let (success, text) = outcome(child);
            let expected = if victim == 0 { "rank 0 at 127.0.0.1:" } else { "rank 2 at 127.0.0.1:" };
            assert!(!success && text.contains(expected) && text.contains("closed"), "{text}");
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    }
}
