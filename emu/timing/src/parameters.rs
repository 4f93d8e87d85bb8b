//! The numbers of a model, as its file has them: value, range, where from.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The file of model M.2.
const M2: &str = include_str!("../models/m2.toml");

/// Where a number is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// Stated in a publication.
    Published,
    /// Read off a published figure, within 3 %.
    Figure,
    /// A statistic of published raw logs.
    Logs,
    /// A constant in the vendor's sample code.
    Sample,
    /// Arithmetic on such numbers.
    Derived,
    /// No source was found.
    Assumed,
    /// Set so that the model gives one published figure.
    Fitted,
}

/// One number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// In the unit that the name gives.
    pub value: u64,
    /// Least and greatest value that a sensitivity sweep tries.
    pub range: [u64; 2],
    /// Where it is from.
    pub origin: Origin,
    /// In words.
    pub source: String,
}

/// All numbers of a model, by group and name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// Name and version, which stand with every figure.
    pub name: String,
    /// Groups of numbers, by name.
    #[serde(flatten)]
    pub groups: BTreeMap<String, BTreeMap<String, Parameter>>,
}

/// A file of parameters that is not one, or a number that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ParametersError {
    /// Not TOML of the right form.
    #[error("not a file of timing parameters: {0}")]
    File(String),
    /// A number that the model needs.
    #[error("parameter {group}.{name} is missing: models/m2.toml lists all")]
    Missing {
        /// Its group.
        group: String,
        /// Its name.
        name: String,
    },
    /// A number that the model does not know.
    #[error("parameter {group}.{name} means nothing to this model: models/m2.toml lists all")]
    Unknown {
        /// Its group.
        group: String,
        /// Its name.
        name: String,
    },
    /// A value or range that cannot be.
    #[error("parameter {group}.{name} is {value}: {limit}")]
    Value {
        /// Its group.
        group: String,
        /// Its name.
        name: String,
        /// What was given.
        value: u64,
        /// What may be given.
        limit: &'static str,
    },
}

impl Parameters {
    /// Model M.2.
    ///
    /// # Panics
    /// Never: a test reads the file.
    #[must_use]
    pub fn m2() -> Self {
        Self::parse(M2).expect("models/m2.toml is a file of parameters")
    }

    /// Reads a file.
    ///
    /// # Errors
    /// It is not one, or a number is missing, unknown or impossible.
    pub fn parse(text: &str) -> Result<Self, ParametersError> {
        let all: Self = toml::from_str(text).map_err(|error| ParametersError::File(error.to_string()))?;
        crate::Model::new(&all)?;
        let known: Self = toml::from_str(M2).map_err(|error| ParametersError::File(error.to_string()))?;
        for (group, name, _) in all.iter() {
            if known.get(group, name).is_none() {
                return Err(ParametersError::Unknown { group: group.to_owned(), name: name.to_owned() });
            }
        }
        Ok(all)
    }

    /// Every number with its group and name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &Parameter)> {
        self.groups.iter().flat_map(|(group, names)| {
            names.iter().map(move |(name, parameter)| (group.as_str(), name.as_str(), parameter))
        })
    }

    /// One number.
    #[must_use]
    pub fn get(&self, group: &str, name: &str) -> Option<&Parameter> {
        self.groups.get(group)?.get(name)
    }

    /// The same model with one number changed. Its name says so.
    ///
    /// # Errors
    /// There is no such number, or it cannot have this value.
    pub fn with(&self, group: &str, name: &str, value: u64) -> Result<Self, ParametersError> {
        let missing = || ParametersError::Missing { group: group.to_owned(), name: name.to_owned() };
        let mut changed = self.clone();
        let parameter = changed.groups.get_mut(group).and_then(|group| group.get_mut(name)).ok_or_else(missing)?;
        if parameter.value != value {
            parameter.value = value;
            changed.name = format!("{} with {group}.{name} = {value}", self.name);
        }
        crate::Model::new(&changed)?;
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_says_where_it_is_from_and_one_is_fitted() {
        let all = Parameters::m2();
        assert_eq!(all.name, "M.2");
        let fitted: Vec<_> = all.iter().filter(|(_, _, number)| number.origin == Origin::Fitted).collect();
        assert_eq!(fitted.len(), 1);
        assert_eq!((fitted[0].0, fitted[0].1), ("instructions", "gap_millicycles"));
        for (group, name, number) in all.iter() {
            let [least, greatest] = number.range;
            let unlimited = group == "lines_per_s" && number.value == 0;
            assert!(unlimited || (least..=greatest).contains(&number.value), "{group}.{name}: {number:?}");
            assert!(number.origin == Origin::Assumed || !number.source.is_empty(), "{group}.{name}");
        }
    }

    #[test]
    fn a_changed_number_shows_in_the_name_and_bad_ones_are_refused() {
        let all = Parameters::m2();
        let swept = all.with("loads", "l3_cycles", 115).unwrap();
        assert_eq!(swept.name, "M.2 with loads.l3_cycles = 115");
        assert_eq!(all.with("loads", "l3_cycles", 128).unwrap(), all);
        let refusal = |result: Result<Parameters, ParametersError>| result.unwrap_err().to_string();
        assert_eq!(
            refusal(all.with("loads", "l4_cycles", 1)),
            "parameter loads.l4_cycles is missing: models/m2.toml lists all"
        );
        assert_eq!(
            refusal(all.with("instructions", "gap_millicycles", 0)),
            "parameter instructions.gap_millicycles is 0: 1000 to 7000 thousandths of a cycle"
        );
        let text = toml::to_string(&all).unwrap();
        assert_eq!(Parameters::parse(&text).unwrap(), all);
        assert!(refusal(Parameters::parse(&text.replace("l3_cycles", "l5_cycles"))).contains("l3_cycles is missing"));
        assert!(
            refusal(Parameters::parse(&format!(
                "{text}\n[loads.new]\nvalue = 1\nrange = [1, 1]\norigin = \"logs\"\nsource = \"\"\n"
            )))
            .contains("loads.new means nothing")
        );
        assert!(refusal(Parameters::parse("name = 7")).starts_with("not a file of timing parameters"));
    }
}
