//! A cable that cannot be: found by the fuzz target `text`.

use emu_machine::{Config, LinkConfig, MachineError, Wiring, World};

#[test]
fn time_does_not_end_on_the_way() {
    let with = |latency_ps| {
        let wiring = Wiring::Cable(LinkConfig { latency_ps, ..LinkConfig::default() });
        World::new(Config { heap_bytes: 64, wiring, ..Config::default() })
    };
    for latency_ps in [u64::MAX, i64::MAX as u64, emu_machine::fabric::MAX_LATENCY_PS + 1] {
        let error = with(latency_ps).map(drop).unwrap_err();
        assert!(matches!(error, MachineError::Link(_)), "{error}");
        assert!(error.to_string().contains(&latency_ps.to_string()), "{error}");
    }
    with(emu_machine::fabric::MAX_LATENCY_PS).unwrap();
}
