//! A load from anywhere.
extern "C" fn load_number(number: u64) -> u64 {
    number
}

pub fn load() -> u64 {
    dpa::entry::unpack(0x4141_0000, load_number) //~ E0133
}
