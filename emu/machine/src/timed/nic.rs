//! Times of the network card under a timing model.

use emu_nic::NicTiming;
use emu_timing::Model;

use crate::time::PS_PER_S;

/// Times of the network card's engines.
pub(crate) fn nic_timing(model: &Model) -> NicTiming {
    let card = &model.card;
    NicTiming {
        doorbell_visible_ps: model.doorbell_visible_ps,
        send_service_ps: PS_PER_S / card.sends_per_s,
        receive_service_ps: PS_PER_S / card.receives_per_s,
        completion_latency_ps: card.receive_ps,
        pcie_latency_ps: card.pcie_ps,
        pcie_interval_bytes: card.pcie_bytes_per_s / 1_000_000,
        pcie_interval_ps: PS_PER_S / 1_000_000,
        arm_interval_bytes: card.arm_bytes_per_s / 1_000_000,
        arm_interval_ps: PS_PER_S / 1_000_000,
        ..NicTiming::default()
    }
}

#[cfg(test)]
mod tests {
    use emu_timing::Parameters;

    use super::*;

    #[test]
    fn without_a_timing_model_the_engines_take_as_long() {
        let model = Model::new(&Parameters::m2()).unwrap();
        let default = NicTiming::default();
        let timed = nic_timing(&model);
        let per_byte = |timing: &NicTiming| timing.pcie_interval_ps as f64 / timing.pcie_interval_bytes as f64;
        assert!((per_byte(&timed) - per_byte(&default)).abs() < 1e-9);
        let per_byte = |timing: &NicTiming| timing.arm_interval_ps as f64 / timing.arm_interval_bytes as f64;
        assert!((per_byte(&timed) - per_byte(&default)).abs() < 1e-9);
        let NicTiming { pcie_interval_bytes, pcie_interval_ps, arm_interval_bytes, arm_interval_ps, .. } = default;
        assert_eq!(
            NicTiming { pcie_interval_bytes, pcie_interval_ps, arm_interval_bytes, arm_interval_ps, ..timed },
            default
        );
    }
}
