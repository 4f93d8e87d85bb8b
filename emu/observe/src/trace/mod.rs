//! A recording as a timeline in the Chrome trace-event format, which Perfetto's viewer opens.
//!
//! One process for each card. Its tracks: one for each DPA thread, by the name that the vendor's tools give it, with a
//! span for each activation and marks for its doorbells, RTOS calls and messages; one for each direction of the port
//! and for packets that turn round inside the card; one for each completion queue; one for doorbells of the host.
//! Arrows lead from a packet that leaves to the packet that arrives, to its completion, to the activation which that
//! completion triggered.
//!
//! Times of the format are microseconds; the exact picoseconds are an argument of each event.

mod build;
mod names;

use std::collections::BTreeMap;
use std::io::{self, Write};

use emu_machine::Recording;
use serde::Serialize;
use serde::ser::{SerializeMap as _, Serializer};

/// What an event of the timeline says besides its name and time.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum Args {
    Packet {
        qpn: u32,
        psn: u32,
        bytes: u64,
        #[serde(skip_serializing_if = "Option::is_none")]
        immediate: Option<u32>,
        at_ps: u64,
    },
    Drop {
        qpn: u32,
        psn: u32,
        packet: String,
        at_ps: u64,
    },
    Cqe {
        cqn: u32,
        qpn: u32,
        opcode: u8,
        #[serde(skip_serializing_if = "Option::is_none")]
        syndrome: Option<u8>,
        wqe_counter: u16,
        bytes: u32,
        owner: u8,
        at_ps: u64,
    },
    Event {
        cqn: u32,
        #[serde(skip_serializing_if = "Option::is_none")]
        thread: Option<u32>,
        at_ps: u64,
    },
    Doorbell {
        qpn: u32,
        producer_index: u16,
        at_ps: u64,
    },
    Arm {
        cqn: u32,
        consumer_index: u32,
        at_ps: u64,
    },
    Activation {
        ended: &'static str,
        instructions: u64,
        cycles: u64,
        at_ps: u64,
    },
    Text {
        text: String,
        at_ps: u64,
    },
    At {
        at_ps: u64,
    },
    Name {
        name: String,
    },
    Sort {
        sort_index: u32,
    },
}

/// One event of the format.
#[derive(Clone, Debug)]
struct Event {
    /// `B`, `E`, `i`, `s`, `t`, `f` or `M`.
    phase: char,
    at_ps: u64,
    pid: usize,
    tid: u32,
    category: &'static str,
    name: String,
    /// Id of a flow.
    flow: Option<u64>,
    args: Option<Args>,
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("ph", &self.phase)?;
        if self.phase != 'M' {
            map.serialize_entry("ts", &(self.at_ps as f64 / 1e6))?;
            map.serialize_entry("cat", self.category)?;
        }
        map.serialize_entry("pid", &self.pid)?;
        map.serialize_entry("tid", &self.tid)?;
        if self.phase != 'E' {
            map.serialize_entry("name", &self.name)?;
        }
        match self.phase {
            // A mark belongs to its track.
            'i' => map.serialize_entry("s", "t")?,
            // An arrow ends at the span around its end, not at the next one.
            'f' => map.serialize_entry("bp", "e")?,
            _ => {}
        }
        if let Some(flow) = self.flow {
            map.serialize_entry("id", &flow)?;
        }
        if let Some(args) = &self.args {
            map.serialize_entry("args", args)?;
        }
        map.end()
    }
}

/// A timeline, ready to be written.
#[derive(Debug)]
pub struct Timeline {
    events: Vec<Event>,
    summary: Summary,
    /// Name of the model behind the times.
    model: String,
}

/// What a timeline holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// Events by kind, in words.
    pub counts: BTreeMap<&'static str, u64>,
    /// Records that the limit left out; they are later than all that were kept.
    pub left_out: u64,
    /// Virtual time of the first and the last record, in picoseconds.
    pub first_ps: u64,
    /// See `first_ps`.
    pub last_ps: u64,
}

impl Timeline {
    /// Builds the timeline of a recording. `text` turns a message of the firmware on a card (its process, the bytes)
    /// into something to read.
    #[must_use]
    pub fn new(recording: &Recording, text: &dyn Fn(&[u8]) -> String) -> Self {
        build::timeline(recording, text)
    }

    /// What it holds.
    #[must_use]
    pub fn summary(&self) -> &Summary {
        &self.summary
    }

    /// Writes it as JSON, event by event.
    ///
    /// # Errors
    /// The writer failed.
    pub fn write(&self, writer: impl Write) -> io::Result<()> {
        #[derive(Serialize)]
        #[serde(rename_all = "camelCase")]
        struct File<'a> {
            display_time_unit: &'static str,
            other_data: Other<'a>,
            trace_events: &'a [Event],
        }
        #[derive(Serialize)]
        struct Other<'a> {
            program: &'static str,
            time: &'static str,
            model: &'a str,
            summary: &'a Summary,
        }
        let mut writer = io::BufWriter::new(writer);
        let other = Other { program: "flexcast", time: "emulated", model: &self.model, summary: &self.summary };
        let file = File { display_time_unit: "ns", other_data: other, trace_events: &self.events };
        serde_json::to_writer(&mut writer, &file)?;
        writer.flush()
    }
}
