//! Parts that the daemons share: a lock file, the log, signals and the service manager, the socket of the status, and
//! metrics over HTTP.
//!
//! Nothing here knows what a daemon does. Its configuration, the fields of its status and its metrics are its own.

pub mod http;
pub mod lock;
pub mod log;
pub mod manager;
pub mod signals;
pub mod status;
