//! State of a card's data-path accelerator: processes, their memory and their threads.

pub(crate) mod command_queue;
pub(crate) mod crash;
pub(crate) mod heap;
pub(crate) mod images;
pub mod layout;
pub(crate) mod memory;
pub(crate) mod process;
pub(crate) mod regions;
pub(crate) mod statistics;
pub(crate) mod thread;
