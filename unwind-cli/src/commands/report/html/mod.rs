//! A page for a browser, of one file: the profile as JSON, and a program that draws it.
//!
//! The program is written here since no crate has one. It needs no network, and the page
//! forbids it any. Names from outside are in the JSON alone, in which no `<` can end it, and
//! the program shows them as text.

pub(crate) mod difference;

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::commands::record::ledger::Ledger;
use crate::commands::report::View;
use crate::commands::report::found_by::FoundBy;
use crate::commands::report::html::difference::Difference;
use crate::commands::report::profile::{Frame, FrameKind};
use crate::commands::report::source_lines::SourceLines;
use crate::commands::report::time_line::Thread;

const STYLE: &str = include_str!("page.css");
const BODY: &str = include_str!("page.html");
const SCRIPTS: [&str; 6] = [
    include_str!("data.js"),
    include_str!("flame.js"),
    include_str!("lists.js"),
    include_str!("lines.js"),
    include_str!("difference.js"),
    include_str!("page.js"),
];

/// The version of the JSON: it rises when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

#[derive(Serialize)]
struct Page<'v, N, C> {
    schema: u32,
    program: &'static str,
    title: &'v str,
    summary: String,
    notes: String,
    ledger: &'v Ledger,
    found: Vec<Found>,
    frames: Vec<FrameOfPage<'v>>,
    nodes: N,
    time: Time,
    threads: Seq<std::slice::Iter<'v, Thread>>,
    cells: C,
    lines: Lines<'v>,
    /// What a page of two recordings has more.
    #[serde(skip_serializing_if = "Option::is_none")]
    difference: Option<Difference<'v>>,
}

/// The lines of the source at which functions were sampled themselves.
#[derive(Default, Serialize)]
struct Lines<'v> {
    sources: Vec<SourceOfPage<'v>>,
    /// The frame, the source, the line, the samples, what was inlined there.
    rows: Vec<(usize, usize, u32, u64, &'v str)>,
    /// Samples of functions whose line is not known.
    without: u64,
}

#[derive(Serialize)]
struct SourceOfPage<'v> {
    path: &'v str,
    newer: bool,
    text: Vec<(u32, &'v str)>,
}

impl<'v> Lines<'v> {
    fn new(lines: &'v SourceLines) -> Self {
        let sources = lines.sources.iter().map(|source| SourceOfPage {
            path: &source.path,
            newer: source.is_newer,
            text: source.text.iter().map(|(&line, text)| (line, text.as_str())).collect(),
        });
        let rows = lines
            .lines
            .iter()
            .map(|row| (row.frame, row.source, row.line, row.count, row.inlined.as_str()));
        Self { sources: sources.collect(), rows: rows.collect(), without: lines.without_line }
    }
}

/// A way in which frames are found.
#[derive(Serialize)]
struct Found {
    word: &'static str,
    label: &'static str,
    /// How many frames of all samples were found so.
    frames: u64,
}

/// The name, the file or nothing, and whether it is a function.
#[derive(Serialize)]
struct FrameOfPage<'v>(&'v str, &'v str, u8);

impl<'v> FrameOfPage<'v> {
    fn new(frame: &'v Frame) -> Self {
        let is_function = u8::from(frame.kind != FrameKind::Note);
        Self(&frame.name, frame.file.as_deref().unwrap_or_default(), is_function)
    }
}

/// All times in nanoseconds.
#[derive(Serialize)]
struct Time {
    start: u64,
    width: u64,
    spans: u64,
    left_out: u64,
}

impl Serialize for Thread {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.process, self.thread, &self.name).serialize(serializer)
    }
}

/// What can be gone through again and again, as a list.
struct Seq<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for Seq<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

/// JSON in which nothing is markup: `<` is in its strings only, where it can be escaped.
struct WithoutMarkup<'w, W>(&'w mut W);

