//! Images, parsed and decoded once for all cards that run them.

use std::sync::{Arc, Weak};

use emu_hart::{Isa, Text};
use flexcast_image::{Image, ImageError};

/// Where the decoded instructions of a process are.
#[derive(Debug)]
pub(crate) enum Code {
    /// Its own: it may store into them.
    Own(Text),
    /// Shared with all processes of the image with this number.
    Shared(usize),
}

/// An image that processes run.
#[derive(Debug)]
struct Known {
    elf: Arc<[u8]>,
    image: Weak<Image>,
    /// There once a process shares it.
    text: Option<Text>,
}

/// Images by number.
///
/// Debug information is most of an image, and hundreds of cards that run the same few instructions find them in the
/// cache of the computer that emulates them only if they are the same in memory.
#[derive(Debug, Default)]
pub(crate) struct Images {
    known: Vec<Known>,
}

impl Images {
    /// The image of an ELF file and its number, parsed unless a process runs it already.
    ///
    /// # Errors
    /// What [`Image::parse`] and [`Image::expect_served`] refuse.
    pub(crate) fn parse(&mut self, elf: &[u8]) -> Result<(usize, Arc<Image>), ImageError> {
        let same =
            |(number, known): (usize, &Known)| Some((number, (*known.elf == *elf).then(|| known.image.upgrade())??));
        if let Some(found) = self.known.iter().enumerate().find_map(same) {
            return Ok(found);
        }
        let image = Arc::new(Image::parse(elf)?);
        image.expect_served()?;
        let known = Known { elf: elf.into(), image: Arc::downgrade(&image), text: None };
        // The number of an image that nobody runs any more.
        if let Some(number) = self.known.iter().position(|known| known.image.strong_count() == 0) {
            self.known[number] = known;
            return Ok((number, image));
        }
        self.known.push(known);
        Ok((self.known.len() - 1, image))
    }

    /// The instructions of an image of which [`ProcessMemory`](crate::dpa::memory::ProcessMemory) has checked where its
    /// segments are.
    pub(crate) fn code(&mut self, number: usize, image: &Image, isa: Isa) -> Code {
        if image.segments().iter().any(|segment| segment.execute && segment.write) {
            return Code::Own(text(image, isa));
        }
        self.known[number].text.get_or_insert_with(|| text(image, isa));
        Code::Shared(number)
    }

    /// The instructions of a process.
    #[inline]
    pub(crate) fn text<'t>(&'t mut self, code: &'t mut Code) -> &'t mut Text {
        match code {
            Code::Own(text) => text,
            Code::Shared(number) => self.known[*number].text.get_or_insert_default(),
        }
    }
}

/// Nothing of it is decoded yet.
fn text(image: &Image, isa: Isa) -> Text {
    let mut text = Text::default().with_isa(isa);
    for segment in image.segments().iter().filter(|segment| segment.execute) {
        text.add(segment.vaddr, segment.mem_size);
    }
    text
}
