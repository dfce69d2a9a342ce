//! Names of frames and addresses of one target.

use std::collections::BTreeMap;

use unwind_core::Frame as WalkedFrame;

use crate::jit::told_code::ToldCode;
use crate::loaded::module::Modules;
use crate::stack::frame::Frame;
use crate::stack::naming::Naming;
use crate::stack::source_lines;
use crate::stack::symbol::{NameRoom, Symbol};
use crate::target::maps::Mapping;
use crate::untrusted::{Untrusted, escaped};

/// Finds names, and keeps what is wrong with the files that have them.
pub(super) struct Namer<'t> {
    modules: &'t Modules,
    mappings: &'t [Mapping],
    naming: &'t Naming,
    told: ToldCode<'t>,
    room: NameRoom,
    /// By path.
    troubles: BTreeMap<Untrusted, String>,
}

impl<'t> Namer<'t> {
    /// Of what is loaded in a process that runs, or of none. Names have about `room` bytes in all.
    pub(super) fn new(
        process: Option<i32>,
        mappings: &'t [Mapping],
        modules: &'t Modules,
        naming: &'t Naming,
        room: usize,
    ) -> Self {
        let told = ToldCode::new(process, mappings, naming.notices.clone());
        let (room, troubles) = (NameRoom::new(room), BTreeMap::new());
        Self { modules, mappings, naming, told, room, troubles }
    }

    /// The frames of a stack with their names.
    pub(super) fn frames(&mut self, frames: &[WalkedFrame]) -> Vec<Frame> {
        let modules = self.modules;
        let named = Frame::of_stack(frames, |addr| modules.find(addr));
        named
            .map(|(mut frame, trouble)| {
                let (pc, lookup) = (frame.pc, frame.lookup());
                self.complete(&mut frame.symbol, trouble, pc, lookup);
                frame
            })
            .collect()
    }

    /// What an address is called by the code at `lookup`.
    pub(super) fn address(&mut self, addr: u64, lookup: u64) -> Symbol {
        let mut symbol = Symbol::default();
        let module = self.modules.find(lookup);
        let trouble = module.and_then(|module| symbol.name(module, addr, lookup, false).err());
        self.complete(&mut symbol, trouble, addr, lookup);
        symbol
    }

    fn complete(&mut self, symbol: &mut Symbol, trouble: Option<String>, pc: u64, lookup: u64) {
        if let (Some(path), Some(trouble)) = (&symbol.object, trouble) {
            self.troubles.insert(path.clone(), trouble);
        }
        if symbol.object.is_none() {
            let past = pc.wrapping_sub(lookup);
            symbol.name_without_file(self.mappings, &self.told, lookup, past);
        }
        symbol.demangle(self.naming.parameters);
        self.room.fit([&mut symbol.object, &mut symbol.function, &mut symbol.mangled]);
    }

    /// Adds places in the source, if they are wanted, and returns what is wrong with all names, a line
    /// each. `symbols` are all that were named, with the addresses that they were looked up at.
    pub(super) fn finish(mut self, symbols: &mut [(u64, &mut Symbol)]) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(reader) = &self.naming.lines {
            let (parameters, room) = (self.naming.parameters, &mut self.room);
            warnings = source_lines::add(symbols, self.modules, reader, parameters, room);
        }
        for module in self.modules.iter() {
            let image = module.image_so_far();
            if let Some(wrong) = image.and_then(|image| image.file.wrong_debug_file()) {
                warnings.push(format!("{}: {wrong}", escaped(&module.path)));
            }
        }
        warnings.extend(self.told.missing());
        if self.room.is_cut() {
            warnings.push("names are cut: frames have the same names, and all are too long".into());
        }
        let troubles = self.troubles.into_iter();
        warnings.extend(troubles.map(|(path, trouble)| format!("{path}: {trouble}")));
        warnings
    }
}
