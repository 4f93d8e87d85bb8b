//! Experiments that the program holds, and the fault scripts that they name.
//!
//! A report writes these scripts next to its page, so that the commands on the page name files that exist.

use std::path::Path;

use super::Experiment;
use super::read::{in_order, of_text};
use crate::evaluate::{EvaluateError, output};

/// The files of `lab/experiments/` by their paths in it.
macro_rules! held {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/experiments/", $path)))),*]
    };
}

/// Paths and texts of the experiments.
const EXPERIMENTS: [(&str, &str); 23] = held![
    "applications.toml",
    "buffer-size.toml",
    "chunk-rate.toml",
    "chunk-size.toml",
    "collectives-188.toml",
    "concurrent.toml",
    "default-configuration.toml",
    "models.toml",
    "one-thread.toml",
    "phases.toml",
    "service-allgatherv.toml",
    "service-alltoallv.toml",
    "service-choice.toml",
    "service-staged.toml",
    "sparse-aggregators.toml",
    "sparse-dense.toml",
    "sparse-memory.toml",
    "sparse-tuning.toml",
    "sparse-zeros.toml",
    "staging.toml",
    "switch-counters.toml",
    "threads.toml",
    "variability.toml",
];

/// Paths and texts of the fault scripts.
const SCRIPTS: [(&str, &str); 2] = held!["noise/bursts.toml", "noise/jitter.toml"];

/// The experiments that the program holds, in their order. Their fault scripts are searched for in `folder`
/// ([`write_scripts`]).
///
/// # Errors
/// [`EvaluateError`] for a text that is no experiment.
pub fn held(folder: &Path, reduced: bool) -> Result<Vec<Experiment>, EvaluateError> {
    let of = |(name, text): &(&str, &str)| of_text(text, &folder.join(name), reduced);
    EXPERIMENTS.iter().map(of).collect::<Result<Vec<_>, _>>().map(in_order)
}

/// Writes the fault scripts that these experiments name into `folder`; none if they name none.
///
/// # Errors
/// [`EvaluateError::File`].
pub fn write_scripts(folder: &Path, experiments: &[Experiment]) -> Result<(), EvaluateError> {
    let named: Vec<&Path> =
        experiments.iter().flat_map(|experiment| &experiment.sim).filter_map(|sweep| sweep.faults.as_deref()).collect();
    let is_named = |(name, _): &&(&str, &str)| named.contains(&folder.join(name).as_path());
    SCRIPTS.iter().filter(is_named).try_for_each(|(name, text)| output::write_file(&folder.join(name), text))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::super::{choose, read_folder};
    use super::*;

    fn lab() -> &'static Path {
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/experiments"))
    }

    /// A file that is added to the folder is added here.
    #[test]
    fn all_files_of_the_folder_are_held() {
        let files = |folder: &Path| -> BTreeSet<String> {
            let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
            let tomls = entries.filter(|path| path.extension().is_some_and(|extension| extension == "toml"));
            tomls.map(|path| path.strip_prefix(lab()).unwrap().to_string_lossy().into_owned()).collect()
        };
        let names = |held: &[(&str, &str)]| held.iter().map(|(name, _)| (*name).to_owned()).collect::<BTreeSet<_>>();
        assert_eq!(names(&EXPERIMENTS), files(lab()));
        assert_eq!(names(&SCRIPTS), files(&lab().join("noise")));
        assert_eq!(held(lab(), true).unwrap(), read_folder(lab(), true).unwrap());
    }

    #[test]
    fn scripts_are_written_where_runs_search_for_them() {
        let folder = tempfile::tempdir().unwrap();
        let all = held(folder.path(), true).unwrap();
        let none = choose(all.clone(), &["models".to_owned()]).unwrap();
        write_scripts(folder.path(), &none).unwrap();
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "of models none is needed");
        write_scripts(folder.path(), &all).unwrap();
        let scripts: Vec<_> = all.iter().flat_map(|one| &one.sim).filter_map(|sweep| sweep.faults.clone()).collect();
        assert!(!scripts.is_empty() && scripts.iter().all(|script| script.is_file()), "{scripts:?}");
    }
}
