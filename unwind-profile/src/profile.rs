//! Recordings that were read, and what can be written of them.

use std::cmp::Reverse;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

#[cfg(feature = "otlp")]
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceRequest;
use unwind_target::counted::counted;
use unwind_target::untrusted::escaped;
use unwind_target::{DebugFiles, LineReader, Notices, Untrusted};

use crate::collected::call_tree::{CallTree, FrameKind};
use crate::collected::debug_info::DebugInfo;
use crate::collected::error::{Ended, ReadingError, SeveralEvents};
use crate::collected::grouping::By;
use crate::collected::interpreted_calls::InterpretedCalls;
use crate::collected::labels::Labels;
use crate::collected::reading::{EventRead, Read, Reading};
use crate::collected::source_lines::SourceLines;
use crate::collected::together::read;
use crate::collected::view::View;
use crate::formats;
use crate::formats::format::Format;
use crate::function_samples::FunctionSamples;
use crate::output_file::write_file;
use crate::recording::reader::ReadProgress;
use crate::session::ledger::Ledger;

/// How recordings are read.
///
/// ```
/// use unwind_profile::{By, Format, ProfileOptions};
///
/// let options = ProfileOptions::new(Format::Folded).by(By::Thread).memory(64 << 20);
/// # let _ = options;
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ProfileOptions {
    format: Format,
    title: Option<String>,
    event: Option<Untrusted>,
    by: By,
    off_cpu: bool,
    trusts_frame_pointers: bool,
    pub(crate) memory: usize,
    debug_info: DebugInfo,
    shows_inlined: bool,
    interpreted: InterpretedCalls,
    has_sources: bool,
    keeps_gaps_apart: bool,
    host: Option<Untrusted>,
    release: Option<Untrusted>,
    notices: Notices,
    progress: Option<Arc<dyn ReadProgress>>,
}

impl ProfileOptions {
    /// Keeps what this format shows. [`Format::Html`] has the most: lines of the source and the course of time. A
    /// profile can be written in other formats, too, with what was kept.
    pub fn new(format: Format) -> Self {
        Self {
            format,
            title: None,
            event: None,
            by: By::Name,
            off_cpu: false,
            trusts_frame_pointers: false,
            memory: 256 << 20,
            debug_info: DebugInfo::default(),
            shows_inlined: true,
            interpreted: InterpretedCalls::default(),
            has_sources: true,
            keeps_gaps_apart: false,
            host: None,
            release: None,
            notices: Notices::default(),
            progress: None,
        }
    }

    /// Reads the samples of one event alone, by its name, such as `page-faults`.
    pub fn event(self, name: impl Into<Untrusted>) -> Self {
        Self { event: Some(name.into()), ..self }
    }

    /// What stacks are put together under. Without it the names of threads.
    pub fn by(self, by: By) -> Self {
        Self { by, ..self }
    }

    /// Whether waits are shown, of a recording that has them. A wait counts as many samples as its thread
    /// would have had if it had run meanwhile. They are not without it.
    pub fn off_cpu(self, off_cpu: bool) -> Self {
        Self { off_cpu, ..self }
    }

    /// Whether all code without a table is known to keep frame pointers.
    pub fn trust_frame_pointers(self, trusts: bool) -> Self {
        Self { trusts_frame_pointers: trusts, ..self }
    }

    /// About how many bytes to hold at most, of records and of stacks each. Without it 256 MiB.
    pub fn memory(self, bytes: usize) -> Self {
        Self { memory: bytes, ..self }
    }

    /// Where what was stripped off files is looked for.
    pub fn debug_files(mut self, files: DebugFiles) -> Self {
        self.debug_info.files = files;
        self
    }

    /// Who reads the DWARF of files, which has lines and inlined functions. Without it this process, which is for
    /// files that are trusted. No DWARF is read of profiles [without inlined functions](Self::inlined) for formats
    /// other than [`Format::Html`].
    pub fn lines(mut self, reader: LineReader) -> Self {
        self.debug_info.lines = reader;
        self
    }

    /// Whether functions that compilers have inlined have frames of their own. They have without it.
    pub fn inlined(self, shows_inlined: bool) -> Self {
        Self { shows_inlined, ..self }
    }

