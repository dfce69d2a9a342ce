//! The stacks of a recording, put together: how often each was seen.

use std::collections::HashMap;

use foldhash::fast::RandomState;
use unwind_target::Untrusted;

use crate::recording::code_names::{InterpretedCode, Language};
use crate::walks::found_by::{FoundBy, Shares};

/// The longest label of a frame, in characters.
pub(crate) const MAX_LABEL: usize = 512;

/// What a frame is called. All texts may be shown as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    pub name: String,
    /// The file that it is in, if that is known.
    pub file: Option<String>,
    pub kind: FrameKind,
}

/// What a frame stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FrameKind {
    User,
    Kernel,
    /// A call of an interpreter.
    Interpreted(Language),
    /// No frame of a program: a thread, or what is missing.
    Note,
}

impl Frame {
    /// A function of a file, neither of which may be known.
    #[must_use]
    pub fn new(name: Option<&Untrusted>, file: Option<&Untrusted>, is_kernel: bool) -> Self {
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

    /// A function that is inlined in this one.
    pub(crate) fn inlined(name: &Untrusted, outer: &Self) -> Self {
        Self { file: outer.file.clone(), ..Self::new(Some(name), None, false) }
    }

    /// A function that an interpreter executes.
    pub(crate) fn interpreted(code: &InterpretedCode) -> Self {
        if *code == InterpretedCode::MAYBE_INLINED {
            return Self::note("[or a function inlined in it]");
        }
        let known = Self::new(code.function.as_ref(), code.file.as_ref(), false);
        let name = match (&code.function, code.language) {
            (Some(_), _) => known.name,
            (None, Language::Wasm) => "[wasm function]".to_owned(),
            (None, language) => format!("[unknown {} function]", language.name()),
        };
        Self { name, file: known.file, kind: FrameKind::Interpreted(code.language) }
    }

    /// Where it is, as it stands after its name in a text; empty if that is not known.
    pub(crate) fn place(&self) -> String {
        match (&self.file, self.kind) {
            (_, FrameKind::Kernel) => " (kernel)".to_owned(),
            (Some(file), FrameKind::Interpreted(language)) => {
                format!(" ({}: {file})", language.name())
            }
            (Some(file), _) => format!(" ({file})"),
            (None, _) => String::new(),
        }
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
    /// How it was found in the samples that go through it.
    pub(crate) found: Shares,
}

/// Stacks and how often each was seen, as a tree from the outermost frame in.
///
/// It has room for a number of bytes. A stack for which there is none is counted under
/// `NOT_KEPT` with its innermost frame alone, so that the time that functions take themselves is
/// right however different stacks are.
#[derive(Clone, Debug)]
pub struct CallTree {
    pub frames: Vec<Frame>,
    places: HashMap<Frame, usize, RandomState>,
    /// Callers come before what they call.
    pub(crate) nodes: Vec<Node>,
    /// Asked for each frame of each sample: numbers of our own, and a hash that is made faster than
    /// that of the standard library, with a seed of each run.
    children: HashMap<(Option<usize>, usize), usize, RandomState>,
    /// About how many bytes more frames may take, and nodes.
    room_of_frames: usize,
    room_of_stacks: usize,
    /// How many samples had no room.
    pub not_kept: u64,
}

/// What stands for stacks for which there was no room.
pub(crate) const NOT_KEPT: &str = "[too many different stacks]";

/// About how many bytes a node takes, its place in the table of children included.
const NODE_BYTES: usize = size_of::<Node>().saturating_add(64);

/// The same of a frame without its texts, of which there are two copies, and of its node under
/// [`NOT_KEPT`].
const FRAME_BYTES: usize =
    size_of::<Frame>().saturating_mul(2).saturating_add(64).saturating_add(NODE_BYTES);

/// How often a function was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Total {
    /// As the innermost frame.
    pub own: u64,
    /// Anywhere in a stack, which counts once.
    pub all: u64,
}

impl CallTree {
    /// A profile that takes about `room` bytes at most.
    #[must_use]
    pub fn with_room(room: usize) -> Self {
        let room_of_stacks = room.saturating_sub(room / 4);
        Self {
            frames: Vec::new(),
            places: HashMap::default(),
            nodes: Vec::new(),
            children: HashMap::default(),
            room_of_frames: room.saturating_sub(room_of_stacks),
            room_of_stacks,
            not_kept: 0,
        }
    }

