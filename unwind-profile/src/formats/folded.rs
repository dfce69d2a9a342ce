//! Stacks a line each, as flame graph tools read them.

use std::io::{self, Write};

use crate::collected::call_tree::{CallTree, Frame, FrameKind, NOT_KEPT};

/// Writes the stacks.
pub(crate) fn write(out: &mut impl Write, profile: &CallTree) -> io::Result<()> {
    lines(profile).try_for_each(|line| writeln!(out, "{line}"))
}

/// A line each: the frames from the outermost in, and how often the stack was seen.
pub(crate) fn lines(profile: &CallTree) -> impl Iterator<Item = String> {
    profile.ends().map(|(at, node)| {
        let mut frames: Vec<String> = profile.stack(at).map(|(_, frame)| label(frame)).collect();
        frames.reverse();
        format!("{} {}", frames.join(";"), node.own)
    })
}

/// The lines, of which those that have no `room` in bytes are counted in one.
pub(crate) fn lines_within(profile: &CallTree, room: usize) -> Vec<String> {
    let mut room = room;
    let mut without = 0_u64;
    let mut kept = Vec::new();
    for (line, (_, node)) in lines(profile).zip(profile.ends()) {
        match room.checked_sub(line.len()) {
            Some(rest) => {
                room = rest;
                kept.push(line);
            }
            None => without = without.saturating_add(node.own),
        }
    }
    if without > 0 {
        kept.push(format!("{NOT_KEPT} {without}"));
    }
    kept
}

/// What a frame is called where a semicolon ends it.
fn label(frame: &Frame) -> String {
    let name = frame.name.replace(';', ":");
    match frame.kind {
        FrameKind::Kernel => format!("{name}_[k]"),
        FrameKind::Interpreted(language) => format!("{name}{}", language.suffix()),
        FrameKind::User | FrameKind::Note => name,
    }
}
