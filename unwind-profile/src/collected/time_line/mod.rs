//! When which thread was where: samples by thread, span of time and stack.

pub(crate) mod cell;
mod shortening;

use std::collections::HashMap;

use crate::collected::call_tree::Node;
use crate::collected::time_line::cell::{Cell, KeptStack};
use crate::collected::time_line::shortening::shortened;

/// How many spans a recording is parted in at most, a power of two.
const SPANS: u64 = 1024;

/// Spans do not become longer for the sake of stacks if there would be fewer of them.
const LEAST_SPANS: u64 = 64;

/// How many threads are kept apart.
const MAX_THREADS: usize = 1 << 14;

/// A thread of a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Thread {
    pub(crate) process: u32,
    pub(crate) thread: u32,
    /// The name that it had last, to be shown as it is.
    pub(crate) name: String,
}

/// What gives way where there are more cells than are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Spans: they become longer, up to one for all of the recording.
    OfStacks,
    /// Stacks, once there are few spans: rare ones are kept up to a caller only. With the number of cells.
    OfTimes(usize),
}

/// How many cells are kept if nothing else is said.
pub(crate) const USUAL_CELLS: usize = 1 << 18;

/// A sample on its way to the time line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timed<'n> {
    /// In nanoseconds; zero if it is not known.
    pub(crate) time: u64,
    /// Process and thread.
    pub(crate) task: (u32, u32),
    pub(crate) name: &'n str,
    /// The node at which its stack ends.
    pub(crate) node: usize,
    /// How many nanoseconds of CPU time it stands for.
    pub(crate) cpu_time: u64,
    /// How many samples it stands for: of a wait several.
    pub(crate) count: u64,
    /// How many nanoseconds these were taken in, up to its time.
    pub(crate) length: u64,
}

/// The samples of a recording by thread and time, in bounded memory.
#[derive(Clone, Debug)]
pub(crate) struct TimeLine {
    pub(crate) threads: Vec<Thread>,
    places: HashMap<(u32, u32), u16>,
    cells: HashMap<Cell, u32>,
    /// Nanoseconds of CPU time by thread and span.
    cpu_times: HashMap<(u16, u16), u64>,
    max_cells: usize,
    shortens: bool,
    /// Stacks with fewer samples of one thread in one span have been shortened.
    least: u32,
    /// Of how many samples the stacks that end at a node are not kept whole.
    shortened: HashMap<u32, u64>,
    /// The times of the first sample and of the last one, in nanoseconds.
    times: Option<(u64, u64)>,
    /// Nanoseconds of a span.
    pub(crate) width: u64,
    /// Samples that are not in it: without a time, or of too many threads with too many stacks.
    pub(crate) left_out: u64,
}

impl Default for TimeLine {
    fn default() -> Self {
        Self::new(Detail::OfStacks)
    }
}

impl TimeLine {
    /// One without samples that keeps as much.
    pub(crate) fn another(&self) -> Self {
        let detail = if self.shortens { Detail::OfTimes(self.max_cells) } else { Detail::OfStacks };
        Self::new(detail)
    }

    pub(crate) fn new(detail: Detail) -> Self {
        let (max_cells, shortens) = match detail {
            Detail::OfStacks => (USUAL_CELLS, false),
            Detail::OfTimes(cells) => (cells, true),
        };
        Self {
            threads: Vec::new(),
            places: HashMap::new(),
            cells: HashMap::new(),
            cpu_times: HashMap::new(),
            max_cells,
            shortens,
            least: 2,
            shortened: HashMap::new(),
            times: None,
            // About a millisecond.
            width: 1 << 20,
            left_out: 0,
        }
    }

    /// When the first sample was taken, in nanoseconds of the recording's clock.
    pub(crate) fn start(&self) -> u64 {
        self.times.map_or(0, |(start, _)| start)
    }

    /// Nanoseconds from the first sample to the last one.
    pub(crate) fn duration(&self) -> u64 {
        self.times.map_or(0, |(start, end)| end.saturating_sub(start))
    }

    /// How many spans there are.
    pub(crate) fn spans(&self) -> u64 {
        match self.times {
            Some(_) => self.span(self.duration()).saturating_add(1),
            None => 0,
        }
    }

    /// The cells and how many samples each has, in order.
    pub(crate) fn cells(&self) -> Vec<(Cell, u32)> {
        let mut cells: Vec<_> = self.cells.iter().map(|(&cell, &count)| (cell, count)).collect();
        cells.sort_unstable();
        cells
    }

