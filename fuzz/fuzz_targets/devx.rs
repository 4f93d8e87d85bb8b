//! Arbitrary DevX commands: see [`flexcast_fuzz::devx`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(devx);
