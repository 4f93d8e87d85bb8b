//! Connections of the TCP store: see [`flexcast_fuzz::store`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(store);