    /// The place of a frame, if there is room for it.
    pub fn frame(&mut self, frame: Frame) -> Option<usize> {
        if let Some(&place) = self.places.get(&frame) {
            return Some(place);
        }
        self.take_room(&frame)?;
        Some(self.push_frame(frame))
    }

    /// The place of a frame that is another one than those that are alike, if there is room.
    pub(crate) fn new_frame(&mut self, frame: Frame) -> Option<usize> {
        self.take_room(&frame)?;
        let place = self.frames.len();
        self.frames.push(frame);
        Some(place)
    }

    fn take_room(&mut self, frame: &Frame) -> Option<()> {
        let texts = frame.name.len().saturating_add(frame.file.as_ref().map_or(0, String::len));
        self.room_of_frames =
            self.room_of_frames.checked_sub(texts.saturating_mul(2).saturating_add(FRAME_BYTES))?;
        Some(())
    }

    fn push_frame(&mut self, frame: Frame) -> usize {
        let place = self.frames.len();
        self.places.insert(frame.clone(), place);
        self.frames.push(frame);
        place
    }

    /// The node of a frame under a caller, if there is room for it.
    pub(crate) fn node(&mut self, caller: Option<usize>, frame: usize) -> Option<usize> {
        if let Some(&node) = self.children.get(&(caller, frame)) {
            return Some(node);
        }
        // Functions are to have room when there are too many stacks.
        self.room_of_stacks = self.room_of_stacks.checked_sub(NODE_BYTES)?;
        Some(self.push_node(caller, frame))
    }

    fn push_node(&mut self, caller: Option<usize>, frame: usize) -> usize {
        let node = self.nodes.len();
        self.children.insert((caller, frame), node);
        self.nodes.push(Node { frame, caller, own: 0, found: Shares::default() });
        node
    }

    /// Adds a stack, the outermost frame first, that was seen `count` times. A frame for which
    /// there was no room is `None`. Returns the node at which it ends.
    pub fn add(
        &mut self,
        stack: impl IntoIterator<Item = (Option<usize>, FoundBy)>,
        count: u64,
    ) -> Option<usize> {
        let mut path = Vec::new();
        let mut stack = stack.into_iter();
        while let Some((frame, found)) = stack.next() {
            let caller = path.last().map(|&(node, _)| node);
            let Some(node) = frame.and_then(|frame| self.node(caller, frame)) else {
                let (innermost, found) = stack.last().unwrap_or((frame, found));
                return Some(self.add_without_room(innermost, found, count));
            };
            path.push((node, found));
        }
        for &(node, found) in &path {
            if let Some(node) = self.nodes.get_mut(node) {
                node.found.add(found, count);
            }
        }
        let &(end, _) = path.last()?;
        let node = self.nodes.get_mut(end)?;
        node.own = node.own.saturating_add(count);
        Some(end)
    }

    /// Counts a stack for which there is no room, of which the innermost frame is kept if there was
    /// room for that. Returns the node at which it ends.
    pub(crate) fn add_without_room(
        &mut self,
        innermost: Option<usize>,
        found: FoundBy,
        count: u64,
    ) -> usize {
        self.not_kept = self.not_kept.saturating_add(count);
        let root = Frame::note(NOT_KEPT);
        let root = self.places.get(&root).copied().unwrap_or_else(|| self.push_frame(root));
        let root = self.node_with_room(None, root);
        let end = innermost.map(|frame| self.node_with_room(Some(root), frame));
        let counts = [(Some(root), FoundBy::Nothing), (end, found)];
        for (node, found) in counts.into_iter().filter_map(|(node, found)| Some((node?, found))) {
            if let Some(node) = self.nodes.get_mut(node) {
                node.found.add(found, count);
            }
        }
        let end = end.unwrap_or(root);
        if let Some(node) = self.nodes.get_mut(end) {
            node.own = node.own.saturating_add(count);
        }
        end
    }

    /// The node of a frame under a caller, for which there is room.
    fn node_with_room(&mut self, caller: Option<usize>, frame: usize) -> usize {
        let node = self.children.get(&(caller, frame)).copied();
        node.unwrap_or_else(|| self.push_node(caller, frame))
    }

    /// Whether this is the node that stacks are under for which there was no room.
    pub(crate) fn is_root_of_not_kept(&self, node: &Node) -> bool {
        let is_it = |frame: &Frame| frame.kind == FrameKind::Note && frame.name == NOT_KEPT;
        node.caller.is_none() && self.frames.get(node.frame).is_some_and(is_it)
    }

