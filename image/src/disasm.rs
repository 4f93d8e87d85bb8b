//! Listings of code, an instruction a line.

use std::fmt::Write as _;

use crate::Image;

/// One line per instruction of `start..end`: address, bytes, text; branch targets carry the name they lie in.
#[must_use]
pub fn listing(image: &Image, start: u64, end: u64) -> String {
    let mut out = String::new();
    for instruction in image.instructions(start, end) {
        let _ = write!(out, "{:8x}: {:<8}  {instruction}", instruction.addr(), instruction.hex().to_string());
        if let Some((symbol, offset)) = instruction.flow().target().and_then(|to| image.symbolize(to)) {
            let _ = write!(out, " <{symbol}+{offset:#x}>");
        }
        out.push('\n');
    }
    out
}
