//! Reading files of experiments.

use std::path::Path;

use super::{Class, Experiment, Limit};
use crate::evaluate::EvaluateError;
use crate::sim::skew::MAX_SKEW_US;

/// The folder of the experiments, below the root of the repository.
pub const FOLDER: &str = "lab/experiments";

/// Reads all experiments of a folder, in their order.
///
/// # Errors
/// [`EvaluateError`] for a file that cannot be read or is none.
pub fn read_folder(folder: &Path, reduced: bool) -> Result<Vec<Experiment>, EvaluateError> {
    let what = "folder of experiments";
    let unreadable = |source| EvaluateError::File { what, path: folder.to_owned(), source };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            paths.push(path);
        }
    }
    paths.sort();
    if paths.is_empty() {
        let reason = format!("no file ends in .toml; the experiments are in {FOLDER}/ of the repository");
        return Err(EvaluateError::Format { what, path: folder.to_owned(), reason });
    }
    paths.iter().map(|path| read(path, reduced)).collect::<Result<Vec<_>, _>>().map(in_order)
}

/// Experiments in the order of the report.
pub(super) fn in_order(mut experiments: Vec<Experiment>) -> Vec<Experiment> {
    experiments.sort_by_key(|experiment| experiment.order);
    experiments
}

fn read(path: &Path, reduced: bool) -> Result<Experiment, EvaluateError> {
    let what = "experiment";
    let text = flexcast_files::text(path, flexcast_files::TABLE).map_err(|source| EvaluateError::File {
        what,
        path: path.to_owned(),
        source,
    })?;
    of_text(&text, path, reduced)
}

/// The experiment of the file `path` with this text. The files it names are next to it.
pub(super) fn of_text(text: &str, path: &Path, reduced: bool) -> Result<Experiment, EvaluateError> {
    let wrong = |reason: String| EvaluateError::Format { what: "experiment", path: path.to_owned(), reason };
    let mut experiment = parse(text, reduced).map_err(wrong)?;
    for faults in experiment.sim.iter_mut().filter_map(|sweep| sweep.faults.as_mut()) {
        *faults = path.with_file_name(&*faults);
    }
    if Some(experiment.id.as_str()) != path.file_stem().and_then(|stem| stem.to_str()) {
        return Err(wrong(format!("its id is {:?}: call it as the file", experiment.id)));
    }
    Ok(experiment)
}

/// An experiment from the text of its file.
///
/// # Errors
/// What is wrong with it.
pub fn parse(text: &str, reduced: bool) -> Result<Experiment, String> {
    let experiment = parse_one(text, reduced)?;
    let whole = reduced.then(|| parse_one(text, false).map(Box::new)).transpose()?;
    Ok(Experiment { whole, ..experiment })
}

fn parse_one(text: &str, reduced: bool) -> Result<Experiment, String> {
    let mut table: toml::Table = text.parse().map_err(|error: toml::de::Error| error.to_string())?;
    for group in ["reference", "tput", "sim", "concurrent", "incast", "flow", "application", "sparse", "dpa_sums"] {
        let Some(toml::Value::Array(sweeps)) = table.get_mut(group) else { continue };
        for sweep in sweeps.iter_mut().filter_map(toml::Value::as_table_mut) {
            // What is different in the reduced form.
            let changes = sweep.remove("reduced");
            if let (true, Some(toml::Value::Table(changes))) = (reduced, changes) {
                sweep.extend(changes);
            }
        }
    }
    let experiment: Experiment = table.try_into().map_err(|error: toml::de::Error| error.to_string())?;
    let id = &experiment.id;
    if id.is_empty() || !id.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-') {
        return Err(format!("id {id:?}: it names files: small letters, digits and hyphens"));
    }
    if experiment.reference.iter().any(|sweep| !sweep.slots.is_empty()) {
        return Err("slots of a reference sweep: the published kernels have a receive for each chunk; leave them out"
            .to_owned());
    }
    for skew_us in experiment.sim.iter().flat_map(|sweep| &sweep.skew_us) {
        if *skew_us > MAX_SKEW_US {
            return Err(format!("skew_us {skew_us}: give 0 to {MAX_SKEW_US}"));
        }
    }
    for expect in &experiment.expect {
        if expect.at_least.is_none() && expect.at_most.is_none() {
            return Err(format!("expectation {:?}: give at_least, at_most or both", expect.what));
        }
        if expect.class == Class::Paper && (expect.at_least.is_none() || expect.at_most.is_none()) {
            return Err(format!(
                "expectation {:?}: a published figure has a band around it; give at_least and at_most",
                expect.what
            ));
        }
        if expect.or.is_some() && (expect.first.is_some() || expect.largest) {
            return Err(format!(
                "expectation {:?}: or names one more row; it does not go with first and largest",
                expect.what
            ));
        }
        if expect.first.is_some() != expect.reach.is_some() {
            return Err(format!("expectation {:?}: first and reach go together", expect.what));
        }
    }
    for bound in experiment.plot.iter().flat_map(|plot| &plot.bound) {
        let needs_cost = matches!(bound.limit, Limit::Latency | Limit::Issue);
        if needs_cost == (bound.of.is_none() && bound.of_row.is_none()) {
            return Err(format!(
                "bound {:?}: latency and issue need of or of_row, the others have neither",
                bound.label
            ));
        }
        if !needs_cost && bound.gbit_per_s.is_none() {
            return Err(format!("bound {:?}: link and chunks need gbit_per_s", bound.label));
        }
    }
    Ok(experiment)
}

