//! The daemon and ranks as processes over the loopback interface: several jobs, and whatever can die.

mod jobs;

use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use flexcast::{Endpoint, UdpOptions};
use flexcast_aggregator::daemon::ask;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use jobs::{Daemon, all_name, all_say, free_port, job, job_with, names, until};

/// No test of its own: a rank, which carries out the commands of its input.
#[test]
fn a_rank() {
    jobs::be_a_rank(|| Endpoint::udp(&UdpOptions::default().interface("lo")).unwrap());
}

#[test]
fn two_jobs_at_once_with_two_daemons_and_garbage() {
    let folder = tempfile::tempdir().unwrap();
    let daemons = [(); 2].map(|()| Daemon::start(folder.path(), free_port(), &[]));
    let addresses = [daemons[0].address, daemons[1].address];
    // One with a single aggregator, one with two threads of the first and one of the second.
    let mut jobs = [job(&addresses[..1]), job(&[addresses[0], addresses[1], addresses[0]])];
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0xff; 1000], b"FXAG"] {
        TcpStream::connect(addresses[0]).unwrap().write_all(bytes).unwrap();
    }
    for command in ["create", "sums", "create reproducible", "bits", "sums"] {
        jobs.iter_mut().flatten().for_each(|rank| rank.say(command));
        for rank in jobs.iter_mut().flatten() {
            assert_eq!(rank.line(), format!("{command}: fine"));
        }
    }
    // The communicators before are gone.
    assert_eq!([daemons[0].jobs(), daemons[1].jobs()], [3 * 3, 3]);
    for mut ranks in jobs {
        all_say(&mut ranks, "destroy", "destroy: fine");
    }
    for daemon in &daemons {
        daemon.waits_for_the_end();
        let status = ask(&daemon.socket).unwrap();
        assert_eq!(status.refused, 0, "{status:?}");
    }
}

#[test]
fn a_daemon_that_is_killed_is_named_and_another_one_serves_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let port = free_port();
    let daemon = Daemon::start(folder.path(), port, &[]);
    let mut ranks = job(&[daemon.address]);
    all_say(&mut ranks, "create", "create: fine");
    all_say(&mut ranks, "sums", "sums: fine");
    // While nothing is under way the next operation connects anew.
    daemon.kill();
    let daemon = Daemon::start(folder.path(), port, &[]);
    all_say(&mut ranks, "sums", "sums: fine");
    all_say(&mut ranks, "loop", "begins");
    std::thread::sleep(Duration::from_millis(200));
    let address = daemon.kill();
    // An operation that has just begun has not reached it any more.
    names(&mut ranks, address, &["has gone in the midst of the operation", "is not reached"]);
    // Without one: named, too, to whoever calls after the others have failed as well.
    all_say(&mut ranks, "create", "create: fine");
    ranks.iter_mut().for_each(|rank| rank.say("sums"));
    names(&mut ranks, address, &["is not reached (Connection refused"]);
    let daemon = Daemon::start(folder.path(), port, &["--memory", "100K"]);
    all_say(&mut ranks, "create", "create: fine");
    ranks.iter_mut().for_each(|rank| rank.say("sums"));
    all_name(&mut ranks, address, "refuses this job: it has 102400 bytes of memory");
    daemon.kill();
    let _daemon = Daemon::start(folder.path(), port, &[]);
    all_say(&mut ranks, "create", "create: fine");
    all_say(&mut ranks, "sums", "sums: fine");
}

