//! Faults of links, by script.

#![allow(missing_docs)]

use crate::common;
use common::{Driver, Note};
use emu_fabric::{
    BIT_ERRORS_1E_12, Destination, Direction, Fault, FaultEvent, FaultScript, FlowControl, LinkConfig, Network, Rate,
    SwitchConfig, Topology,
};

fn script(seed: u64, faults: &[FaultEvent]) -> FaultScript {
    FaultScript { seed, faults: faults.to_vec() }
}

/// Four hosts at a switch; host 1 sends to host 0 and host 3 to host 2, 1000 frames each, under a script.
fn run(script: &FaultScript) -> Driver {
    let topology = Topology::named("switch-4").unwrap();
    let mut driver = Driver::new(Network::with_faults(&topology, script).unwrap());
    for id in 0..1000 {
        for from in [1, 3] {
            driver.send(id * 200_000, Note::new(id, from, Destination::Host(from - 1), 4096));
        }
    }
    driver.run();
    assert_eq!(driver.network.in_flight(), 0);
    driver
}

fn ids(driver: &Driver, host: usize) -> Vec<u64> {
    driver.arrivals.iter().filter(|arrival| arrival.host == host).map(|arrival| arrival.frame.id).collect()
}

#[test]
fn faults_of_one_link_do_not_shift_those_of_another() {
    let drop = |link: &str| FaultEvent::on(link, Fault::Drop { ppm: 100_000 });
    let one = run(&script(5, &[drop("h0-switch")]));
    let both = run(&script(5, &[drop("h2-switch"), drop("h0-switch")]));
    let again = run(&script(5, &[drop("h0-switch")]));
    let other = run(&script(6, &[drop("h0-switch")]));
    assert_eq!(ids(&one, 0), ids(&both, 0));
    assert_eq!(one.arrivals, again.arrivals);
    assert_ne!(ids(&one, 0), ids(&other, 0));
    assert_eq!(ids(&one, 2).len(), 1000);
    assert_ne!(ids(&both, 2).len(), 1000);
    assert_ne!(ids(&both, 0), ids(&both, 2), "each link has luck of its own");
    let hosts = both.network.totals().hosts;
    assert_eq!(hosts.rx_frames + hosts.drops.random, 2000);
    assert_eq!(hosts.lost_frames, hosts.drops.random);
    assert!((100..300).contains(&hosts.lost_frames), "{}", hosts.lost_frames);
}

#[test]
fn a_link_is_down_for_its_time_and_comes_up() {
    let text = r#"
        [[fault]]
        node = "h0"
        at_ps = 50_000_000
        fault = "down"
        [[fault]]
        link = "h0-switch"
        at_ps = 100_000_000
        fault = "up"
    "#;
    let driver = run(&FaultScript::from_toml(text).unwrap());
    let received = ids(&driver, 0);
    let missing: Vec<u64> = (0..1000).filter(|id| !received.contains(id)).collect();
    // A frame each 200 ns enters the second link after 64 bytes, a cable and the switch: 602.56 ns later, for 167.84
    // ns. Frame 247 is the first that leaves after 50 us, frame 496 the last that enters before 100 us.
    assert_eq!((missing[0], missing[249], missing.len()), (247, 496, 250), "{missing:?}");
    assert_eq!(missing.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count(), 0);
    assert_eq!(driver.network.totals().hosts.drops.link_down, 250);
    assert_eq!(ids(&driver, 2).len(), 1000);
}

#[test]
fn a_pause_loses_nothing_and_keeps_order() {
    let pause = FaultEvent { direction: Direction::Backward, ..FaultEvent::on("h0-switch", Fault::Pause) };
    let driver = run(&script(1, &[pause.during(20_000_000, 90_000_000)]));
    assert_eq!(ids(&driver, 0), (0..1000).collect::<Vec<_>>());
    let times: Vec<u64> = driver.arrivals.iter().filter(|a| a.host == 0).map(|a| a.at_ps).collect();
    let gap = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!((69_000_000..71_000_000).contains(&gap), "{gap}");
    // Afterwards as fast as the link is, and not faster.
    assert!(times.windows(2).all(|pair| pair[1] - pair[0] >= 4196 * 40));
    assert_eq!(driver.network.totals().switches.drops.total(), 0);
}

