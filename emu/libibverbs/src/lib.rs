//! emu-libibverbs
