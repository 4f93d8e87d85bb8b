//! Builds small ELF files byte by byte, so that each field can be broken on its own. For tests, here and in the crates
//! that load images (feature `testing`).
#![allow(missing_docs)]

/// One section of a test image; all loaded sections go into one segment per kind.
#[derive(Clone)]
pub struct TestSection {
    pub name: &'static str,
    pub kind: u32,
    pub flags: u64,
    pub addr: u64,
    pub bytes: Vec<u8>,
    pub link: u32,
    pub entry_size: u64,
}

/// (name, address, size, type, section index; section 0 is undefined)
pub type TestSymbol = (&'static str, u64, u64, u8, u16);

#[derive(Clone)]
pub struct TestElf {
    pub flags: u32,
    pub sections: Vec<TestSection>,
    /// (address, memory size, p_flags, section index that holds the bytes)
    pub segments: Vec<(u64, u64, u32, usize)>,
    pub symbols: Vec<TestSymbol>,
}

pub const TEXT: u64 = 0x4000_0000;
pub const RODATA: u64 = 0x4000_1000;
pub const FUNC: u8 = 2;

pub fn note(version: u32, min_version: u32, hash: u64) -> Vec<u8> {
    let mut bytes = b"FLXCAST\0".to_vec();
    bytes.extend(version.to_le_bytes());
    bytes.extend(min_version.to_le_bytes());
    bytes.extend(hash.to_le_bytes());
    bytes
}

pub fn record(func: u64, unpack: u64, name: u64, name_len: u32, kind: u32, hash: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(func.to_le_bytes());
    bytes.extend(unpack.to_le_bytes());
    bytes.extend(name.to_le_bytes());
    bytes.extend(name_len.to_le_bytes());
    bytes.extend(kind.to_le_bytes());
    bytes.extend(hash.to_le_bytes());
    bytes
}

pub fn attributes(arch: &str) -> Vec<u8> {
    let mut tags = vec![5_u8];
    tags.extend(arch.as_bytes());
    tags.push(0);
    let file_len = 5 + tags.len() as u32;
    let mut bytes = vec![b'A'];
    bytes.extend((4 + 6 + file_len).to_le_bytes());
    bytes.extend(b"riscv\0");
    bytes.push(1);
    bytes.extend(file_len.to_le_bytes());
    bytes.extend(tags);
    bytes
}

impl TestElf {
    /// `handler` (event) and `ping` (RPC, with unpack function) over the given instructions: each function has its own
    /// code; names lie in `.rodata`.
    pub fn image(functions: &[(&'static str, &[u32])]) -> Self {
        let mut text = Vec::new();
        let mut symbols = Vec::new();
        for (name, code) in functions {
            let addr = TEXT + text.len() as u64;
            for word in *code {
                // The low two bits give the length, as in the instruction set itself.
                if word & 3 == 3 {
                    text.extend(word.to_le_bytes());
                } else {
                    text.extend((*word as u16).to_le_bytes());
                }
            }
            symbols.push((*name, addr, TEXT + text.len() as u64 - addr, FUNC, 1));
        }
        let mut rodata = b"handlerping\0".to_vec();
        rodata.resize(0x40, 0);
        let addr_of = |name: &str| symbols.iter().find(|s| s.0 == name).map_or(TEXT, |s| s.1);
        let mut table = record(addr_of("handler"), 0, RODATA, 7, 1, 7);
        table.extend(record(addr_of("ping"), addr_of("ping__unpack"), RODATA + 7, 4, 2, 9));
        let text_len = text.len() as u64;
        let sections = vec![
            section(".text", 1, 6, TEXT, text),
            section(".rodata", 1, 2, RODATA, rodata),
            section(".flexcast.entries", 1, 2, 0x4000_2000, table),
            section(".note.flexcast", 1, 2, 0x4000_3000, note(3, 2, 0xabcd)),
            section(".riscv.attributes", 0x7000_0003, 0, 0, attributes("rv64i2p1_m2p0_a2p1_c2p0_zbb1p0_zbs1p0")),
        ];
        let segments =
            vec![(TEXT, text_len, 5, 0), (RODATA, 0x40, 4, 1), (0x4000_2000, 80, 4, 2), (0x4000_3000, 24, 4, 3)];
        Self { flags: 1, sections, segments, symbols }
    }

    pub fn section_mut(&mut self, name: &str) -> &mut TestSection {
        self.sections.iter_mut().find(|section| section.name == name).expect("section of the test image")
    }

    pub fn bytes(&self) -> Vec<u8> {
        let mut sections = self.sections.clone();
        let strtab_index = sections.len() as u32 + 2;
        let mut strings = vec![0_u8];
        let mut symtab = vec![0_u8; 24];
        for (name, addr, size, kind, shndx) in &self.symbols {
            symtab.extend((strings.len() as u32).to_le_bytes());
            symtab.extend([0x10 | kind, 0]);
            symtab.extend(shndx.to_le_bytes());
            symtab.extend(addr.to_le_bytes());
            symtab.extend(size.to_le_bytes());
            strings.extend(name.as_bytes());
            strings.push(0);
        }
        if !self.symbols.is_empty() {
            let mut table = section(".symtab", 2, 0, 0, symtab);
            table.link = strtab_index;
            table.entry_size = 24;
            sections.push(table);
            sections.push(section(".strtab", 3, 0, 0, strings));
        }
        let mut names = vec![0_u8];
        let mut name_offsets = Vec::new();
        sections.push(section(".shstrtab", 3, 0, 0, Vec::new()));
        for section in &sections {
            name_offsets.push(names.len() as u32);
            names.extend(section.name.as_bytes());
            names.push(0);
        }
        sections.last_mut().expect("just pushed").bytes = names;

        let mut file = vec![0_u8; 64 + 56 * self.segments.len()];
        let mut offsets = Vec::new();
        for section in &sections {
            file.resize(file.len().next_multiple_of(8), 0);
            offsets.push(file.len() as u64);
            if section.kind != 8 {
                file.extend(&section.bytes);
            }
        }
        file.resize(file.len().next_multiple_of(8), 0);
        let section_table = file.len() as u64;
        file.extend([0; 64]);
        for ((section, name), offset) in sections.iter().zip(name_offsets).zip(&offsets) {
            file.extend(name.to_le_bytes());
            file.extend(section.kind.to_le_bytes());
            for word in [section.flags, section.addr, *offset, section.bytes.len() as u64] {
                file.extend(word.to_le_bytes());
            }
            file.extend(section.link.to_le_bytes());
            file.extend(1_u32.to_le_bytes());
            file.extend(8_u64.to_le_bytes());
            file.extend(section.entry_size.to_le_bytes());
        }
        let mut header = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        header.extend([2_u16, 243].iter().flat_map(|v| v.to_le_bytes()));
        header.extend(1_u32.to_le_bytes());
        header.extend([TEXT, 64, section_table].iter().flat_map(|v| v.to_le_bytes()));
        header.extend(self.flags.to_le_bytes());
        let shnum = sections.len() as u16 + 1;
        header.extend([64, 56, self.segments.len() as u16, 64, shnum, shnum - 1].iter().flat_map(|v| v.to_le_bytes()));
        file[..64].copy_from_slice(&header);
        for (index, (addr, mem_size, flags, section)) in self.segments.iter().enumerate() {
            let mut program = Vec::new();
            program.extend(1_u32.to_le_bytes());
            program.extend(flags.to_le_bytes());
            for word in [offsets[*section], *addr, *addr, self.sections[*section].bytes.len() as u64, *mem_size, 8] {
                program.extend(word.to_le_bytes());
            }
            file[64 + 56 * index..][..56].copy_from_slice(&program);
        }
        file
    }
}

pub fn section(name: &'static str, kind: u32, flags: u64, addr: u64, bytes: Vec<u8>) -> TestSection {
    TestSection { name, kind, flags, addr, bytes, link: 0, entry_size: 0 }
}