    /// Which frames stacks have that an interpreter's calls are known of. Without it both.
    pub fn interpreted(self, interpreted: InterpretedCalls) -> Self {
        Self { interpreted, ..self }
    }

    /// Whether pages have the text of source files beside the numbers of lines. They have without it.
    pub fn sources(self, has_sources: bool) -> Self {
        Self { has_sources, ..self }
    }

    /// Whether stacks with gaps stand apart, below `[incomplete: gap]`.
    pub fn gaps_apart(self, keeps_gaps_apart: bool) -> Self {
        Self { keeps_gaps_apart, ..self }
    }

    /// The machine that was recorded, for formats that are sent or put together with others. Without it as the
    /// recording says.
    pub fn host(self, name: impl Into<Untrusted>) -> Self {
        Self { host: Some(name.into()), ..self }
    }

    /// What was recorded, such as its version, for the same formats.
    pub fn release(self, name: impl Into<Untrusted>) -> Self {
        Self { release: Some(name.into()), ..self }
    }

    /// Where it is told, once each, what is to be known of files and rights: which functions have no names and why,
    /// what samples lack.
    pub fn notices(self, notices: Notices) -> Self {
        Self { notices, ..self }
    }

    /// What is told how far the reading is.
    pub fn progress(self, progress: Arc<dyn ReadProgress>) -> Self {
        Self { progress: Some(progress), ..self }
    }

    /// Reads a recording: a `perf.data` of `unwind record`, of this library or of perf.
    ///
    /// # Errors
    ///
    /// [`ReadingError`] if it is no recording. One that is damaged is read as far as it goes, which
    /// [`Profile::ended`] says.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<Profile, ReadingError> {
        self.open_all(&[path])
    }

    /// Reads recordings, which are put together, such as the parts of one. Those that cannot be read are left
    /// out, which [`Profile::ended`] says.
    ///
    /// # Errors
    ///
    /// [`ReadingError`] if none is one, or none has the event that was asked for.
    pub fn open_all<P: AsRef<Path>>(&self, paths: &[P]) -> Result<Profile, ReadingError> {
        let mut read = read(paths, self.reading(false))?;
        let lines = read.events.iter_mut().map(|event| self.lines_of(event)).collect();
        let title = self.title.clone().unwrap_or_else(|| title(paths));
        let titles = read.events.iter().map(|event| title_of_event(&title, &read, event)).collect();
        let labels = self.labels(&read, paths);
        Ok(Profile { read, lines, titles, labels, memory: self.memory })
    }

    /// What tells once what is to be known.
    pub(crate) const fn told_to(&self) -> &Notices {
        &self.notices
    }

    /// What pictures are called. Without it by the file.
    pub fn title(self, title: impl Into<String>) -> Self {
        Self { title: Some(title.into()), ..self }
    }

    /// The same with a title, if it has none.
    pub(crate) fn titled(self, title: &str) -> Self {
        let title = self.title.unwrap_or_else(|| title.to_owned());
        Self { title: Some(title), ..self }
    }

    /// How recordings are read that are compared, or not.
    pub(crate) fn reading(&self, is_compared: bool) -> Reading<'_> {
        Reading {
            event: self.event.as_ref(),
            by: self.by,
            off_cpu: self.off_cpu,
            trust_fp: self.trusts_frame_pointers,
            memory: self.memory,
            names_kernel: true,
            keeps_lines: self.format.has_lines() && !is_compared,
            debug_info: Some(&self.debug_info),
            shows_inlined: self.shows_inlined,
            interpreted: self.interpreted,
            detail: self.format.detail(),
            is_compared,
            keeps_gaps_apart: self.keeps_gaps_apart,
            notices: Some(&self.notices),
            progress: self.progress.as_ref(),
        }
    }

    fn lines_of(&self, event: &mut EventRead) -> SourceLines {
        let lines = event.line_samples.take().map(|samples| {
            let frames = &event.profile.frames;
            SourceLines::find(samples, frames, &self.debug_info, self.has_sources)
        });
        lines.unwrap_or_default()
    }

    /// What tells a recording in these files from others.
    fn labels<P: AsRef<Path>>(&self, read: &Read, files: &[P]) -> Labels {
        // Standard input has no file.
        let modified = |file: &P| fs::metadata(file).and_then(|metadata| metadata.modified()).ok();
        let written = files.first().and_then(modified).unwrap_or_else(SystemTime::now);
        Labels::new(&read.origin, written, self.host.clone(), self.release.clone())
    }
}

