//! Processors that images are for, by their ISA attributes, and whether that of a card executes them.

use flexcast_isa::Isa;

use crate::error::OtherCard;
use crate::{Image, ImageError};

/// Extensions of ConnectX-8 and later processors that BlueField-3 and ConnectX-7 lack.
const LATER: [&str; 5] = ["zba", "zihintpause", "xblkop", "xcas", "xflush"];
/// Custom extensions of all generations, which the vendor's tools name in every image. Their encodings are not
/// published: whether an image needs one shows where it is executed.
const CUSTOM: [&str; 3] = ["xfenceheap", "xnvcc", "xrpfxp"];

/// One of which nothing more is known.
const ANOTHER: &str = "another processor";

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
        let missing: Vec<String> = names.filter(|name| !isa.runs(name)).map(str::to_lowercase).collect();
        let missing: Vec<&str> = missing.iter().map(|name| &**name).filter(|name| !CUSTOM.contains(name)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        let is_later = missing.iter().any(|name| LATER.contains(name));
        Err(other(if is_later { "ConnectX-8 or later" } else { ANOTHER }, missing.join(", ")))
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
        assert_eq!(refusal("rv64i2p0_m2p0_a2p0_c2p0_xfenceheap1p0_xnvcc1p0_xrpfxp1p0"), None, "BlueField-3's own");
        for (arch, parts) in [
            ("rv64i2p0_m2p0_a2p0_c2p0_zba1p0_xflush1p0_xnvcc1p0", ["is for ConnectX-8 or later", "lacks zba, xflush;"]),
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
