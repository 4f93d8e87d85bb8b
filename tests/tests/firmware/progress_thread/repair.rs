//! Losses with the protocol on the card: the progress thread reads what multicast has lost, and no host has a part in
//! that.

use std::time::Duration;

use emu_config::Machine;
use emu_machine::Wiring;
use emu_machine::fabric::{Fault, FaultEvent};
use emu_machine::with_world;
use emu_provider::emulated;
use flexcast::{Communicator, Config, Control, Transport};
use flexcast_lab::sim::params::{HostFault, Operation, SimParams};
use flexcast_lab::sim::report::Report;
use flexcast_lab::sim::run as simulation;

use super::calls::{Call, PS_PER_US, config, pass, taken, with_ranks};
use super::image;

/// Between two polls of a host.
const POLL_PS: u64 = 200_000;

fn now_ps() -> u64 {
    with_world(|world| world.now_ps()).expect("a world")
}

/// When each rank had been cut off, by its host's clock, and had everything, by its card's, of an operation on lossy
/// links. After `silent_ps` no host does anything until all cards have written their flags.
fn cut_off_and_complete(loss_ppm: u32, seed: u64, call: Call, silent_ps: u64) -> Vec<(Option<u64>, u64, u64)> {
    let machine = Machine { loss_ppm: Some(loss_ppm), seed: Some(seed), ..Machine::default() };
    let mut ranks = Vec::new();
    with_ranks(machine.config_of(6).expect("a switch"), &config().retry_exponent(6), |all: &mut [Communicator]| {
        let requests: Vec<_> = all.iter().map(|communicator| call.post(communicator, 1)).collect();
        let flagged = |all: &[Communicator]| all.iter().all(|one| one.is_flagged().expect("read"));
        let bound_ps = now_ps() + 20_000 * PS_PER_US;
        while !flagged(all) {
            assert!(now_ps() < bound_ps, "seed {seed}: not over");
            if now_ps() < silent_ps {
                all.iter().for_each(|communicator| _ = communicator.progress().expect("it goes on"));
                pass(POLL_PS);
            } else {
                pass(10 * PS_PER_US);
            }
        }
        for request in requests {
            let done = taken(request);
            assert!(done.receive.to_vec().expect("read") == call.expected(all.len(), 1), "seed {seed}");
            let phases = done.report.phases.in_ps();
            ranks.push((phases.cut_off_ps, phases.complete_ps.expect("complete"), done.report.reads));
        }
    });
    ranks
}

/// Hosts watch the clock and close receive contexts. From then on they do nothing: what is lost is asked for, read and
/// passed on, and the operation ends, while no host runs.
#[test]
fn no_host_is_needed_from_the_close_of_the_receive_contexts_on() {
    let mut silent = 0;
    for (seed, call) in (1..).zip([
        Call::Allgather { len: 40_000 },
        Call::Allgatherv { step: 9000 },
        Call::Broadcast { root: 2, len: 100_000 },
        Call::Allgather { len: 30_001 },
    ]) {
        let ranks = cut_off_and_complete(30_000, seed, call, u64::MAX);
        // The close and its command take a host a few polls.
        let last_ps = ranks.iter().filter_map(|(cut_off_ps, ..)| *cut_off_ps).max().expect("something is lost");
        for after_us in [15, 25] {
            let silent_ps = last_ps + after_us * PS_PER_US;
            let ranks = cut_off_and_complete(30_000, seed, call, silent_ps);
            let late = |(_, complete_ps, reads): &&(Option<u64>, u64, u64)| *complete_ps > silent_ps && *reads > 0;
            silent += ranks.iter().filter(late).count();
        }
    }
    assert!(silent >= 10, "only {silent} ranks read anything while no host did");
}

fn simulate(params: &SimParams, machine: Machine, faults: Vec<FaultEvent>) -> Report {
    let mut machine = machine.config_of(params.cards()).expect("a switch");
    machine.uc_multicast = params.needs_uc_multicast();
    let Wiring::Network(network) = &mut machine.wiring else { panic!("a network") };
    network.faults.faults.extend(faults);
    let provider = emulated(machine).expect("a machine");
    let source = simulation::source(params).expect("memory");
    simulation::run(&provider, Some(&image()), params, &source, &mut |_| {}).expect("it runs")
}

fn params(ranks: u32, bytes: u64, config: Config) -> SimParams {
    let config = config.control(Control::Device).eager_bytes(0).max_receive_bytes(u64::from(ranks) * bytes);
    SimParams { ranks, bytes, warm_up: 0, config, ..SimParams::default() }
}

