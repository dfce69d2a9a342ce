//! Fewer cells by fewer frames: rare stacks are kept up to a caller that has enough samples.

use std::collections::{BinaryHeap, HashMap};

use crate::collected::call_tree::Node;
use crate::collected::time_line::cell::{Cell, KeptStack};

/// The cells, in order, with stacks shortened until each has `least` samples of one thread in one
/// span, or no frame is left. The sums of threads and spans stay. Adds to `lost` the samples whose
/// stacks were whole until now, by the node at which they ended.
pub(super) fn shortened(
    cells: &[(Cell, u32)],
    least: u32,
    nodes: &[Node],
    lost: &mut HashMap<u32, u64>,
) -> Vec<(Cell, u32)> {
    let mut kept = Vec::new();
    let mut heap = BinaryHeap::new();
    for group in cells.chunk_by(|(a, _), (b, _)| (a.thread, a.span) == (b.thread, b.span)) {
        let Some(&(of_group, _)) = group.first() else { continue };
        let begin = kept.len();
        heap.extend(group.iter().map(|&(cell, count)| (Inner::of(cell.stack), count)));
        while let Some((at, mut count)) = heap.pop() {
            while let Some(&(next, more)) = heap.peek()
                && next == at
            {
                count = count.saturating_add(more);
                heap.pop();
            }
            match at.outer(nodes).filter(|_| count < least) {
                Some(outer) => {
                    if let KeptStack::Whole(node) = at.stack() {
                        let sum = lost.entry(node).or_default();
                        *sum = sum.saturating_add(count.into());
                    }
                    heap.push((outer, count));
                }
                None => kept.push((Cell { stack: at.stack(), ..of_group }, count)),
            }
        }
        if let Some(of_group) = kept.get_mut(begin..) {
            of_group.sort_unstable();
        }
    }
    kept
}

/// What is kept of a stack, the greater the further in: callers come before what they call, and a
/// node of which no more is known before the same one as the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Inner {
    node: Option<u32>,
    is_whole: bool,
}

impl Inner {
    const fn of(stack: KeptStack) -> Self {
        match stack {
            KeptStack::Nothing => Self { node: None, is_whole: false },
            KeptStack::UpTo(node) => Self { node: Some(node), is_whole: false },
            KeptStack::Whole(node) => Self { node: Some(node), is_whole: true },
        }
    }

    const fn stack(self) -> KeptStack {
        match self {
            Self { node: None, .. } => KeptStack::Nothing,
            Self { node: Some(node), is_whole: false } => KeptStack::UpTo(node),
            Self { node: Some(node), is_whole: true } => KeptStack::Whole(node),
        }
    }

    /// The same with one frame less, or without saying that the stack ends there.
    fn outer(self, nodes: &[Node]) -> Option<Self> {
        let node = self.node?;
        if self.is_whole {
            return Some(Self { is_whole: false, ..self });
        }
        let caller = usize::try_from(node).ok().and_then(|node| nodes.get(node)?.caller);
        // A caller comes before what it calls: so this comes to an end.
        let caller = caller.and_then(|caller| u32::try_from(caller).ok());
        Some(Self { node: caller.filter(|&caller| caller < node), is_whole: false })
    }
}
