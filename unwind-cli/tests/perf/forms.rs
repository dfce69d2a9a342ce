//! The forms that a recording can have: file and pipe, either byte order.

use std::fs::File;
use std::process::Command;

use testdata::{PerfRecording, perf_file, perf_files};
use unwind_perf::record::{
    Attr, CallchainDeferred, DeferredLayout, Encode as _, Endian, EventFormat, IdPlace, Lost,
    Record, RecordType, Records, Sample, SampleId, SampleType,
};

use crate::files::{Parts, Scratch, done, perf_data, plain, text, unwind, unwind_with};

#[test]
fn the_pipe_form_reads_like_the_file_form() {
    for path in perf_files("data").into_iter().chain(perf_files("raw")) {
        let file = Scratch::new(&perf_data(&path));
        let expected = done(&plain(&[file.name()]));
        let pipe = Parts::of(&file.bytes()).to_pipe();
        let output = unwind_with(&plain(&["-"]), &pipe);
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert_eq!(text(&output.stdout), expected, "{}", path.display());
        // A pipe that was saved is a file.
        let saved = Scratch::new(&pipe);
        assert_eq!(done(&plain(&[saved.name()])), expected, "{}", path.display());
    }
}

#[test]
fn the_file_form_can_be_standard_input() {
    let path = perf_files("data").into_iter().next().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_unwind"))
        .args(plain(&["-"]))
        .stdin(File::open(&path).unwrap())
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), done(&plain(&[path.to_str().unwrap()])));
}

#[test]
fn the_file_form_cannot_come_through_a_pipe() {
    let output = unwind_with(&plain(&["-"]), &perf_file("pfork.data"));
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("name the file"), "{}", text(&output.stderr));
    assert!(output.stdout.is_empty());
}

/// A recording as a big-endian machine would have made it.
struct BigEndian {
    formats: Vec<EventFormat>,
    place: IdPlace,
    ids: Vec<Vec<u64>>,
}

impl BigEndian {
    fn convert(recording: &PerfRecording) -> Vec<u8> {
        let big = Endian::Big;
        let formats: Vec<EventFormat> = recording
            .events
            .iter()
            .map(|event| Attr::parse(&event.attr, Endian::Little).unwrap().format)
            .collect();
        let converter = Self {
            place: IdPlace::of(formats.iter().copied()).unwrap(),
            ids: recording.events.iter().map(|event| event.ids.clone()).collect(),
            formats,
        };
        let mut pipe = b"2ELIFREP".to_vec();
        pipe.extend(big.bytes_of_u64(16));
        for event in &recording.events {
            let mut body = converter.attr(&event.attr);
            body.extend(event.ids.iter().flat_map(|&id| big.bytes_of_u64(id)));
            pipe.extend(big.bytes_of_u32(64));
            pipe.extend(big.bytes_of_u16(0));
            pipe.extend(big.bytes_of_u16(u16::try_from(8 + body.len()).unwrap()));
            pipe.extend(body);
        }
        for (_, chunk) in &recording.chunks {
            for record in Records::new(chunk, Endian::Little) {
                converter.record(&record.unwrap(), &mut pipe);
            }
        }
        pipe
    }

    fn attr(&self, attr: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for (at, bytes) in attr.chunks_exact(8).enumerate() {
            let word = u64::from_le_bytes(bytes.try_into().unwrap());
            match 8 * at {
                // Two halves: type and size; then the fields of 32 bits.
                0 | 48 | 88 | 104 => out.extend(halves(bytes)),
                // The C bit fields: from the other end in each byte.
                40 => out.extend(bytes.iter().map(|byte| byte.reverse_bits())),
                _ => out.extend(word.to_be_bytes()),
            }
        }
        out
    }

