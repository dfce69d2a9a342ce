//! Tables: lookup, opening, validation, index, and building from `.eh_frame`.
//!
//! Each of the image in which most frames of a corpus are.

use std::hint::black_box;
use std::ops::ControlFlow;
use std::path::Path;

use sframe::{Format, Table};
use simple_frame_rs::SFrameSection;
use unwind_benches::corpus::{Corpus, build_sframe};
use unwind_benches::lookup::{self, Lookups};
use unwind_benches::timing::Effort;

use super::{fact, line};

pub(crate) fn measure(corpus: &Corpus, effort: Effort) {
    let lookups = Lookups::new(corpus);
    let image = Path::new(&lookups.tables.path).file_name().unwrap().to_string_lossy();
    let name = format!("{}, {}", corpus.name, image.chars().take(15).collect::<String>());
    look_up(&name, &lookups, effort);
    index(&name, &lookups, corpus);
    open(&name, &lookups, effort);
    validate(&name, &lookups, effort);
    build(&name, &lookups, effort);
}

fn look_up(name: &str, lookups: &Lookups, effort: Effort) {
    let tables = lookups.tables;
    let pcs = lookups.pcs.get(..20_000).unwrap_or(&lookups.pcs);
    let (table, indexed) = (lookups.table(), lookups.indexed());
    // simple-frame-rs reads V2 alone, which cannot say all that call frame information can.
    let table_v2 = lookups.table_v2();
    let beyond_v2 =
        |pc: &u64| table.find_row(*pc) != Ok(None) && table_v2.find_row(*pc) == Ok(None);
    let (beyond_v2, pcs): (Vec<u64>, Vec<u64>) = pcs.iter().copied().partition(beyond_v2);
    if !beyond_v2.is_empty() {
        fact("pcs that V2 has no row for", name, &format!("{} of {}", beyond_v2.len(), pcs.len()));
    }
    assert!(beyond_v2.len() <= pcs.len() / 100, "{name}: {beyond_v2:#x?}");
    let pcs = &pcs[..];
    // The same rows, with an index or without, and for the same addresses.
    for &pc in pcs {
        assert_eq!(indexed.find_row(pc), table.find_row(pc), "{name}");
    }
    let expected = lookup::gimli(tables, pcs);
    assert_eq!(lookup::plain(&table, pcs), expected, "{name}");
    assert_eq!(lookup::simple_frame(tables, pcs), expected, "{name}");
    let parts: Vec<_> = pcs.chunks(500).collect();
    let times = effort.race_in_parts(
        parts.len(),
        &mut [
            &mut |at| _ = black_box(lookup::plain(&table, black_box(parts[at]))),
            &mut |at| _ = black_box(lookup::indexed(&indexed, black_box(parts[at]))),
            &mut |at| _ = black_box(lookup::gimli(tables, black_box(parts[at]))),
            &mut |at| _ = black_box(lookup::simple_frame(tables, black_box(parts[at]))),
        ],
    );
    let per: Vec<_> = times.iter().map(|time| time / pcs.len() as f64).collect();
    line("lookup", name, per[0], "gimli", per[2]);
    line("lookup, with an index", name, per[1], "gimli", per[2]);
    line("lookup", name, per[0], "simple-frame-rs", per[3]);
}

fn index(name: &str, lookups: &Lookups, corpus: &Corpus) {
    let (index, text) = (lookups.table().index_len() * 4, lookups.text_len(corpus));
    let percent = 100.0 * index as f64 / text as f64;
    fact("index", name, &format!("{index} bytes, {percent:.3} % of {text} bytes of code"));
}

fn open(name: &str, lookups: &Lookups, effort: Effort) {
    const REPEATS: u32 = 1000;
    let (tables, addr) = (lookups.tables, lookups.tables.sframe_addr);
    let (ours, theirs) = effort.duel(
        || {
            for _ in 0..REPEATS {
                let opened = Table::parse(black_box(&tables.sframe_v2));
                assert!(black_box(&opened).is_ok());
            }
        },
        || {
            for _ in 0..REPEATS {
                let opened = SFrameSection::from(black_box(&tables.sframe_v2), addr);
                assert!(black_box(&opened).is_ok());
            }
        },
    );
    let [ours, theirs] = [ours, theirs].map(|time| time / f64::from(REPEATS));
    line("open", name, ours, "simple-frame-rs", theirs);
}

/// All rules, beside decoding alone, of the same table.
fn validate(name: &str, lookups: &Lookups, effort: Effort) {
    let table = lookups.table_v2();
    let rows = usize::try_from(table.header().num_fres).unwrap();
    let mut buffer = vec![0; table.header().num_fdes.try_into().unwrap()];
    let mut validate = || {
        let go_on = |_| ControlFlow::<()>::Continue(());
        black_box(&table).validate(&mut buffer, go_on).continue_value().unwrap()
    };
    assert_eq!(validate().errors, 0, "{name}");
    assert_eq!(lookup::simple_frame_rows(lookups.tables), rows, "{name}");
    let (ours, theirs) = effort.duel(
        || _ = black_box(validate()),
        || _ = black_box(lookup::simple_frame_rows(black_box(lookups.tables))),
    );
    let per = |time: f64| time / rows as f64;
    line("validate, a row", name, per(ours), "simple-frame-rs, decoding", per(theirs));
}

fn build(name: &str, lookups: &Lookups, effort: Effort) {
    let tables = lookups.tables;
    let rows = lookup::gimli_rows(tables);
    let build = |format| {
        let bytes =
            build_sframe(format, &tables.eh_frame, tables.eh_frame_addr, tables.sframe_addr);
        drop(black_box(bytes));
    };
    let times =
        effort.race(&mut [&mut || build(Format::V3), &mut || build(Format::V2), &mut || {
            _ = black_box(lookup::gimli_rows(black_box(tables)))
        }]);
    let per: Vec<_> = times.iter().map(|time| time / rows as f64).collect();
    line("build V3, a row of CFI", name, per[0], "gimli, rows alone", per[2]);
    line("build V2, a row of CFI", name, per[1], "gimli, rows alone", per[2]);
}
