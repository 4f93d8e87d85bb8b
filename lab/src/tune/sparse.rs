//! Points of the cost model of sparse AllReduces: how long one of each length takes in which nine of ten blocks are
//! zero, or none, and an AllReduce that sends everything.

use flexcast::bootstrap::Exchange;
use flexcast::{Algorithm, Communicator, Config, Endpoint, SparseCost, Tuning};

use super::{Figure, TuneSpec, greatest, least, least_medians, middle};
use crate::perf::PerfError;
use crate::perf::op::Op;
use crate::perf::spec::{Spec, Zeros};
use crate::sparse::PatternName;

/// Names of the three figures of a length.
const NAMES: [&str; 3] = ["dense", "sparse, no zeros", "sparse, 90 % zeros"];

/// Whole microseconds; those that do not fit are as long as can be.
fn whole_us(us: f64) -> u32 {
    us.round() as u32
}

/// Measures all lengths of a spec, with contributions in the receive buffers. `usual`: what AllReduces go by.
pub(super) fn measure(
    (endpoint, base): (&Endpoint, &Config),
    exchange: &mut dyn Exchange,
    spec: &TuneSpec,
    usual: Tuning,
    mut show: impl FnMut(&str),
) -> Result<(Vec<Figure>, Vec<SparseCost>), PerfError> {
    let (op, ranks) = (Op::SparseAllreduce, exchange.size());
    let mut communicator = |tuning: Tuning| {
        let config = base.clone().tuning(Some(tuning));
        Ok::<_, PerfError>([((), Communicator::create(endpoint, exchange, config)?)])
    };
    let dense = communicator(usual.clone().with_sparse_from_bytes(u32::MAX))?;
    let sparse = communicator(usual.with_sparse_from_bytes(0))?;
    let (mut figures, mut costs) = (Vec::new(), Vec::new());
    for bytes in spec.sizes.iter().copied() {
        let bytes = op.fitting(bytes, ranks);
        if costs.iter().any(|cost: &SparseCost| cost.bytes == bytes) {
            continue;
        }
        let ways = [(Op::Allreduce, &dense, 0), (op, &sparse, 0), (op, &sparse, 90)];
        let mut times = [const { Vec::new() }; 3];
        // Each has its turn in every round: what disturbs the network disturbs all of them.
        let round = TuneSpec { rounds: 1, ..spec.clone() };
        for _ in 0..spec.rounds {
            for (times, (op, communicator, percent)) in times.iter_mut().zip(ways) {
                let zeros = Zeros { percent, pattern: PatternName::Identical };
                let of = Spec { op, in_place: true, zeros, ..Spec::default() };
                let is_it = |name: &str| op == Op::Allreduce || name == Algorithm::Sparse.name();
                let medians = least_medians(communicator, exchange, &round, (bytes, &of), |(), name| is_it(name))?;
                times.extend(medians);
            }
        }
        let least_us = [least(&times[0]), least(&times[1]), least(&times[2])];
        let shortest_us = times.iter().map(|times| middle(times)).fold(f64::INFINITY, f64::min);
        for (name, times) in NAMES.into_iter().zip(&times) {
            let median_us = middle(times);
            show(&format!("{op} of {bytes} bytes, {name}: {median_us:.1} us"));
            // Which of them is taken depends on the zeros.
            figures.push(Figure {
                op,
                bytes,
                algorithm: name.to_owned(),
                median_us,
                low_us: least(times),
                high_us: greatest(times),
                fastest: median_us <= shortest_us,
                usual: false,
                chosen: false,
            });
        }
        let [dense_us, full_us, tenth_us] = least_us.map(whole_us);
        costs.push(SparseCost { ranks, bytes, dense_us, full_us: full_us.max(tenth_us), tenth_us });
    }
    Ok((figures, costs))
}
