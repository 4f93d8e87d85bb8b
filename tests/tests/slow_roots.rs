//! Roots that multicast more slowly than their cutoff allows: they stop, and what is left is fetched.

use std::time::Duration;

use emu_config::Machine;
use emu_machine::{Config as MachineConfig, CostModel};
use emu_provider::emulated;
use flexcast::{Config, Control, Transport};
use flexcast_lab::sim::params::SimParams;
use flexcast_lab::sim::report::Report;
use flexcast_lab::sim::run;
use flexcast_lab::tput::run::ImageFile;
use flexcast_tests::image_bytes;

const RANKS: u32 = 4;
const BYTES: u64 = 64 << 10;

/// Two chunks of 64 bytes per activation on slow cores, and all blocks in one chain: together they take longer than four times the cutoff, which
/// allows half a microsecond for each, with every transport; to single ranks longer than the bound of the operation.
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

fn simulate(params: &SimParams) -> Report {
    let machine = Machine::default().config_of(params.cards()).expect("a switch");
    let cost = CostModel { gap_cycles: 60, ..machine.cost };
    let machine = MachineConfig { uc_multicast: params.needs_uc_multicast(), cost, ..machine };
    let provider = emulated(machine).expect("a machine");
    let image = ImageFile { name: "allgather".to_owned(), elf: image_bytes("allgather") };
    run::run(&provider, Some(&image), params, &run::source(params).expect("memory"), &mut |_| {}).expect("it runs")
}

#[test]
fn a_multicast_that_is_too_slow_for_its_cutoff_ends_and_the_rest_is_fetched() {
    for (transport, control) in [
        (Transport::Ud, Control::Host),
        (Transport::Ud, Control::Device),
        (Transport::UcMulticast, Control::Host),
        (Transport::UcMulticast, Control::Device),
        (Transport::UcUnicast, Control::Host),
    ] {
        let params = slow(transport, control);
        let report = simulate(&params);
        assert!(report.failures == 0 && report.bytes_ok, "{transport:?}, {control:?}: {:?}", report.errors);
        let workers = report.workers.expect("multicast has workers");
        let copies = if transport == Transport::UcUnicast { u64::from(RANKS) - 1 } else { 1 };
        let chunks = u64::from(params.iterations * RANKS) * copies * BYTES / 64;
        assert!(workers.posted < chunks, "{transport:?}, {control:?}: all of {chunks} chunks were sent, in vain");
        assert!(report.recovered_chunks > 0, "{transport:?}, {control:?}");
    }
}
