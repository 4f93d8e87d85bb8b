//! Sessions of connections: the handshake, and every way in which an attacker can disturb it.

mod handshake;
mod model;
