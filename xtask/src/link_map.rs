//! The link map that lld writes: which file each byte of an image comes from.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use flexcast_image::Image;

/// A section of the image, and what it is made of.
#[derive(Debug, PartialEq, Eq)]
struct Output {
    name: String,
    addr: u64,
    size: u64,
    inputs: Vec<Input>,
}

/// A section of an input file.
#[derive(Debug, PartialEq, Eq)]
struct Input {
    file: String,
    code: Range<u64>,
}

/// A link map.
#[derive(Debug)]
pub(crate) struct LinkMap {
    outputs: Vec<Output>,
}

/// What an image got from others than its own object.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Others {
    /// Where it lies in executable sections: ascending, without overlap.
    pub(crate) code: Vec<Range<u64>>,
    /// Loaded sections that hold nothing else.
    pub(crate) sections: Vec<String>,
    /// Names of the files, without folders, members of archives under the archive's name.
    pub(crate) files: BTreeSet<String>,
}

/// Starts a line of an input section; one of a symbol starts with more.
const INPUT_INDENT: usize = 8;

impl LinkMap {
    pub(crate) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// Lines are: address, load address, size (hexadecimal), alignment, and then, further in each time, an output
    /// section, an input section as `FILE:(SECTION)`, a symbol.
    fn parse(text: &str) -> Result<Self> {
        let mut outputs: Vec<Output> = Vec::new();
        for line in text.lines().skip(1) {
            let Some((addr, size, rest)) = columns(line) else { continue };
            let name = rest.trim_start_matches(' ');
            match rest.len() - name.len() {
                // An assignment of the script (`. = ALIGN(8)`) is no section.
                0 if !name.contains('=') => {
                    outputs.push(Output { name: name.to_owned(), addr, size, inputs: Vec::new() });
                }
                INPUT_INDENT => {
                    let Some((file, _)) = name.split_once(":(") else { continue };
                    let output =
                        outputs.last_mut().context("an input section stands before any section of the image")?;
                    output.inputs.push(Input { file: file.to_owned(), code: addr..addr.saturating_add(size) });
                }
                _ => {}
            }
        }
        if outputs.is_empty() {
            bail!("this is no link map of lld; `-Wl,-Map=FILE` writes one");
        }
        Ok(Self { outputs })
    }

    /// What of `image` does not come from the file named `own`.
    ///
    /// What the linker makes by itself (`<internal>`) counts as our own, and so does what stands in no line.
    ///
    /// # Errors
    /// The map is that of another image.
    pub(crate) fn others(&self, image: &Image, own: &str) -> Result<Others> {
        let is_named_own = |file: &str| Path::new(file).file_name().is_some_and(|name| name == own);
        let is_own = |file: &str| file.starts_with('<') || is_named_own(file);
        if !self.outputs.iter().flat_map(|output| &output.inputs).any(|input| is_named_own(&input.file)) {
            bail!("the link map has no {own}: it is that of another image; build again");
        }
        let by_name: BTreeMap<&str, &Output> = self.outputs.iter().map(|o| (o.name.as_str(), o)).collect();
        let mut others = Others::default();
        for section in image.sections().iter().filter(|section| section.alloc && section.size > 0) {
            let of_map = by_name.get(section.name.as_str());
            let Some(output) = of_map.filter(|o| (o.addr, o.size) == (section.addr, section.size)) else {
                let (name, addr, size) = (&section.name, section.addr, section.size);
                let mapped = of_map.map_or("none".to_owned(), |o| format!("{} bytes at {:#x}", o.size, o.addr));
                bail!(
                    "{name} has {size} bytes at {addr:#x}, in the link map {mapped}: that of another image; build again"
                );
            };
            let foreign: Vec<&Input> =
                output.inputs.iter().filter(|input| !input.code.is_empty() && !is_own(&input.file)).collect();
            let own_bytes = output.inputs.iter().filter(|input| !input.code.is_empty() && is_own(&input.file)).count();
            if own_bytes == 0 && !foreign.is_empty() {
                others.sections.push(section.name.clone());
            }
            for input in foreign {
                let archive = input.file.split('(').next().unwrap_or(&input.file);
                let name = Path::new(archive).file_name().unwrap_or_default();
                others.files.insert(name.to_string_lossy().into_owned());
                if section.execute {
                    others.code.push(input.code.clone());
                }
            }
        }
        others.code.sort_by_key(|range| range.start);
        Ok(others)
    }
}

