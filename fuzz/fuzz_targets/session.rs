//! Handshakes and frames of connections: see [`flexcast_fuzz::session`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(session);
