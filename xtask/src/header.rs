use anyhow::{Context as _, Result, bail};
use cbindgen::{Builder, Config, DocumentationLength, DocumentationStyle, Language, Style};

use crate::{status, workspace};

/// Write host/capi/include/flexcast.h from the sources of host/capi.
#[derive(clap::Args)]
pub(crate) struct Header {
    /// Compare it instead, and fail if it differs.
    #[arg(long)]
    check: bool,
}

const PATH: &str = "host/capi/include/flexcast.h";

/// In the order in which a reader needs them.
const SOURCES: [&str; 9] =
    ["lib", "status", "fault", "card", "bootstrap", "config", "communicator", "operation", "request"];

const INTRODUCTION: &str = "\
/* SPDX-License-Identifier: Apache-2.0
 *
 * Flexcast: non-blocking Broadcast and Allgather over hardware multicast, with the datapath on the DPA of the network card.
 *
 * Written by `cargo xtask header` from host/capi/src; examples/c/allgather.c is a program.
 *
 * - Every function that can fail returns a flexcast_status; flexcast_last_error() tells the value, the limit and the next step.
 * - Handles (flexcast_card *, ...) are numbers and never followed: one that was freed, or is another object's, is refused.
 * - A handle, and all that is made of it, belongs to the thread that made it: calls from another one are refused
 *   (FLEXCAST_ERROR_THREAD). Threads with cards of their own do not disturb one another.
 * - Every other pointer is NULL, which is refused where nothing else is said, or points at what its type says.
 * - Nothing waits for ever, and nothing happens by itself: flexcast_test(), flexcast_wait() and flexcast_progress() move operations on;
 *   what the card does (receiving, copying, sending) needs no call.
 * - Structures begin with their size, or are given with it: a program goes on working with libraries that know more fields.
 * - Free in the order requests, communicators, bootstrap and card; another order is refused where it matters.
 */";

/// Macros that are no constants of Rust.
const MACROS: &str = "\n\
/** As the send buffer: the own bytes are in their place in the receive buffer already. */
#define FLEXCAST_IN_PLACE ((const void *)-1)
";

impl Header {
    pub(crate) fn run(&self) -> Result<()> {
        if self.check {
            return check();
        }
        let path = workspace::root().join(PATH);
        let folder = path.parent().unwrap_or(workspace::root());
        std::fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        std::fs::write(&path, generate()?).with_context(|| format!("writing {PATH}"))?;
        status::say("Written", PATH);
        Ok(())
    }
}

/// Fails if the committed header is another than the sources make.
pub(crate) fn check() -> Result<()> {
    let committed = std::fs::read_to_string(workspace::root().join(PATH)).with_context(|| format!("reading {PATH}"))?;
    if committed != generate()? {
        bail!("{PATH} is not what host/capi/src makes: run `cargo xtask header`");
    }
    Ok(())
}

fn generate() -> Result<String> {
    let config = Config {
        language: Language::C,
        cpp_compat: true,
        style: Style::Type,
        header: Some(INTRODUCTION.to_owned()),
        include_guard: Some("FLEXCAST_H".to_owned()),
        after_includes: Some(MACROS.to_owned()),
        documentation: true,
        documentation_style: DocumentationStyle::Doxy,
        documentation_length: DocumentationLength::Full,
        line_length: 110,
        usize_is_size_t: true,
        no_includes: true,
        sys_includes: ["stddef.h", "stdint.h"].map(str::to_owned).to_vec(),
        ..Config::default()
    };
    let sources = workspace::root().join("host/capi/src");
    let builder = SOURCES
        .iter()
        .fold(Builder::new().with_config(config), |builder, name| builder.with_src(sources.join(format!("{name}.rs"))));
    let mut text = Vec::new();
    builder.generate().context("cbindgen on host/capi/src")?.write(&mut text);
    String::from_utf8(text).context("cbindgen wrote what is not UTF-8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_committed_header_is_what_the_sources_make() {
        check().expect("cargo xtask header");
    }

    #[test]
    fn every_exported_function_is_declared() {
        let header = generate().expect("a header");
        let mut found = 0;
        for entry in std::fs::read_dir(workspace::root().join("host/capi/src")).expect("the folder") {
            let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a source");
            for (_, rest) in text.match_indices("extern \"C\" fn flexcast_").map(|(at, _)| text[at..].split_at(14)) {
                let name = rest.split('(').next().expect("a name");
                assert!(header.contains(&format!("{name}(")), "{name} is not declared");
                found += 1;
            }
        }
        assert!(found > 20, "{found}");
    }
}
