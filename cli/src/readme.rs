//! README.md and the guides of docs/: their commands are commands, and the files that they name are there.

use std::path::{Path, PathBuf};

use crate::parse;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Documents whose commands a reader is to type.
const DOCUMENTS: [&str; 10] = [
    "README.md",
    "docs/card.md",
    "docs/compare.md",
    "docs/embed.md",
    "docs/ethernet.md",
    "docs/observe.md",
    "docs/service.md",
    "docs/simulate.md",
    "docs/timing.md",
    "docs/verbs.md",
];

fn text(document: &str) -> String {
    std::fs::read_to_string(root().join(document)).unwrap_or_else(|error| panic!("{document}: {error}"))
}

/// Every command of every document, with the document's name.
fn all_commands() -> impl Iterator<Item = (&'static str, Vec<String>)> {
    DOCUMENTS
        .into_iter()
        .flat_map(|document| commands(&text(document)).into_iter().map(move |command| (document, command)))
}

/// How a command of this tool begins in the document.
const NAME: &str = "flexcast ";

/// Arguments of each command of this tool, with the name of the program before them; comments and what a shell makes of
/// them are left out.
fn commands(text: &str) -> Vec<Vec<String>> {
    let prompts = |line: &&str| line.starts_with("$ ") || line.starts_with("terminal ");
    let mut commands = Vec::new();
    for line in text.lines().filter(prompts) {
        let line = line.split_once("$ ").map_or(line, |(_, line)| line);
        let line = line.split_once(" #").map_or(line, |(command, _)| command);
        // `for i in ...; do COMMAND & done`, `COMMAND && COMMAND`
        for part in line.split([';', '&']) {
            let part = part.trim().trim_start_matches("do ");
            let Some(arguments) = part.strip_prefix(NAME) else { continue };
            let words = arguments.split_whitespace().map(|word| word.replace("$i", "1"));
            commands.push(std::iter::once("flexcast".to_owned()).chain(words).collect());
        }
    }
    // Within sentences.
    for quoted in text.split('`').skip(1).step_by(2).filter(|quoted| !quoted.contains('\n')) {
        let Some(arguments) = quoted.strip_prefix(NAME) else { continue };
        let complete = arguments.contains(" --") && !arguments.contains("...");
        if complete {
            let words = arguments.split_whitespace().map(str::to_owned);
            commands.push(std::iter::once("flexcast".to_owned()).chain(words).collect());
        }
    }
    commands
}

/// What a word before names a file that is read, or one that is written and may be read by a command further down.
const READ: [&str; 5] = ["--faults", "--topology", "--file", "--machine", "--image"];
const WRITTEN: [&str; 4] = ["-o", "--state", "--trace", "--pcap"];

#[test]
fn every_command_is_one() {
    assert!(all_commands().count() >= 36, "{} commands", all_commands().count());
    for (document, command) in all_commands() {
        if let Err(error) = parse(command.iter().map(Into::into)) {
            panic!("{document}: `{}`: {error}", command.join(" "));
        }
    }
}

#[test]
fn every_file_is_there() {
    let mut written = Vec::new();
    let mut read = 0;
    for (document, command) in all_commands() {
        let shows = ["ps", "stats"].contains(&command[1].as_str());
        for (before, word) in command.iter().zip(&command[1..]) {
            let is_file = word.ends_with(".toml") || word.ends_with(".json") || root().join(word).is_file();
            if WRITTEN.contains(&before.as_str()) {
                written.push(word.clone());
            } else if is_file && (READ.contains(&before.as_str()) || shows) {
                read += 1;
                let there = root().join(word).is_file() || written.contains(word);
                assert!(there, "{document}: `{}`: there is no {word}", command.join(" "));
            }
        }
    }
    assert!(read >= 5, "{read} files");
}

/// The script that the document shows is the one that its command takes.
#[test]
fn what_is_shown_is_the_file() {
    let file = std::fs::read_to_string(root().join("examples/bad-day.toml")).expect("examples/bad-day.toml");
    assert!(text("docs/simulate.md").contains(&format!("```toml\n{file}```\n")));
}

/// Every relative link of a document leads to a file of the project.
#[test]
fn every_link_leads_to_a_file() {
    let mut links = 0;
    for document in DOCUMENTS.into_iter().chain(["ARCHITECTURE.md", "SECURITY.md", "CONTRIBUTING.md"]) {
        let text = text(document);
        let folder = root().join(document);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            if link.contains("://") {
                continue;
            }
            links += 1;
            let (file, section) = link.split_once('#').unwrap_or((link, ""));
            let relative = || folder.parent().expect("a file is in a folder").join(file);
            let path = if file.is_empty() { folder.clone() } else { relative() };
            assert!(path.exists(), "{document}: {link}");
            let target = std::fs::read_to_string(&path).unwrap_or_default();
            let anchors = target.lines().filter(|line| line.starts_with('#')).map(anchor);
            assert!(section.is_empty() || anchors.into_iter().any(|name| name == section), "{document}: {link}");
        }
    }
    assert!(links >= 30, "{links} links");
}

/// The name of a heading in links.
fn anchor(heading: &str) -> String {
    let words = heading.trim_start_matches('#').trim().to_lowercase();
    let kept = words.chars().filter(|char| char.is_alphanumeric() || matches!(char, ' ' | '-'));
    kept.map(|char| if char == ' ' { '-' } else { char }).collect()
}

/// A first visit reads it to the end.
#[test]
fn the_first_page_is_short() {
    let lines = text("README.md").lines().count();
    assert!(lines <= 120, "README.md has {lines} lines: the rest belongs to docs/");
}
