//! Step 3: the one fitted number. `f(k) = cycles + k (66 - instructions)` of the UC kernel on one thread must be 598: a
//! compiler that emits more or fewer than 66 instructions does not leak into k.

use emu_machine::timing::Parameters;
use serde::Serialize;

use super::reference::Run;
use super::{CalibrateError, PUBLISHED_UC};
use crate::reference::Transport;
use crate::tput::run::ImageFile;

/// Thousandths of a cycle between which a scalar core's gap must be: an L1 loop of three instructions takes 23 cycles.
pub const BOUNDS_MILLICYCLES: [u64; 2] = [1000, 7000];

/// Group and name of the fitted number.
const GAP: (&str, &str) = ("instructions", "gap_millicycles");

/// What came out.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Fit {
    /// Thousandths of a cycle; `None`: no value between the bounds does it, the model is rejected.
    pub gap_millicycles: Option<u64>,
    /// What the model's file has.
    pub in_model: u64,
    /// Cycles at 66 instructions with the fitted value, or with the nearer bound.
    pub cycles_at_66: f64,
    /// The kernel's own cycles there.
    pub cycles: f64,
    /// Its own instructions.
    pub instructions: f64,
    /// Published cycles.
    pub published_cycles: f64,
    /// Emulated runs that it took.
    pub runs: u32,
}

impl Fit {
    /// Whether the model's file has the value that was found.
    #[must_use]
    pub fn agrees(&self) -> bool {
        self.gap_millicycles == Some(self.in_model)
    }
}

/// One value's cycles at 66 instructions, own cycles, own instructions.
type Point = (f64, f64, f64);

/// Cycles of the UC kernel at 66 instructions under these parameters, its own, and its instructions.
pub(super) fn at_66(image: &ImageFile, parameters: &Parameters) -> Result<Point, CalibrateError> {
    let gap = parameters.get(GAP.0, GAP.1).map_or(0, |parameter| parameter.value);
    let report = Run::published(Transport::Uc, 1).report(image, parameters)?;
    let (cycles, instructions) = (report.cycles_per_cqe, report.instructions_per_cqe);
    Ok((cycles + gap as f64 / 1000.0 * (PUBLISHED_UC.instructions - instructions), cycles, instructions))
}

/// Bisection in thousandths of a cycle; of the two values around the solution, the nearer.
///
/// # Errors
/// A run fails.
pub fn fit(image: &ImageFile, parameters: &Parameters) -> Result<Fit, CalibrateError> {
    let mut runs = 0;
    let mut point = |gap: u64| {
        runs += 1;
        at_66(image, &parameters.with(GAP.0, GAP.1, gap)?)
    };
    let [mut below, mut above] = BOUNDS_MILLICYCLES;
    let (mut low, mut high) = (point(below)?, point(above)?);
    let wanted = PUBLISHED_UC.cycles;
    let in_model = parameters.get(GAP.0, GAP.1).map_or(0, |parameter| parameter.value);
    let fit_of = |gap_millicycles, (cycles_at_66, cycles, instructions): Point, runs| Fit {
        gap_millicycles,
        in_model,
        cycles_at_66,
        cycles,
        instructions,
        published_cycles: wanted,
        runs,
    };
    if low.0 > wanted || high.0 < wanted {
        let nearest = if low.0 > wanted { low } else { high };
        return Ok(fit_of(None, nearest, runs));
    }
    while above - below > 1 {
        let middle = u64::midpoint(below, above);
        let there = point(middle)?;
        if there.0 < wanted { (below, low) = (middle, there) } else { (above, high) = (middle, there) }
    }
    let (gap, found) = if wanted - low.0 < high.0 - wanted { (below, low) } else { (above, high) };
    Ok(fit_of(Some(gap), found, runs))
}
