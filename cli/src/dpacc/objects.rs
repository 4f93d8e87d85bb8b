//! Objects of sources of the DPA's side: each has a record of the entries in it, from which the call that links makes
//! the stubs. Records are JSON, each with a zero byte behind it, in a section that is no part of the image. Objects
//! that a linker has joined (`ld -r`) have the records of all.

use std::path::Path;

use anyhow::{Context as _, bail};
use object::{Object as _, ObjectSection as _};
use serde::{Deserialize, Serialize};

use super::entries::Entry;
use super::stubs::quoted;

/// The section of records; the linker script names it, too.
const SECTION: &str = ".flexcast.entries";

/// What is known of a source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Unit {
    /// It calls the device library of DOCA DPA.
    pub(super) uses_doca: bool,
    pub(super) entries: Vec<Entry>,
}

/// Text of C that puts the record of a source into its object.
pub(super) fn record(unit: &Unit) -> anyhow::Result<String> {
    let json = serde_json::to_string(unit).context("the record of entries")?;
    Ok(format!(
        "\n__asm__(\".pushsection {SECTION},\\\"\\\",@progbits\\n.asciz \\\"{}\\\"\\n.popsection\");\n",
        quoted(&quoted(&json))
    ))
}

/// Records of an object; none of one that another compiler made.
///
/// # Errors
/// It cannot be read, is no object for the DPA, or has a record of another release.
pub(super) fn units(path: &Path) -> anyhow::Result<Vec<Unit>> {
    let bytes = std::fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    let file = object::File::parse(&*bytes).ok().filter(|file| {
        file.kind() == object::ObjectKind::Relocatable && file.architecture() == object::Architecture::Riscv64
    });
    let Some(file) = file else {
        bail!("{}: it is no object for the DPA (RISC-V, 64 bits): make it by `dpacc -c`", path.display());
    };
    let Some(section) = file.section_by_name(SECTION) else { return Ok(Vec::new()) };
    let context = || format!("{}: its record of entries cannot be read: compile it again", path.display());
    let records = section.data().with_context(context)?.split(|byte| *byte == 0).filter(|record| !record.is_empty());
    records.map(|record| serde_json::from_slice(record).with_context(context)).collect()
}
