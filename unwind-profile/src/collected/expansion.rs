//! A profile with frames for inlined functions.

use std::collections::HashMap;

use unwind_target::Untrusted;

use crate::collected::call_tree::{CallTree, Frame};
use crate::walks::found_by::{FoundBy, Shares};

/// A profile made of another one, and what has become of the places in that.
#[derive(Debug)]
pub(crate) struct Expansion {
    pub(crate) profile: CallTree,
    /// By node of the other one: the node that stacks end at which ended there.
    pub(crate) nodes: Vec<usize>,
    /// By frame: the innermost of those that stand for it; `None` if there was no room.
    pub(crate) innermost: Vec<Option<usize>>,
}

impl Expansion {
    /// How many samples end at each node, of which as many ended at each of the other profile.
    pub(crate) fn moved(&self, counts: &[u64]) -> Vec<u64> {
        let mut moved = vec![0_u64; self.profile.nodes.len()];
        for (&node, &count) in self.nodes.iter().zip(counts) {
            moved.get_mut(node).into_iter().for_each(|sum| *sum = sum.saturating_add(count));
        }
        moved
    }
}

/// Gives each frame the `inlined` functions that it calls, by the place of the frame: that
/// function first which its own calls. Frames that are then alike become one. The new profile
/// takes about `room` bytes.
pub(crate) fn expanded(
    old: &CallTree,
    inlined: &HashMap<usize, Vec<Untrusted>>,
    room: usize,
) -> Expansion {
    let mut profile = CallTree::with_room(room);
    let frames = old.frames.iter().enumerate().map(|(place, frame)| {
        let functions = inlined.get(&place).into_iter().flatten();
        let functions = functions.map(|name| Frame::inlined(name, frame));
        let all = std::iter::once(frame.clone()).chain(functions);
        all.map(|frame| profile.frame(frame)).collect::<Vec<_>>()
    });
    let frames: Vec<Vec<Option<usize>>> = frames.collect();
    // What there is no room for has no room for what it calls either.
    let mut kept: Vec<Option<usize>> = Vec::with_capacity(old.nodes.len());
    let mut nodes = Vec::with_capacity(old.nodes.len());
    for node in &old.nodes {
        let frames = frames.get(node.frame).map(Vec::as_slice).unwrap_or_default();
        let is_not_kept = old.is_root_of_not_kept(node);
        let end = match node.caller {
            None if is_not_kept => None,
            None => place(&mut profile, None, frames, &node.found),
            Some(caller) => kept
                .get(caller)
                .copied()
                .flatten()
                .and_then(|caller| place(&mut profile, Some(caller), frames, &node.found)),
        };
        kept.push(end);
        let innermost = frames.last().copied().flatten().filter(|_| !is_not_kept);
        if let Some(node_of_end) = end.and_then(|end| profile.nodes.get_mut(end)) {
            node_of_end.own = node_of_end.own.saturating_add(node.own);
        }
        let found = FoundBy::ALL.get(node.found.shown()).copied().unwrap_or(FoundBy::Nothing);
        nodes.push(end.unwrap_or_else(|| profile.add_without_room(innermost, found, node.own)));
    }
    let innermost = frames.iter().map(|frames| frames.last().copied().flatten()).collect();
    Expansion { profile, nodes, innermost }
}

