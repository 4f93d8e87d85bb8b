//! Step 5: each number for which no source was found, at both ends of its range; which verdicts are others then.

use emu_machine::timing::{Origin, Parameters};
use serde::Serialize;

use super::holdout::HoldOut;
use super::holdouts::{self, Sizes};
use super::{CalibrateError, Images, Job, Progress, fit, run_all};

/// A verdict that depends on an assumption.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Its hold-out.
    pub id: String,
    /// Verdict and prediction with the model as it is.
    pub before: (&'static str, f64),
    /// The same with the other value.
    pub after: (&'static str, f64),
}

/// An assumption at one end of its range.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Sensitivity {
    /// Group and name.
    pub parameter: String,
    /// The model's value.
    pub value: u64,
    /// The one that was tried; the fitted number stays as it is.
    pub tried: u64,
    /// Cycles of the fitted kernel at 66 instructions: how much of the fit the assumption carries.
    pub cycles_at_66: f64,
    /// Verdicts that are others.
    pub changes: Vec<Change>,
}

/// The values to be tried.
fn assumptions(parameters: &Parameters) -> Vec<(String, String, u64, u64)> {
    let mut all = Vec::new();
    for (group, name, number) in parameters.iter().filter(|(_, _, number)| number.origin == Origin::Assumed) {
        for end in number.range.into_iter().filter(|end| *end != number.value) {
            all.push((group.to_owned(), name.to_owned(), number.value, end));
        }
    }
    all
}

/// All of them, and the hold-outs at the sizes of the sweep with the model as it is.
pub(super) fn sweep(
    images: &Images,
    parameters: &Parameters,
    threads: usize,
    progress: Progress<'_>,
) -> Result<Vec<Sensitivity>, CalibrateError> {
    let assumptions = assumptions(parameters);
    let mut models = vec![parameters.clone()];
    for (group, name, _, tried) in &assumptions {
        models.push(parameters.with(group, name, *tried)?);
    }
    let all: Vec<Job<'_, (f64, Vec<HoldOut>)>> = models
        .iter()
        .map(|model| {
            let name = if model == parameters { "sweep: the model as it is".to_owned() } else { model.name.clone() };
            Job::new(name, move || {
                let rows = run_all(holdouts::jobs(images, model, Sizes::REDUCED), 1, &|_, _, _, _| ())?;
                Ok((fit::at_66(&images.reference, model)?.0, rows.concat()))
            })
        })
        .collect();
    let mut results = run_all(all, threads, progress)?.into_iter();
    let (_, before) = results.next().ok_or(CalibrateError::Untimed)?;
    let mut found = Vec::new();
    for ((group, name, value, tried), (cycles_at_66, after)) in assumptions.into_iter().zip(results) {
        let changed = before.iter().zip(&after).filter(|(before, after)| before.verdict != after.verdict);
        let changes = changed
            .map(|(before, after)| Change {
                id: before.id.clone(),
                before: (before.verdict.name(), before.predicted),
                after: (after.verdict.name(), after.predicted),
            })
            .collect();
        found.push(Sensitivity { parameter: format!("{group}.{name}"), value, tried, cycles_at_66, changes });
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_assumptions_are_swept_and_each_at_ends_that_differ() {
        let all = assumptions(&Parameters::m2());
        assert!(all.iter().any(|(group, name, ..)| (group.as_str(), name.as_str()) == ("cores", "issues_per_cycle")));
        assert!(!all.iter().any(|(group, ..)| group == "loads"));
        assert!(all.iter().all(|(_, _, value, tried)| value != tried));
        let fences: Vec<u64> =
            all.iter().filter(|(_, name, ..)| name == "fence_cycles").map(|(_, _, _, tried)| *tried).collect();
        assert_eq!(fences, [0, 128]);
        let issue: Vec<u64> =
            all.iter().filter(|(_, name, ..)| name == "issues_per_cycle").map(|(_, _, _, tried)| *tried).collect();
        assert_eq!(issue, [2], "the lower end is the model's own");
    }
}
