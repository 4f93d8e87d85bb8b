//! Messages of service processes as bytes: there and back, pinned, each malformed one refused, lists put together
//! within bounds.

mod format;
mod greeting;
mod groups;
mod lists;
mod samples;
