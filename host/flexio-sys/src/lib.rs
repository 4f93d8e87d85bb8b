//! flexio-sys