    /// The nanoseconds of CPU time that the samples of a cell's thread and span stand for.
    pub(crate) fn cpu_time(&self, cell: Cell) -> u64 {
        self.cpu_times.get(&(cell.thread, cell.span)).copied().unwrap_or(0)
    }

    /// Of how many samples the stacks that end at a node are not kept whole.
    pub(crate) fn shortened(&self) -> impl Iterator<Item = (usize, u64)> {
        let node = |(&node, &count): (&u32, &u64)| Some((usize::try_from(node).ok()?, count));
        self.shortened.iter().filter_map(node)
    }

    fn span(&self, after_start: u64) -> u64 {
        after_start.checked_div(self.width).unwrap_or(0)
    }

    /// The place of a thread, if there is room for it.
    fn thread(&mut self, task: (u32, u32), name: &str) -> Option<u16> {
        if let Some(&place) = self.places.get(&task) {
            let thread = self.threads.get_mut(usize::from(place))?;
            if thread.name != name {
                name.clone_into(&mut thread.name);
            }
            return Some(place);
        }
        let place = u16::try_from(self.threads.len()).ok();
        let place = place.filter(|&place| usize::from(place) < MAX_THREADS)?;
        let (process, thread) = task;
        self.places.insert(task, place);
        self.threads.push(Thread { process, thread, name: name.to_owned() });
        Some(place)
    }

    /// Adds a sample whose stack ends at one of these nodes.
    pub(crate) fn add(&mut self, sample: Timed<'_>, nodes: &[Node]) {
        let Timed { time, count, length, .. } = sample;
        let steps = self.span(length).saturating_add(1).min(SPANS).min(count).max(1);
        let part = |of: u64, step: u64| {
            let part = u128::from(of).saturating_mul(step.into()).checked_div(steps.into());
            part.and_then(|part| u64::try_from(part).ok()).unwrap_or(of)
        };
        for step in 1..=steps {
            let count = part(count, step).saturating_sub(part(count, step.saturating_sub(1)));
            let before = length.saturating_sub(part(length, step));
            // A wait may have begun before anything else; a time of zero says that it is not known.
            let time = if time == 0 { 0 } else { time.saturating_sub(before).max(1) };
            self.add_at_once(Timed { time, count, ..sample }, nodes);
        }
    }

    fn add_at_once(&mut self, sample: Timed<'_>, nodes: &[Node]) {
        let thread = self.thread(sample.task, sample.name);
        let (Some(thread), Ok(node)) = (thread, u32::try_from(sample.node)) else {
            return self.leave_out(sample.count);
        };
        if sample.time == 0 {
            return self.leave_out(sample.count);
        }
        let (start, end) = self.times.unwrap_or((sample.time, sample.time));
        self.times = Some((start, end.max(sample.time)));
        let after_start = sample.time.saturating_sub(start);
        while self.span(after_start) >= SPANS {
            self.widen();
        }
        let cell = |line: &Self| Cell {
            thread,
            span: u16::try_from(line.span(after_start)).unwrap_or(u16::MAX),
            stack: KeptStack::Whole(node),
        };
        while self.cells.len() >= self.max_cells && !self.cells.contains_key(&cell(self)) {
            match self.spans() {
                0 | 1 if !self.shortens => return self.leave_out(sample.count),
                spans if self.shortens && spans / 2 < LEAST_SPANS => {
                    self.shorten(nodes);
                    if self.cells.len() >= self.max_cells && spans <= 1 {
                        return self.leave_out(sample.count);
                    }
                    // Threads alone take that many, whatever their stacks.
                    if self.cells.len() > self.goal() {
                        self.widen();
                    }
                }
                _ => self.widen(),
            }
        }
        let cell = cell(self);
        let count = self.cells.entry(cell).or_default();
        *count = count.saturating_add(u32::try_from(sample.count).unwrap_or(u32::MAX));
        let cpu_time = self.cpu_times.entry((cell.thread, cell.span)).or_default();
        *cpu_time = cpu_time.saturating_add(sample.cpu_time);
    }