#[test]
fn duplicates_corruption_and_reordering_show_at_the_receiver() {
    let on = |fault| FaultEvent { direction: Direction::Backward, ..FaultEvent::on("h0-switch", fault) };
    let driver = run(&script(3, &[on(Fault::Duplicate { ppm: 50_000 })]));
    let counters = driver.network.totals().hosts;
    assert_eq!(ids(&driver, 0).len() as u64, 1000 + counters.duplicated_frames);
    assert!((20..90).contains(&counters.duplicated_frames));

    let driver = run(&script(3, &[on(Fault::Corrupt { ppm: 50_000 })]));
    let corrupted = driver.arrivals.iter().filter(|arrival| arrival.frame.corrupted.is_some()).count() as u64;
    assert_eq!(corrupted, driver.network.totals().hosts.corrupted_frames);
    assert!((20..90).contains(&corrupted));
    assert_eq!(driver.arrivals.len(), 2000);

    let driver = run(&script(3, &[on(Fault::Reorder { ppm: 50_000, behind: 4 })]));
    let received = ids(&driver, 0);
    assert_eq!(received.len(), 1000);
    assert!(received.windows(2).filter(|pair| pair[0] > pair[1]).count() > 10);

    let driver = run(&script(3, &[on(Fault::Delay { extra_ps: 1_000_000, jitter_ps: 5_000_000 })]));
    assert_eq!(ids(&driver, 0), (0..1000).collect::<Vec<_>>(), "a delay does not reorder");
}

#[test]
fn corrupting_one_copy_of_a_multicast_leaves_the_others() {
    let topology = Topology::named("switch-9").unwrap();
    let fault = FaultEvent::on("h4-switch", Fault::Corrupt { ppm: 1_000_000 });
    let mut driver = Driver::new(Network::with_faults(&topology, &script(0, &[fault])).unwrap());
    for host in 0..9 {
        driver.network.join(1, host).unwrap();
    }
    driver.send(0, Note::new(0, 0, Destination::Group(1), 100));
    driver.run();
    let corrupted: Vec<usize> =
        driver.arrivals.iter().filter(|a| a.frame.corrupted.is_some()).map(|a| a.host).collect();
    assert_eq!((corrupted, driver.arrivals.len()), (vec![4], 8));
}

#[test]
fn losses_and_duplicates_do_not_leak_credit() {
    let switching = SwitchConfig { buffer_bytes: 2 * 4196, ..SwitchConfig::default() };
    let topology = Topology::named("fat-tree-188").unwrap().with_switching(switching).unwrap();
    let everywhere = FaultEvent::everywhere;
    let faults = [everywhere(Fault::Drop { ppm: 200_000 }), everywhere(Fault::Duplicate { ppm: 200_000 })];
    let mut driver = Driver::new(Network::with_faults(&topology, &script(9, &faults)).unwrap());
    for host in 0..188 {
        driver.network.join(1, host).unwrap();
    }
    for id in 0..2000 {
        let from = (id * 37 % 188) as usize;
        let to = if id % 10 == 0 { Destination::Group(1) } else { Destination::Host((id * 91 % 188) as usize) };
        driver.send(id * 1000, Note::new(id, from, to, 4096));
    }
    driver.run();
    assert_eq!(driver.network.in_flight(), 0, "nobody waits for credit that never comes");
    let totals = driver.network.totals();
    let mut all = totals.switches;
    all += totals.hosts;
    assert_eq!(all.tx_frames + all.duplicated_frames, all.rx_frames + all.drops.on_the_wire());
}

#[test]
fn bit_errors_lose_the_share_that_their_rate_says() {
    // 1e-12 on a million frames loses none but by great luck; 1e-6 on 33568 bits is 3.3 %.
    let rare = run(&script(1, &[FaultEvent::everywhere(Fault::BitErrors { rate: BIT_ERRORS_1E_12 })]));
    assert_eq!(rare.arrivals.len(), 2000);
    let often = run(&script(1, &[FaultEvent::everywhere(Fault::BitErrors { rate: 1e-6 })]));
    let totals = often.network.totals();
    let lost = totals.switches.drops.bit_error + totals.hosts.drops.bit_error;
    assert_eq!(often.arrivals.len() as u64 + lost, 2000);
    assert!((80..190).contains(&lost), "{lost}");
}

