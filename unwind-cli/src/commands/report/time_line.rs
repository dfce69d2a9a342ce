//! When which thread was where: samples by thread, span of time and stack.

use std::collections::HashMap;

/// How many spans a recording is parted in at most, a power of two.
const SPANS: u64 = 1024;

/// How many cells are kept: where there are more, spans become longer.
const MAX_CELLS: usize = 1 << 18;

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

/// Samples of one thread, in one span, with one stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Cell {
    pub(crate) thread: usize,
    pub(crate) span: u64,
    /// The node at which the stack ends.
    pub(crate) node: usize,
}

/// The samples of a recording by thread and time, in bounded memory.
#[derive(Clone, Debug)]
pub(crate) struct TimeLine {
    pub(crate) threads: Vec<Thread>,
    places: HashMap<(u32, u32), usize>,
    cells: HashMap<Cell, u32>,
    max_cells: usize,
    /// The times of the first sample and of the last one, in nanoseconds.
    times: Option<(u64, u64)>,
    /// Nanoseconds of a span.
    pub(crate) width: u64,
    /// Samples that are not in it: without a time, or of too many threads with too many stacks.
    pub(crate) left_out: u64,
}

impl Default for TimeLine {
    fn default() -> Self {
        Self {
            threads: Vec::new(),
            places: HashMap::new(),
            cells: HashMap::new(),
            max_cells: MAX_CELLS,
            times: None,
            // About a millisecond.
            width: 1 << 20,
            left_out: 0,
        }
    }
}

impl TimeLine {
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

    fn span(&self, after_start: u64) -> u64 {
        after_start.checked_div(self.width).unwrap_or(0)
    }

    /// Adds a sample of a thread of a process, whose stack ends at a node.
    pub(crate) fn add(&mut self, time: u64, task: (u32, u32), name: &str, node: usize) {
        let thread = match self.places.get(&task) {
            Some(&place) => place,
            None if self.threads.len() < MAX_THREADS => {
                let (process, thread) = task;
                let place = self.threads.len();
                self.places.insert(task, place);
                self.threads.push(Thread { process, thread, name: name.to_owned() });
                place
            }
            None => return self.leave_out(),
        };
        if let Some(thread) = self.threads.get_mut(thread)
            && thread.name != name
        {
            name.clone_into(&mut thread.name);
        }
        if time == 0 {
            return self.leave_out();
        }
        let (start, end) = self.times.unwrap_or((time, time));
        self.times = Some((start, end.max(time)));
        let after_start = time.saturating_sub(start);
        while self.span(after_start) >= SPANS {
            self.widen();
        }
        let cell = |line: &Self| Cell { thread, span: line.span(after_start), node };
        while self.cells.len() >= self.max_cells && !self.cells.contains_key(&cell(self)) {
            if self.spans() <= 1 {
                return self.leave_out();
            }
            self.widen();
        }
        let count = self.cells.entry(cell(self)).or_default();
        *count = count.saturating_add(1);
    }

    /// Puts samples whose stacks end at a node where these have gone, by node.
    pub(crate) fn move_to(&mut self, nodes: &[usize]) {
        for (cell, count) in std::mem::take(&mut self.cells) {
            let node = nodes.get(cell.node).copied().unwrap_or(cell.node);
            let sum = self.cells.entry(Cell { node, ..cell }).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    fn leave_out(&mut self) {
        self.left_out = self.left_out.saturating_add(1);
    }

    /// Makes spans twice as long.
    fn widen(&mut self) {
        self.width = self.width.saturating_mul(2);
        let cells = std::mem::take(&mut self.cells);
        for (cell, count) in cells {
            let sum = self.cells.entry(Cell { span: cell.span / 2, ..cell }).or_default();
            *sum = sum.saturating_add(count);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(line: &TimeLine) -> u64 {
        line.cells().iter().map(|&(_, count)| u64::from(count)).sum()
    }

    #[test]
    fn spans_become_longer_until_all_fit() {
        let mut line = TimeLine::default();
        let second = 1_000_000_000;
        for at in 0..10_000 {
            line.add(5 * second + at * second / 100, (1, 1), "a", 0);
        }
        assert!((512..=SPANS).contains(&line.spans()), "{}", line.spans());
        assert_eq!((sum(&line), line.left_out), (10_000, 0));
        assert_eq!((line.start(), line.duration()), (5 * second, 9_999 * second / 100));
        let spans: Vec<u64> = line.cells().iter().map(|(cell, _)| cell.span).collect();
        assert_eq!(spans.last().copied(), Some(line.spans() - 1));
    }

    #[test]
    fn cells_are_bounded_and_what_has_no_place_is_counted() {
        let mut line = TimeLine { max_cells: 100, ..TimeLine::default() };
        for at in 0..1_000_u64 {
            line.add(1 + (at << 21), (1, 1), "a", usize::try_from(at % 50).unwrap());
        }
        assert!(line.cells.len() <= 100 && line.left_out == 0);
        assert_eq!(sum(&line), 1_000);
        for at in 0..300 {
            line.add(1_000 << 21, (1, 1), "a", 100 + at);
        }
        assert!(line.cells.len() <= 100 && line.left_out > 0);
        line.add(0, (1, 2), "b", 0);
        assert_eq!(sum(&line) + line.left_out, 1_301);
        assert_eq!(line.threads.len(), 2);
    }

    #[test]
    fn a_time_at_the_end_of_the_clock_is_no_loop() {
        let mut line = TimeLine::default();
        line.add(1, (1, 1), "a", 0);
        line.add(u64::MAX, (1, 1), "b", 0);
        assert_eq!((sum(&line), line.threads.len()), (2, 1));
        assert_eq!(line.threads.first().unwrap().name, "b");
    }
}
