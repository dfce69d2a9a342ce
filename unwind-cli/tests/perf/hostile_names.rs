//! Names of events and threads that are long, or hold what a terminal obeys.

use unwind_perf::record::{Comm, Encode as _, Endian, SampleId, Task};

use crate::files::{Scratch, done};
use crate::memory::{FORMAT, pipe_start, sample};

const TASK: Task = Task { pid: 7, tid: 7 };

/// A pipe whose event and thread have these names, and one sample.
fn pipe(event: &[u8], thread: &[u8]) -> Scratch {
    let mut pipe = pipe_start();
    let mut body = [2_u64, 1].map(u64::to_le_bytes).concat();
    body.extend(event);
    body.resize(body.len().next_multiple_of(8), 0);
    pipe.extend(78_u32.to_le_bytes());
    pipe.extend(0_u16.to_le_bytes());
    pipe.extend(u16::try_from(8 + body.len()).unwrap().to_le_bytes());
    pipe.extend(body);
    let id = SampleId { task: Some(TASK), time: Some(1), ..SampleId::default() };
    let comm = Comm { task: TASK, name: thread, exec: false, id };
    comm.encode(FORMAT, Endian::Little, &mut pipe).unwrap();
    sample(TASK, 5, 2, &mut pipe);
    Scratch::new(&pipe)
}

#[test]
fn c1_the_name_of_an_event_may_be_longer_than_a_format_width() {
    for len in [0, 1, 21_849, 21_850, 30_000, 65_000] {
        let file = pipe(&vec![0xff; len], b"thread");
        let text = done(&["script", file.name()]);
        let head = text.lines().next().unwrap();
        assert!(head.starts_with("thread "), "{head:.100}");
        let escaped = r"\xff".repeat(len);
        // A long name says that it is cut.
        let shown = head.contains(&escaped) || head.contains(r"\xff\xff\xff\…: ");
        assert!(shown, "{len}: {}", head.len());
        done(&["script", "--json", file.name()]);
    }
}

#[test]
fn c9_names_of_events_and_threads_are_escaped() {
    let event = "e\u{1b}[2J\n\u{202e}v\u{feff}".as_bytes();
    let thread = "t\u{1b}]0;x\u{7}\r\n\u{2066}\\".as_bytes();
    let file = pipe(event, thread);
    for arguments in [&["script"][..], &["script", "--json"]] {
        let text = done(&[arguments, &[file.name()]].concat());
        let is_bare = |letter: char| {
            letter.is_control() && letter != '\n' && letter != '\t'
                || ['\u{202e}', '\u{2066}', '\u{feff}'].contains(&letter)
        };
        assert!(!text.contains(is_bare), "{text:?}");
    }
    let text = done(&["script", file.name()]);
    let head = text.lines().next().unwrap();
    assert!(head.starts_with(r"t\x1b]0;x\x07\r\n\xe2\x81\xa6\\ "), "{head}");
    assert!(head.ends_with(r"e\x1b[2J\n\xe2\x80\xaev\xef\xbb\xbf: "), "{head}");
    assert_eq!(text.lines().count(), 3, "one sample, one address");
}
