//! A page for a browser, of one file: the profile as JSON, and a program that draws it.
//!
//! The program is written here since no crate has one. It needs no network, and the page
//! forbids it any. Names from outside are in the JSON alone, in which no `<` can end it, and
//! the program shows them as text.

pub(crate) mod difference;
mod page;

use std::collections::HashMap;
use std::io::{self, Write};

use crate::collected::time_line::cell::{Cell, KeptStack, SHORTENED};
use crate::collected::view::View;
use crate::formats::html::page::{
    Found, FrameOfPage, Lines, Page, SCHEMA, Seq, Time, write_column, write_page,
};
use crate::walks::found_by::FoundBy;

/// The place of [`FoundBy::Nothing`] among all.
const NOTHING: usize = FoundBy::ALL.len().saturating_sub(1);

/// Cells with the nodes that they have in the page. Stacks that are not kept whole end at nodes of
/// their own, after all others, which have no samples but those of chosen parts of the time.
struct Shortened {
    /// The cell, its node, its samples.
    cells: Vec<(Cell, usize, u32)>,
    /// The callers of those nodes.
    callers: Vec<Option<usize>>,
}

impl Shortened {
    fn new(cells: Vec<(Cell, u32)>, nodes: usize) -> Self {
        let mut callers = Vec::new();
        let mut places: HashMap<Option<usize>, usize> = HashMap::new();
        let of = |node: u32| usize::try_from(node).unwrap_or(usize::MAX);
        let cells = cells.into_iter().map(|(cell, count)| {
            let caller = match cell.stack {
                KeptStack::Whole(end) => return (cell, of(end), count),
                KeptStack::UpTo(caller) => Some(of(caller)),
                KeptStack::Nothing => None,
            };
            let node = *places.entry(caller).or_insert_with(|| {
                callers.push(caller);
                nodes.saturating_add(callers.len()).saturating_sub(1)
            });
            (cell, node, count)
        });
        Self { cells: cells.collect(), callers }
    }
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
    let nodes = &profile.nodes;
    let shortened = Shortened::new(time_line.cells(), nodes.len());
    let (more, cells) = (&shortened.callers, &shortened.cells);
    let frames = profile.frames.iter().map(FrameOfPage::new);
    let note = (!more.is_empty()).then_some(FrameOfPage(SHORTENED, "", 0));
    let note_frame = profile.frames.len();
    let page = Page {
        schema: SCHEMA,
        program: concat!("unwind ", env!("CARGO_PKG_VERSION")),
        title,
        summary: ledger.summary(),
        notes: view.notes(),
        ledger,
        found: found.collect(),
        frames: frames.chain(note).collect(),
        time: Time {
            start: time_line.start(),
            width: time_line.width,
            spans: time_line.spans(),
            left_out: time_line.left_out,
            shortened: time_line.shortened().fold(0, |sum, (_, count)| sum.saturating_add(count)),
            whole_nodes: nodes.len(),
        },
        threads: Seq(time_line.threads.iter()),
        lines: Lines::new(lines),
        difference: None,
    };
    write_page(out, &page, |out| {
        let callers = nodes.iter().map(|node| node.caller).chain(more.iter().copied());
        // A root is its own caller.
        let callers = (0..).zip(callers).map(|(at, caller)| caller.unwrap_or(at));
        let frames = nodes.iter().map(|node| node.frame).chain(more.iter().map(|_| note_frame));
        let found = nodes.iter().map(|node| node.found.shown());
        write_column(out, "nodes.frame", frames)?;
        write_column(out, "nodes.caller", callers)?;
        write_column(
            out,
            "nodes.own",
            nodes.iter().map(|node| node.own).chain(more.iter().map(|_| 0)),
        )?;
        write_column(out, "nodes.found", found.chain(more.iter().map(|_| NOTHING)))?;
        write_column(out, "cells.thread", cells.iter().map(|(cell, _, _)| cell.thread()))?;
        write_column(out, "cells.span", cells.iter().map(|(cell, _, _)| cell.span()))?;
        write_column(out, "cells.node", cells.iter().map(|&(_, node, _)| node))?;
        write_column(out, "cells.count", cells.iter().map(|&(_, _, count)| count))
    })
}
