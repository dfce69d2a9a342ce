//! Which stack is right: the registers alone tell it, see `guest.S`.

use unwind_core::{Trace, TraceFrame};
use unwind_guest::{GuestStack, VcpuRegisters};

use crate::image::GuestImage;

/// How many functions of a chain are `zero` or `one`; the next one is the innermost.
pub(crate) const USER_DEPTH: u64 = 18;
pub(crate) const KERNEL_DEPTH: u64 = 9;

/// What a stack is found to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// All frames, and no other.
    Right,
    /// Another one: what is expected, and what there is.
    Wrong(String),
}

/// The guest's functions.
#[derive(Debug)]
pub(crate) struct Known {
    /// By address.
    functions: Vec<(u64, &'static str)>,
    /// Instructions of functions before they count their depth, or after that.
    uncounted: Vec<u64>,
}

impl Known {
    pub(crate) fn new(image: &GuestImage) -> Self {
        let functions = image.symbols().filter(|(_, _, is_function)| *is_function);
        let mut functions: Vec<_> = functions.map(|(name, addr, _)| (addr, name)).collect();
        functions.sort_unstable();
        let is_uncounted = |name: &str| {
            let is_of = |suffix: &str| {
                ["_zero", "_one", "_leaf"]
                    .iter()
                    .any(|function| name.ends_with(&[function, suffix].concat()))
            };
            (is_of("") && !name.contains("after")) || is_of("_ret")
        };
        let uncounted = image.symbols().filter(|(name, ..)| is_uncounted(name));
        Self { functions, uncounted: uncounted.map(|(_, addr, _)| addr).collect() }
    }

    /// Compares a stack with the one that these registers stand for.
    pub(crate) fn check(&self, vcpu: &VcpuRegisters, stack: &GuestStack) -> Verdict {
        let [.., r13, r14, r15] = vcpu.general;
        let depth = r14 + u64::from(self.uncounted.contains(&vcpu.rip));
        let user_number = r13 >> 16;
        let (kernel, user) = if vcpu.is_user() {
            (vec![], chain("user", &["user_start"], user_number, (depth, USER_DEPTH)))
        } else {
            let user = chain("user", &["user_start"], user_number, (USER_DEPTH + 1, USER_DEPTH));
            let kernel = match self.name(vcpu.rip) {
                "kernel_entry" => vec!["kernel_entry".to_owned()],
                _ => chain("kernel", &["kernel_entry", "kernel_main"], r15, (depth, KERNEL_DEPTH)),
            };
            (kernel, user)
        };
        let found = [stack.kernel(), stack.user()].map(|part| self.names(part));
        if stack.is_complete() && found == [&kernel[..], &user[..]] {
            return Verdict::Right;
        }
        Verdict::Wrong(format!("{:#x}: {kernel:?} {user:?}, not {found:?}: {stack:?}", vcpu.rip))
    }

    /// The names of a part's functions, the outermost first.
    fn names(&self, part: Option<&Trace>) -> Vec<&'static str> {
        let name = |frame: TraceFrame| self.name(frame.pc.lookup_addr().get());
        part.map_or(vec![], |trace| trace.frames().rev().map(name).collect())
    }

    fn name(&self, addr: u64) -> &'static str {
        let after = self.functions.partition_point(|&(start, _)| start <= addr);
        after.checked_sub(1).map_or("?", |at| self.functions[at].1)
    }
}

/// The functions of a chain, the outermost first.
fn chain(side: &str, roots: &[&str], number: u64, (depth, most): (u64, u64)) -> Vec<String> {
    let callee = |level: u64| match level {
        _ if level == most => "leaf",
        _ if number >> level & 1 == 1 => "one",
        _ => "zero",
    };
    let callees = (0..depth).map(|level| format!("{side}_{}", callee(level)));
    roots.iter().map(|&root| root.to_owned()).chain(callees).collect()
}