/// Few ranks and many, one subgroup and several, whole and short chunks, any transport that the card offers: 0.1 to 30
/// % of all frames are lost, control messages, reads and their answers among them.
#[test]
fn what_is_lost_is_read_whatever_the_configuration() {
    let (mut recovered, mut failed) = (0, 0);
    for (seed, (ranks, bytes, subgroups, threads, loss_ppm)) in (1..).zip([
        (2, 50_001, 1, 1, 50_000),
        (3, 4096, 2, 2, 100_000),
        (5, 70_000, 3, 1, 10_000),
        (8, 100_000, 4, 4, 1_000),
        (8, 60_000, 4, 2, 50_000),
        (16, 30_000, 2, 1, 20_000),
        (4, 20_000, 2, 2, 300_000),
    ]) {
        for transport in [Transport::Ud, Transport::UcMulticast] {
            for operation in [Operation::Allgather, Operation::Broadcast] {
                let config = Config::default()
                    .with_subgroups(subgroups)
                    .receive_threads(threads.min(subgroups))
                    .transport(transport)
                    .chunk_bytes(1024)
                    .retry_exponent(6)
                    .barrier_timeout(Duration::from_millis(200))
                    .recovery_timeout(Duration::from_millis(200));
                let params = SimParams { operation, iterations: 2, seed, ..params(ranks, bytes, config) };
                let machine = Machine { loss_ppm: Some(loss_ppm), seed: Some(seed), ..Machine::default() };
                let report = simulate(&params, machine, Vec::new());
                assert!(report.bytes_ok, "{params:?}");
                // At 30 % eight tries of a message may fail, which is reported to all ranks.
                assert!(report.failures == 0 || loss_ppm > 200_000, "{params:?}: {:?}", report.errors);
                assert!(report.recovery_reads <= report.recovered_chunks, "{params:?}");
                recovered += report.recovered_chunks;
                failed += report.failures;
            }
        }
    }
    assert!(recovered > 1500, "{recovered} chunks recovered, {failed} failures");
}

/// A frame that is lost on its root's own link is missing everywhere: who asks is answered only once the left neighbour
/// has fetched the piece itself.
#[test]
fn a_chunk_that_all_have_lost_goes_from_rank_to_rank() {
    const BYTES: u64 = 64 << 10;
    for ranks in [2, 3, 8, 13] {
        let params = SimParams { operation: Operation::Broadcast, ..params(ranks, BYTES, Config::default()) };
        let machine = Machine::default();
        let topology = match machine.config_of(ranks as usize).expect("a switch").wiring {
            Wiring::Network(network) => network.topology,
            other => panic!("{other:?}"),
        };
        let lost = FaultEvent::from_host(&topology, 0, Fault::Frames { priority: 0, first: 8, count: 1 });
        let report = simulate(&params, machine, lost.into_iter().collect());
        let others = u64::from(ranks) - 1;
        assert!(report.digest_ok, "{:?}", report.errors);
        assert_eq!((report.recovered_chunks, report.recovery_reads, report.traffic.lost_frames), (others, others, 1));
        assert_eq!((report.control.fetch, report.control.acknowledgement), (others, others));
    }
}

/// The link of a rank that others read from goes down, for ever or for a while: each rank has every byte, or an error
/// that names the cause within the bound.
#[test]
fn a_neighbour_that_goes_while_it_is_read_from_ends_in_an_error_or_is_waited_for() {
    let config = || {
        Config::default()
            .retry_exponent(4)
            .barrier_timeout(Duration::from_millis(5))
            .recovery_timeout(Duration::from_millis(5))
    };
    let (mut failed, mut well) = (0, 0);
    for seed in 1..=6 {
        for (at_us, for_us) in [(60, None), (90, None), (120, None), (90, Some(100)), (120, Some(300))] {
            let params = SimParams { seed, ..params(5, 200_000, config()) };
            let machine = Machine { loss_ppm: Some(30_000), seed: Some(seed), ..Machine::default() };
            let at_ps = at_us * PS_PER_US;
            let until_ps = for_us.map(|for_us: u64| at_ps + for_us * PS_PER_US);
            let down = FaultEvent { at_ps, until_ps, ..FaultEvent::on("h1-switch", Fault::Down) };
            let report = simulate(&params, machine, vec![down]);
            assert!(report.bytes_ok, "{seed} {at_us} {for_us:?}");
            assert!(report.failures == 0 || !report.errors.is_empty());
            let named = |text: &String| text.contains("silent") || text.contains("connection");
            assert!(report.errors.iter().all(named), "{seed} {at_us} {for_us:?}: {:?}", report.errors);
            failed += u32::from(report.failures > 0);
            well += u32::from(report.failures == 0);
        }
    }
    assert!(failed > 5, "{failed} failed, {well} did not");
}

/// The root before the last one stands still, and with it the chain. Meanwhile the last one's link goes down: nothing
/// comes there any more, and nothing that it has sent is without an answer, so that its own bounds alone end the
/// operation there. Its send threads have the operation since its post, and its turn never comes: that is no send that
/// goes on.
#[test]
fn a_root_that_is_cut_off_before_its_turn_ends_within_its_bounds() {
    for transport in [Transport::Ud, Transport::UcMulticast] {
        let config = Config::default()
            .transport(transport)
            .with_subgroups(1)
            .chains(1)
            .retry_exponent(4)
            .barrier_timeout(Duration::from_millis(5))
            .recovery_timeout(Duration::from_millis(5));
        // Units from the second one on: of the receive thread, the send thread, the progress thread.
        let stall = HostFault::Stall { rank: 2, unit: 2, after_ps: 0, for_ps: 3000 * PS_PER_US };
        let params = SimParams { host_faults: vec![stall], ..params(4, 20_000, config) };
        let down = FaultEvent { at_ps: 2000 * PS_PER_US, ..FaultEvent::on("h3-switch", Fault::Down) };
        let report = simulate(&params, Machine::default(), vec![down]);
        let waiting = report.phases.expect("multicast has phases").waiting;
        assert!(waiting.most_us > 0.0, "{transport:?}: the barrier is passed when the link goes down");
        assert_eq!((report.failures, report.live), (4, 4), "{transport:?}: {:?}", report.errors);
        let named = |text: &String| text.contains("silent") || text.contains("connection");
        assert!(report.errors.iter().all(named), "{transport:?}: {:?}", report.errors);
    }
}
