//! Network input of a rank without a card: see [`flexcast_fuzz::ethernet`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(ethernet);
