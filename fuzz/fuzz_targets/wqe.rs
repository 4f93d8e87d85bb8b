//! Arbitrary work queue entries: see [`flexcast_fuzz::wqe`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(wqe);
