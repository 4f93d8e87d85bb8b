//! doca-sys
