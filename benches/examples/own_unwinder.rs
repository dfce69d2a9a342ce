//! An unwinder of one's own beside those of the benches: copy this file, implement [`Unwinder`], and
//! name it in `main` as the file.
//!
//! ```text
//! cargo run --profile bench --package unwind-benches --example own_unwinder [-- FILE...]
//! ```
//!
//! This one follows frame pointers as long as they lead to code.
#![allow(clippy::unwrap_used, reason = "a measuring program stops at the first surprise")]

use std::ops::Range;

use unwind_benches::corpus::Corpus;
use unwind_benches::{Contestant, MAX_FRAMES, Snapshot, Unwinder, stack_word};

fn main() {
    unwind_benches::main(&[Contestant::new("own_unwinder", |corpus| Box::new(Own::new(corpus)))]);
}

struct Own {
    code: Vec<Range<u64>>,
    frames: Vec<u64>,
}

impl Own {
    fn new(corpus: &Corpus) -> Self {
        let code = corpus.modules.iter().map(|module| module.text.clone());
        Self { code: code.collect(), frames: Vec::with_capacity(MAX_FRAMES) }
    }

    fn is_code(&self, addr: u64) -> bool {
        let at = self.code.partition_point(|code| code.end <= addr);
        self.code.get(at).is_some_and(|code| code.start <= addr)
    }
}

impl Unwinder for Own {
    fn walk(&mut self, snapshot: &Snapshot<'_>) -> usize {
        self.frames.clear();
        self.frames.push(snapshot.rip);
        let mut fp = snapshot.rbp();
        while self.frames.len() < MAX_FRAMES
            && let Some(next) = stack_word(snapshot, fp)
            && let Some(ra) = stack_word(snapshot, fp.wrapping_add(8))
            && self.is_code(ra)
        {
            self.frames.push(ra);
            if next <= fp {
                break;
            }
            fp = next;
        }
        self.frames.len()
    }

    fn frames(&self) -> Vec<u64> {
        self.frames.clone()
    }
}
