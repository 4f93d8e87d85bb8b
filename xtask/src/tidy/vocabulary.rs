//! Vocabulary: words that have a term of the field beside them, counted per crate. The counts may only fall.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::Result;

use super::files::{Findings, is, read};

/// Words that CONTRIBUTING.md has better ones for, whole or between underscores.
const WORDS: [&str; 27] = [
    "told",
    "tell",
    "tells",
    "heed",
    "heeds",
    "hear",
    "hears",
    "heard",
    "look",
    "looks",
    "looked",
    "errand",
    "ears",
    "door",
    "doors",
    "bell",
    "graveyard",
    "bury",
    "buried",
    "lend",
    "lends",
    "lent",
    "culprit",
    "witness",
    "apart",
    "beside",
    "spot",
];

/// Most such words of a crate, or of a folder that is none; crates that are not listed have none. Fewer are welcome,
/// and lower these. Those of shared/abi, and of who uses them, are names of fields, which an image's hash is of.
const MOST: &[(&str, usize)] = &[
    ("device/datapath", 25),
    ("device/images", 5),
    ("host/flexcast", 15),
    ("lab", 2),
    ("shared/abi", 16),
    ("tests", 1),
    ("xtask", 39),
];

/// Crates with more of these words than they had.
pub(super) fn check(root: &Path, files: &[PathBuf]) -> Result<Findings> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for file in files.iter().filter(|file| is(file, "rs")) {
        *counts.entry(owner(file)).or_default() += count(&read(&root.join(file))?);
    }
    Ok(judge(&counts))
}

fn judge(counts: &BTreeMap<String, usize>) -> Findings {
    let most = |owner: &str| MOST.iter().find(|(of, _)| *of == owner).map_or(0, |(_, most)| *most);
    let over = counts.iter().filter(|(owner, count)| **count > most(owner));
    let finding = |(owner, count): (&String, &usize)| {
        let most = most(owner);
        format!(
            "{owner} has {count} words that CONTRIBUTING.md has terms of the field for, at most {most} may stay: see \
             its glossary"
        )
    };
    over.map(finding).collect()
}

/// The crate that a file belongs to, or its folder.
fn owner(file: &Path) -> String {
    let mut parts = file.iter().map(|part| part.to_string_lossy());
    let first = parts.next().unwrap_or_default().into_owned();
    let is_group = ["shared", "device", "host", "emu"].contains(&first.as_str());
    match parts.next().filter(|second| is_group && !second.ends_with(".rs")) {
        Some(second) => format!("{first}/{second}"),
        None => first,
    }
}

fn count(text: &str) -> usize {
    let words = text.split(|char: char| !char.is_ascii_alphabetic());
    words.filter(|word| WORDS.contains(&word.to_ascii_lowercase().as_str())).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_count_whole_and_between_underscores() {
        assert_eq!(count("// It is told.\nfn tell_all(untold: Bell) { look_at(teller) }"), 4);
    }

    #[test]
    fn a_crate_with_more_than_it_had_is_reported_and_a_new_one_may_have_none() {
        let file = |path: &str| owner(Path::new(path));
        assert_eq!([file("host/capi/src/lib.rs"), file("cli/src/main.rs")], ["host/capi", "cli"]);
        let counts = |owner: &str, count| BTreeMap::from([(owner.to_owned(), count)]);
        assert!(judge(&counts("shared/abi", 1)).is_empty());
        let findings = judge(&counts("host/new", 1));
        assert!(findings[0].starts_with("host/new has 1 words"), "{findings:?}");
    }
}