/// The stacks of a recording, or of several together, and what became of their samples.
///
/// ```no_run
/// use unwind_profile::{Format, Profile};
///
/// let profile = Profile::open("perf.data")?;
/// for function in profile.functions().iter().take(10) {
///     println!("{:6} {:6} {}", function.own, function.total, function.name);
/// }
/// println!("{}", profile.ledger());
/// profile.save(Format::Folded, "stacks.folded")?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Profile {
    read: Read,
    lines: Vec<SourceLines>,
    titles: Vec<String>,
    labels: Labels,
    memory: usize,
}

/// Why a profile cannot be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The format is of one event, and there are several.
    #[error(transparent)]
    SeveralEvents(#[from] SeveralEvents),
    /// The output cannot be written to.
    #[error("cannot write the profile: {0}")]
    Output(#[from] io::Error),
    /// The format is not written in this way.
    #[error("{0}")]
    OtherFormat(&'static str),
}

/// How many functions the text has at most.
pub(crate) const TOP: usize = 40;

impl Profile {
    /// Reads a recording with all that formats show. [`ProfileOptions`] says otherwise.
    ///
    /// # Errors
    ///
    /// As [`ProfileOptions::open`].
    pub fn open(path: impl AsRef<Path>) -> Result<Self, ReadingError> {
        ProfileOptions::new(Format::DETAILED).open(path)
    }

    /// What became of the samples.
    #[must_use]
    pub const fn ledger(&self) -> &Ledger {
        &self.read.ledger
    }

    /// The names of all events, and how many samples each has.
    #[must_use]
    pub fn events(&self) -> Vec<(Untrusted, u64)> {
        self.read.event_list()
    }

    /// The samples of the event with the most. Of a profile with waits they count as many as their threads would
    /// have had if they had run.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.tree().map_or(0, CallTree::samples)
    }

    /// The stacks of the event with the most samples.
    fn tree(&self) -> Option<&CallTree> {
        let largest = self.read.events.iter().max_by_key(|event| event.ledger.written);
        largest.map(|event| &event.profile)
    }

    /// The functions of [these samples](Self::samples), that with the most of its own first. What stands for no
    /// function is not among them: waits, and why stacks are incomplete.
    #[must_use]
    pub fn functions(&self) -> Vec<FunctionSamples> {
        let tree = self.tree();
        let of_tree = tree.into_iter().flat_map(|tree| tree.frames.iter().zip(tree.totals()));
        let functions =
            of_tree.filter(|(frame, total)| frame.kind != FrameKind::Note && total.all > 0);
        let mut functions: Vec<_> = functions
            .map(|(frame, total)| FunctionSamples {
                name: frame.name.clone(),
                file: frame.file.clone(),
                is_kernel: frame.kind == FrameKind::Kernel,
                own: total.own,
                total: total.all,
            })
            .collect();
        functions.sort_by_key(|function| Reverse((function.own, function.total)));
        functions
    }

    /// Writes it. Text has all events, the 40 functions with the most samples of each; the other formats are of
    /// one event. Tables of Parquet are written by [`save_tables`](Self::save_tables).
    ///
    /// # Errors
    ///
    /// [`WriteError`] if there are several events, or `out` cannot be written to.
    pub fn write(&self, format: Format, mut out: impl Write) -> Result<(), WriteError> {
        self.can_be(format)?;
        Ok(self.write_views(format, &self.views(false), TOP, &mut out)?)
    }

    /// Writes it to a file, which takes its name once it is whole. A file that was there is replaced.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write); a file that was there is then as it was.
    pub fn save(&self, format: Format, path: impl AsRef<Path>) -> Result<(), WriteError> {
        self.can_be(format)?;
        let views = self.views(false);
        let write = |file: &File| self.write_views(format, &views, TOP, &mut BufWriter::new(file));
        Ok(write_file(path.as_ref(), write)?)
    }

    /// Whether it can be written as one file of this format.
    fn can_be(&self, format: Format) -> Result<(), WriteError> {
        if format.is_of_tables() {
            return Err(WriteError::OtherFormat(
                "tables are written by `save_tables`, to a folder",
            ));
        }
        if format != Format::Text {
            self.only()?;
        }
        Ok(())
    }

    /// The same as the command writes it: with at most `top` functions in text, which names the command's
    /// options.
    #[doc(hidden)]
    pub fn write_top(&self, format: Format, top: usize, out: &mut dyn Write) -> io::Result<()> {
        self.write_views(format, &self.views(true), top, out)
    }

    fn write_views(
        &self,
        format: Format,
        views: &[View<'_>],
        top: usize,
        out: &mut dyn Write,
    ) -> io::Result<()> {
        if let [view] = views {
            return formats::write(format, view, top, self.memory, out);
        }
        let events = self.events();
        writeln!(out, "{} events:\n   samples  event", events.len())?;
        for (name, count) in &events {
            writeln!(out, "{count:>10}  {}", name.escaped())?;
        }
        for (event, view) in self.read.events.iter().zip(views) {
            writeln!(out, "\n{}:", event.name.escaped())?;
            formats::write(format, view, top, self.memory, out)?;
        }
        if self.read.ledger.lost > 0 {
            let records = counted(self.read.ledger.lost, "record", "records");
            writeln!(out, "\napart from these, lost in a ring, of any event: {records}")?;
        }
        out.flush()
    }

    /// Writes tables of Parquet below a folder, beside those of other recordings. The folder is made if it is not
    /// there.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[cfg(feature = "parquet")]
    pub fn save_tables(&self, folder: impl AsRef<Path>) -> Result<(), WriteError> {
        self.only()?;
        for view in self.views(false) {
            formats::parquet::write(folder.as_ref(), &view)?;
        }
        Ok(())
    }

    /// What a receiver of OpenTelemetry is sent: a profile for each event.
    #[cfg(feature = "otlp")]
    #[doc(hidden)]
    #[must_use]
    pub fn requests(&self) -> Vec<ExportProfilesServiceRequest> {
        let request = |view: &View<'_>| formats::otlp::request(view, self.memory);
        self.views(false).iter().map(request).collect()
    }

    /// What could not be found out, a line each: lines and inlined functions that could not be read.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        let of_lines = self.lines.iter().flat_map(|lines| &lines.problems);
        self.read.problems.iter().chain(of_lines).map(String::as_str)
    }

    /// How the reading ended: what is missing, and whether the ledger adds up. This is the last that is asked of a
    /// profile.
    #[must_use]
    pub fn ended(self) -> Ended {
        self.read.end()
    }

    /// Whether there is one event.
    ///
    /// # Errors
    ///
    /// [`SeveralEvents`] if there are more.
    #[doc(hidden)]
    pub fn only(&self) -> Result<(), SeveralEvents> {
        self.read.only().map(|_| ())
    }

    /// What the formats of the command tell beside the samples.
    #[doc(hidden)]
    #[must_use]
    pub fn notes(&self) -> String {
        self.views(true).iter().map(View::notes).collect()
    }

    /// What there is to write of each event, in texts that name options of the command or not.
    fn views(&self, names_options: bool) -> Vec<View<'_>> {
        let events = self.read.events.iter().zip(&self.lines).zip(&self.titles);
        let mut views = Vec::new();
        for ((event, lines), title) in events {
            let EventRead { profile, time_line, ledger, .. } = event;
            let labels = &self.labels;
            views.push(View { title, profile, time_line, ledger, labels, lines, names_options });
        }
        views
    }
}

/// What a picture of an event is called.
fn title_of_event(title: &str, read: &Read, event: &EventRead) -> String {
    match read.event_list().as_slice() {
        [_] => title.to_owned(),
        _ => format!("{title}: {}", event.name.escaped()),
    }
}

/// What a picture is called.
pub(crate) fn title<P: AsRef<Path>>(files: &[P]) -> String {
    let name = |file: &P| escaped(file.as_ref()).to_string();
    match files {
        [] => String::new(),
        [only] => name(only),
        [first, others @ ..] => format!("{} and {} more", name(first), others.len()),
    }
}
