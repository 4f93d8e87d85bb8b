//! flexcast-tests
