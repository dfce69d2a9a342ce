//! Interrupts for models: handlers that run before an atomic access.

use core::cell::{Cell, RefCell};
use std::rc::Rc;

type Handler = Rc<dyn Fn(u64)>;

thread_local! {
    static POINTS: Cell<u64> = const { Cell::new(0) };
    static EXCHANGES: Cell<u64> = const { Cell::new(0) };
    static HANDLER: RefCell<Option<Handler>> = const { RefCell::new(None) };
}

/// Called before each atomic access.
///
/// After a handler that made accesses another one may come in the same gap.
pub fn point() {
    loop {
        let this = POINTS.get();
        POINTS.set(this + 1);
        let Some(handler) = HANDLER.with_borrow(Clone::clone) else { return };
        handler(this);
        if POINTS.get() == this + 1 {
            return;
        }
    }
}

/// How many atomic accesses `body` makes.
pub fn count_accesses(body: impl FnOnce()) -> u64 {
    POINTS.set(0);
    body();
    POINTS.get()
}

/// Called at each access that reads and writes in one, statistics included.
pub fn count_exchange() {
    EXCHANGES.set(EXCHANGES.get() + 1);
}

/// How many atomic accesses of `body` read and write in one.
pub fn count_exchanges(body: impl FnOnce()) -> u64 {
    EXCHANGES.set(0);
    body();
    EXCHANGES.get()
}

/// Removes the handler, also when a model fails.
struct Clear;

impl Drop for Clear {
    fn drop(&mut self) {
        drop(HANDLER.take());
    }
}

/// Runs `body` on a fresh `world` for every way in which `handlers` can
/// interrupt it, and `check` after each run. Returns the number of runs.
///
/// The handlers come in the given order: each one before any access of `body`
/// or of a handler before it, in which case it is nested, or after the last
/// access. Those that interrupt nothing do not run.
pub fn interrupt_everywhere<W: 'static>(
    world: impl Fn() -> W,
    handlers: &[fn(&W)],
    body: impl Fn(&W),
    check: impl Fn(&W),
) -> u64 {
    let mut runs = 0;
    // Before which access each handler comes, counted from the handler before.
    let mut plan = vec![0_u64; handlers.len()];
    loop {
        runs += 1;
        let world = Rc::new(world());
        let fired = run_once(&world, handlers, &plan, &body);
        check(&world);
        // The last handler that ran comes one access later; those after it
        // start over.
        let Some(last) = fired.checked_sub(1) else { return runs };
        plan[last] += 1;
        plan.iter_mut().skip(fired).for_each(|at| *at = 0);
    }
}

/// Returns how many of the handlers ran.
fn run_once<W: 'static>(
    world: &Rc<W>,
    handlers: &[fn(&W)],
    plan: &[u64],
    body: &impl Fn(&W),
) -> usize {
    let (plan, handlers) = (plan.to_vec(), handlers.to_vec());
    let next = Rc::new(Cell::new(0_usize));
    // The first point at which the next handler may come.
    let from = Cell::new(0_u64);
    let handler = {
        let (world, next) = (Rc::clone(world), Rc::clone(&next));
        move |point: u64| {
            let index = next.get();
            if index < plan.len() && point == from.get() + plan[index] {
                next.set(index + 1);
                from.set(point + 1);
                handlers[index](&world);
            }
        }
    };
    POINTS.set(0);
    HANDLER.set(Some(Rc::new(handler)));
    let clear = Clear;
    body(world);
    point();
    drop(clear);
    next.get()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interruptible::{AtomicU64, Ordering};

    struct Trace {
        cell: AtomicU64,
        order: RefCell<String>,
    }

    impl Trace {
        fn new() -> Self {
            Self { cell: AtomicU64::new(0), order: RefCell::new(String::new()) }
        }

        fn step(&self, name: char) {
            self.cell.fetch_add(1, Ordering::Relaxed);
            self.order.borrow_mut().push(name);
        }
    }

    fn orders(handlers: &[fn(&Trace)]) -> Vec<String> {
        let seen = RefCell::new(Vec::new());
        let check = |trace: &Trace| seen.borrow_mut().push(trace.order.borrow().clone());
        let body = |trace: &Trace| {
            trace.step('1');
            trace.step('2');
        };
        interrupt_everywhere(Trace::new, handlers, body, check);
        let mut seen = seen.into_inner();
        seen.sort();
        seen
    }

    #[test]
    fn one_handler_comes_into_each_gap_and_not_at_all() {
        assert_eq!(orders(&[|trace| trace.step('a')]), ["12", "12a", "1a2", "a12"]);
    }

    #[test]
    fn a_second_handler_comes_after_the_first_or_into_it() {
        let mut all = orders(&[|trace| trace.step('a'), |trace| trace.step('b')]);
        all.dedup();
        assert_eq!(
            all,
            [
                "12", "12a", "12ab", "12ba", "1a2", "1a2b", "1ab2", "1ba2", "a12", "a12b", "a1b2",
                "ab12", "ba12"
            ]
        );
    }
}
