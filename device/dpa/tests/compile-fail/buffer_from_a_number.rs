//! A load from anywhere.
extern "C" fn tell(number: u64) -> u64 {
    number
}

pub fn load() -> u64 {
    dpa::entry::unpack(0x4141_0000, tell) //~ E0133
}
