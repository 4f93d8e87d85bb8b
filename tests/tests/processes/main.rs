//! Ranks, cards and daemons as processes of this computer.

mod c_service;
mod connections;
mod ethernet;
mod forked;
mod four_processes;
mod lost_ranks;
mod mesh;
mod notices;
mod shared_card;
mod unmodified;