/// Puts a function and those that are inlined in it under a caller. Returns the node of the last
/// one, if there is room.
fn place(
    profile: &mut CallTree,
    caller: Option<usize>,
    frames: &[Option<usize>],
    found: &Shares,
) -> Option<usize> {
    let mut at = caller;
    for (depth, &frame) in frames.iter().enumerate() {
        let node = profile.node(at, frame?)?;
        let shares = &mut profile.nodes.get_mut(node)?.found;
        match depth {
            0 => shares.add_all(found),
            _ => shares.add(FoundBy::Inlined, found.sum()),
        }
        at = Some(node);
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collected::call_tree::{NOT_KEPT, Node};

    const LARGE: usize = 1 << 20;

    /// `main` calls `f` from two places; there `f` has `g` inlined, which has `h`, or nothing.
    fn profile() -> (CallTree, HashMap<usize, Vec<Untrusted>>) {
        let mut profile = CallTree::with_room(LARGE);
        let file = Untrusted::from("/p");
        let frame = |name: &str| Frame::new(Some(&Untrusted::from(name)), Some(&file), false);
        let main = profile.frame(frame("main"));
        let [first, second, alone] = ["f", "f", "g"].map(|name| profile.new_frame(frame(name)));
        for (innermost, count) in [(first, 3), (second, 4), (alone, 5)] {
            let found = [(main, FoundBy::CallFrames), (innermost, FoundBy::Sampled)];
            profile.add(found, count);
        }
        let names = ["g", "h"].map(Untrusted::from).to_vec();
        (profile, HashMap::from([(first.unwrap(), names)]))
    }

    /// The stacks, outermost first, with their counts.
    fn stacks(profile: &CallTree) -> Vec<(String, u64)> {
        let stacks = profile.ends().map(|(node, end)| {
            let names: Vec<&str> =
                profile.stack(node).map(|(_, frame)| frame.name.as_str()).collect();
            (names.into_iter().rev().collect::<Vec<_>>().join(" "), end.own)
        });
        let mut stacks: Vec<_> = stacks.collect();
        stacks.sort();
        stacks
    }

    #[test]
    fn d15_inlined_functions_are_called_by_the_one_that_has_their_code() {
        let (old, inlined) = profile();
        let new = expanded(&old, &inlined, LARGE);
        let expected = [("main f", 4), ("main f g h", 3), ("main g", 5)];
        assert_eq!(stacks(&new.profile), expected.map(|(stack, count)| (stack.to_owned(), count)));
        // Frames that are alike are one, and functions count wherever their code is.
        let total = |name: &str| {
            let place = new.profile.frames.iter().position(|frame| frame.name == name).unwrap();
            assert!(new.profile.frames.iter().skip(place + 1).all(|frame| frame.name != name));
            let total = new.profile.totals()[place];
            (total.own, total.all)
        };
        assert_eq!(["main", "f", "g", "h"].map(total), [(0, 12), (4, 7), (5, 8), (3, 3)]);
        // What ended somewhere ends there still, and is of the innermost function.
        for (old_end, node) in old.ends() {
            let end = new.profile.nodes[new.nodes[old_end]];
            assert_eq!((Some(end.frame), end.own), (new.innermost[node.frame], node.own));
        }
        let way = |node: &Node| FoundBy::ALL[node.found.shown()];
        let of = |name: &str| {
            let node =
                new.profile.nodes.iter().find(|node| new.profile.frames[node.frame].name == name);
            way(node.unwrap())
        };
        assert_eq!(
            ["main", "f", "h"].map(of),
            [FoundBy::CallFrames, FoundBy::Sampled, FoundBy::Inlined]
        );
    }

    #[test]
    fn d15_stacks_without_room_keep_the_function_that_is_inlined_innermost() {
        let (mut old, inlined) = profile();
        for _ in 0..2 {
            old.add_without_room(Some(1), FoundBy::Sampled, 6);
        }
        let new = expanded(&old, &inlined, LARGE).profile;
        assert_eq!((old.not_kept, new.not_kept, new.samples()), (12, 12, 24));
        let expected = format!("{NOT_KEPT} h");
        assert!(stacks(&new).contains(&(expected, 12)), "{:?}", stacks(&new));
    }

    #[test]
    fn d15_no_sample_is_lost_where_inlined_functions_have_no_room() {
        let (old, inlined) = profile();
        let counts = (0..8_000).map(|room| {
            let new = expanded(&old, &inlined, room).profile;
            assert_eq!(new.samples(), old.samples(), "{room}");
            let place = new.frames.iter().position(|frame| frame.name == NOT_KEPT);
            let all = place.map_or(0, |place| new.totals()[place].all);
            assert_eq!(all, new.not_kept, "{room}");
            new.not_kept
        });
        let counts: Vec<u64> = counts.collect();
        assert_eq!((counts[0], counts[7_999]), (12, 0));
        assert!(counts.is_sorted_by(|a, b| a >= b));
        // With room for a part of them.
        assert!(counts.iter().any(|count| (1..12).contains(count)));
    }
}
