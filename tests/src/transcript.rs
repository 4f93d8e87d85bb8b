//! Console blocks of documents: commands, and what is shown of their output.

/// A command of a console block, and the lines that are shown below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The command line without its comment.
    pub command: String,
    /// The lines of its output; [`ANY`] stands for any number of others.
    pub output: Vec<String>,
}

/// A line that stands for any number of lines.
pub const ANY: &str = "...";

/// Commands of the console blocks of a document, in their order: lines that begin with `$ `. A backslash at a line's
/// end continues the command.
#[must_use]
pub fn shown(text: &str) -> Vec<Shown> {
    let mut commands: Vec<Shown> = Vec::new();
    let mut is_console = false;
    for line in text.lines() {
        if line.starts_with("```") {
            is_console = line == "```console";
        } else if let (true, Some(line)) = (is_console, line.strip_prefix("$ ")) {
            let command = line.split_once(" # ").map_or(line, |(command, _)| command).trim().to_owned();
            commands.push(Shown { command, output: Vec::new() });
        } else if let (true, false, Some(last)) = (is_console, line.is_empty(), commands.last_mut()) {
            if let (true, Some(begun)) = (last.output.is_empty(), last.command.strip_suffix('\\')) {
                last.command = format!("{begun}{}", line.trim());
                continue;
            }
            last.output.push(line.to_owned());
        }
    }
    commands
}

/// Compares what is shown of an output with what a command has printed: each line shown must come, in this order and
/// one right behind the other except where [`ANY`] stands between them; what is shown may begin and end anywhere. Of a
/// table every cell is compared except for those of columns whose head names wall time, and its frame is not. In a line
/// that says `(measured)`, seconds and MiB are not compared.
///
/// # Errors
/// The first line shown that did not come.
pub fn compare(shown: &[String], printed: &str) -> Result<(), String> {
    let printed = lines(printed.lines());
    let mut next = 0;
    for part in lines(shown.iter().map(String::as_str)).split(|line| line.as_slice() == [ANY]) {
        let found = (next..=printed.len().saturating_sub(part.len())).find(|at| printed[*at..].starts_with(part));
        next = found.ok_or_else(|| format!("these lines did not come: {part:#?}"))? + part.len();
    }
    Ok(())
}

/// A line without the seconds and MiB that it gives as measured.
fn without_measured(line: &str) -> String {
    if !line.contains("(measured)") {
        return line.to_owned();
    }
    let words: Vec<&str> = line.split(' ').collect();
    let measured = |at: usize| {
        let unit = words.get(at + 1).map(|unit| unit.trim_end_matches([',', ';']));
        words[at].starts_with(|first: char| first.is_ascii_digit()) && matches!(unit, Some("s" | "MiB"))
    };
    (0..words.len()).map(|at| if measured(at) { "#" } else { words[at] }).collect::<Vec<_>>().join(" ")
}

/// Lines as their cells, without the frames of tables and without cells of wall time.
fn lines<'t>(text: impl Iterator<Item = &'t str>) -> Vec<Vec<String>> {
    let mut walls: Vec<bool> = Vec::new();
    let mut lines = Vec::new();
    for line in text {
        if line.starts_with(['┌', '╞', '└', '├']) {
            // The next row of another table is its head.
            walls = if line.starts_with('┌') { Vec::new() } else { walls };
            continue;
        }
        let row = line.strip_prefix('│').and_then(|line| line.strip_suffix('│'));
        let Some(row) = row else {
            lines.push(vec![without_measured(line.trim_end())]);
            continue;
        };
        let cells: Vec<&str> = row.split(['┆', '│']).map(str::trim).collect();
        if walls.len() != cells.len() {
            // The first row is the head.
            walls = cells.iter().map(|head| head.contains("wall")).collect();
        }
        lines.push(cells.iter().zip(&walls).filter(|(_, wall)| !**wall).map(|(cell, _)| (*cell).to_owned()).collect());
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "```console\n$ one --a 1   # what it does\n$ two | three\nfirst\n...\n│ a ┆ wall s \
        │\n╞═══╪════════╡\n│ 1 ┆    0.5 │\n\
                        ```\n\n```rust\n$ none\n```\n";

    #[test]
    fn commands_come_with_their_output() {
        let [one, two] = &shown(TEXT)[..] else { panic!() };
        assert_eq!((one.command.as_str(), one.output.len()), ("one --a 1", 0));
        assert_eq!((two.command.as_str(), two.output.len()), ("two | three", 5));
    }

    #[test]
    fn figures_are_compared_and_wall_times_are_not() {
        let shown = &shown(TEXT)[1].output;
        let printed = "zero\nfirst\nmore\n│   a ┆ wall s │\n├┤\n│   1 ┆   17.5 │\nlast";
        assert_eq!(compare(shown, printed), Ok(()));
        for wrong in [printed.replace("  1 ", "  2 "), printed.replace("first", "other"), printed.replace("wall", "us")]
        {
            assert!(compare(shown, &wrong).is_err(), "{wrong}");
        }
        let line = |seconds: &str, cases: &str| format!("{cases} cases in {seconds} s (measured): all 3 right");
        assert!(compare(&[line("4.4", "7")], &line("12", "7")).is_ok());
        assert!(compare(&[line("4.4", "7")], &line("4.4", "8")).is_err());
        // Lines without dots between them follow one another.
        let two = ["a", "b"].map(str::to_owned);
        assert!(compare(&two, "a\nb").is_ok() && compare(&two, "a\nc\nb").is_err() && compare(&two, "a").is_err());
    }
}
