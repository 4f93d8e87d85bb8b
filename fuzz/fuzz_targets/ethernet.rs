//! What comes from the network to a rank without a card: see [`flexcast_fuzz::ethernet`].
#![cfg_attr(fuzzing, no_main)]

flexcast_fuzz::target!(ethernet);
