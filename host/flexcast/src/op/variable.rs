//! Environment variables with a value of a type.

use crate::error::{Error, Result};

/// The value of a variable, if it is set and not empty.
pub(crate) fn variable<T: std::str::FromStr>(name: &'static str, limit: &'static str) -> Result<Option<T>> {
    match std::env::var(name) {
        Ok(value) if !value.is_empty() => match value.parse() {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(Error::Variable { name, value, limit: limit.into() }),
        },
        Err(std::env::VarError::NotUnicode(value)) => {
            Err(Error::Variable { name, value: value.to_string_lossy().into_owned(), limit: limit.into() })
        }
        _ => Ok(None),
    }
}