#[test]
fn wrong_scripts_are_refused_by_name() {
    let topology = Topology::named("switch-4").unwrap();
    let refused = |text: &str| {
        let script = FaultScript::from_toml(text);
        script.and_then(|script| script.check(&topology)).unwrap_err().to_string()
    };
    let entry = |keys: &str, fault: &str| format!("[[fault]]\n{keys}\nfault = {fault}");
    let star = "link = \"*\"";
    assert!(
        refused(&entry("link = \"x\"", "\"down\"")).starts_with("fault 0 names \"x\", which the topology \"switch-4\"")
    );
    assert!(refused(&entry("", "\"down\"")).contains("either a link or a node"));
    assert!(refused(&entry("link = \"*\"\nnode = \"h0\"", "\"down\"")).contains("either a link or a node"));
    assert!(refused(&entry(star, "{ drop = { ppm = 1000001 } }")).contains("ppm is 1000001: give 0 to 1000000"));
    assert!(refused(&entry(star, "{ bit-errors = { rate = 1.5 } }")).contains("rate is 1.5"));
    assert!(refused(&entry(star, "{ bit-errors = { rate = nan } }")).contains("rate is NaN"));
    assert!(refused(&entry(star, "{ burst = { ppm = 1, frames = 0 } }")).contains("frames is 0"));
    assert!(refused(&entry(star, "{ reorder = { ppm = 1, behind = 0 } }")).contains("behind is 0"));
    assert!(refused(&entry(star, "{ delay = { extra_ps = 1000000000000001 } }")).contains("extra_ps is"));
    assert!(refused(&entry(star, "\"pause\"")).contains("pauses a link for ever"));
    assert!(
        refused(&entry(&format!("{star}\nat_ps = 5\nuntil_ps = 5"), "\"down\"")).contains("lasts from 5 ps to 5 ps")
    );
    assert!(refused(&entry(star, "\"up\"")).contains("none of it is down then"));
    assert!(refused(&entry(star, "\"sideways\"")).contains("unknown variant `sideways`"));
    assert!(refused(&entry(star, "{ drop = { ppm = 1, more = 2 } }")).contains("more"));
    assert!(refused("sed = 1").contains("unknown field `sed`"));
    assert!(refused(&entry("link = \"*\"\nuntil_ps = 9223372036854775807", "\"down\"")).contains("until_ps is"));
}

#[test]
fn a_cable_between_two_hosts_is_the_same_as_back_to_back() {
    use emu_fabric::{BackToBack, Link};
    let link = LinkConfig { rate: Rate::from_gbps(56).unwrap(), latency_ps: 1_234 };
    let topology = Topology::back_to_back(link).unwrap();
    let mut driver = Driver::new(Network::new(&topology));
    let mut cable = BackToBack::new(link);
    let mut expected = Vec::new();
    for id in 0..300 {
        let at_ps = id * id * 100;
        let frame = Note::new(id, (id % 3 % 2) as usize, Destination::Group(3), 40 + id % 7 * 200);
        cable.transmit(at_ps, frame.from, frame.clone(), &mut expected).unwrap();
        driver.send(at_ps, frame);
    }
    driver.run();
    expected.sort_by_key(|delivery| delivery.at_ps);
    let expected: Vec<_> = expected.into_iter().map(|d| (d.at_ps, d.port, d.frame)).collect();
    let seen: Vec<_> = driver.arrivals.drain(..).map(|a| (a.at_ps, a.host, a.frame)).collect();
    assert_eq!(seen, expected);
    assert_eq!(driver.timers, 0, "a cable needs no timer as long as no port is full");
}

#[test]
fn tail_drop_and_link_faults_together_account_for_every_frame() {
    let switching =
        SwitchConfig { flow_control: FlowControl::TailDrop, buffer_bytes: 20_000, ..SwitchConfig::default() };
    let topology = Topology::named("switch-9").unwrap().with_switching(switching).unwrap();
    let faults = [
        FaultEvent::everywhere(Fault::Burst { ppm: 20_000, frames: 7 }),
        FaultEvent::on("h0-switch", Fault::Down).during(10_000_000, 30_000_000),
    ];
    let mut driver = Driver::new(Network::with_faults(&topology, &script(2, &faults)).unwrap());
    for id in 0..3000 {
        driver.send(id * 40_000, Note::new(id, 1 + (id % 8) as usize, Destination::Host(0), 4096));
    }
    driver.run();
    let totals = driver.network.totals();
    let mut drops = totals.switches.drops;
    drops += totals.hosts.drops;
    assert!(drops.queue_full > 0 && drops.burst > 0 && drops.link_down > 0, "{drops:?}");
    assert_eq!(driver.arrivals.len() as u64 + drops.total(), 3000);
}
