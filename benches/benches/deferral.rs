//! Deferred unwinding: requests, cookies, returns to user code, deliveries.

#![allow(missing_docs, clippy::unwrap_used, reason = "criterion makes the functions")]

use std::hint::black_box;

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use unwind_benches::deferral::{Deferral, Task};

fn requests(c: &mut Criterion) {
    let task = Task::new();
    let deferral = Deferral::new(32);
    c.bench_function("request/first of an entry, and the entry's end", |b| {
        b.iter(|| {
            assert!(deferral.request(black_box(&task), 0));
            deferral.deliver(&task, 1);
        });
    });
    assert!(deferral.request(&task, 0));
    c.bench_function("request/repeated", |b| {
        b.iter(|| deferral.request(black_box(&task), 0));
    });
    c.bench_function("cookie", |b| b.iter(|| deferral.cookie(black_box(&task))));
    deferral.deliver(&task, 1);
    c.bench_function("user return, nothing pending", |b| {
        b.iter(|| assert!(deferral.user_return(black_box(&task))));
    });
}

fn deliveries(c: &mut Criterion) {
    let task = Task::new();
    let deferral = Deferral::new(32);
    let mut group = c.benchmark_group("delivery by clients");
    for clients in [1, 4, 16, 32] {
        group.bench_function(BenchmarkId::from_parameter(clients), |b| {
            b.iter(|| {
                for client in 0..clients {
                    assert!(deferral.request(black_box(&task), client));
                }
                deferral.deliver(&task, clients);
            });
        });
    }
    group.finish();
}

criterion_group!(benches, requests, deliveries);
criterion_main!(benches);
