//! The page of recordings before and after: the stacks of both as one tree, coloured where a function
//! takes another share of the time than recordings of one program have.

use std::collections::HashMap;
use std::io::{self, Write};

use crate::collected::call_tree::{Frame, FrameKind};
use crate::collected::comparison::{Change, Comparison};
use crate::collected::side::Side;
use crate::formats::html::page::{
    Difference, Found, FrameOfPage, Function, Lines, Page, SCHEMA, Seq, Time, write_column,
    write_page,
};

/// How frames are coloured, in the order of their codes.
const WAYS: [(&str, &str); 4] = [
    ("more", "takes more, above the bound"),
    ("less", "takes less, above the bound"),
    ("within", "no difference that can be told from chance"),
    ("none", "thread, or what is missing"),
];

/// A frame in the context of its callers, in both recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Node {
    frame: usize,
    caller: usize,
    /// Samples that end here, before and after.
    own: [u64; 2],
}

/// The stacks of both.
#[derive(Debug, Default)]
struct Tree<'s> {
    frames: Vec<&'s Frame>,
    places: HashMap<&'s Frame, usize>,
    nodes: Vec<Node>,
    children: HashMap<(Option<usize>, usize), usize>,
}

impl<'s> Tree<'s> {
    fn new(sides: &[Side<'s>; 2]) -> Self {
        let mut tree = Self::default();
        for (at, side) in sides.iter().enumerate() {
            tree.add(side, at);
        }
        tree
    }

    /// Adds the stacks of a side. Callers come before what they call, in both.
    fn add(&mut self, side: &Side<'s>, at: usize) {
        let frames = side.profile.frames.iter().map(|frame| self.frame(frame));
        let frames: Vec<usize> = frames.collect();
        let mut placed: Vec<usize> = Vec::with_capacity(side.profile.nodes.len());
        for node in &side.profile.nodes {
            let caller = node.caller.and_then(|caller| placed.get(caller).copied());
            let Some(&frame) = frames.get(node.frame) else { continue };
            let next = self.nodes.len();
            let place = *self.children.entry((caller, frame)).or_insert(next);
            if place == next {
                // A root is its own caller.
                self.nodes.push(Node { frame, caller: caller.unwrap_or(next), own: [0; 2] });
            }
            placed.push(place);
            let own = self.nodes.get_mut(place).and_then(|node| node.own.get_mut(at));
            if let Some(own) = own {
                *own = own.saturating_add(node.own);
            }
        }
    }

    fn frame(&mut self, frame: &'s Frame) -> usize {
        let next = self.frames.len();
        let place = *self.places.entry(frame).or_insert(next);
        if place == next {
            self.frames.push(frame);
        }
        place
    }
}

/// Writes the page.
///
/// # Errors
///
/// Those of `out`.
pub(crate) fn write(mut out: &mut dyn Write, sides: &[Side<'_>; 2]) -> io::Result<()> {
    let (tree, comparison) = (Tree::new(sides), Comparison::new(sides));
    let [before, after] = *sides;
    let mut ways = vec![WAYS.len().saturating_sub(1); tree.frames.len()];
    for (frame, way) in tree.frames.iter().zip(&mut ways) {
        if frame.kind != FrameKind::Note {
            *way = 2;
        }
    }
    let functions = comparison.rows.iter().filter_map(|row| {
        let place = *tree.places.get(row.frame)?;
        let (way, sign) = match row.change {
            Change::More => (0, 1),
            Change::Less => (1, -1),
            Change::Within => (2, 0),
        };
        *ways.get_mut(place)? = way;
        Some(Function(place, row.own, row.all, sign, row.bound))
    });
    let functions: Vec<Function> = functions.collect();
    let way = |node: &Node| ways.get(node.frame).copied().unwrap_or(2);
    let found = WAYS.iter().enumerate().map(|(at, &(word, label))| {
        let of_way = tree.nodes.iter().filter(|node| way(node) == at);
        Found { word, label, frames: u64::try_from(of_way.count()).unwrap_or(u64::MAX) }
    });
    let frames = tree.frames.iter().map(|frame| FrameOfPage::new(frame));
    let nodes = &tree.nodes;
    let page = Page {
        schema: SCHEMA,
        program: concat!("unwind ", env!("CARGO_PKG_VERSION")),
        title: &format!("{} → {}", before.title, after.title),
        summary: comparison.summary().join(". "),
        notes: format!("before: {}\nafter: {}", before.ledger, after.ledger),
        ledger: after.ledger,
        found: found.collect(),
        frames: frames.collect(),
        time: Time { width: 1, whole_nodes: nodes.len(), ..Time::default() },
        threads: Seq([].iter()),
        lines: Lines::default(),
        difference: Some(Difference {
            titles: [before.title, after.title],
            samples: comparison.samples,
            ledger_before: before.ledger,
            own_before: nodes.iter().map(|node| node.own[0]).collect(),
            functions,
        }),
    };
    write_page(&mut out, &page, |out| {
        write_column(out, "nodes.frame", nodes.iter().map(|node| node.frame))?;
        write_column(out, "nodes.caller", nodes.iter().map(|node| node.caller))?;
        write_column(out, "nodes.own", nodes.iter().map(|node| node.own[1]))?;
        write_column(out, "nodes.found", nodes.iter().map(way))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collected::call_tree::CallTree;
    use crate::session::ledger::Ledger;
    use crate::walks::found_by::FoundBy;

    fn profile(stacks: &[(&[&str], u64)]) -> CallTree {
        let mut profile = CallTree::with_room(usize::MAX);
        for (stack, count) in stacks {
            let frames: Vec<_> = stack
                .iter()
                .map(|name| (profile.frame(Frame::note(name)), FoundBy::Nothing))
                .collect();
            profile.add(frames, *count);
        }
        profile
    }

    #[test]
    fn d16_the_stacks_of_both_are_one_tree() {
        let before = profile(&[(&["main", "b"], 1), (&["main", "a"], 2), (&["gone"], 3)]);
        let after = profile(&[(&["new"], 4), (&["main", "a"], 5), (&["main", "a", "b"], 6)]);
        let ledger = Ledger::new();
        let side = |profile| Side {
            title: "",
            profile,
            ledger: &ledger,
            recordings: &[],
            names_options: false,
        };
        let tree = Tree::new(&[side(&before), side(&after)]);
        let mut stacks: Vec<(Vec<&str>, [u64; 2])> = Vec::new();
        for (at, node) in tree.nodes.iter().enumerate() {
            assert!(node.caller <= at);
            let mut names = vec![tree.frames[node.frame].name.as_str()];
            let mut at = at;
            while tree.nodes[at].caller != at {
                at = tree.nodes[at].caller;
                names.insert(0, &tree.frames[tree.nodes[at].frame].name);
            }
            stacks.push((names, node.own));
        }
        stacks.sort();
        let expected: [(&[&str], [u64; 2]); 6] = [
            (&["gone"], [3, 0]),
            (&["main"], [0, 0]),
            (&["main", "a"], [2, 5]),
            (&["main", "a", "b"], [0, 6]),
            (&["main", "b"], [1, 0]),
            (&["new"], [0, 4]),
        ];
        assert_eq!(stacks, expected.map(|(names, own)| (names.to_vec(), own)));
    }
}
