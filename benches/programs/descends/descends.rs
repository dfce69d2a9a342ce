use std::{hint, panic};

#[inline(never)]
fn descend(level: u64, round: u64) -> usize {
    let text = format!("{level} of {round:x}");
    if level > 0 {
        return descend(level - 1, round) + text.len();
    }
    let mut list: Vec<String> = (0..40).map(|i| (i * round * 7919 % 101).to_string()).collect();
    list.sort();
    if round % 3 == 0 {
        panic::panic_any(list.len());
    }
    list[0].len()
}

fn main() {
    panic::set_hook(Box::new(|_| {}));
    for round in (1..1000).cycle() {
        hint::black_box(panic::catch_unwind(|| descend(round % 12, round)).ok());
    }
}