    /// The stacks that were seen: the node that each ends at.
    pub(crate) fn ends(&self) -> impl Iterator<Item = (usize, &Node)> {
        self.nodes.iter().enumerate().filter(|(_, node)| node.own > 0)
    }

    /// The frames of the stack that ends at a node, the innermost first.
    pub(crate) fn stack(&self, node: usize) -> impl Iterator<Item = (usize, &Frame)> {
        let frame = |node: &Node| Some((node.frame, self.frames.get(node.frame)?));
        self.nodes_to(node).map_while(frame)
    }

    /// The nodes from the one that a stack ends at out to that of its outermost frame.
    pub(crate) fn nodes_to(&self, node: usize) -> impl Iterator<Item = &Node> {
        let caller = |node: &&Node| node.caller.and_then(|caller| self.nodes.get(caller));
        std::iter::successors(self.nodes.get(node), caller)
    }

    /// All samples.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.nodes.iter().fold(0, |sum, node| sum.saturating_add(node.own))
    }

    /// How many samples end in each frame, in the order of the frames, of which as many end at each
    /// node.
    pub(crate) fn own_of(&self, nodes: &[u64]) -> Vec<u64> {
        let mut own = vec![0_u64; self.frames.len()];
        for (node, &count) in self.nodes.iter().zip(nodes) {
            own.get_mut(node.frame).into_iter().for_each(|sum| *sum = sum.saturating_add(count));
        }
        own
    }

    /// How often each frame was seen, in the order of the frames.
    #[must_use]
    pub fn totals(&self) -> Vec<Total> {
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

    fn profile(stacks: &[(&[&str], u64)]) -> CallTree {
        let mut profile = CallTree::with_room(usize::MAX);
        for (stack, count) in stacks {
            add(&mut profile, stack, *count);
        }
        profile
    }

    fn add(profile: &mut CallTree, stack: &[&str], count: u64) -> Option<usize> {
        let frames: Vec<_> =
            stack.iter().map(|name| (profile.frame(Frame::note(name)), FoundBy::Nothing)).collect();
        profile.add(frames, count)
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

    #[test]
    fn d15_stacks_for_which_there_is_no_room_are_counted_apart() {
        let mut profile = CallTree::with_room(200 << 10);
        let names: Vec<String> = (0..1_000_u32).map(|number| number.to_string()).collect();
        for name in &names {
            assert!(add(&mut profile, &["main", name], 2).is_some());
        }
        let before = (profile.frames.len(), profile.nodes.len());
        assert!((100..1_000).contains(&before.0), "{before:?}");
        // What is there has room for ever.
        add(&mut profile, &["main", "0"], 5);
        add(&mut profile, &["main", "999"], 5);
        assert_eq!((profile.frames.len(), profile.nodes.len()), before);
        assert_eq!(profile.samples(), 2_010);
        let place = profile.frames.iter().position(|frame| frame.name == NOT_KEPT).unwrap();
        assert_eq!(profile.totals()[place].all, profile.not_kept);
        let kept = profile.ends().find(|(_, node)| node.own == 7).is_some();
        assert!(kept && profile.not_kept > 1_000, "{}", profile.not_kept);
    }

    #[test]
    fn d15_the_innermost_function_counts_where_its_stack_has_no_room() {
        let mut profile = CallTree::with_room(100 << 10);
        let function = |profile: &mut CallTree, number: u32| {
            let name = Untrusted::from(number.to_string().as_str());
            (profile.frame(Frame::new(Some(&name), None, false)), FoundBy::CallFrames)
        };
        // Ten functions in another order each time.
        for seed in 0..10_000_u32 {
            let order = (0..8).map(|at| (seed.wrapping_mul(2_654_435_761) >> (at * 4)) % 10);
            let stack: Vec<_> = order.map(|number| function(&mut profile, number)).collect();
            profile.add(stack, 1);
        }
        assert!(profile.not_kept > 5_000, "{}", profile.not_kept);
        let totals = profile.totals();
        let own = |number: u32| {
            let name = number.to_string();
            let place = profile.frames.iter().position(|frame| frame.name == name).unwrap();
            totals[place].own
        };
        let innermost = |seed: u32| (seed.wrapping_mul(2_654_435_761) >> 28) % 10;
        for number in 0..10 {
            let samples = (0..10_000).filter(|&seed| innermost(seed) == number).count();
            assert_eq!(own(number), u64::try_from(samples).unwrap());
        }
    }
}
