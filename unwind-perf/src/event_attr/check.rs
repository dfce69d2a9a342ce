//! Whether an event may be opened.

use super::attr::EventAttr;
use super::error::AttrError;
use super::kernel::{Caller, KernelVersion, Pmu};
use crate::aux_trace::{AuxAction, AuxAttr, AuxRole, Creator};
use crate::record::{AttrFlags, BranchSampleType, EventFormat, SampleType};

/// An event that may be opened, in the terms of this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckedEvent {
    /// The fields that decide the layout of the event's records.
    pub format: EventFormat,
    /// What the event asks of AUX tracing.
    pub aux: AuxAttr,
    /// The event's part in AUX tracing.
    pub role: AuxRole,
    /// The most addresses of a call chain; `None` if samples have none.
    pub max_stack: Option<u16>,
    /// Which branches samples have, at least one kind of them and one mode; `None` if
    /// they have none.
    pub branches: Option<BranchSampleType>,
    /// The event samples; else it only counts.
    pub is_sampling: bool,
    /// Its call chains leave the user part to a later record.
    pub defers: bool,
    /// It receives those later records.
    pub wants_deferred: bool,
}

/// Segment registers, of which 64-bit samples have only `cs` and `ss`, and numbers that
/// are no register's.
const NO_REGISTERS: u64 = 0xf << 12 | 0xff << 24;
/// Vector registers.
const VECTOR_REGISTERS: u64 = 0xffff_ffff << 32;

impl EventAttr {
    /// Says whether the event may be opened on x86-64. `pmu` is its own PMU, `leader` that
    /// of its group's leader; `None` if it leads its group.
    ///
    /// Not looked at: whether the PMU has the event that `config` names, which only the
    /// PMU knows, and the task that is named.
    ///
    /// # Errors
    ///
    /// The first reason, in Linux's order.
    pub fn check(
        &self,
        kernel: KernelVersion,
        pmu: Pmu,
        caller: Caller,
        leader: Option<Pmu>,
    ) -> Result<CheckedEvent, AttrError> {
        let aux = self.aux(kernel)?;
        let branches = self.check_alone(kernel, caller)?;
        self.check_rights(kernel, caller)?;
        self.check_pmu(kernel, pmu, caller)?;
        let role = aux.check_pmu(pmu.aux, Creator::User).map_err(AttrError::Aux)?;
        self.check_samples(pmu, caller)?;
        aux.check_leader(leader.map(|leader| leader.aux)).map_err(AttrError::Aux)?;
        let format = EventFormat {
            sample_type: self.sample_type,
            read_format: self.read_format,
            flags: self.flags,
            branch_sample_type: self.branch_sample_type,
        };
        let has_chain = self.sample_type.contains(SampleType::CALLCHAIN);
        Ok(CheckedEvent {
            format,
            aux,
            role,
            max_stack: has_chain.then_some(self.max_stack(caller)),
            branches,
            is_sampling: self.sample_period != 0,
            defers: self.flags.contains(AttrFlags::DEFER_CALLCHAIN),
            wants_deferred: self.flags.contains(AttrFlags::DEFER_OUTPUT),
        })
    }

    fn aux(&self, kernel: KernelVersion) -> Result<AuxAttr, AttrError> {
        let action = AuxAction::from_bits(self.aux_action);
        // Before there were actions, the whole field was reserved.
        let action = action.filter(|&known| kernel.has_aux_action() || known == AuxAction::NONE);
        Ok(AuxAttr {
            action: action.ok_or(AttrError::Reserved(self.aux_action.into()))?,
            output: self.flags.contains(AttrFlags::AUX_OUTPUT),
            sample_size: self.aux_sample_size,
        })
    }

    const fn max_stack(&self, caller: Caller) -> u16 {
        if self.sample_max_stack == 0 { caller.max_stack } else { self.sample_max_stack }
    }

    /// What the attr alone decides, and the branch filter, whose modes are those of the
    /// event if it names none.
    fn check_alone(
        &self,
        kernel: KernelVersion,
        caller: Caller,
    ) -> Result<Option<BranchSampleType>, AttrError> {
        let unknown = self.flags.bits() & !kernel.flags();
        if unknown != 0 || self.has_reserved_field() {
            return Err(AttrError::Reserved(unknown));
        }
        match self.sample_type.bits() & !kernel.sample_type() {
            0 => {}
            unknown => return Err(AttrError::SampleType(unknown)),
        }
        match self.read_format.bits() & !kernel.read_format() {
            0 => {}
            unknown => return Err(AttrError::ReadFormat(unknown)),
        }
        let has = |field| self.sample_type.contains(field);
        let mut branches = None;
        if has(SampleType::BRANCH_STACK) {
            branches = Some(self.check_branches(kernel, caller)?);
        }
        if has(SampleType::REGS_USER) {
            check_registers(self.sample_regs_user)?;
        }
        let stack = self.sample_stack_user;
        if has(SampleType::STACK_USER) && (stack >= 0xffff || stack & 7 != 0) {
            return Err(AttrError::StackSize(stack));
        }
        if has(SampleType::REGS_INTR) {
            check_registers(self.sample_regs_intr)?;
        }
        let flag = |flag| self.flags.contains(flag);
        if has(SampleType::WEIGHT) && has(SampleType::WEIGHT_STRUCT) {
            Err(AttrError::TwoWeights)
        } else if flag(AttrFlags::INHERIT_THREAD) && !flag(AttrFlags::INHERIT) {
            Err(AttrError::InheritThread)
        } else if flag(AttrFlags::REMOVE_ON_EXEC) && flag(AttrFlags::ENABLE_ON_EXEC) {
            Err(AttrError::EnableAndRemove)
        } else if flag(AttrFlags::SIGTRAP) && !flag(AttrFlags::REMOVE_ON_EXEC) {
            Err(AttrError::Signal)
        } else {
            Ok(branches)
        }
    }

