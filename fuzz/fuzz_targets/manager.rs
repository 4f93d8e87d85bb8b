//! Messages of connection management: see [`flexcast_fuzz::manager`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(manager);
