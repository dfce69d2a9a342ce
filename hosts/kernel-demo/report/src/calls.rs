//! Whether one function really calls another: what the instructions say,
//! independent of symbols and tables.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind};

use crate::image::{Function, Image};

/// The call in front of a return address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    /// To this address.
    To(u64),
    /// By way of a register or memory.
    Indirect,
}

/// Looks at the calls of one image.
pub(crate) struct Calls<'i> {
    image: &'i Image,
    /// By the start of a function: where it may go without a call.
    jumps: RefCell<BTreeMap<u64, BTreeSet<u64>>>,
}

impl<'i> Calls<'i> {
    pub(crate) const fn new(image: &'i Image) -> Self {
        Self { image, jumps: RefCell::new(BTreeMap::new()) }
    }

    /// The call just before a return address, if there is one.
    pub(crate) fn before(&self, ra: u64) -> Option<Call> {
        let function = self.image.function(ra.checked_sub(1)?)?;
        self.instructions(function, ra).find(|instruction| instruction.next_ip() == ra).and_then(
            |instruction| match instruction.flow_control() {
                FlowControl::Call => Some(Call::To(instruction.near_branch_target())),
                FlowControl::IndirectCall => Some(Call::Indirect),
                _ => None,
            },
        )
    }

    /// Whether a call to `target` can be in `callee` without another call:
    /// it is the callee, or it ends in a jump there.
    pub(crate) fn leads_to(&self, target: u64, callee: &Function) -> bool {
        let mut seen = BTreeSet::new();
        let mut left = vec![target];
        while let Some(at) = left.pop() {
            let Some(function) = self.image.function(at) else { continue };
            if function == callee {
                return true;
            }
            if seen.insert(function.start) {
                left.extend(self.jumps(function));
            }
        }
        false
    }

    /// Whether the function sets up a frame pointer anywhere.
    pub(crate) fn keeps_frame_pointer(&self, function: &Function) -> bool {
        let push: &[u8] = if self.image.bits == 64 { &[0x55, 0x48, 0x89, 0xe5] } else { &[0x55] };
        self.image
            .bytes(function.start, function.end)
            .is_some_and(|code| code.windows(push.len()).any(|window| window == push))
    }

    /// Where the function jumps outside of itself.
    fn jumps(&self, function: &Function) -> BTreeSet<u64> {
        let mut jumps = self.jumps.borrow_mut();
        let found = jumps.entry(function.start).or_insert_with(|| {
            self.instructions(function, function.end)
                .filter(|instruction| {
                    let flow = instruction.flow_control();
                    matches!(
                        flow,
                        FlowControl::UnconditionalBranch | FlowControl::ConditionalBranch
                    ) && matches!(
                        instruction.op0_kind(),
                        OpKind::NearBranch64 | OpKind::NearBranch32
                    )
                })
                .map(|instruction| instruction.near_branch_target())
                .filter(|target| !(function.start..function.end).contains(target))
                .collect()
        });
        found.clone()
    }

    /// The instructions of a function up to `end`.
    fn instructions(
        &self,
        function: &Function,
        end: u64,
    ) -> impl Iterator<Item = Instruction> + use<'i> {
        let code = self.image.bytes(function.start, end).unwrap_or_default();
        let mut decoder =
            Decoder::with_ip(self.image.bits, code, function.start, DecoderOptions::NONE);
        std::iter::from_fn(move || decoder.can_decode().then(|| decoder.decode()))
    }
}
