//! Memory: registrations that are kept, and owners of what borrows.

pub mod registration;
