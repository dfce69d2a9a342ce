//! Functions of a target that call on another stack.

use unwind_core::VirtAddr;
use unwind_x86::{SwitchingFunction, SwitchingFunctions};

use crate::loaded::loaded_file::LoadedImage;
use crate::loaded::module::Modules;
use crate::rows::stack_switches::SwitchNames;

/// The functions of the files of a target.
#[derive(Clone, Copy, Debug)]
pub struct TargetSwitches<'t> {
    pub modules: &'t Modules,
    pub names: &'t SwitchNames,
}

impl SwitchingFunctions for TargetSwitches<'_> {
    fn find(&self, addr: VirtAddr) -> Option<SwitchingFunction> {
        let module = self.modules.find(addr.get())?;
        let LoadedImage { file, bias } = module.image().ok()?;
        file.switches(self.names).find(addr.get(), *bias)
    }
}