impl<W: Write> Write for WithoutMarkup<'_, W> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut parts = buf.split(|&byte| byte == b'<');
        self.0.write_all(parts.next().unwrap_or_default())?;
        for part in parts {
            self.0.write_all(b"\\u003c")?;
            self.0.write_all(part)?;
        }
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// What a policy calls a script or a style of the page.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

/// Writes a page with this data.
fn write_page(out: &mut impl Write, page: &impl Serialize) -> io::Result<()> {
    let script = SCRIPTS.concat();
    writeln!(
        out,
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         script-src {}; style-src {}; base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>unwind report</title>\n<style>{STYLE}</style>\n</head>\n{BODY}",
        hash(&script),
        hash(STYLE)
    )?;
    write!(out, "<script type=\"application/json\" id=\"data\">")?;
    serde_json::to_writer(WithoutMarkup(out), page)?;
    writeln!(out, "</script>\n<script>{script}</script>\n</body>\n</html>")
}

/// A column of the nodes, or of the cells.
macro_rules! column {
    ($rows:expr, $of:expr) => {
        Seq($rows.iter().map($of))
    };
}

/// Writes the page of a recording.
///
/// # Errors
///
/// Those of `out`.
pub(crate) fn write(out: &mut impl Write, view: &View<'_>) -> io::Result<()> {
    let View { title, profile, time_line, ledger, lines, .. } = *view;
    let mut by_kind = [0_u64; FoundBy::ALL.len()];
    for node in &profile.nodes {
        for (sum, &count) in by_kind.iter_mut().zip(node.found.counts()) {
            *sum = sum.saturating_add(count.into());
        }
    }
    let found = FoundBy::ALL.into_iter().zip(by_kind).map(|(found, frames)| {
        let (word, label) = found.words();
        Found { word, label, frames }
    });
    let frames = profile.frames.iter().map(FrameOfPage::new);
    let (nodes, cells) = (&profile.nodes, time_line.cells());
    let page = Page {
        schema: SCHEMA,
        program: concat!("unwind ", env!("CARGO_PKG_VERSION")),
        title,
        summary: ledger.summary(),
        notes: view.notes(),
        ledger,
        found: found.collect(),
        frames: frames.collect(),
        nodes: (
            column!(nodes, |node| node.frame),
            // A root is its own caller.
            Seq(nodes.iter().enumerate().map(|(at, node)| node.caller.unwrap_or(at))),
            column!(nodes, |node| node.own),
            column!(nodes, |node| node.found.shown()),
        ),
        time: Time {
            start: time_line.start(),
            width: time_line.width,
            spans: time_line.spans(),
            left_out: time_line.left_out,
        },
        threads: Seq(time_line.threads.iter()),
        cells: (
            column!(cells, |(cell, _)| cell.thread),
            column!(cells, |(cell, _)| cell.span),
            column!(cells, |(cell, _)| cell.node),
            column!(cells, |(_, count)| *count),
        ),
        lines: Lines::new(lines),
        difference: None,
    };
    write_page(out, &page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c9_json_in_a_page_cannot_end_its_element() {
        let mut out = Vec::new();
        let name = "</script><!--<script>";
        serde_json::to_writer(WithoutMarkup(&mut out), &[name, "a<"]).unwrap();
        assert!(!out.contains(&b'<'));
        let back: Vec<String> = serde_json::from_slice(&out).unwrap();
        assert_eq!(back, [name, "a<"]);
    }

    #[test]
    fn c9_the_page_itself_has_no_code_in_attributes_and_reaches_for_nothing() {
        let script = SCRIPTS.concat();
        for part in [BODY, STYLE, &script] {
            for word in ["innerHTML", "outerHTML", "insertAdjacent", "document.write", "eval("] {
                assert!(!part.contains(word), "{word}");
            }
            assert!(!part.contains("http") && !part.contains("url(") && !part.contains("<script"));
        }
        assert!(!BODY.contains(" on") && !BODY.contains("style="));
        assert!(!script.contains("</") && !STYLE.contains("</"));
        let known = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='";
        assert_eq!(hash(""), known);
    }
}
