//! The places in the source of addresses.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::demangle::Parameters;
use crate::elf::ElfFile;
use crate::lines::place::{Place, Places};
use crate::lines::{self, LineReader};
use crate::loaded::loaded_file::LoadedFile;
use crate::loaded::module::Modules;
use crate::stack::symbol::{Inlined, NameRoom, Source, Symbol, demangled};
use crate::untrusted::{Untrusted, escaped};

/// The addresses of one file that are asked for.
struct Asked<'m> {
    file: &'m LoadedFile,
    path: String,
    reader: &'m LineReader,
    /// Link-time addresses, and the symbols that have each.
    symbols: BTreeMap<u64, Vec<usize>>,
}

/// Looks up the places of addresses whose files have DWARF. Returns what is wrong, a line each.
pub(super) fn add(
    symbols: &mut [(u64, &mut Symbol)],
    modules: &Modules,
    reader: &LineReader,
    parameters: Parameters,
    room: &mut NameRoom,
) -> Vec<String> {
    let mut files = HashMap::new();
    for (index, (addr, _)) in symbols.iter().enumerate() {
        let Some(module) = modules.find(*addr) else { continue };
        let Ok(image) = module.image() else { continue };
        let asked = files.entry(Rc::as_ptr(&image.file)).or_insert_with(|| Asked {
            file: &image.file,
            path: escaped(&module.path).to_string(),
            reader,
            symbols: BTreeMap::new(),
        });
        asked.symbols.entry(addr.wrapping_sub(image.bias)).or_default().push(index);
    }
    let mut warnings = Vec::new();
    for asked in files.into_values() {
        let (places, warning) = asked.places();
        warnings.extend(warning.map(|warning| format!("{}: lines: {warning}", asked.path)));
        for (indices, places) in asked.symbols.values().zip(places) {
            for &index in indices {
                if let Some((_, symbol)) = symbols.get_mut(index) {
                    place(symbol, &places, parameters, room);
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
            let addrs: Vec<_> = self.symbols.keys().copied().collect();
            let (places, error) = self.reader.find(file, &addrs);
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

/// Places an address: the last place is its own.
fn place(symbol: &mut Symbol, places: &[Place], parameters: Parameters, room: &mut NameRoom) {
    let Some((own, inlined)) = places.split_last() else { return };
    let mut source = Source {
        file: own.file.as_ref().map(Untrusted::from),
        line: own.line,
        column: own.column,
        text: None,
        inlined: inlined.iter().map(|place| inlined_function(place, parameters)).collect(),
    };
    room.fit([&mut source.file]);
    for inlined in &mut source.inlined {
        room.fit([&mut inlined.file, &mut inlined.function, &mut inlined.mangled]);
    }
    if symbol.function.is_none() {
        let own = inlined_function(own, parameters);
        (symbol.function, symbol.mangled) = (own.function, own.mangled);
        room.fit([&mut symbol.function, &mut symbol.mangled]);
    }
    symbol.source = source;
}

fn inlined_function(place: &Place, parameters: Parameters) -> Inlined {
    let name = place.function.as_ref().map(Untrusted::from);
    let whole = name.as_ref().and_then(|name| demangled(name, parameters));
    let (function, mangled) = match whole {
        Some(whole) => (Some(whole), name),
        None => (name, None),
    };
    let file = place.file.as_ref().map(Untrusted::from);
    Inlined { function, mangled, file, line: place.line, column: place.column, text: None }
}
