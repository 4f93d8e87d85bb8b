//! README.md: its commands are commands, and the files that they name are there.

use std::path::{Path, PathBuf};

use crate::parse;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn readme() -> String {
    std::fs::read_to_string(root().join("README.md")).expect("README.md")
}

/// How a command of this tool begins in the document.
const NAMES: [&str; 3] = ["flexcast ", "target/release/flexcast ", "cargo run --release -p flexcast-cli -- "];

/// Arguments of each command of this tool, with the name of the program before them; comments and what a shell makes of them are left out.
fn commands(text: &str) -> Vec<Vec<String>> {
    let prompts = |line: &&str| line.starts_with("$ ") || line.starts_with("terminal ");
    let mut commands = Vec::new();
    for line in text.lines().filter(prompts) {
        let line = line.split_once("$ ").map_or(line, |(_, line)| line);
        let line = line.split_once(" #").map_or(line, |(command, _)| command);
        // `for i in ...; do COMMAND & done`, `COMMAND && COMMAND`
        for part in line.split([';', '&']) {
            let part = part.trim().trim_start_matches("do ");
            let Some(arguments) = NAMES.iter().find_map(|name| part.strip_prefix(name)) else { continue };
            let words = arguments.split_whitespace().map(|word| word.replace("$i", "1"));
            commands.push(std::iter::once("flexcast".to_owned()).chain(words).collect());
        }
    }
    // Within sentences.
    for quoted in text.split('`').skip(1).step_by(2).filter(|quoted| !quoted.contains('\n')) {
        let Some(arguments) = NAMES.iter().find_map(|name| quoted.strip_prefix(name)) else { continue };
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
    let commands = commands(&readme());
    assert!(commands.len() >= 30, "{} commands", commands.len());
    for command in commands {
        if let Err(error) = parse(command.iter().map(Into::into)) {
            panic!("README.md: `{}`: {error}", command.join(" "));
        }
    }
}

#[test]
fn every_file_is_there() {
    let mut written = Vec::new();
    let mut read = 0;
    for command in commands(&readme()) {
        let shows = ["ps", "stats"].contains(&command[1].as_str());
        for (before, word) in command.iter().zip(&command[1..]) {
            let is_file = word.ends_with(".toml") || word.ends_with(".json") || root().join(word).is_file();
            if WRITTEN.contains(&before.as_str()) {
                written.push(word.clone());
            } else if is_file && (READ.contains(&before.as_str()) || shows) {
                read += 1;
                let there = root().join(word).is_file() || written.contains(word);
                assert!(there, "README.md: `{}`: there is no {word}", command.join(" "));
            }
        }
    }
    assert!(read >= 5, "{read} files");
}

/// The script that the document shows is the one that its command takes.
#[test]
fn what_is_shown_is_the_file() {
    let file = std::fs::read_to_string(root().join("examples/bad-day.toml")).expect("examples/bad-day.toml");
    assert!(readme().contains(&format!("```toml\n{file}```\n")));
}
