//! A recording from its first record to its last, printed with its stacks walked.

use std::io;
use std::thread::scope;

use crate::mapped::address_spaces::Spaces;
use crate::mapped::files::RecordedFiles;
use crate::recording::pipeline::{self, Options, Summary};
use crate::recording::reader::PerfReader;
use crate::walks::call_stacks::CallStacks;
use crate::walks::shown::{Printer, ShownSink};
use crate::walks::walkers::{WalkSetup, Walks};

/// Hands all samples to a printer. Returns that, and how the reading ended.
///
/// # Errors
///
/// In place of the summary: those of the printer.
pub fn print<P: Printer>(
    reader: &mut PerfReader,
    options: Options,
    files: RecordedFiles,
    call_stacks: CallStacks,
    printer: P,
) -> (P, io::Result<Summary>) {
    let setup = WalkSetup::new(options.frame_pointers);
    print_walked(reader, options, setup, (files, call_stacks), printer)
}

/// The same, with stacks walked as `setup` says.
///
/// # Errors
///
/// In place of the summary: those of the printer.
pub fn print_walked<P: Printer>(
    reader: &mut PerfReader,
    options: Options,
    setup: WalkSetup,
    (files, call_stacks): (RecordedFiles, CallStacks),
    printer: P,
) -> (P, io::Result<Summary>) {
    let (printer, ended) = scope(|scope| {
        let walks = Walks::new(scope, &setup);
        let mut sink = ShownSink::new(printer, Spaces::new(files), walks, call_stacks);
        let ended = pipeline::run(reader, options, &mut sink).and_then(|summary| {
            sink.finish(reader.events())?;
            Ok(summary)
        });
        (sink.printer, ended)
    });
    let rows = setup.into_rows();
    (printer, ended.map(|summary| Summary { rows, ..summary }))
}
