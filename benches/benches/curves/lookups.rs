//! A lookup, against the size of a table.

use std::hint::black_box;

use sframe::Table;
use unwind_benches::timing::Effort;
use unwind_core::{CfaRule, RegRule, Row};

use crate::programs::{FUNCTION, TEXT, frame_size, table};
use crate::{next, sizes};

pub(crate) fn measure(effort: Effort) {
    println!("lookup of a random address, ns");
    println!("{:>10} {:>12} {:>12} {:>12}", "functions", "table, KB", "plain", "with index");
    for &functions in sizes(effort, &[10_u64, 100, 1000, 10_000, 100_000, 1_000_000]) {
        let bytes = table(functions);
        let table = Table::parse(&bytes).unwrap().at(TEXT);
        let mut memory = vec![0; table.index_len()];
        let indexed = table.index(&mut memory);
        let mut state = 0x1234_5678_9abc_def1;
        let pcs: Vec<_> = (0..5000)
            .map(|_| {
                let function = next(&mut state) % functions;
                (function, TEXT + function * u64::from(FUNCTION) + 4 + next(&mut state) % 50)
            })
            .collect();
        for &(function, pc) in &pcs {
            let expected = Row::new(
                CfaRule::sp(frame_size(function)),
                RegRule::Offset(-8),
                RegRule::SameValue,
            );
            assert_eq!(table.find_row(pc).unwrap().unwrap().cfa(), expected.cfa());
            assert_eq!(indexed.find_row(pc), table.find_row(pc));
        }
        let (plain, index) = effort.duel(
            || pcs.iter().for_each(|&(_, pc)| _ = black_box(table.find_row(black_box(pc)))),
            || pcs.iter().for_each(|&(_, pc)| _ = black_box(indexed.find_row(black_box(pc)))),
        );
        let per = |time: f64| time / pcs.len() as f64;
        let size = bytes.len() / 1000;
        println!("{functions:>10} {size:>12} {:>12.1} {:>12.1}", per(plain), per(index));
    }
}
