//! emu-libdoca
