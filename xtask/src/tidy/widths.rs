//! Widths of lines: 120 characters, as rustfmt has it. rustfmt breaks neither comments nor literals, and no Markdown.

use std::path::{Path, PathBuf};

use anyhow::Result;

use super::files::{Findings, is, read};

/// Longest line, in characters.
const WIDTH: usize = 120;
/// Lines of code that are longer: literals and macros. Fewer are welcome, and lower this.
const LONG_LINES_OF_CODE: usize = 152;
/// Pages that programs write.
const GENERATED: [&str; 2] = ["docs/evaluation.md", "docs/calibration.md"];

/// Comments and paragraphs with longer lines, and code if there is more of it than there was. Tables and blocks of code
/// in Markdown and in comments may be wider.
pub(super) fn check(root: &Path, files: &[PathBuf]) -> Result<Findings> {
    let mut findings = Vec::new();
    let mut code = 0;
    for file in files {
        let (is_rust, is_page) = (is(file, "rs"), is(file, "md"));
        if !(is_rust || is_page) || GENERATED.iter().any(|page| file == Path::new(page)) {
            continue;
        }
        let text = read(&root.join(file))?;
        let long = if is_rust { long_in_rust(&text, &mut code) } else { long_in_page(&text) };
        findings.extend(long.into_iter().map(|line| {
            format!("{}:{line} has more than {WIDTH} characters: break the line between words", file.display())
        }));
    }
    if code > LONG_LINES_OF_CODE {
        findings.push(format!(
            "{code} lines of code have more than {WIDTH} characters, at most {LONG_LINES_OF_CODE} may: break literals \
             with a backslash"
        ));
    }
    Ok(findings)
}

/// Numbers of the long lines of comments; those of code are counted.
fn long_in_rust(text: &str, code: &mut usize) -> Vec<usize> {
    let mut fenced = false;
    let mut long = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let Some(comment) = line.trim_start().strip_prefix("//") else {
            fenced = false;
            *code += usize::from(line.chars().count() > WIDTH);
            continue;
        };
        let comment = comment.trim_start_matches(['/', '!']);
        if is_long(comment, line, &mut fenced) {
            long.push(number);
        }
    }
    long
}

/// Numbers of the long lines of paragraphs.
fn long_in_page(text: &str) -> Vec<usize> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(|(_, line)| is_long(line, line, &mut fenced)).map(|(number, _)| number).collect()
}

/// Whether a line with this text is too long; `fenced`: it is in a block of code.
fn is_long(text: &str, line: &str, fenced: &mut bool) -> bool {
    let text = text.trim_start();
    if text.starts_with("```") {
        *fenced = !*fenced;
    }
    // A line without spaces, such as an address, cannot be broken.
    let words = text.trim_start_matches(['-', '*', ' ']);
    !*fenced && !text.starts_with('|') && words.contains(' ') && line.chars().count() > WIDTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_paragraphs_are_found_and_tables_and_code_are_not() {
        let words = "word ".repeat(25);
        let page = format!("{words}\n\n| {words} |\n\n```\n{words}\n```\n- {words}\nhttps://{}\n", "a".repeat(140));
        assert_eq!(long_in_page(&page), [1, 8]);
        let mut code = 0;
        let source = format!("/// | {words} |\n/// {words}\nfn f() {{}} // {words}\n/// ```\n/// {words}\n/// ```\n");
        assert_eq!((long_in_rust(&source, &mut code), code), (vec![2], 1));
        assert!(long_in_page(&"ä ".repeat(60)).is_empty(), "characters count, not bytes");
    }
}
