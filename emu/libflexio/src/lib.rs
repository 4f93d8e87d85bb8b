//! emu-libflexio
