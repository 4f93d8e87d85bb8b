//! Sequences of calls of verbs and FlexIO: see [`flexcast_fuzz::api`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(api);
