//! Compilers, cargo, Python and installed files: programs that others build and run.

mod c_client;
mod c_device;
mod coverage;
mod deploy;
mod installed;
mod mistakes;
mod new_image;
mod outside_program;
mod python;
mod readme;
mod vendor_build;
mod vendor_headers;
