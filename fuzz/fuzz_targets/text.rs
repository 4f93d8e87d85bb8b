//! Arbitrary text as files that people write: see [`flexcast_fuzz::text`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(text);