    fn record(&self, record: &Record<'_>, out: &mut Vec<u8>) {
        let event = match self.place.id_of(record) {
            None | Some(0) => 0,
            Some(id) => self.ids.iter().position(|ids| ids.contains(&id)).unwrap(),
        };
        let format = self.formats[event];
        let big = Endian::Big;
        match record.kind() {
            RecordType::SAMPLE => {
                Sample::decode(record, format).unwrap().encode(format, big, out).unwrap();
            }
            RecordType::CALLCHAIN_DEFERRED => {
                let layout = DeferredLayout::Cookie;
                let stack = CallchainDeferred::decode(record, format, layout).unwrap();
                stack.encode(format, big, out).unwrap();
            }
            RecordType::LOST => {
                Lost::decode(record, format).unwrap().encode(format, big, out).unwrap();
            }
            RecordType::COMM | RecordType::FORK | RecordType::EXIT => {
                out.extend(big.bytes_of_u32(record.kind().0));
                out.extend(big.bytes_of_u16(record.header().misc.0));
                out.extend(big.bytes_of_u16(record.header().size));
                let fields = format.trailer();
                let trailer = usize::try_from(fields.bits().count_ones()).unwrap() * 8;
                let (body, trailer) = record.body().split_at(record.body().len() - trailer);
                if record.kind() == RecordType::COMM {
                    out.extend(halves(&body[..8]));
                    out.extend(&body[8..]);
                } else {
                    out.extend(halves(&body[..16]));
                    out.extend(body[16..24].iter().rev());
                }
                let mut words = trailer.chunks_exact(8);
                let order = [
                    SampleType::TID,
                    SampleType::TIME,
                    SampleType::ID,
                    SampleType::STREAM_ID,
                    SampleType::CPU,
                    SampleType::IDENTIFIER,
                ];
                for field in order.into_iter().filter(|&field| fields.contains(field)) {
                    let word = words.next().unwrap();
                    if field == SampleType::TID || field == SampleType::CPU {
                        out.extend(halves(word));
                    } else {
                        out.extend(word.iter().rev());
                    }
                }
                let end = out.len() - usize::from(record.header().size);
                let swapped = Record::parse(&out[end..], big).unwrap();
                assert_eq!(
                    SampleId::decode(&swapped, format),
                    SampleId::decode(record, format),
                    "the conversion is right"
                );
            }
            // Mappings do not show in the output.
            _ => {}
        }
    }
}

/// Numbers of 32 bits, in the other byte order.
fn halves(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks_exact(4).flat_map(|half| half.iter().rev().copied()).collect()
}

#[test]
fn a_recording_of_a_big_endian_machine_reads_alike() {
    for path in perf_files("raw") {
        let recording = PerfRecording::parse(&std::fs::read(&path).unwrap());
        let big = Scratch::new(&BigEndian::convert(&recording));
        let little = Scratch::new(&recording.to_perf_data());
        for arguments in [&[][..], &["--no-merge-callchains"]] {
            let script = |file: &Scratch| done(&plain(&[arguments, &[file.name()]].concat()));
            assert_eq!(script(&big), script(&little), "{}", path.display());
        }
        // A merge keeps the byte order.
        let merged = Scratch::new(&[]);
        assert_eq!(done(&["merge", big.name(), "-o", merged.name()]), "");
        assert_eq!(merged.bytes()[..8], *b"2ELIFREP");
        let sorted = |text: String| {
            let mut blocks: Vec<String> = text.split("\n\n").map(str::to_owned).collect();
            blocks.sort();
            blocks
        };
        let fields = ["script", "--ns", "--max-stack", "1024", "-F", "tid,time,event,ip"];
        let script = |file: &Scratch| sorted(done(&[&fields, &[file.name()][..]].concat()));
        assert_eq!(script(&merged), script(&little), "{}", path.display());
    }
}

#[test]
fn what_is_no_perf_data_is_refused() {
    for bytes in [&b""[..], b"PERFILE2", b"PERFFILEaaaaaaaabbbbbbbb", b"\x7fELF............"] {
        let file = Scratch::new(bytes);
        let output = unwind(&plain(&[file.name()]));
        assert_eq!(output.status.code(), Some(5));
        assert!(text(&output.stderr).contains("not a perf.data file"), "{}", text(&output.stderr));
    }
    let output = unwind(&["script", "/nonexistent/perf.data"]);
    assert_eq!(output.status.code(), Some(3));
    for command in [&["script", "/"][..], &["merge", "/", "-o", "/nonexistent"]] {
        let output = unwind(command);
        assert_eq!(output.status.code(), Some(5));
        assert!(text(&output.stderr).contains("a folder"), "{}", text(&output.stderr));
    }
}
