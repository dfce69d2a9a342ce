//! What is in a page: its data, its style and its scripts.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::{Serialize, Serializer};
use sha2::{Digest as _, Sha256};

use crate::collected::call_tree::{Frame, FrameKind};
use crate::collected::source_lines::SourceLines;
use crate::collected::time_line::Thread;
use crate::session::ledger::Ledger;

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

/// The version of the JSON, columns included: it rises when a field changes its meaning or goes.
pub(super) const SCHEMA: u32 = 2;

#[derive(Serialize)]
pub(super) struct Page<'v> {
    pub(super) schema: u32,
    pub(super) program: &'static str,
    pub(super) title: &'v str,
    pub(super) summary: String,
    pub(super) notes: String,
    pub(super) ledger: &'v Ledger,
    pub(super) found: Vec<Found>,
    pub(super) frames: Vec<FrameOfPage<'v>>,
    pub(super) time: Time,
    pub(super) threads: Seq<std::slice::Iter<'v, Thread>>,
    pub(super) lines: Lines<'v>,
    /// What a page of two recordings has more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) difference: Option<Difference<'v>>,
}

/// The lines of the source at which functions were sampled themselves.
#[derive(Default, Serialize)]
pub(super) struct Lines<'v> {
    pub(super) sources: Vec<SourceOfPage<'v>>,
    /// The frame, the source, the line, the samples, what was inlined there.
    pub(super) rows: Vec<(usize, usize, u32, u64, &'v str)>,
    /// Samples of functions whose line is not known.
    pub(super) without: u64,
}

#[derive(Serialize)]
pub(super) struct SourceOfPage<'v> {
    pub(super) path: &'v str,
    pub(super) newer: bool,
    pub(super) text: Vec<(u32, &'v str)>,
}

impl<'v> Lines<'v> {
    pub(super) fn new(lines: &'v SourceLines) -> Self {
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
pub(super) struct Found {
    pub(super) word: &'static str,
    pub(super) label: &'static str,
    /// How many frames of all samples were found so.
    pub(super) frames: u64,
}

/// The name, the file or nothing, and whether it is a function.
#[derive(Serialize)]
pub(super) struct FrameOfPage<'v>(pub(super) &'v str, pub(super) &'v str, pub(super) u8);

impl<'v> FrameOfPage<'v> {
    pub(super) fn new(frame: &'v Frame) -> Self {
        let is_function = u8::from(frame.kind != FrameKind::Note);
        Self(&frame.name, frame.file.as_deref().unwrap_or_default(), is_function)
    }
}

/// All times in nanoseconds.
#[derive(Default, Serialize)]
pub(super) struct Time {
    pub(super) start: u64,
    pub(super) width: u64,
    pub(super) spans: u64,
    pub(super) left_out: u64,
    /// Samples whose stacks are not kept whole by time.
    pub(super) shortened: u64,
    /// Nodes after these stand for the frames that are not kept by time.
    pub(super) whole_nodes: usize,
}

impl Serialize for Thread {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.process, self.thread, &self.name).serialize(serializer)
    }
}

/// What can be gone through again and again, as a list.
pub(super) struct Seq<I>(pub(super) I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for Seq<I> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.0.clone())
    }
}

/// JSON in which nothing is markup: `<` is in its strings only, where it can be escaped.
pub(super) struct WithoutMarkup<'w, W>(pub(super) &'w mut W);

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

/// The program of the page: one function, which may pause.
fn script() -> String {
    format!("\"use strict\";\n(async () => {{\n{}}})();\n", SCRIPTS.concat())
}

/// What a policy calls a script or a style of the page.
fn hash(text: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(text)))
}

/// Writes a page with this data.
pub(super) fn write_page<W: Write>(
    out: &mut W,
    page: &impl Serialize,
    columns: impl FnOnce(&mut W) -> io::Result<()>,
) -> io::Result<()> {
    let script = script();
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
    writeln!(out, "</script>")?;
    columns(out)?;
    writeln!(out, "<script>{script}</script>\n</body>\n</html>")
}

/// How many numbers an element has, so that a browser reads it without a stall.
const COLUMN_PART: usize = 1 << 16;

/// Writes a column of the nodes or of the cells, in elements of their own.
pub(super) fn write_column<T: Serialize>(
    out: &mut impl Write,
    name: &str,
    numbers: impl Iterator<Item = T>,
) -> io::Result<()> {
    let mut numbers = numbers.peekable();
    while numbers.peek().is_some() {
        let part: Vec<T> = numbers.by_ref().take(COLUMN_PART).collect();
        write!(out, "<script type=\"application/json\" data-column=\"{name}\">")?;
        serde_json::to_writer(&mut *out, &part)?;
        writeln!(out, "</script>")?;
    }
    Ok(())
}

/// What stands beside the data of a page of one recording.
#[derive(Serialize)]
pub(super) struct Difference<'s> {
    pub(super) titles: [&'s str; 2],
    /// Samples that end in a function, before and after.
    pub(super) samples: [u64; 2],
    pub(super) ledger_before: &'s Ledger,
    /// Of each node how many samples end there, before.
    pub(super) own_before: Vec<u64>,
    pub(super) functions: Vec<Function>,
}

/// A function: its frame, its samples and those with what it calls, before and after, whether it
/// is above the bound (1 if it takes more, -1 if less), and the bound as a share.
#[derive(Serialize)]
pub(super) struct Function(
    pub(super) usize,
    pub(super) [u64; 2],
    pub(super) [u64; 2],
    pub(super) i8,
    pub(super) Option<f64>,
);

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
        let script = script();
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