    fn check_branches(
        &self,
        kernel: KernelVersion,
        caller: Caller,
    ) -> Result<BranchSampleType, AttrError> {
        let mut branches = self.branch_sample_type;
        match branches.bits() & !kernel.branch_sample_type() {
            0 => {}
            unknown => return Err(AttrError::BranchSampleType(unknown)),
        }
        if branches.difference(BranchSampleType::MODES).is_empty() {
            return Err(AttrError::NoBranches);
        }
        if !branches.intersects(BranchSampleType::MODES) {
            let excluded = [
                (AttrFlags::EXCLUDE_USER, BranchSampleType::USER),
                (AttrFlags::EXCLUDE_KERNEL, BranchSampleType::KERNEL),
                (AttrFlags::EXCLUDE_HV, BranchSampleType::HV),
            ];
            for (flag, mode) in excluded {
                branches.set(mode, !self.flags.contains(flag));
            }
        }
        let privileged = BranchSampleType::KERNEL | BranchSampleType::HV;
        if branches.intersects(privileged) && !caller.may_see_kernel {
            return Err(AttrError::KernelNotAllowed);
        }
        Ok(branches)
    }

    /// What the caller may ask for.
    const fn check_rights(&self, kernel: KernelVersion, caller: Caller) -> Result<(), AttrError> {
        let has_chain = self.sample_type.contains(SampleType::CALLCHAIN)
            && !self.flags.contains(AttrFlags::EXCLUDE_CALLCHAIN_KERNEL);
        let sees_kernel = !self.flags.contains(AttrFlags::EXCLUDE_KERNEL)
            || (kernel.guards_kernel_chains() && has_chain)
            || (kernel.guards_text_pokes() && self.flags.contains(AttrFlags::TEXT_POKE));
        if sees_kernel && !caller.may_see_kernel {
            return Err(AttrError::KernelNotAllowed);
        }
        if self.flags.contains(AttrFlags::NAMESPACES) && !caller.is_privileged {
            return Err(AttrError::NamespacesNotAllowed);
        }
        if self.flags.contains(AttrFlags::FREQ) {
            if self.sample_period > caller.max_frequency {
                return Err(AttrError::Frequency(self.sample_period));
            }
        } else if self.sample_period >> 63 != 0 {
            return Err(AttrError::Period(self.sample_period));
        }
        if self.sample_type.contains(SampleType::PHYS_ADDR) && !caller.may_see_kernel {
            return Err(AttrError::KernelNotAllowed);
        }
        Ok(())
    }

    /// What the PMU can do.
    fn check_pmu(&self, kernel: KernelVersion, pmu: Pmu, caller: Caller) -> Result<(), AttrError> {
        let has = |field| self.sample_type.contains(field);
        if self.flags.contains(AttrFlags::SIGTRAP) && !caller.has_task {
            return Err(AttrError::Signal);
        }
        let reads_inherited = self.flags.contains(AttrFlags::INHERIT) && has(SampleType::READ);
        let names_thread = has(SampleType::TID) && kernel.reads_inherited();
        if reads_inherited && !names_thread {
            return Err(AttrError::ReadInherited);
        }
        if has(SampleType::BRANCH_STACK) && !pmu.branches {
            return Err(AttrError::BranchesNotSupported);
        }
        // Whether or not samples are to have registers.
        let has_vectors = (self.sample_regs_user | self.sample_regs_intr) & VECTOR_REGISTERS != 0;
        if has_vectors && !pmu.vector_registers {
            return Err(AttrError::VectorRegistersNotSupported);
        }
        let modes = AttrFlags::EXCLUDE_USER
            | AttrFlags::EXCLUDE_KERNEL
            | AttrFlags::EXCLUDE_HV
            | AttrFlags::EXCLUDE_HOST
            | AttrFlags::EXCLUDE_GUEST
            | AttrFlags::EXCLUDE_IDLE;
        if pmu.counts_all && self.flags.intersects(modes) {
            return Err(AttrError::ModesNotSupported);
        }
        Ok(())
    }

    /// What samples need.
    fn check_samples(&self, pmu: Pmu, caller: Caller) -> Result<(), AttrError> {
        let has_chain = self.sample_type.contains(SampleType::CALLCHAIN);
        if has_chain && self.max_stack(caller) > caller.max_stack {
            return Err(AttrError::MaxStack(self.sample_max_stack));
        }
        if self.sample_period != 0 && !pmu.samples {
            return Err(AttrError::SamplesNotSupported);
        }
        if self.flags.contains(AttrFlags::USE_CLOCKID) {
            check_clock(self.clockid, pmu)?;
        }
        Ok(())
    }
}

const fn check_registers(mask: u64) -> Result<(), AttrError> {
    if mask == 0 || mask & NO_REGISTERS != 0 { Err(AttrError::Registers(mask)) } else { Ok(()) }
}

const fn check_clock(id: i32, pmu: Pmu) -> Result<(), AttrError> {
    match id {
        // Monotonic, and that without corrections, can be read anywhere.
        1 | 4 => Ok(()),
        // Real, boot and atomic time.
        0 | 7 | 11 if pmu.without_nmi => Ok(()),
        _ => Err(AttrError::Clock(id)),
    }
}
