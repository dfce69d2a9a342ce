//! The stacks of a recording, put together: how often each was seen.

use std::collections::HashMap;

use crate::untrusted::Untrusted;

/// The longest label of a frame, in characters.
const MAX_LABEL: usize = 512;

/// What a frame is called. All texts may be shown as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Frame {
    pub(crate) name: String,
    /// The file that it is in, if that is known.
    pub(crate) file: Option<String>,
    pub(crate) kind: FrameKind,
}

/// What a frame stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum FrameKind {
    User,
    Kernel,
    /// No frame of a program: a thread, or what is missing.
    Note,
}

impl Frame {
    /// A function of a file, neither of which may be known.
    pub(crate) fn new(name: Option<&Untrusted>, file: Option<&Untrusted>, is_kernel: bool) -> Self {
        let shown = |text: &Untrusted| text.escaped().at_most(MAX_LABEL).to_string();
        let file = file.map(shown);
        let name = match (name, &file) {
            (Some(name), _) => shown(name),
            (None, Some(file)) => format!("[unknown in {file}]"),
            (None, None) => "[unknown]".to_owned(),
        };
        let kind = if is_kernel { FrameKind::Kernel } else { FrameKind::User };
        Self { name, file, kind }
    }

    /// What is no frame, in words that may be shown as they are.
    pub(crate) fn note(text: &str) -> Self {
        let name = text.chars().take(MAX_LABEL).collect();
        Self { name, file: None, kind: FrameKind::Note }
    }
}

/// A frame in the context of its callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Its place among the frames.
    pub(crate) frame: usize,
    /// The node of its caller.
    pub(crate) caller: Option<usize>,
    /// How many samples end here.
    pub(crate) own: u64,
}

/// Stacks and how often each was seen, as a tree from the outermost frame in.
#[derive(Clone, Debug, Default)]
pub(crate) struct Profile {
    pub(crate) frames: Vec<Frame>,
    places: HashMap<Frame, usize>,
    /// Callers come before what they call.
    pub(crate) nodes: Vec<Node>,
    children: HashMap<(Option<usize>, usize), usize>,
}

/// How often a function was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Total {
    /// As the innermost frame.
    pub(crate) own: u64,
    /// Anywhere in a stack, which counts once.
    pub(crate) all: u64,
}

impl Profile {
    /// The place of a frame.
    pub(crate) fn frame(&mut self, frame: Frame) -> usize {
        if let Some(&place) = self.places.get(&frame) {
            return place;
        }
        let place = self.frames.len();
        self.places.insert(frame.clone(), place);
        self.frames.push(frame);
        place
    }

    /// Adds a stack, the outermost frame first, that was seen `count` times.
    pub(crate) fn add(&mut self, stack: impl IntoIterator<Item = usize>, count: u64) {
        let mut at = None;
        for frame in stack {
            let next = self.nodes.len();
            let node = *self.children.entry((at, frame)).or_insert(next);
            if node == next {
                self.nodes.push(Node { frame, caller: at, own: 0 });
            }
            at = Some(node);
        }
        if let Some(node) = at.and_then(|at| self.nodes.get_mut(at)) {
            node.own = node.own.saturating_add(count);
        }
    }

    /// The stacks that were seen: the node that each ends at.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.own > 0)
    }

    /// The frames of the stack that ends at a node, the innermost first.
    pub(crate) fn stack(&self, node: usize) -> impl Iterator<Item = (usize, &Frame)> {
        let mut next = self.nodes.get(node);
        std::iter::from_fn(move || {
            let node = next?;
            next = node.caller.and_then(|caller| self.nodes.get(caller));
            Some((node.frame, self.frames.get(node.frame)?))
        })
    }

    /// All samples.
    pub(crate) fn samples(&self) -> u64 {
        self.nodes.iter().fold(0, |sum, node| sum.saturating_add(node.own))
    }

    /// How often each frame was seen, in the order of the frames.
    pub(crate) fn totals(&self) -> Vec<Total> {
        let mut totals = vec![Total::default(); self.frames.len()];
        // With what each node calls, from the last node on.
        let mut with_callees: Vec<u64> = self.nodes.iter().map(|node| node.own).collect();
        let mut callees: Vec<Vec<usize>> = vec![Vec::new(); self.nodes.len()];
        let mut roots = Vec::new();
        for (at, node) in self.nodes.iter().enumerate().rev() {
            let count = with_callees.get(at).copied().unwrap_or(0);
            match node.caller {
                Some(caller) => {
                    if let Some(sum) = with_callees.get_mut(caller) {
                        *sum = sum.saturating_add(count);
                    }
                    callees.get_mut(caller).into_iter().for_each(|list| list.push(at));
                }
                None => roots.push(at),
            }
        }
        // A function that calls itself counts where it is seen first.
        let mut on_path = vec![0_u32; self.frames.len()];
        let mut to_do: Vec<(usize, bool)> = roots.into_iter().map(|at| (at, true)).collect();
        while let Some((at, is_entered)) = to_do.pop() {
            let Some(node) = self.nodes.get(at) else { continue };
            let (Some(depth), Some(total)) =
                (on_path.get_mut(node.frame), totals.get_mut(node.frame))
            else {
                continue;
            };
            if !is_entered {
                *depth = depth.saturating_sub(1);
                continue;
            }
            if *depth == 0 {
                let count = with_callees.get(at).copied().unwrap_or(0);
                total.all = total.all.saturating_add(count);
            }
            total.own = total.own.saturating_add(node.own);
            *depth = depth.saturating_add(1);
            to_do.push((at, false));
            to_do.extend(callees.get(at).into_iter().flatten().map(|&callee| (callee, true)));
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(stacks: &[(&[&str], u64)]) -> Profile {
        let mut profile = Profile::default();
        for (stack, count) in stacks {
            let frames: Vec<usize> =
                stack.iter().map(|name| profile.frame(Frame::note(name))).collect();
            profile.add(frames, *count);
        }
        profile
    }

    #[test]
    fn d15_a_function_counts_once_in_a_stack_however_often_it_calls_itself() {
        let profile = profile(&[
            (&["main", "a", "a", "b"], 3),
            (&["main", "a"], 2),
            (&["main", "b", "a"], 5),
            (&["other"], 1),
        ]);
        let totals = profile.totals();
        let total = |name: &str| {
            let place = profile.frames.iter().position(|frame| frame.name == name).unwrap();
            (totals[place].own, totals[place].all)
        };
        assert_eq!(total("main"), (0, 10));
        assert_eq!(total("a"), (7, 10));
        assert_eq!(total("b"), (3, 8));
        assert_eq!(total("other"), (1, 1));
        assert_eq!(profile.samples(), 11);
    }

    #[test]
    fn d15_equal_stacks_are_one() {
        let profile = profile(&[(&["a", "b"], 1), (&["a", "b"], 1), (&["a"], 1)]);
        let ends: Vec<u64> = profile.ends().map(|(_, node)| node.own).collect();
        assert_eq!(ends, [1, 2]);
        let names: Vec<&str> = profile.stack(1).map(|(_, frame)| frame.name.as_str()).collect();
        assert_eq!(names, ["b", "a"]);
    }
}