    /// Puts samples whose stacks end at a node where these have gone, by node.
    pub(crate) fn move_to(&mut self, nodes: &[usize]) {
        let moved = |node: u32| {
            let place = usize::try_from(node).ok().and_then(|node| nodes.get(node));
            place.and_then(|&node| u32::try_from(node).ok()).unwrap_or(node)
        };
        for (cell, count) in std::mem::take(&mut self.cells) {
            let stack = match cell.stack {
                KeptStack::Nothing => KeptStack::Nothing,
                KeptStack::UpTo(node) => KeptStack::UpTo(moved(node)),
                KeptStack::Whole(node) => KeptStack::Whole(moved(node)),
            };
            let sum = self.cells.entry(Cell { stack, ..cell }).or_default();
            *sum = sum.saturating_add(count);
        }
        for (node, count) in std::mem::take(&mut self.shortened) {
            let sum = self.shortened.entry(moved(node)).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    fn leave_out(&mut self, count: u64) {
        self.left_out = self.left_out.saturating_add(count);
    }

    /// Makes spans twice as long.
    fn widen(&mut self) {
        self.width = self.width.saturating_mul(2);
        for (cell, count) in std::mem::take(&mut self.cells) {
            let sum = self.cells.entry(Cell { span: cell.span / 2, ..cell }).or_default();
            *sum = sum.saturating_add(count);
        }
        for ((thread, span), time) in std::mem::take(&mut self.cpu_times) {
            let sum = self.cpu_times.entry((thread, span / 2)).or_default();
            *sum = sum.saturating_add(time);
        }
    }

    /// How many cells are left when stacks have been shortened, if there are not too many threads.
    const fn goal(&self) -> usize {
        self.max_cells / 2
    }

    /// Shortens the stacks of the rarest samples, of each thread and span.
    fn shorten(&mut self, nodes: &[Node]) {
        let mut cells: Vec<(Cell, u32)> = self.cells.drain().collect();
        cells.sort_unstable();
        loop {
            cells = shortened(&cells, self.least, nodes, &mut self.shortened);
            if cells.len() <= self.goal() || self.least == u32::MAX {
                break;
            }
            self.least = self.least.saturating_mul(2);
        }
        self.cells.extend(cells);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::walks::found_by::Shares;

    /// A sample of a process with one thread.
    const fn at(time: u64, thread: u32, node: usize) -> Timed<'static> {
        Timed { time, task: (thread, thread), name: "a", node, cpu_time: 3, count: 1, length: 0 }
    }

    fn sum(line: &TimeLine) -> u64 {
        line.cells().iter().map(|&(_, count)| u64::from(count)).sum()
    }

    fn limited(max_cells: usize, shortens: bool) -> TimeLine {
        TimeLine { max_cells, shortens, ..TimeLine::default() }
    }

    /// Nodes of `parts` functions that each call `leaves` others, which come after them.
    fn nodes(parts: usize, leaves: usize) -> Vec<Node> {
        let node = |caller| Node { frame: 0, caller, own: 0, found: Shares::default() };
        let root = std::iter::once(None);
        let callers = std::iter::repeat_n(Some(0), parts);
        let leaves = std::iter::repeat_n(1..=parts, leaves).flatten().map(Some);
        root.chain(callers).chain(leaves).map(node).collect()
    }

    /// The samples of each thread and span.
    fn heights(line: &TimeLine) -> HashMap<(usize, u64), u64> {
        let mut heights = HashMap::new();
        for (cell, count) in line.cells() {
            let height: &mut u64 = heights.entry((cell.thread(), cell.span())).or_default();
            *height = height.saturating_add(count.into());
        }
        heights
    }

    #[test]
    fn spans_become_longer_until_all_fit() {
        let mut line = TimeLine::default();
        let second = 1_000_000_000;
        for number in 0..10_000 {
            line.add(at(5 * second + number * second / 100, 1, 0), &[]);
        }
        assert!((512..=SPANS).contains(&line.spans()), "{}", line.spans());
        assert_eq!((sum(&line), line.left_out), (10_000, 0));
        assert_eq!((line.start(), line.duration()), (5 * second, 9_999 * second / 100));
        let cells = line.cells();
        let last = cells.last().map(|&(cell, _)| cell).unwrap();
        assert_eq!(last.span(), line.spans() - 1);
        let firsts = cells.chunk_by(|(a, _), (b, _)| a.span() == b.span()).map(|group| group[0].0);
        assert_eq!(firsts.map(|cell| line.cpu_time(cell)).sum::<u64>(), 30_000);
    }

    #[test]
    fn a_wait_has_its_samples_in_the_spans_up_to_its_end() {
        let mut line = TimeLine::default();
        let span = line.width;
        line.add(at(10 * span, 1, 0), &[]);
        let wait = |length, count| Timed { count, length, cpu_time: 0, ..at(20 * span, 2, 1) };
        line.add(wait(5 * span, 12), &[]);
        let spans = |line: &TimeLine| -> Vec<(u64, u32)> {
            let cells = line.cells().into_iter().filter(|(cell, _)| cell.thread() == 1);
            cells.map(|(cell, count)| (cell.span(), count)).collect()
        };
        assert_eq!(spans(&line), [(5, 2), (6, 2), (7, 2), (8, 2), (9, 2), (10, 2)]);
        // What begins before all others does so with the first sample.
        line.add(wait(u64::MAX, 1 << 20), &[]);
        assert_eq!((sum(&line), line.left_out), (1 + 12 + (1 << 20), 0));
        line.add(Timed { time: 0, ..wait(span, 7) }, &[]);
        assert_eq!(line.left_out, 7);
    }

    #[test]
    fn cells_are_bounded_and_what_has_no_place_is_counted() {
        let mut line = limited(100, false);
        for number in 0..1_000_u64 {
            line.add(at(1 + (number << 21), 1, usize::try_from(number % 50).unwrap()), &[]);
        }
        assert!(line.cells.len() <= 100 && line.left_out == 0);
        assert_eq!(sum(&line), 1_000);
        for number in 0..300 {
            line.add(at(1_000 << 21, 1, 100 + number), &[]);
        }
        assert!(line.cells.len() <= 100 && line.left_out > 0);
        line.add(at(0, 2, 0), &[]);
        assert_eq!(sum(&line) + line.left_out, 1_301);
        assert_eq!(line.threads.len(), 2);
    }

    #[test]
    fn d15_stacks_give_way_before_there_are_few_spans_and_each_height_stays() {
        let (parts, leaves) = (4, 5_000);
        let nodes = nodes(parts, leaves);
        let (mut line, mut all) = (limited(2_000, true), limited(usize::MAX, true));
        let samples = u64::try_from(parts * leaves).unwrap();
        for number in 0..samples {
            let leaf = 1 + parts + usize::try_from(number).unwrap();
            // Each stack once, and one that is in all spans.
            for node in [leaf, 1] {
                let thread = if number % 10 == 0 { 2 } else { 1 };
                for line in [&mut line, &mut all] {
                    line.add(at(1 + (number << 18), thread, node), &nodes);
                }
            }
        }
        assert!(line.cells.len() <= 2_000 && line.left_out == 0, "{}", line.cells.len());
        assert!((64..128).contains(&line.spans()), "{}", line.spans());
        while all.width < line.width {
            all.widen();
        }
        assert_eq!(heights(&line), heights(&all));
        assert_eq!(sum(&line), 2 * samples);
        assert_eq!(line.cpu_times, all.cpu_times);
        // What calls those that are not kept has all of their samples, by span.
        let callers = line.cells().into_iter().filter(|(cell, _)| cell.stack == KeptStack::UpTo(2));
        assert!(callers.map(|(_, count)| u64::from(count)).sum::<u64>() > samples / 8);
        // Common stacks are whole in most spans.
        let common = line.cells().into_iter().filter(|(cell, _)| cell.stack.end() == Some(1));
        assert!(common.map(|(_, count)| u64::from(count)).sum::<u64>() > samples * 9 / 10);
        // Of each stack it is known how many samples are not kept with all of it.
        let mut by_end: HashMap<usize, u64> = line.shortened().collect();
        for (cell, count) in line.cells() {
            if let Some(end) = cell.stack.end() {
                *by_end.entry(end).or_default() += u64::from(count);
            }
        }
        assert_eq!(by_end.remove(&1), Some(samples));
        assert!(by_end.len() == parts * leaves && by_end.values().all(|&count| count == 1));
    }

    #[test]
    fn d15_with_more_threads_than_cells_stacks_and_spans_give_way() {
        let nodes = nodes(2, 10);
        let mut line = limited(100, true);
        for number in 0..20_000 {
            let thread = u32::try_from(number % 90).unwrap();
            line.add(at(1 + (number << 20), thread, 3), &nodes);
        }
        assert!(line.cells.len() <= 100 && line.spans() >= 1, "{}", line.spans());
        assert_eq!((sum(&line), line.left_out), (20_000, 0));
        assert_eq!(line.cpu_times.values().sum::<u64>(), 60_000);
        // With more than cells the rest is counted.
        for number in 0..200 {
            line.add(at(1, 1_000 + number, 3), &nodes);
        }
        assert_eq!(sum(&line) + line.left_out, 20_200);
        assert!(line.cells.len() <= 100 && line.left_out > 0, "{}", line.left_out);
    }

    #[test]
    fn a_time_at_the_end_of_the_clock_is_no_loop() {
        let mut line = TimeLine::default();
        line.add(at(1, 1, 0), &[]);
        line.add(Timed { name: "b", ..at(u64::MAX, 1, 0) }, &[]);
        assert_eq!((sum(&line), line.threads.len()), (2, 1));
        assert_eq!(line.threads.first().unwrap().name, "b");
    }
}
