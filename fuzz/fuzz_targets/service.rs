//! Messages of service processes: see [`flexcast_fuzz::service`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(service);