/// It notifies its workers that it ends, and waits up to 2 s for them to go: what they call meanwhile has no answer
/// from that connection.
#[test]
fn a_daemon_that_is_asked_to_stop_between_operations_is_named_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path(), free_port(), &[]);
    let mut ranks = job(&[daemon.address]);
    all_say(&mut ranks, "create", "create: fine");
    all_say(&mut ranks, "sums", "sums: fine");
    kill(Pid::from_raw(daemon.child.id() as i32), Signal::SIGTERM).unwrap();
    std::thread::sleep(Duration::from_millis(100));
    let start = Instant::now();
    ranks.iter_mut().for_each(|rank| rank.say("sums"));
    names(&mut ranks, daemon.address, &["is not reached", "asked to stop", "has gone in the midst"]);
    // Its ranks' own bound is three quarters of `barrier_timeout`.
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn a_rank_that_is_killed_is_named_to_the_others_and_other_jobs_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path(), free_port(), &[]);
    let mut jobs = [job(&[daemon.address]), job(&[daemon.address])];
    for command in ["create", "sums"] {
        let expected = format!("{command}: fine");
        jobs.iter_mut().for_each(|ranks| all_say(ranks, command, &expected));
    }
    let [first, second] = &mut jobs;
    all_say(first, "loop", "begins");
    std::thread::sleep(Duration::from_millis(200));
    first[2].child.kill().unwrap();
    for rank in &mut first[..2] {
        let line = rank.line();
        assert!(line.contains("rank 2"), "{line}");
    }
    all_say(second, "sums", "sums: fine");
    for rank in &mut first[..2] {
        rank.say("destroy");
        assert_eq!(rank.line(), "destroy: fine");
    }
    until("the end of the job", || (daemon.jobs() == 3).then_some(()));
}

#[test]
fn whoever_is_silent_is_named_in_time() {
    let folder = tempfile::tempdir().unwrap();
    let daemon = Daemon::start(folder.path(), free_port(), &[]);
    let [mut first, mut second] = [job(&[daemon.address]), job(&[daemon.address])];
    for ranks in [&mut first, &mut second] {
        all_say(ranks, "create hasty", "create hasty: fine");
        all_say(ranks, "sums", "sums: fine");
    }
    // A rank that does not call, though it lives.
    first[..2].iter_mut().for_each(|rank| rank.say("sums"));
    for rank in &mut first[..2] {
        let line = rank.line();
        assert!(line.contains("rank 2 was silent"), "{line}");
    }
    // A daemon that is alive to the system alone.
    kill(Pid::from_raw(daemon.child.id() as i32), Signal::SIGSTOP).unwrap();
    let start = Instant::now();
    second.iter_mut().for_each(|rank| rank.say("sums"));
    names(&mut second, daemon.address, &["has said nothing for 1.5s"]);
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

/// By variable or by file, as people set it.
#[test]
fn a_daemon_with_a_secret_serves_those_who_have_it() {
    const OWN: &str = "b6Z1Yx0q3VvJm8kQ2sT7cR5nW9uE4hLgAaFdPpKo";
    const OTHER: &str = "m8kQ2sT7cR5nW9uE4hLgAaFdPpKob6Z1Yx0q3VvJ";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("secret");
    std::fs::write(&file, OWN).unwrap();
    std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let file = file.to_str().unwrap();
    let daemon = Daemon::start_with(folder.path(), free_port(), &[], &[("FLEXCAST_SECRET_FILE", file)]);
    let silent: Vec<TcpStream> = (0..80).map(|_| TcpStream::connect(daemon.address).unwrap()).collect();
    let mut ranks = job_with(&[daemon.address], &[("FLEXCAST_SECRET", OWN)]);
    all_say(&mut ranks, "create", "create: fine");
    all_say(&mut ranks, "sums", "sums: fine");
    drop(silent);
    let refused: [(jobs::Variables<'_>, &str); 2] =
        [(&[], "it has a secret and the rank has none"), (&[("FLEXCAST_SECRET", OTHER)], "its secret is another one")];
    for (variables, reason) in refused {
        let mut others = job_with(&[daemon.address], variables);
        all_say(&mut others, "create", "create: fine");
        others.iter_mut().for_each(|rank| rank.say("sums"));
        all_name(&mut others, daemon.address, reason);
    }
    all_say(&mut ranks, "sums", "sums: fine");
}
