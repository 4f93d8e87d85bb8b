//! Module headers: each names its subject by a noun phrase, as CONTRIBUTING.md asks.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::files::{Findings, is, read};

/// Words that begin a question or a clause, and no noun phrase.
const CLAUSES: [&str; 10] = ["What", "Which", "Who", "Whom", "Whose", "Where", "How", "When", "Why", "Whether"];

/// Headers of source files that begin with one of these words.
pub(super) fn check(root: &Path, files: &[PathBuf]) -> Result<Findings> {
    let mut findings = Vec::new();
    for file in files.iter().filter(|file| is(file, "rs")) {
        if let Some(word) = clause(&read(&root.join(file))?) {
            let file = file.display();
            findings
                .push(format!("{file} begins with \"{word}\": a module header is a noun phrase with the field's term"));
        }
    }
    Ok(findings)
}

fn clause(text: &str) -> Option<&'static str> {
    let header = text.lines().find_map(|line| line.strip_prefix("//! "))?;
    let first = header.split(|char: char| !char.is_alphanumeric()).next()?;
    CLAUSES.into_iter().find(|word| *word == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clauses_are_reported_from_noun_phrases() {
        assert_eq!(clause("//! Who is next."), Some("Who"));
        assert_eq!(clause("#![no_std]\n//! What's left.\n"), Some("What"));
        assert_eq!(clause("//! Arbiter among queues.\n//! What it does.\n"), None);
        assert_eq!(clause("//! Whole files.\n"), None);
        assert_eq!(clause("fn main() {}\n"), None);
    }
}
