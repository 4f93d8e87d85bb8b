use anyhow::{Context as _, Result, bail};
use cbindgen::{Builder, Config, DocumentationLength, DocumentationStyle, Language, Style};

use crate::{new_file, status, workspace};

/// Write host/capi/include/flexcast.h from the sources of host/capi.
#[derive(clap::Args)]
pub(crate) struct Header {
    /// Compare it instead, and fail if it differs.
    #[arg(long)]
    check: bool,
}

pub(crate) const PATH: &str = "host/capi/include/flexcast.h";

/// In the order in which a reader needs them. Not `lib`: cbindgen would follow its modules, and declare everything a
/// second time.
const SOURCES: [&str; 16] = [
    "version",
    "status",
    "fault",
    "log",
    "endpoint",
    "bootstrap",
    "config",
    "settings",
    "communicator",
    "init",
    "stats",
    "reduction",
    "collective",
    "failure_code",
    "request",
    "wait",
];

const INTRODUCTION: &str = "\
/* SPDX-License-Identifier: Apache-2.0
 *
 * Flexcast: non-blocking Broadcast and Allgather over hardware multicast, with the datapath on the DPA of the
 * network card; barriers, reductions, Alltoall, Gather and Scatter by this process, between pairs of ranks.
 *
 * Written by `cargo xtask header` from host/capi/src; examples/c/allgather.c is a program.
 *
 * - Every function that can fail returns a flexcast_status; flexcast_last_error() gives the value, the limit and the
 *   next step.
 * - Handles (flexcast_endpoint *, ...) are numbers and never followed: one that was freed, or is another object's, is
 *   refused.
 * - Every function may be called from every thread. Operations of a communicator are posted in the same order on all
 *   ranks: threads that post to one communicator agree on theirs.
 * - Every other pointer is NULL, which is refused where nothing else is said, or points at what its type says. A
 *   buffer of no bytes may be NULL.
 * - Nothing waits for ever. Without a progress thread (`progress_thread` in flexcast_config) nothing happens by
 *   itself: flexcast_test(), flexcast_wait() and flexcast_progress() move operations on; what the card does
 *   (receiving, copying, sending) needs no call.
 * - Structures begin with their size, or are given with it: a program goes on working with libraries that know more
 *   fields.
 * - A request of flexcast_post(), and of flexcast_allgather() and the others, is freed by the flexcast_wait() or
 *   flexcast_test() that reports its end. One of flexcast_prepare() stays until flexcast_request_free().
 * - After fork() the library is the parent's: the child gets FLEXCAST_ERROR_FORKED from every function that returns
 *   a status, at once, and can neither use nor disturb what the parent has. A process that forks before its first
 *   endpoint or bootstrap may use it in the child.
 * - Free in the order requests, communicators, bootstrap and endpoint; another order is refused where it matters.
 */";

/// Functions in C, which fill a structure and post it: the library exports one function for that.
const INLINE: &str = "host/capi/src/inline.h";

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
        new_file::write(&path, generate()?).with_context(|| format!("writing {PATH}"))?;
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
    let inline =
        std::fs::read_to_string(workspace::root().join(INLINE)).with_context(|| format!("reading {INLINE}"))?;
    let text = declarations()?;
    // Within the guard, and after what is C for C++, too.
    let (declared, end) = text.rsplit_once("\n#endif").context("cbindgen wrote no include guard")?;
    Ok(format!("{declared}{inline}\n#endif{end}"))
}

/// Types, constants and functions of the library.
fn declarations() -> Result<String> {
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
        sys_includes: ["stddef.h", "stdint.h", "string.h"].map(str::to_owned).to_vec(),
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

    /// The text without comments.
    fn without_comments(header: &str) -> String {
        let mut text = String::new();
        let mut rest = header;
        while let Some((before, comment)) = rest.split_once("/*") {
            text.push_str(before);
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
        }
        text + rest
    }

    #[test]
    fn everything_is_declared_once_with_its_comment() {
        let header = declarations().expect("a header");
        let code = without_comments(&header);
        let mut names: Vec<&str> =
            code.lines().filter_map(|line| line.strip_prefix("#define ")?.split(' ').next()).collect();
        // Functions, types at their end and members of the enumeration.
        names.extend(code.match_indices("flexcast_").filter_map(|(at, _)| {
            let name = code[at..].split(|c: char| !c.is_ascii_alphanumeric() && c != '_').next()?;
            let (before, after) = (&code[..at], &code[at + name.len()..]);
            let named = !before.ends_with(['(', ',']) && (after.starts_with('(') || after.starts_with(";\n"));
            named.then_some(name)
        }));
        names.extend(
            code.lines()
                .filter_map(|line| line.trim_start().strip_suffix(',')?.split_once(" = ").map(|(name, _)| name)),
        );
        names.retain(|name| name.to_ascii_lowercase().starts_with("flexcast_"));
        assert!(names.len() > 80, "{} found: is the header still read right?", names.len());
        let twice = |items: &[&str]| {
            let mut sorted = items.to_vec();
            sorted.sort_unstable();
            sorted.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0].to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(twice(&names), [""; 0], "declared twice");
        // At the margin: of functions, types and constants. Fields of different structures may be the same thing.
        let comments: Vec<&str> =
            header.split("\n/**\n").skip(1).filter_map(|rest| Some(rest.split_once("\n */")?.0)).collect();
        assert!(comments.len() > 50, "{}", comments.len());
        assert_eq!(twice(&comments), [""; 0], "said twice");
    }

    #[test]
    fn every_exported_function_is_declared() {
        let header = declarations().expect("a header");
        let exports =
            std::fs::read_to_string(workspace::root().join("host/capi/link.map")).expect("the list of exports");
        let mut found = 0;
        for entry in std::fs::read_dir(workspace::root().join("host/capi/src")).expect("the folder") {
            let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a source");
            for (_, rest) in text.match_indices("extern \"C\" fn flexcast_").map(|(at, _)| text[at..].split_at(14)) {
                let name = rest.split('(').next().expect("a name");
                assert_eq!(without_comments(&header).matches(&format!("{name}(")).count(), 1, "declarations of {name}");
                assert_eq!(exports.matches(&format!("        {name};\n")).count(), 1, "{name} in host/capi/link.map");
                found += 1;
            }
        }
        assert!(found > 20, "{found}");
        assert_eq!(exports.matches("        flexcast_").count(), found, "host/capi/link.map exports what is not there");
    }

    #[test]
    fn every_operation_has_an_inline_function_with_a_comment() {
        let header = generate().expect("a header");
        let operations = header.lines().filter_map(|line| line.strip_prefix("#define FLEXCAST_OPERATION_"));
        let names: Vec<String> =
            operations.filter_map(|rest| Some(rest.split_once(' ')?.0.to_ascii_lowercase())).collect();
        assert_eq!(names.len(), 15, "{names:?}");
        for name in names {
            let upper = name.to_ascii_uppercase();
            let function = format!("*/\nstatic inline flexcast_status flexcast_{name}(flexcast_comm *comm,");
            let (_, rest) = header.split_once(&function).unwrap_or_else(|| panic!("no flexcast_{name} with a comment"));
            let (body, _) = rest.split_once("\n}").expect("an end");
            assert!(body.contains(&format!("flexcast_collective_of(FLEXCAST_OPERATION_{upper});")), "{name}:{body}");
            assert!(body.ends_with("return flexcast_post(comm, &collective, request);"), "{name}:{body}");
        }
    }
}
