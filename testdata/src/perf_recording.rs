//! Recordings of perf ring buffers: see `perf/README.md`.
#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    reason = "a wrong test input shall end the test"
)]

use std::path::{Path, PathBuf};
use std::{fs, process};

/// What a recorder read from the rings of its events, byte for byte.
#[derive(Clone, Debug, Default)]
pub struct PerfRecording {
    /// The events.
    pub events: Vec<RecordedEvent>,
    /// What each ring held, in order.
    pub rings: Vec<Vec<u8>>,
    /// The same bytes in the order in which they were drained, with the ring.
    pub chunks: Vec<(usize, Vec<u8>)>,
}

/// An event of a [`PerfRecording`].
#[derive(Clone, Debug)]
pub struct RecordedEvent {
    /// Its `perf_event_attr`.
    pub attr: Vec<u8>,
    /// Its ids, one a ring.
    pub ids: Vec<u64>,
}

impl PerfRecording {
    /// Parses the container.
    ///
    /// # Panics
    ///
    /// If `bytes` is not a whole recording.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Self {
        let mut input = Input(bytes);
        assert_eq!(input.take(8), b"PDEFRAW1", "not a recording");
        let (events, rings) = (input.u32(), input.u32());
        let mut recording = Self { rings: vec![Vec::new(); rings], ..Self::default() };
        for _ in 0..events {
            let (attr_len, ids) = (input.u32(), input.u32());
            recording.events.push(RecordedEvent {
                attr: input.take(attr_len).to_vec(),
                ids: (0..ids).map(|_| input.u64()).collect(),
            });
        }
        while !input.0.is_empty() {
            let (kind, ring) = (input.u32(), input.u32());
            let len = usize::try_from(input.u64()).unwrap();
            let chunk = input.take(len);
            // The other kinds are final counts and notes.
            if kind == 1 {
                recording.rings.get_mut(ring).unwrap().extend(chunk);
                recording.chunks.push((ring, chunk.to_vec()));
            }
        }
        recording
    }

    /// Returns a minimal `perf.data`: the header, ids, attrs and the chunks in
    /// the order of draining, with no round marks and no features.
    #[must_use]
    pub fn to_perf_data(&self) -> Vec<u8> {
        const HEADER: usize = 104;
        let entry = self.events[0].attr.len() + 16;
        let ids: Vec<u8> =
            self.events.iter().flat_map(|e| &e.ids).flat_map(|id| id.to_le_bytes()).collect();
        let attrs_at = HEADER + ids.len();
        let attrs_len = entry * self.events.len();
        let data: Vec<u8> = self.chunks.iter().flat_map(|(_, chunk)| chunk).copied().collect();
        let mut file = b"PERFILE2".to_vec();
        // Header size, attr size; attrs, data and event types as offset and
        // length; 256 feature bits.
        let fields = [
            HEADER,
            entry,
            attrs_at,
            attrs_len,
            attrs_at + attrs_len,
            data.len(),
            0,
            0,
            0,
            0,
            0,
            0,
        ];
        file.extend(fields.iter().flat_map(|&field| u64::try_from(field).unwrap().to_le_bytes()));
        file.extend(&ids);
        let mut ids_at = HEADER;
        for event in &self.events {
            let ids_len = 8 * event.ids.len();
            file.extend(&event.attr);
            file.extend(u64::try_from(ids_at).unwrap().to_le_bytes());
            file.extend(u64::try_from(ids_len).unwrap().to_le_bytes());
            ids_at += ids_len;
        }
        file.extend(&data);
        file
    }
}

struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, len: usize) -> &'a [u8] {
        self.0.split_off(..len).expect("the recording is cut off")
    }

    fn u32(&mut self) -> usize {
        let bytes = self.take(4).try_into().unwrap();
        usize::try_from(u32::from_le_bytes(bytes)).unwrap()
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }
}

/// Returns the files of the perf fixtures with this extension, sorted.
///
/// With `PERF_RECORDS=DIR` in the environment those under `DIR` come too, at
/// any depth: a larger set than the repository holds.
///
/// # Panics
///
/// If a folder cannot be read, or holds no such file.
#[must_use]
pub fn perf_files(extension: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("perf");
    collect(&own, extension, &mut files);
    if let Some(more) = std::env::var_os("PERF_RECORDS") {
        collect(Path::new(&more), extension, &mut files);
    }
    files.sort();
    assert!(!files.is_empty(), "no .{extension} file in {}", own.display());
    files
}

fn collect(folder: &Path, extension: &str, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, extension, files);
        } else if path.extension().is_some_and(|found| found == extension) {
            files.push(path);
        }
    }
}

/// Returns the bytes of the perf fixture `name`.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn perf_file(name: &str) -> Vec<u8> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("perf").join(name);
    fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the text beside a perf fixture: `suffix` takes the place of its
/// extension. A packed text (`.gz`) is unpacked by `gzip`.
///
/// # Panics
///
/// If there is none.
#[must_use]
pub fn perf_text(file: &Path, suffix: &str) -> String {
    let plain = file.with_extension(suffix);
    if plain.exists() {
        return fs::read_to_string(plain).unwrap();
    }
    let packed = file.with_extension(format!("{suffix}.gz"));
    let output = process::Command::new("gzip").arg("-dc").arg(&packed).output().unwrap();
    assert!(output.status.success(), "{} cannot be unpacked", packed.display());
    String::from_utf8(output.stdout).unwrap()
}
