//! The one way to other programs: a failure always shows the command, so that it can be repeated by hand.

use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::status;

/// Runs a command whose output the user is to see.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status();
    check(command, status)
}

/// Runs a command and returns what it wrote to stdout; its stderr goes to the user.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    let output = command.stderr(Stdio::inherit()).output();
    let (status, stdout) = match output {
        Ok(output) => (Ok(output.status), output.stdout),
        Err(error) => (Err(error), Vec::new()),
    };
    check(command, status).inspect_err(|_| status::line(String::from_utf8_lossy(&stdout).trim_end_matches('\n')))?;
    String::from_utf8(stdout).with_context(|| format!("output of `{}` is not UTF-8", line(command)))
}

fn check(command: &Command, status: std::io::Result<ExitStatus>) -> Result<()> {
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => bail!("{status}: {}", line(command)),
        Err(error) => bail!("{error}: {}", line(command)),
    }
}

/// The command as one would type it into a shell.
pub(crate) fn line(command: &Command) -> String {
    words(command).join(" ")
}

/// The same over several lines, where it is longer than `columns`; a word that is longer by itself stays whole.
pub(crate) fn lines(command: &Command, columns: usize) -> String {
    let mut text = String::new();
    let mut room = columns;
    for word in words(command) {
        let needed = word.chars().count() + " \\".len();
        if !text.is_empty() && needed + 1 > room {
            text.push_str(" \\\n    ");
            room = columns - 4;
        } else if !text.is_empty() {
            text.push(' ');
            room -= 1;
        }
        text.push_str(&word);
        room = room.saturating_sub(word.chars().count());
    }
    text
}

fn words(command: &Command) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(dir) = command.get_current_dir() {
        words.extend(["cd".to_owned(), quote(&dir.to_string_lossy()), "&&".to_owned()]);
    }
    // A variable that is not there is something else than an empty one: to cargo, empty flags replace those of
    // `--config`.
    let removed = || command.get_envs().filter(|(_, value)| value.is_none());
    words.extend(removed().next().map(|_| "env".to_owned()));
    words.extend(removed().flat_map(|(name, _)| ["-u".to_owned(), name.to_string_lossy().into_owned()]));
    for (name, value) in command.get_envs() {
        words.extend(value.map(|value| format!("{}={}", name.to_string_lossy(), quote(&value.to_string_lossy()))));
    }
    words.push(quote(&command.get_program().to_string_lossy()));
    words.extend(command.get_args().map(|arg| quote(&arg.to_string_lossy())));
    words
}

/// The word as a shell reads it.
pub(crate) fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=+./,:@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Where a program of this name is on the search path.
pub(crate) fn find(name: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|dir| dir.join(name)).find(|file| is_program(file))
}

pub(crate) fn is_program(file: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt as _;
    file.metadata().is_ok_and(|meta| meta.is_file() && meta.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_shows_the_command() {
        let error = run(Command::new("sh").args(["-c", "exit 3"]).env("A", "b c")).expect_err("exit 3");
        assert_eq!(error.to_string(), "exit status: 3: A='b c' sh -c 'exit 3'");
        let error = capture(Command::new("./no-such-program").arg("")).expect_err("absent");
        assert!(error.to_string().ends_with("./no-such-program ''"), "{error}");
        assert_eq!(capture(Command::new("echo").arg("it's")).expect("echo"), "it's\n");
        let without = line(Command::new("sh").env("A", "").env_remove("B"));
        assert_eq!(without, "env -u B A='' sh");
    }

    #[test]
    fn a_long_command_is_wrapped_and_still_the_same_to_a_shell() {
        let mut command = Command::new("printf");
        command.args(["%s.", "one two", "it's", &"x".repeat(50), "", "a\\b"]).current_dir("/").env("A", "b c");
        let wrapped = lines(&command, 40);
        let rows: Vec<&str> = wrapped.lines().collect();
        assert_eq!(rows.len(), 4, "{wrapped}");
        assert!(rows[..3].iter().all(|row| row.ends_with(" \\")), "{wrapped}");
        assert!(rows.iter().all(|row| row.len() <= 40 || row.contains("xxxx")), "{wrapped}");
        let shell = |text: &str| capture(Command::new("sh").args(["-c", text])).expect("a command");
        assert_eq!(shell(&wrapped), shell(&line(&command)));
        assert!(shell(&wrapped).starts_with("one two.it's.xxx"), "{}", shell(&wrapped));
        assert_eq!(lines(&command, 400), line(&command));
    }

    #[test]
    fn programs_are_found_on_the_path() {
        assert!(find("sh").is_some_and(|sh| is_program(&sh)));
        assert_eq!(find("no-such-program"), None);
    }
}
