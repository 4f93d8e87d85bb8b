//! The report of the MPI adapter, and what its test expects of it.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

/// Calls of a function, as a line of JSON.
#[derive(Deserialize)]
struct Line {
    function: String,
    taken: u64,
    fallen_back: u64,
    #[serde(default)]
    reasons: BTreeMap<String, u64>,
}

/// Calls of each function that was called: taken, and left to MPI.
#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct Calls {
    pub(super) functions: BTreeMap<String, (u64, u64)>,
    /// Calls left to MPI, by reason.
    pub(super) reasons: BTreeMap<String, u64>,
}

impl Calls {
    /// Reads lines of JSON; those that are of something else are passed over.
    pub(super) fn read(text: &str) -> Result<Self> {
        let mut calls = Self::default();
        for line in text.lines().filter(|line| line.starts_with("{") && line.contains("\"function\"")) {
            let line: Line = serde_json::from_str(line).with_context(|| line.to_owned())?;
            for (reason, count) in line.reasons {
                *calls.reasons.entry(reason).or_default() += count;
            }
            if line.taken + line.fallen_back > 0 {
                calls.functions.insert(line.function, (line.taken, line.fallen_back));
            }
        }
        Ok(calls)
    }

    pub(super) fn taken(&self) -> u64 {
        self.functions.values().map(|(taken, _)| taken).sum()
    }

    pub(super) fn fallen_back(&self) -> u64 {
        self.functions.values().map(|(_, fallen_back)| fallen_back).sum()
    }

    /// Functions with other counts than expected.
    pub(super) fn compare(&self, expected: &Self) -> Result<()> {
        let names = self.functions.keys().chain(expected.functions.keys());
        let other = |name: &&String| self.functions.get(*name) != expected.functions.get(*name);
        let Some(name) = names.clone().find(other) else { return Ok(()) };
        let (taken, fallen_back) = self.functions.get(name).copied().unwrap_or_default();
        let (to_take, to_leave) = expected.functions.get(name).copied().unwrap_or_default();
        bail!("{name}: {taken} calls taken and {fallen_back} left to MPI; expected {to_take} and {to_leave}")
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// What the adapter's sources have in quotes, of which a part is wanted.
    fn quoted(folder: &Path, wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
        let files = std::fs::read_dir(folder).expect("the sources");
        let texts = files.map(|file| std::fs::read_to_string(file.expect("a file").path()).expect("a source"));
        let lines: Vec<String> = texts.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
        let wanted = lines.iter().filter(|line| wanted(line));
        wanted.filter_map(|line| line.split('"').nth(1)).map(str::to_owned).collect()
    }

    #[test]
    fn the_page_names_every_variable_and_every_reason() {
        let folder = crate::workspace::root().join("adapters/mpi");
        let page = std::fs::read_to_string(folder.join("README.md")).expect("the page");
        let variables = quoted(&folder.join("src"), |line| line.contains("\"FLEXCAST_MPI"));
        // One function reads each of them; the page has no others.
        let named = page.split('`').filter(|word| word.starts_with("FLEXCAST_MPI") && !word.contains(['=', '.']));
        assert_eq!(variables, named.map(str::to_owned).collect());
        assert!(variables.len() >= 7, "{variables:?}");
        let reasons = quoted(&folder.join("src"), |line| line.starts_with("\tX(") && line.contains(", \""));
        assert!(reasons.len() >= 12, "{reasons:?}");
        for reason in reasons {
            let cells = page.lines().filter(|line| line.starts_with('|')).filter_map(|line| line.split('|').nth(2));
            assert!(
                cells.flat_map(|cell| cell.split(',')).any(|cell| cell.trim() == reason),
                "{reason} is not in the table"
            );
        }
    }

    const REPORT: &str = "{\"rank\":0,\"function\":\"MPI_Bcast\",\"taken\":3,\"bytes\":9,\"fallen_back\":2,\"reasons\":{\"size\":2}}\n\
        {\"ranks\":2,\"checks\":5,\"failures\":0}\n\
        {\"rank\":0,\"function\":\"MPI_Reduce\",\"taken\":1,\"bytes\":4,\"fallen_back\":0,\"reasons\":{}}\n";

    #[test]
    fn counts_are_compared_by_function() {
        let calls = Calls::read(REPORT).expect("report");
        assert_eq!((calls.taken(), calls.fallen_back(), calls.reasons["size"]), (4, 2, 2));
        let expected = "{\"function\":\"MPI_Bcast\",\"taken\":3,\"fallen_back\":2}\n{\"function\":\"MPI_Gather\",\"taken\":0,\"fallen_back\":0}\n";
        let error = calls.compare(&Calls::read(expected).expect("lines")).expect_err("a function more").to_string();
        assert_eq!(error, "MPI_Reduce: 1 calls taken and 0 left to MPI; expected 0 and 0");
        let whole = format!("{expected}{{\"function\":\"MPI_Reduce\",\"taken\":1,\"fallen_back\":0}}");
        calls.compare(&Calls::read(&whole).expect("lines")).expect("alike");
    }
}
