//! Roots and threads that are far slower than their cutoff allows: as long as data comes, nothing is fetched.

use std::time::Duration;

use emu_config::Machine;
use emu_machine::{Config as MachineConfig, CostModel};
use emu_provider::emulated;
use flexcast::{Config, Control, Overheads, Transport};
use flexcast_lab::sim::params::{Operation, SimParams};
use flexcast_lab::sim::report::Report;
use flexcast_lab::sim::run;
use flexcast_lab::tput::run::ImageFile;
use flexcast_tests::image_bytes;
use proptest::prelude::*;

const RANKS: u32 = 4;
const BYTES: u64 = 64 << 10;
/// Cycles of an instruction on slow cores.
const SLOW_CYCLES: u64 = 60;

/// Two chunks of 64 bytes per activation on slow cores, and all blocks in one chain: together they take longer than
/// four times the cutoff, which allows half a microsecond for each, with every transport; to single ranks longer than
/// the bound of the operation.
fn slow(transport: Transport, control: Control) -> SimParams {
    let config = Config::default()
        .with_subgroups(1)
        .transport(transport)
        .control(control)
        .chunk_bytes(64)
        .budget(1)
        .send_batch(2)
        .send_depth(32)
        .chains(1)
        .max_receive_bytes(BYTES * u64::from(RANKS))
        .recovery_timeout(Duration::from_micros(500));
    SimParams { ranks: RANKS, bytes: BYTES, warm_up: 0, config, ..SimParams::default() }
}

fn simulate(params: &SimParams, gap_cycles: u64) -> Report {
    let machine = Machine::default().config_of(params.cards()).expect("a switch");
    let cost = CostModel { gap_cycles, ..machine.cost };
    let machine = MachineConfig { uc_multicast: params.needs_uc_multicast(), cost, ..machine };
    let provider = emulated(machine).expect("a machine");
    let image = ImageFile { name: "allgather".to_owned(), elf: image_bytes("allgather") };
    run::run(&provider, Some(&image), params, &run::source(params).expect("memory"), &mut |_| {}).expect("it runs")
}

#[test]
fn a_multicast_that_is_far_slower_than_its_cutoff_goes_on_while_data_comes() {
    for (transport, control) in [
        (Transport::Ud, Control::Host),
        (Transport::Ud, Control::Device),
        (Transport::UcMulticast, Control::Host),
        (Transport::UcMulticast, Control::Device),
        (Transport::UcUnicast, Control::Host),
    ] {
        let params = slow(transport, control);
        let report = simulate(&params, SLOW_CYCLES);
        assert!(report.failures == 0 && report.bytes_ok, "{transport:?}, {control:?}: {:?}", report.errors);
        let workers = report.workers.expect("multicast has workers");
        let copies = if transport == Transport::UcUnicast { u64::from(RANKS) - 1 } else { 1 };
        let chunks = u64::from(params.iterations * RANKS) * copies * BYTES / 64;
        assert_eq!((workers.posted, report.recovered_chunks), (chunks, 0), "{transport:?}, {control:?}");
    }
}

/// One thread serves the contexts of all other ranks, a few entries per activation: it answers a poll, and a root comes
/// back to a rank, later than a stream may stand still at first.
#[test]
fn threads_with_many_contexts_are_waited_for() {
    let defaults = Config::default();
    let overheads = Overheads { cutoff_slack: Duration::from_micros(20), ..defaults.overheads };
    let config = defaults.transport(Transport::UcUnicast).with_subgroups(2).chains(5).budget(2);
    let config = config
        .receive_threads(1)
        .send_threads(1)
        .chunk_bytes(8192)
        .send_batch(2)
        .send_depth(4)
        .receive_batch(8)
        .overheads(overheads);
    let params = SimParams { ranks: 16, bytes: 1025, warm_up: 1, config, ..SimParams::default() };
    let report = simulate(&params, CostModel::default().gap_cycles);
    assert!(report.failures == 0 && report.bytes_ok, "{:?}", report.errors);
    assert_eq!(report.recovered_chunks, 0);
}

