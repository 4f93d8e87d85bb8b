//! Arbitrary frames and packets: see [`flexcast_fuzz::packet`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(packet);
