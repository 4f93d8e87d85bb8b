//! Arbitrary firmware: see [`flexcast_fuzz::firmware`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(firmware);
