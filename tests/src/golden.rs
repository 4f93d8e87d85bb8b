//! Recorded output, kept with the image that printed it: `device/images/<image>/golden/<name>.txt`.
//!
//! `UPDATE_GOLDEN=1 cargo test -p flexcast-tests --test firmware golden::` records anew; the difference then goes
//! through review like any other. Where `CI` is set nothing is ever recorded.

use std::ffi::OsString;
use std::path::Path;

/// The variable that asks for recording.
pub const UPDATE: &str = "UPDATE_GOLDEN";

/// Compares `printed` with the recorded output, or records it.
///
/// # Panics
/// They differ, nothing is recorded, or recording is asked for in CI.
pub fn compare(image: &str, name: &str, printed: &str) {
    if !crate::compiled_as_recorded(image) {
        return;
    }
    let path = crate::workspace_root().join("device/images").join(image).join("golden").join(format!("{name}.txt"));
    let variable = |name: &str| std::env::var_os(name);
    if let Err(difference) = check(&path, printed, &variable) {
        panic!("{difference}");
    }
}

fn check(path: &Path, printed: &str, variable: &dyn Fn(&str) -> Option<OsString>) -> Result<(), String> {
    let set = |name: &str| variable(name).is_some_and(|value| !value.is_empty() && value != "0" && value != "false");
    if set(UPDATE) {
        if set("CI") {
            return Err(format!("{UPDATE} is set in CI: record on your machine and commit {}", path.display()));
        }
        let folder = path.parent().unwrap_or(path);
        std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
        return std::fs::write(path, printed).map_err(|e| format!("{}: {e}", path.display()));
    }
    let next = format!("if this is what it should print, record it with {UPDATE}=1");
    let recorded = std::fs::read_to_string(path)
        .map_err(|e| format!("{}: {e}\nnothing is recorded; {next}. Printed:\n{printed}", path.display()))?;
    if recorded == printed {
        return Ok(());
    }
    Err(format!("{} differs; {next}.\n{}", path.display(), difference(&recorded, printed)))
}

/// Lines that differ, `-` recorded and `+` printed.
fn difference(recorded: &str, printed: &str) -> String {
    let (mut old, mut new) = (recorded.lines(), printed.lines());
    let mut text = String::new();
    loop {
        let (old, new) = (old.next(), new.next());
        if old.is_none() && new.is_none() {
            return text;
        }
        if old != new {
            for (mark, line) in [('-', old), ('+', new)] {
                if let Some(line) = line {
                    text.push_str(&format!("{mark} {line}\n"));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(set: &[(&str, &str)]) -> impl Fn(&str) -> Option<OsString> {
        let set: Vec<(String, String)> = set.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        move |name| set.iter().find(|(k, _)| k == name).map(|(_, v)| v.into())
    }

    #[test]
    fn output_is_compared_recorded_on_demand_and_never_in_ci() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("golden/one.txt");
        let plain = with(&[]);
        let absent = check(&path, "a\nb\n", &plain).expect_err("nothing is recorded");
        assert!(absent.contains("UPDATE_GOLDEN=1") && absent.contains("one.txt"), "{absent}");
        let refused = check(&path, "a\nb\n", &with(&[(UPDATE, "1"), ("CI", "true")])).expect_err("CI");
        assert!(refused.contains("record on your machine") && !path.exists(), "{refused}");
        check(&path, "a\nb\n", &with(&[(UPDATE, "1"), ("CI", "false")])).expect("recorded");
        check(&path, "a\nb\n", &plain).expect("as recorded");
        let changed = check(&path, "a\nc\nd\n", &with(&[(UPDATE, "0")])).expect_err("another output");
        assert!(changed.ends_with("- b\n+ c\n+ d\n"), "{changed}");
    }
}
