//! Requests, against the number of clients and of CPUs.

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use unwind_benches::deferral::{Deferral, Task};
use unwind_benches::timing::Effort;

use crate::{nanoseconds, sizes};

pub(crate) fn measure(effort: Effort) {
    println!("request, by clients that all ask in an entry: ns");
    println!("{:>10} {:>12} {:>12} {:>24}", "clients", "first", "repeated", "delivery, a client");
    let clock = (0..1000).map(|_| nanoseconds(Instant::now())).fold(f64::MAX, f64::min);
    let clients = [1_usize, 2, 4, 8, 16, 32];
    for &clients in sizes(effort, &clients) {
        let (deferral, task) = (Deferral::new(32), Task::new());
        let [mut first, mut repeated, mut delivery] = [f64::MAX; 3];
        for _ in 0..if effort.is_test() { 2 } else { 20_000 } {
            first = first.min(ask(&deferral, &task, clients));
            repeated = repeated.min(ask(&deferral, &task, clients));
            let start = Instant::now();
            deferral.deliver(&task, clients);
            delivery = delivery.min(nanoseconds(start));
        }
        let [first, repeated, delivery] =
            [first, repeated, delivery].map(|time| (time - clock) / clients as f64);
        println!("{clients:>10} {first:>12.1} {repeated:>12.1} {delivery:>24.1}");
    }
    println!("request, on CPUs at once, each for its own task: ns");
    println!("{:>10} {:>12} {:>24}", "CPUs", "repeated", "first, and delivery");
    let cpus = thread::available_parallelism().unwrap().get();
    for cpus in (0..).map(|power| 1_usize << power).take_while(|&count| count <= cpus) {
        let repeated = |deferral: &Deferral, task: &Task| assert!(deferral.request(task, 0));
        let whole = |deferral: &Deferral, task: &Task| {
            assert!(deferral.request(task, 0));
            deferral.deliver(task, 1);
        };
        let repeated = on_cpus(cpus, effort, Task::asked, repeated);
        let whole = on_cpus(cpus, effort, |_| Task::new(), whole);
        println!("{cpus:>10} {repeated:>12.1} {whole:>24.1}");
    }
}

/// The time of a request of each client in turn.
fn ask(deferral: &Deferral, task: &Task, clients: usize) -> f64 {
    let start = Instant::now();
    for client in 0..clients {
        assert!(deferral.request(black_box(task), client));
    }
    nanoseconds(start)
}

/// The shortest time of something that `cpus` CPUs do at once, each with its
/// own task: that of the CPU that takes longest.
fn on_cpus(
    cpus: usize,
    effort: Effort,
    task: impl Fn(&Deferral) -> Task + Sync,
    act: impl Fn(&Deferral, &Task) + Sync,
) -> f64 {
    const REPEATS: usize = 1000;
    let (deferral, barrier) = (Deferral::new(1), Barrier::new(cpus));
    let rounds = if effort.is_test() { 1 } else { 2000 };
    let shortest = || {
        let task = task(&deferral);
        let mut shortest = f64::MAX;
        for _ in 0..rounds {
            barrier.wait();
            let start = Instant::now();
            for _ in 0..REPEATS {
                act(&deferral, black_box(&task));
            }
            shortest = shortest.min(nanoseconds(start) / REPEATS as f64);
        }
        shortest
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..cpus).map(|_| scope.spawn(shortest)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).fold(0.0, f64::max)
    })
}
