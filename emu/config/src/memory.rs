//! Memory model of a machine, by name.

use std::fmt;

use emu_machine::MemoryModel;
use serde::{Deserialize, Serialize};

/// Name of a [`MemoryModel`]: when stores are seen by others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// At once and in order.
    #[default]
    Strong,
    /// As late and as much out of order as fences allow, by seed: firmware that lacks a fence fails for some seed.
    Weak,
}

impl Memory {
    /// Both, in the order of their declaration.
    pub const ALL: [Self; 2] = [Self::Strong, Self::Weak];

    /// The name in files and options.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Strong => "strong",
            Self::Weak => "weak",
        }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<MemoryModel> for Memory {
    fn from(model: MemoryModel) -> Self {
        match model {
            MemoryModel::Strong => Self::Strong,
            MemoryModel::Weak { .. } => Self::Weak,
        }
    }
}

/// `[memory]`: see [`MemoryModel`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryTable {
    /// The model. Default strong.
    pub model: Memory,
    /// Seed of the choices of weak memory. Default the machine's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

impl MemoryTable {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    pub(crate) fn model(self, seed: u64) -> MemoryModel {
        match self.model {
            Memory::Strong => MemoryModel::Strong,
            Memory::Weak => MemoryModel::weak(self.seed.unwrap_or(seed)),
        }
    }
}

impl From<Memory> for MemoryTable {
    fn from(model: Memory) -> Self {
        Self { model, seed: None }
    }
}