/// Address, size and the rest of a line behind its four columns, with the spaces that the rest begins with.
fn columns(line: &str) -> Option<(u64, u64, &str)> {
    let mut rest = line;
    let mut words = [""; 4];
    for word in &mut words {
        rest = rest.trim_start_matches(' ');
        let end = rest.find(' ')?;
        (*word, rest) = rest.split_at(end);
    }
    let hex = |word: &str| u64::from_str_radix(word, 16).ok();
    words[3].parse::<u64>().ok()?;
    Some((hex(words[0])?, hex(words[2])?, rest.strip_prefix(' ')?))
}

#[cfg(test)]
mod tests {
    use flexcast_image::testing::{TEXT, TestElf};

    use super::*;

    const C_RET: u32 = 0x8082;

    /// 2 bytes of our own code, 4 of the vendor's, a table of the linker's and one of the vendor's.
    const MAP: &str = "\
             VMA              LMA     Size Align Out     In      Symbol
               0                0 40000000     1 . = 0x40000000
        40000000         40000000        6     4 .text
        40000000         40000000        2     2         out/receive.o:(.text.handler)
        40000000         40000000        2     1                 handler
        40000002         40000002        0     1         PROVIDE ( middle = . )
        40000002         40000002        4     2         /opt/mellanox/flexio/lib/libflexio_dev.a(x.o):(.text)
        40000002         40000002        2     1                 ping
        40001000         40001000       40     1 .rodata
        40001000         40001000       40     1         <internal>:(.rodata)
        40002000         40002000       50     1 .flexcast.entries
        40002000         40002000       50     1         out/receive.o:(.flexcast.entries)
        40003000         40003000       18     1 .note.flexcast
        40003000         40003000       18     1         libvendor.a(receive.o):(.note.flexcast)
               0                0       10     1 .comment
               0                0       10     1         <internal>:(.comment)
";

    fn image() -> Image {
        let elf = TestElf::image(&[("handler", &[C_RET]), ("ping", &[C_RET]), ("ping__unpack", &[C_RET])]);
        Image::parse(&elf.bytes()).expect("parses")
    }

    #[test]
    fn what_is_not_of_our_object_is_found_by_file() {
        let map = LinkMap::parse(MAP).expect("a map");
        let others = map.others(&image(), "receive.o").expect("the map of this image");
        let code = TEXT + 2..TEXT + 6;
        assert_eq!(others.code, [code]);
        assert_eq!(others.sections, [".note.flexcast"], "with a member of an archive that is named as our object");
        assert_eq!(Vec::from_iter(others.files), ["libflexio_dev.a", "libvendor.a"]);
    }

    #[test]
    fn the_map_of_another_image_is_refused() {
        let refused =
            |text: &str, own| LinkMap::parse(text).expect("a map").others(&image(), own).expect_err("another");
        let text = refused(MAP, "pingpong.o").to_string();
        assert!(text.contains("no pingpong.o") && text.contains("build again"), "{text}");
        let moved = MAP.replace("40000000        6     4 .text", "40000000        8     4 .text");
        let text = refused(&moved, "receive.o").to_string();
        assert!(text.contains(".text has 6 bytes at 0x40000000, in the link map 8 bytes at 0x40000000"), "{text}");
        let text = refused(&MAP.replace(" .rodata\n", " .data\n"), "receive.o").to_string();
        assert!(text.contains(".rodata has 64 bytes at 0x40001000, in the link map none"), "{text}");
    }

    #[test]
    fn what_is_no_map_is_refused() {
        for text in ["", "VMA LMA Size Align Out In Symbol\n", "Archive member included\n\n.text 0x0 0x10 a.o\n"] {
            let error = LinkMap::parse(text).expect_err("no map").to_string();
            assert!(error.contains("no link map of lld"), "{error}");
        }
        assert!(LinkMap::parse("header\n 0 0 10 1         a.o:(.text)\n").is_err(), "an input without a section");
    }
}
