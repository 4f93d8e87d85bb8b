//! Rows: what one run, or one evaluation of a closed form, has given. A row has one kind, which all its figures share.

use serde::Serialize;

use crate::figures::short;

/// Where the figures of a row come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Virtual time of emulated cards, under a named model.
    Emulated,
    /// A closed form.
    Computed,
    /// Wall time of real programs.
    Measured,
    /// Printed in a publication, or follows from it by arithmetic that the row's origin gives.
    Published,
}

impl Kind {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Emulated => "emulated",
            Self::Computed => "computed",
            Self::Measured => "measured",
            Self::Published => "published",
        }
    }
}

/// A figure or a word.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum Cell {
    /// A whole number.
    Whole(u64),
    /// Another.
    Number(f64),
    /// A word.
    Word(String),
}

impl Cell {
    /// The number; `None` for a word.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Whole(number) => Some(*number as f64),
            Self::Number(number) => Some(*number),
            Self::Word(_) => None,
        }
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<u32> for Cell {
    fn from(number: u32) -> Self {
        Self::Whole(number.into())
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<&str> for Cell {
    fn from(word: &str) -> Self {
        Self::Word(word.to_owned())
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Whole(number) => write!(f, "{number}"),
            Self::Number(number) => f.write_str(&short(*number)),
            Self::Word(word) => f.write_str(word),
        }
    }
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// Where its figures come from.
    pub kind: Kind,
    /// Model, closed form or publication behind them.
    pub source: String,
    /// Column and value, in order.
    pub cells: Vec<(String, Cell)>,
    /// What the statistics of the row are of, for statistics over several rows; not shown.
    pub samples: Vec<f64>,
}

impl Row {
    /// An empty row.
    #[must_use]
    pub fn new(kind: Kind, source: &str) -> Self {
        Self { kind, source: source.to_owned(), cells: Vec::new(), samples: Vec::new() }
    }

    /// The same with a value more, or another in a column that is there.
    #[must_use]
    pub fn with(mut self, column: &str, cell: impl Into<Cell>) -> Self {
        let cell = cell.into();
        match self.cells.iter_mut().find(|(name, _)| name == column) {
            Some((_, old)) => *old = cell,
            None => self.cells.push((column.to_owned(), cell)),
        }
        self
    }

    /// The value of a column.
    #[must_use]
    pub fn get(&self, column: &str) -> Option<&Cell> {
        self.cells.iter().find(|(name, _)| name == column).map(|(_, cell)| cell)
    }

    /// The value of a column for people: 0 chains are as many as the library takes by itself. Files have the number.
    #[must_use]
    pub fn shown(&self, column: &str) -> Option<String> {
        let cell = self.get(column)?;
        Some(if column == "chains" && cell.number() == Some(0.0) { "automatic".to_owned() } else { cell.to_string() })
    }

    /// The number of a column.
    #[must_use]
    pub fn number(&self, column: &str) -> Option<f64> {
        self.get(column)?.number()
    }

    /// Whether every column of `wanted` has the value that stands there; `kind` is a column, too.
    #[must_use]
    pub fn fits(&self, wanted: &toml::Table) -> bool {
        wanted.iter().all(|(column, value)| match (self.get(column), value) {
            _ if column == "kind" => value.as_str() == Some(self.kind.name()),
            (Some(Cell::Word(word)), toml::Value::String(wanted)) => word == wanted,
            (Some(cell), toml::Value::Integer(wanted)) => cell.number() == Some(*wanted as f64),
            (Some(cell), toml::Value::Float(wanted)) => cell.number() == Some(*wanted),
            _ => false,
        })
    }

    /// As one JSON object: kind, source, then the columns.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        let mut object = serde_json::Map::new();
        object.insert("kind".to_owned(), self.kind.name().into());
        object.insert("source".to_owned(), self.source.as_str().into());
        for (column, cell) in &self.cells {
            object.insert(column.clone(), serde_json::to_value(cell).unwrap_or_default());
        }
        serde_json::Value::Object(object)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_what_they_have() {
        let row = Row::new(Kind::Emulated, "M.2").with("image", "allgather").with("threads", 4u32).with("share", 0.5);
        let fits = |text: &str| row.fits(&text.parse::<toml::Table>().unwrap());
        assert!(fits("") && fits("threads = 4") && fits("image = \"allgather\"\nshare = 0.5"));
        assert!(fits("kind = \"emulated\"") && !fits("kind = \"computed\""));
        assert!(!fits("threads = 5") && !fits("image = 4") && !fits("other = 1") && !fits("threads = \"4\""));
        assert_eq!(row.clone().with("threads", 8u32).number("threads"), Some(8.0));
        assert_eq!(row.json()["kind"], "emulated");
        let shown = |chains: u32| row.clone().with("chains", chains).shown("chains");
        assert_eq!((shown(0).as_deref(), shown(16).as_deref()), (Some("automatic"), Some("16")));
        assert_eq!(
            (row.clone().with("threads", 0u32).shown("threads").as_deref(), row.shown("none")),
            (Some("0"), None)
        );
    }
}
