//! Tables: lookup, opening, validation, index, and building from `.eh_frame`.

#![allow(missing_docs, clippy::unwrap_used, reason = "criterion makes the functions")]

use std::hint::black_box;
use std::ops::ControlFlow;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use sframe::{Format, Table};
use simple_frame_rs::SFrameSection;
use unwind_benches::corpus::{Corpus, build_sframe};
use unwind_benches::lookup::{self, Lookups};

fn all() -> impl Iterator<Item = (String, Lookups)> {
    Corpus::paths().into_iter().map(|path| {
        let corpus = Corpus::open(&path);
        let lookups = Lookups::new(&corpus);
        (corpus.name, lookups)
    })
}

fn elements(count: usize) -> Throughput {
    Throughput::Elements(count.try_into().unwrap())
}

fn lookup(c: &mut Criterion) {
    for (name, lookups) in all() {
        let Lookups { tables, pcs } = &lookups;
        let (table, table_v2, indexed) = (lookups.table(), lookups.table_v2(), lookups.indexed());
        // The same rows, with an index or without.
        for &pc in pcs {
            assert_eq!(indexed.find_row(pc), table.find_row(pc));
        }
        let expected = lookup::gimli(tables, pcs);
        assert_eq!(lookup::plain(&table, pcs), expected, "{name}");
        assert_eq!(lookup::plain(&table_v2, pcs), expected, "{name}");
        assert_eq!(lookup::simple_frame(tables, pcs), expected, "{name}");
        let mut group = c.benchmark_group("lookup");
        group.throughput(elements(pcs.len()));
        let id = |what| BenchmarkId::new(what, &name);
        group.bench_function(id("unwind"), |b| b.iter(|| lookup::plain(&table, black_box(pcs))));
        group.bench_function(id("unwind-v2"), |b| {
            b.iter(|| lookup::plain(&table_v2, black_box(pcs)));
        });
        group.bench_function(id("unwind-indexed"), |b| {
            b.iter(|| lookup::indexed(&indexed, black_box(pcs)));
        });
        group.bench_function(id("simple-frame-rs"), |b| {
            b.iter(|| lookup::simple_frame(tables, black_box(pcs)));
        });
        group.bench_function(id("gimli"), |b| b.iter(|| lookup::gimli(tables, black_box(pcs))));
        group.finish();
    }
}

fn whole_tables(c: &mut Criterion) {
    for (name, lookups) in all() {
        let tables = lookups.tables;
        let id = |what| BenchmarkId::new(what, &name);

        let mut group = c.benchmark_group("open");
        group.bench_function(id("unwind"), |b| {
            b.iter(|| Table::parse(black_box(&tables.sframe)).unwrap());
        });
        group.bench_function(id("simple-frame-rs"), |b| {
            let bytes = &tables.sframe_v2;
            b.iter(|| SFrameSection::from(black_box(bytes), tables.sframe_addr).is_ok());
        });
        group.finish();

        let table = lookups.table_v2();
        let rows = table.header().num_fres;
        let mut group = c.benchmark_group("validate");
        group.throughput(elements(rows.try_into().unwrap()));
        let validate = |buffer: &mut [u32]| {
            let go_on = |_| ControlFlow::<()>::Continue(());
            table.validate(buffer, go_on).continue_value().unwrap()
        };
        let mut buffer = vec![0; table.header().num_fdes.try_into().unwrap()];
        assert_eq!(validate(&mut buffer).errors, 0, "{name}");
        assert_eq!(lookup::simple_frame_rows(tables), usize::try_from(rows).unwrap());
        group.bench_function(id("unwind, all rules"), |b| b.iter(|| validate(&mut buffer)));
        group.bench_function(id("simple-frame-rs, decoding"), |b| {
            b.iter(|| lookup::simple_frame_rows(black_box(tables)));
        });
        group.finish();

        let mut group = c.benchmark_group("index");
        let table = lookups.table();
        let mut memory = vec![0; table.index_len()];
        group.bench_function(id("unwind"), |b| {
            b.iter(|| table.index(black_box(&mut memory)).is_indexed());
        });
        group.finish();

        let mut group = c.benchmark_group("build from CFI");
        group.throughput(elements(lookup::gimli_rows(tables)));
        for (what, format) in [("unwind, V2", Format::V2), ("unwind, V3", Format::V3)] {
            group.bench_function(id(what), |b| {
                let (eh_frame, addr) = (&tables.eh_frame, tables.eh_frame_addr);
                b.iter(|| build_sframe(format, eh_frame, addr, tables.sframe_addr).len());
            });
        }
        group.bench_function(id("gimli, rows alone"), |b| {
            b.iter(|| lookup::gimli_rows(black_box(tables)));
        });
        group.finish();
    }
}

criterion_group!(benches, lookup, whole_tables);
criterion_main!(benches);
