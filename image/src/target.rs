//! Processors that images are for, by their ISA attributes, and whether that of a card executes them.

use flexcast_isa::Isa;

use crate::error::OtherCard;
use crate::{Image, ImageError};

/// Extensions by which an image of a generation is known: those that earlier ones lack. The vendor's custom extensions
/// among them are in its compiler's output, whether or not an instruction of theirs is.
const GENERATIONS: [(&str, &[&str]); 2] = [
    ("ConnectX-8 or later", &["zba", "zihintpause", "xblkop", "xcas", "xflush"]),
    ("BlueField-3 or ConnectX-7, linked by the vendor's tools", &["xfenceheap", "xnvcc", "xrpfxp"]),
];

/// One of which nothing more is known.
const ANOTHER: &str = "another processor";

/// The generation that an image is for by the extensions that it needs.
fn generation(missing: &[String]) -> &'static str {
    let known = GENERATIONS.iter().find(|(_, names)| missing.iter().any(|name| names.contains(&name.as_str())));
    known.map_or(ANOTHER, |(generation, _)| generation)
}

impl Image {
    /// Checks that a card's processor executes the extensions that the image's ISA attribute names. An image without
    /// the attribute may be anything.
    ///
    /// # Errors
    /// [`ImageError::OtherCard`]; `card` is what the sentence calls the card.
    pub fn expect_isa(&self, isa: Isa, card: &str) -> Result<(), ImageError> {
        let Some(arch) = self.arch() else { return Ok(()) };
        let other = |generation, missing| {
            let (arch, card) = (arch.to_owned(), card.to_owned());
            ImageError::OtherCard(Box::new(OtherCard { arch, generation, missing, card, isa }))
        };
        let Ok(names) = flexcast_isa::names(arch) else {
            return Err(other(ANOTHER, "a 64-bit base".to_owned()));
        };
        let mut missing: Vec<String> = names.filter(|name| !isa.runs(name)).map(str::to_lowercase).collect();
        missing.dedup();
        if missing.is_empty() { Ok(()) } else { Err(other(generation(&missing), missing.join(", "))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{TestElf, attributes};

    fn refusal(arch: &str) -> Option<String> {
        let mut elf = TestElf::image(&[("handler", &[0x8067])]);
        elf.section_mut(".riscv.attributes").bytes = attributes(arch);
        let image = Image::parse(&elf.bytes()).unwrap();
        image.expect_isa(Isa::BLUEFIELD_3, "the emulated BlueField-3").err().map(|error| error.to_string())
    }

    #[test]
    fn an_image_of_another_card_is_refused_with_both() {
        assert_eq!(refusal("rv64i2p1_m2p0_a2p1_c2p0_zmmul1p0_zbb1p0_zbs1p0_zbp0p93"), None);
        for (arch, parts) in [
            ("rv64i2p0_m2p0_a2p0_c2p0_zba1p0_xflush1p0", ["is for ConnectX-8 or later", "zba, xflush"]),
            ("rv64i2p0_m2p0_a2p0_c2p0_xfenceheap1p0_xnvcc1p0", ["the vendor's tools", "xfenceheap, xnvcc"]),
            ("rv64i2p1_m2p0_f2p2_d2p2", ["is for another processor", "f, d"]),
            ("rv32imac", ["is for another processor", "a 64-bit base"]),
        ] {
            let text = refusal(arch).expect(arch);
            for part in parts.into_iter().chain([arch, "the emulated BlueField-3", "rv64imac"]) {
                assert!(text.contains(part), "{part} is not in {text}");
            }
        }
    }

    #[test]
    fn an_image_without_the_attribute_may_be_anything() {
        let mut elf = TestElf::image(&[("handler", &[0x8067])]);
        elf.sections.retain(|section| section.name != ".riscv.attributes");
        assert_eq!(Image::parse(&elf.bytes()).unwrap().expect_isa(Isa::BLUEFIELD_3, "a card"), Ok(()));
    }
}
