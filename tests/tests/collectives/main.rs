//! Collectives of the library on emulated cards.

mod between_pairs;
mod blocks_and_chains;
mod choice;
mod communicator;
mod communicator_threads;
mod drawn;
mod eager;
mod error_texts;
mod exchange;
mod mechanisms;
mod own_block;
mod p2p;
mod side_by_side;
mod traffic;
mod verbs;
mod zero_copy;