/// The experiments whose ids are asked for; all if none is.
///
/// # Errors
/// [`EvaluateError::Unknown`].
pub fn choose(experiments: Vec<Experiment>, only: &[String]) -> Result<Vec<Experiment>, EvaluateError> {
    for asked in only {
        if !experiments.iter().any(|experiment| experiment.id == *asked) {
            let known: Vec<&str> = experiments.iter().map(|experiment| experiment.id.as_str()).collect();
            return Err(EvaluateError::Unknown { asked: asked.clone(), known: known.join(", ") });
        }
    }
    Ok(experiments.into_iter().filter(|experiment| only.is_empty() || only.contains(&experiment.id)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        id = "a-1"
        order = 1
        title = "t"
        question = "q"
        paper = "p"
        columns = ["threads"]
        expect = [{ what = "w", class = "goal", column = "c", where = { threads = 1 }, at_most = 2.0 }]
        [[tput]]
        transports = ["uc"]
        threads = [1, 2, 4]
        bytes = [8388608]
        reduced = { threads = [1], bytes = [4096] }
    "#;

    #[test]
    fn reduced_sweeps_are_smaller() {
        let threads = |reduced| parse(TEXT, reduced).unwrap().tput[0].threads.clone();
        assert_eq!((threads(false), threads(true)), (vec![1, 2, 4], vec![1]));
        assert_eq!(parse(TEXT, true).unwrap().tput[0].chunk_bytes, [4096]);
    }

    #[test]
    fn what_is_no_experiment_is_refused() {
        for (from, to, word) in [
            ("order = 1", "", "order"),
            ("a-1", "../x", "names files"),
            (", at_most = 2.0", "", "at_least"),
            ("\"goal\"", "\"paper\"", "a band"),
            ("at_most = 2.0", "at_most = 2.0, or = { threads = 2 }, largest = true", "one more row"),
            ("at_most = 2.0", "at_most = 2.0, first = \"threads\"", "reach"),
            ("threads = [1, 2, 4]", "threads = [-1]", "invalid value"),
            ("transports =", "transprots =", "transprots"),
            ("\"uc\"", "\"rc\"", "rc"),
        ] {
            let error = parse(&TEXT.replace(from, to), false).unwrap_err();
            assert!(error.contains(word), "{error} lacks {word}");
        }
    }

    #[test]
    fn the_published_kernels_take_no_slots() {
        let reference = TEXT.replace("[[tput]]", "[[reference]]\nslots = [64]");
        assert!(parse(&reference, false).unwrap_err().contains("slots"));
        assert_eq!(parse(&TEXT.replace("[[tput]]", "[[tput]]\nslots = [64]"), false).unwrap().tput[0].slots, [64]);
    }

    #[test]
    fn skew_has_a_limit() {
        let with = |skew: &str| {
            let sweep = "[[sim]]\noperation = \"broadcast\"\nalgorithms = [\"multicast\"]\nranks = [4]\nbytes = \
                [1]\nskew_us = ";
            parse(&format!("{TEXT}\n{sweep}[{skew}]"), false)
        };
        assert_eq!(with("0, 1000000").unwrap().sim[0].skew_us, [0, 1_000_000]);
        for (skew, words) in [("1000001", ["1000001", "0 to 1000000"]), ("-1", ["-1", "u64"]), ("0.5", ["0.5", "u64"])]
        {
            let error = with(skew).unwrap_err();
            assert!(words.iter().all(|word| error.contains(word)), "{error}");
        }
    }

    #[test]
    fn unknown_ids_are_reported_with_those_there_are() {
        let one = vec![parse(TEXT, false).unwrap()];
        let error = choose(one.clone(), &["b".to_owned()]).unwrap_err().to_string();
        assert!(error.contains("--only b") && error.contains("a-1"), "{error}");
        assert_eq!(choose(one, &[]).unwrap().len(), 1);
    }
}
