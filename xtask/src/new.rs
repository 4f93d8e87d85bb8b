use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::{new_file, status, workspace};

/// Make a new image from device/template.
#[derive(clap::Args)]
pub(crate) struct New {
    /// Name of the image, its folder in device/images and its package: lower-case letters, digits, hyphens.
    name: String,
}

/// Longest name of an image.
const NAME_LIMIT: usize = 40;

impl New {
    pub(crate) fn run(&self) -> Result<()> {
        create(&workspace::root().join("device"), &self.name)?;
        status::say("Created", format_args!("device/images/{}", self.name));
        status::print(format_args!("next: cargo xtask run {}", self.name))?;
        Ok(())
    }
}

/// Copies the template below `device`; the workspace there takes every folder of `images` as a member.
fn create(device: &Path, name: &str) -> Result<()> {
    check_name(device, name)?;
    copy(&device.join("template"), &device.join("images").join(name), name)
}

fn check_name(device: &Path, name: &str) -> Result<()> {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if !name.starts_with(|c: char| c.is_ascii_lowercase()) || !name.chars().all(legal) || name.ends_with('-') {
        bail!(
            "`{name}` is no image name: it starts with a lower-case letter and holds lower-case letters, digits and \
             hyphens, as in `my-image`"
        );
    }
    if name.len() > NAME_LIMIT {
        bail!("`{name}` has {} characters, an image name has at most {NAME_LIMIT}", name.len());
    }
    if ["template", "dpa", "dpa-macros", "rt-emu", "core", "alloc", "std", "test"].contains(&name) {
        bail!("`{name}` is the name of another crate; choose a different one");
    }
    if device.join("images").join(name).exists() {
        bail!("device/images/{name} exists already; choose another name or edit it there");
    }
    Ok(())
}

fn copy(from: &Path, to: &Path, name: &str) -> Result<()> {
    std::fs::create_dir_all(to).with_context(|| format!("creating {}", to.display()))?;
    for entry in std::fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let file = entry.file_name();
        if entry.path().is_dir() {
            if file != "target" {
                copy(&entry.path(), &to.join(&file), name)?;
            }
        } else if file != "Cargo.lock" {
            let text =
                std::fs::read_to_string(entry.path()).with_context(|| format!("reading {}", entry.path().display()))?;
            let target = to.join(&file);
            new_file::write(&target, text.replace("{{name}}", name))
                .with_context(|| format!("writing {}", target.display()))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device() -> tempfile::TempDir {
        let dir = tempfile::tempdir().expect("directory");
        for folder in ["template/src", "template/target", "images/pingpong"] {
            std::fs::create_dir_all(dir.path().join(folder)).expect("folder");
        }
        let write = |path: &str, text: &str| std::fs::write(dir.path().join(path), text).expect("write");
        write("template/Cargo.toml", "name = \"{{name}}\"\n");
        write("template/src/main.rs", "//! Image {{name}}.\n");
        write("template/target/junk", "{{name}}");
        dir
    }

    #[test]
    fn the_template_is_copied_and_filled_in() {
        let dir = device();
        create(dir.path(), "hello-2").expect("new image");
        let read = |path: &str| std::fs::read_to_string(dir.path().join(path)).expect(path);
        assert_eq!(read("images/hello-2/Cargo.toml"), "name = \"hello-2\"\n");
        assert_eq!(read("images/hello-2/src/main.rs"), "//! Image hello-2.\n");
        assert!(!dir.path().join("images/hello-2/target").exists());
        let error = create(dir.path(), "hello-2").expect_err("again").to_string();
        assert!(error.contains("exists already"), "{error}");
    }

    #[test]
    fn bad_names_are_refused_and_change_nothing() {
        let dir = device();
        for name in ["", "Hello", "1st", "a_b", "a/b", "..", "a-", "ü", "template", "core", &"a".repeat(41)] {
            assert!(create(dir.path(), name).is_err(), "{name}");
        }
        assert!(create(dir.path(), "pingpong").expect_err("exists").to_string().contains("exists"));
        assert_eq!(std::fs::read_dir(dir.path().join("images")).expect("list").count(), 1);
    }
}