/// A Broadcast to one rank, whose receive thread may be busy for longer than a stream may stand still.
fn broadcast(bytes: u64, slack_us: u64, config: Config) -> SimParams {
    let overheads = Overheads { cutoff_slack: Duration::from_micros(slack_us), ..config.overheads };
    let config = config.with_subgroups(1).eager_bytes(0).overheads(overheads).max_receive_bytes(bytes.max(1));
    SimParams { ranks: 2, operation: Operation::Broadcast, bytes, warm_up: 0, config, ..SimParams::default() }
}

/// 1,999 chunks of one batch come faster than the thread takes them: it neither ends the batch nor finds its queue
/// empty.
#[test]
fn a_thread_in_the_middle_of_a_long_batch_is_no_stalled_stream() {
    for transport in [Transport::Ud, Transport::UcMulticast] {
        let config = Config::default().transport(transport).chunk_bytes(64).slots(4096).receive_batch(2048);
        let report = simulate(&broadcast(1999 * 64, 20, config), CostModel::default().gap_cycles);
        assert!(report.failures == 0 && report.bytes_ok, "{transport:?}: {:?}", report.errors);
        assert_eq!((report.traffic.lost_frames, report.recovered_chunks), (0, 0), "{transport:?}");
    }
}

/// The first one takes 671 us on the link, of which nothing is seen here before its end.
#[test]
fn a_chunk_that_takes_longer_than_a_stream_may_stand_still_is_waited_for() {
    for slack_us in [20, 500] {
        let config = Config::default().transport(Transport::UcMulticast).chunk_bytes(16 << 20).send_threads(1);
        let report = simulate(&broadcast(48 << 20, slack_us, config), CostModel::default().gap_cycles);
        assert!(report.failures == 0 && report.bytes_ok, "{slack_us} us: {:?}", report.errors);
        assert_eq!((report.traffic.lost_frames, report.recovered_chunks), (0, 0), "{slack_us} us");
    }
}

/// A budget ends the thread's activation. Until the next one it publishes nothing, for longer than the slack.
#[test]
fn a_thread_between_two_activations_is_no_stalled_stream() {
    for (slack_us, chunks) in [(1, 1058), (20, 1058)] {
        let config = Config::default().transport(Transport::UcMulticast).chunk_bytes(64).slots(4096).receive_batch(2);
        let report = simulate(&broadcast(chunks * 64, slack_us, config.budget(1057)), CostModel::default().gap_cycles);
        let what = format!("{slack_us} us, {chunks} chunks");
        assert!(report.failures == 0 && report.bytes_ok, "{what}: {:?}", report.errors);
        assert_eq!((report.traffic.lost_frames, report.recovered_chunks), (0, 0), "{what}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Whatever the length of batches and wherever an activation ends.
    #[test]
    fn what_is_not_lost_is_not_fetched(
        log_slots in 4u32..=12, log_batch in 1u32..=11, budget in prop_oneof![Just(1), 2u32..5000, Just(u32::MAX)],
        chunks in 1u64..2500, log_chunk in 6u32..=10, slack_us in 30u64..300, is_staged: bool, by_card: bool,
    ) {
        let transport = if is_staged { Transport::Ud } else { Transport::UcMulticast };
        let config = Config::default()
            .transport(transport)
            .control(if by_card { Control::Device } else { Control::Host })
            .chunk_bytes(1 << log_chunk)
            .slots(1 << log_slots)
            .receive_batch(1 << log_batch.min(log_slots - 1))
            .budget(budget);
        let report = simulate(&broadcast(chunks << log_chunk, slack_us, config), CostModel::default().gap_cycles);
        prop_assert!(report.failures == 0 && report.bytes_ok, "{:?}", report.errors);
        let lost = report.traffic.lost_frames + report.traffic.rnr_drops;
        prop_assert!(lost > 0 || report.recovered_chunks == 0, "{} fetched, none lost", report.recovered_chunks);
    }
}
