//! A page for a browser, of one file: the profile as JSON, and a program that draws it.
//!
//! The program is written here since no crate has one. It needs no network, and the page
//! forbids it any. Names from outside are in the JSON alone, in which no `<` can end it, and
//! the program shows them as text.

pub(crate) mod difference;
mod page;

use std::io::{self, Write};

use crate::commands::report::found_by::FoundBy;
use crate::commands::report::html::page::{
    Found, FrameOfPage, Lines, Page, SCHEMA, Seq, Time, write_page,
};
use crate::commands::report::view::View;

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
