//! Arbitrary bytes as a device image: see [`flexcast_fuzz::elf`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(elf);
