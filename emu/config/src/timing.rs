//! Timing model of a machine, by name, and changes of its numbers.

use std::path::{Path, PathBuf};

use emu_machine::CostModel;
use emu_machine::timing::{Parameters, ParametersError};
use serde::{Deserialize, Serialize};

/// `[timing]`: the timing model of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timing {
    /// [`CostModel::NAME`] (also `None`), `m2`, or a file of parameters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Numbers of the model that are different: `group.name=value`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub set: Vec<String>,
}

/// A timing model that there is not.
#[derive(Debug, thiserror::Error)]
pub enum TimingError {
    /// No name of a model.
    #[error("model {0}: the models are {simple} and m2, or a file of parameters (.toml)", simple = CostModel::NAME)]
    Unknown(String),
    /// Its file cannot be read.
    #[error("model `{}` cannot be read", path.display())]
    File {
        /// Where it should be.
        path: PathBuf,
        /// Why not.
        source: std::io::Error,
    },
    /// Its numbers cannot be.
    #[error("model {model}: {source}")]
    Parameters {
        /// The model.
        model: String,
        /// Why not.
        source: ParametersError,
    },
    /// A change of nothing.
    #[error(
        "set {0}: it changes a timing model's number: name the model, such as m2, and write GROUP.NAME=VALUE, such as \
         loads.l3_cycles=115"
    )]
    Change(String),
    /// A change of a number that the model does not have.
    #[error("set {change}: model {model} has no number {group}.{name}; {known}")]
    NoNumber {
        /// What was given.
        change: String,
        /// The model.
        model: String,
        /// Group that was given.
        group: String,
        /// Name that was given.
        name: String,
        /// Groups, or names of the group.
        known: String,
    },
    /// A change to what is no number of a model.
    #[error("set {change}: {value:?} is no whole number from 0 to {most}; model {model} has {has}", most = u64::MAX)]
    Value {
        /// What was given.
        change: String,
        /// Its value.
        value: String,
        /// The model.
        model: String,
        /// What the model has in its place.
        has: u64,
    },
}

impl Timing {
    /// A model without changes.
    #[must_use]
    pub fn of(model: impl Into<String>) -> Self {
        Self { model: Some(model.into()), set: Vec::new() }
    }

    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The model's numbers; `None` for the simple cost model.
    ///
    /// # Errors
    /// [`TimingError`] for the first thing that cannot be.
    pub fn parameters(&self) -> Result<Option<Parameters>, TimingError> {
        let refused = |source| {
            let model = self.model.clone().unwrap_or_default();
            TimingError::Parameters { model, source }
        };
        let mut parameters = match self.model.as_deref() {
            None | Some(CostModel::NAME) => match self.set.first() {
                None => return Ok(None),
                Some(change) => return Err(TimingError::Change(change.clone())),
            },
            Some("m2") => Parameters::m2(),
            Some(name) if name.ends_with(".toml") || Path::new(name).is_file() => {
                let path = PathBuf::from(name);
                let text = flexcast_files::text(&path, flexcast_files::CONFIGURATION)
                    .map_err(|source| TimingError::File { path: path.clone(), source })?;
                Parameters::parse(&text).map_err(refused)?
            }
            Some(name) => return Err(TimingError::Unknown(name.to_owned())),
        };
        for change in &self.set {
            let parts = change.split_once('=').and_then(|(place, value)| {
                let (group, name) = place.trim().split_once('.')?;
                Some((group, name, value.trim()))
            });
            let (group, name, value) = parts.ok_or_else(|| TimingError::Change(change.clone()))?;
            let Some(old) = parameters.get(group, name) else {
                return Err(no_number(change, &parameters, group, name));
            };
            let number = value.parse().map_err(|_| TimingError::Value {
                change: change.clone(),
                value: value.to_owned(),
                model: parameters.name.clone(),
                has: old.value,
            })?;
            parameters = parameters.with(group, name, number).map_err(refused)?;
        }
        Ok(Some(parameters))
    }
}

fn no_number(change: &str, parameters: &Parameters, group: &str, name: &str) -> TimingError {
    fn listed<'n>(names: impl Iterator<Item = &'n String>) -> String {
        names.map(String::as_str).collect::<Vec<_>>().join(", ")
    }
    let known = match parameters.groups.get(group) {
        Some(names) => format!("its group {group} has {}", listed(names.keys())),
        None => format!("its groups are {}", listed(parameters.groups.keys())),
    };
    TimingError::NoNumber {
        change: change.to_owned(),
        model: parameters.name.clone(),
        group: group.to_owned(),
        name: name.to_owned(),
        known,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(model: Option<&str>, changes: &[&str]) -> Timing {
        Timing { model: model.map(str::to_owned), set: changes.iter().map(|change| (*change).to_owned()).collect() }
    }

    #[test]
    fn models_are_named_changed_and_refused() {
        assert_eq!(asked(None, &[]).parameters().unwrap(), None);
        assert_eq!(asked(Some("uncalibrated-1"), &[]).parameters().unwrap(), None);
        let m2 = asked(Some("m2"), &[]).parameters().unwrap().unwrap();
        assert_eq!(m2, Parameters::m2());
        let swept =
            asked(Some("m2"), &["loads.l3_cycles=115", "order.fence_cycles = 0"]).parameters().unwrap().unwrap();
        assert_eq!(swept.name, format!("{} with loads.l3_cycles = 115 with order.fence_cycles = 0", m2.name));
        let refused = |asked: Timing| asked.parameters().unwrap_err().to_string();
        assert!(refused(asked(Some("m9"), &[])).contains("the models are uncalibrated-1 and m2"));
        assert!(refused(asked(Some("no/such.toml"), &[])).contains("cannot be read"));
        assert!(refused(asked(None, &["a.b=1"])).contains("such as m2"));
        for change in ["l3=115", "loads.l3_cycles"] {
            assert!(refused(asked(Some("m2"), &[change])).contains(change));
        }
        for value in ["-1", "many", "1.5", "18446744073709551616"] {
            let text = refused(asked(Some("m2"), &[&format!("loads.l3_cycles={value}")]));
            assert!(text.contains(&format!("{value:?} is no whole number from 0 to 18446744073709551615")), "{text}");
            assert!(text.contains(&format!("set loads.l3_cycles={value}")) && text.contains("M.2 has 128"), "{text}");
        }
        let text = refused(asked(Some("m2"), &["loads.l4_cycles=1"]));
        assert!(text.contains("has no number loads.l4_cycles") && text.contains("l3_cycles"), "{text}");
        let text = refused(asked(Some("m2"), &["nosuch.x=1"]));
        assert!(text.contains("has no number nosuch.x; its groups are") && text.contains("loads"), "{text}");
    }
}
