//! The places in the source of the frames of a report.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::commands::stack::frame_report::{
    FrameReport, InlinedReport, NameRoom, Source, demangled,
};
use crate::demangle::Parameters;
use crate::elf::ElfFile;
use crate::lines;
use crate::lines::place::{Place, Places};
use crate::loaded_file::LoadedFile;
use crate::module::Modules;
use crate::untrusted::{Untrusted, escaped};

/// The addresses of one file that are asked for.
struct Asked<'m> {
    file: &'m LoadedFile,
    path: String,
    /// Link-time addresses, and the frames that have each.
    frames: BTreeMap<u64, Vec<usize>>,
}

/// Looks up the places of frames whose files have DWARF. Returns what is wrong, a line each.
pub(super) fn add(
    frames: &mut [&mut FrameReport],
    modules: &Modules,
    parameters: Parameters,
    room: &mut NameRoom,
) -> Vec<String> {
    let mut files = HashMap::new();
    for (index, frame) in frames.iter().enumerate() {
        let Some(module) = modules.find(frame.lookup()) else { continue };
        let Ok(image) = module.image() else { continue };
        let asked = files.entry(Rc::as_ptr(&image.file)).or_insert_with(|| Asked {
            file: &image.file,
            path: escaped(&module.path).to_string(),
            frames: BTreeMap::new(),
        });
        let linked = frame.lookup().wrapping_sub(image.bias);
        asked.frames.entry(linked).or_default().push(index);
    }
    let mut warnings = Vec::new();
    for asked in files.into_values() {
        let (places, warning) = asked.places();
        warnings.extend(warning.map(|warning| format!("{}: lines: {warning}", asked.path)));
        for (indices, places) in asked.frames.values().zip(places) {
            for &index in indices {
                if let Some(frame) = frames.get_mut(index) {
                    place(frame, &places, parameters, room);
                }
            }
        }
    }
    warnings.sort_unstable();
    warnings
}

impl Asked<'_> {
    /// The places of the addresses, in order, as far as they are known, and what is wrong.
    fn places(&self) -> (Vec<Places>, Option<String>) {
        let find = |file: &ElfFile| {
            let addrs: Vec<_> = self.frames.keys().copied().collect();
            let (places, error) = lines::find(file, &addrs);
            (places, error.map(|error| error.to_string()))
        };
        match lines::are_in(&self.file.elf) {
            Ok(true) => return find(&self.file.elf),
            Ok(false) => {}
            Err(error) => return (Vec::new(), Some(error.to_string())),
        }
        match self.file.debug_file() {
            Ok(Some(debug_file)) if lines::are_in(debug_file) == Ok(true) => find(debug_file),
            // A wrong one is told elsewhere, and most files have none.
            _ => (Vec::new(), None),
        }
    }
}

/// Places a frame: the last place is its own.
fn place(frame: &mut FrameReport, places: &[Place], parameters: Parameters, room: &mut NameRoom) {
    let Some((own, inlined)) = places.split_last() else { return };
    let mut source = Source {
        file: own.file.as_ref().map(Untrusted::from),
        line: own.line,
        column: own.column,
        inlined: inlined.iter().map(|place| inlined_report(place, parameters)).collect(),
    };
    room.fit([&mut source.file]);
    for inlined in &mut source.inlined {
        room.fit([&mut inlined.file, &mut inlined.function, &mut inlined.mangled]);
    }
    if frame.function.is_none() {
        let own = inlined_report(own, parameters);
        (frame.function, frame.mangled) = (own.function, own.mangled);
        room.fit([&mut frame.function, &mut frame.mangled]);
    }
    frame.source = source;
}

fn inlined_report(place: &Place, parameters: Parameters) -> InlinedReport {
    let name = place.function.as_ref().map(Untrusted::from);
    let whole = name.as_ref().and_then(|name| demangled(name, parameters));
    let (function, mangled) = match whole {
        Some(whole) => (Some(whole), name),
        None => (name, None),
    };
    let file = place.file.as_ref().map(Untrusted::from);
    InlinedReport { function, mangled, file, line: place.line, column: place.column }
}
