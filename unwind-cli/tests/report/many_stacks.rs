//! A recording with more different stacks than a page has room for by time.

use std::collections::HashMap;

use crate::page::{data_of, numbers};
use crate::{report, support};

/// More than a time line has cells.
const SAMPLES: u64 = 270_000;

/// A millisecond, in nanoseconds.
const PERIOD: u64 = 1_000_000;

fn record(kind: u32, body: &[u8], out: &mut Vec<u8>) {
    out.extend(kind.to_le_bytes());
    out.extend(2_u16.to_le_bytes());
    out.extend(u16::try_from(8 + body.len()).unwrap().to_le_bytes());
    out.extend(body);
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A pipe of perf with a sample of the CPU's clock each millisecond, each with another stack, of two
/// threads in turn.
fn recording() -> Vec<u8> {
    const FILES: u64 = 64;
    let place = |file: u64| 0x40_0000 + file * 0x1_0000;
    let mut out = [&b"PERFILE2"[..], &words(&[16])].concat();
    // IP, TID, TIME, CALLCHAIN, PERIOD.
    let sample_type = 1 | 1 << 1 | 1 << 2 | 1 << 5 | 1 << 8;
    let attr = words(&[1 | 64 << 32, 0, PERIOD, sample_type, 0, 0, 0, 0]);
    record(64, &[attr, words(&[1])].concat(), &mut out);
    for file in 0..FILES {
        let mut body = words(&[7 | 7 << 32, place(file), 0x1000, 0]);
        body.extend(format!("/nonexistent/{file:02}").bytes());
        body.resize(body.len().next_multiple_of(8) + 8, 0);
        record(1, &body, &mut out);
    }
    for number in 0..SAMPLES {
        // An odd factor: each number has another one.
        let stack = number * 0x9e_3779 % (1 << 24);
        let frame = |depth: u32| place(stack >> (6 * depth) & 63) + 0x800;
        let task = 7 | (7 + number % 2) << 32;
        let chain = [5, (-512_i64).cast_unsigned(), frame(0), frame(1), frame(2), frame(3)];
        let time = 1 + number * PERIOD;
        let body = [&[frame(0), task, time, PERIOD][..], &chain].concat();
        record(9, &words(&body), &mut out);
    }
    out
}

#[test]
fn d15_a_page_has_64_spans_with_exact_heights_however_many_stacks_there_are() {
    let data = support::scratch("report_many_stacks").join("perf.data");
    std::fs::write(&data, recording()).unwrap();
    let page = report(&data, "html");
    assert!(page.len() < 32 << 20, "{}", page.len());
    let all = data_of(&page);
    let [frame, caller, own, _] = [0, 1, 2, 3].map(|column| numbers(&all["nodes"][column]));
    let [thread, span, node, count] = [0, 1, 2, 3].map(|column| numbers(&all["cells"][column]));
    let samples = usize::try_from(SAMPLES).unwrap();
    assert_eq!((own.iter().sum::<usize>(), count.iter().sum::<usize>()), (samples, samples));
    let time = &all["time"];
    let number = |name: &str| usize::try_from(time[name].as_u64().unwrap()).unwrap();
    let (spans, width) = (number("spans"), number("width"));
    assert!((64..128).contains(&spans) && count.len() <= 1 << 18, "{spans} {}", count.len());
    assert_eq!(number("left_out"), 0);

    // The samples of each thread and span are those that were taken then.
    let mut heights: HashMap<(usize, usize), usize> = HashMap::new();
    for (at, count) in count.iter().enumerate() {
        *heights.entry((thread[at], span[at])).or_default() += count;
    }
    let mut taken: HashMap<(usize, usize), usize> = HashMap::new();
    for number in 0..samples {
        let after_start = number * usize::try_from(PERIOD).unwrap();
        *taken.entry((number % 2, after_start / width)).or_default() += 1;
    }
    assert_eq!(heights, taken);

    // What is not kept is told as such, and so it is that there are such stacks.
    let whole = number("whole_nodes");
    let name = |node: usize| all["frames"][frame[node]][0].as_str().unwrap();
    assert!(whole < own.len() && (whole..own.len()).all(|at| name(at) == "[not kept by time]"));
    assert!((whole..own.len()).all(|at| own[at] == 0 && caller[at] < at));
    assert!((0..whole).all(|at| name(at) != "[not kept by time]"));
    let is_short = |&(&node, _): &(&usize, &usize)| node >= whole;
    let short: usize = node.iter().zip(&count).filter(is_short).map(|(_, count)| count).sum();
    assert!(short > 0 && short == number("shortened"), "{short} {}", number("shortened"));

    // Nearly all have their outermost function, and no function has samples of another one.
    let mut by_file: HashMap<&str, usize> = HashMap::new();
    for (&end, count) in node.iter().zip(&count) {
        let mut path = vec![end];
        while caller[path[path.len() - 1]] != path[path.len() - 1] {
            path.push(caller[path[path.len() - 1]]);
        }
        let mut outermost = path.iter().rev().map(|&node| name(node));
        if let Some(file) = outermost.find(|name| name.starts_with("[unknown in ")) {
            *by_file.entry(file).or_default() += count;
        }
    }
    let mut expected: HashMap<String, usize> = HashMap::new();
    for number in 0..SAMPLES {
        let file = (number * 0x9e_3779 % (1 << 24)) >> 18;
        *expected.entry(format!("[unknown in /nonexistent/{file:02}]")).or_default() += 1;
    }
    assert_eq!(by_file.len(), 64);
    assert!(by_file.iter().all(|(file, count)| *count <= expected[*file]), "{by_file:?}");
    assert!(by_file.values().sum::<usize>() > samples * 9 / 10, "{by_file:?}");
}
