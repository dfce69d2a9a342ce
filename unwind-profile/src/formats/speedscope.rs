//! The format of speedscope: <https://www.speedscope.app/file-format-schema.json>.

use std::io::{self, Write};

use serde::{Serialize, Serializer};

use crate::collected::call_tree::CallTree;
use crate::session::ledger::Ledger;

#[derive(Serialize)]
struct File<'a> {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: &'a str,
    shared: Shared<'a>,
    profiles: [Sampled<'a>; 1],
    /// Not of the format, whose readers leave it out.
    ledger: &'a Ledger,
}

#[derive(Serialize)]
struct Shared<'a> {
    frames: Vec<FrameName<'a>>,
}

#[derive(Serialize)]
struct FrameName<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<&'a str>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Sampled<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    name: &'a str,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    samples: Samples<'a>,
    weights: Weights<'a>,
}

/// The stacks, outermost frame first, each made when it is written.
struct Samples<'a>(&'a CallTree);

impl Serialize for Samples<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.ends().map(|(at, _)| {
            let mut stack: Vec<usize> = self.0.stack(at).map(|(frame, _)| frame).collect();
            stack.reverse();
            stack
        }))
    }
}

struct Weights<'a>(&'a CallTree);

impl Serialize for Weights<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.ends().map(|(_, node)| node.own))
    }
}

/// Writes the file.
pub(crate) fn write(
    out: &mut impl Write,
    profile: &CallTree,
    title: &str,
    ledger: &Ledger,
) -> io::Result<()> {
    let frames = profile.frames.iter();
    let frames =
        frames.map(|frame| FrameName { name: &frame.name, file: frame.file.as_deref() }).collect();
    let sampled = Sampled {
        kind: "sampled",
        name: title,
        unit: "none",
        start_value: 0,
        end_value: profile.samples(),
        samples: Samples(profile),
        weights: Weights(profile),
    };
    let file = File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: concat!("unwind ", env!("CARGO_PKG_VERSION")),
        name: title,
        shared: Shared { frames },
        profiles: [sampled],
        ledger,
    };
    serde_json::to_writer(&mut *out, &file)?;
    writeln!(out)
}
