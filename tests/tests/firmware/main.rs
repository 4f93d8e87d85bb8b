//! Device images on emulated cards: results, instruction counts, emulated rates, faults.

mod allgather_image;
mod bad_images;
mod broken_firmware;
mod calibration;
mod core_dump;
mod datapath_rates;
mod device_faults;
mod executors;
mod firmware_guide;
mod golden;
mod llc;
mod panics;
mod progress_thread;
/// Of the guide: its host program finds this module at the root of a crate.
#[path = "../../guide/shared.rs"]
mod shared;
mod weak_memory;
