//! A profile as folded stacks: a line for each stack, outermost frame first,
//! with how often it was seen. What flame graph tools read.

use std::collections::BTreeMap;
use std::io::{self, Write};

use unwind_target::Frame;

use crate::commands::guest::report::VcpuReport;

/// Counted stacks.
#[derive(Debug, Default)]
pub(crate) struct Folded(BTreeMap<String, u64>);

impl Folded {
    /// Counts a stack.
    pub(crate) fn add(&mut self, vcpu: &VcpuReport) {
        let count = self.0.entry(line(vcpu)).or_default();
        *count = count.saturating_add(1);
    }

    /// Writes the lines in the order of their text.
    ///
    /// # Errors
    ///
    /// As writing to `out`.
    pub(crate) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        self.0.iter().try_for_each(|(line, count)| writeln!(out, "{line} {count}"))
    }
}

/// What the vCPU does, whether frames are missing, then the frames: those of the kernel follow those of the
/// user code that has entered it, after a word of their own.
fn line(vcpu: &VcpuReport) -> String {
    let mut line = String::from(match (vcpu.halted, vcpu.privilege, vcpu.arch) {
        (true, ..) => "[idle]",
        (_, "user", arch) => user(arch),
        _ => vcpu.user.as_ref().map_or("[kernel]", |part| user(part.arch)),
    });
    if !vcpu.is_complete() {
        line.push_str(";[incomplete]");
    }
    if let Some(part) = &vcpu.user {
        push_frames(&mut line, &part.frames);
        line.push_str(";[kernel]");
    }
    push_frames(&mut line, &vcpu.frames);
    line
}

fn user(arch: Option<&str>) -> &'static str {
    if arch == Some("ia32") { "[user 32-bit]" } else { "[user]" }
}

fn push_frames(line: &mut String, frames: &[Frame]) {
    for frame in frames.iter().rev() {
        line.push(';');
        push_name(line, frame);
    }
}

/// The function; without one the file and the place in it, or the address.
fn push_name(line: &mut String, frame: &Frame) {
    let symbol = &frame.symbol;
    let name = match (&symbol.function, symbol.object_name(), symbol.object_pc) {
        (Some(function), ..) => function.to_string(),
        (_, Some(object), Some(pc)) => format!("{object}+{pc:#x}"),
        _ => format!("{:#x}", frame.pc),
    };
    // A semicolon ends a frame.
    line.push_str(&name.replace(';', ":"));
}

#[cfg(test)]
mod tests {
    use unwind_target::{StackEnd, Untrusted};

    use crate::commands::guest::report::UserReport;

    use super::*;

    fn frame(pc: u64, function: Option<&str>, object: Option<&str>) -> Frame {
        let mut frame = Frame::default();
        frame.pc = pc;
        frame.symbol.object = object.map(Untrusted::from);
        frame.symbol.object_pc = object.map(|_| pc & 0xfff);
        frame.symbol.function = function.map(Untrusted::from);
        frame
    }

    fn vcpu(frames: Vec<Frame>, complete: bool) -> VcpuReport {
        let mut end = StackEnd::not_walkable(String::new());
        end.complete = complete;
        let (arch, paging) = (Some("x86-64"), "4-level");
        VcpuReport {
            vcpu: 0,
            arch,
            privilege: "user",
            halted: false,
            task: None,
            paging,
            frames,
            end,
            user: None,
        }
    }

    #[test]
    fn frames_go_from_the_outermost_one_inwards() {
        let frames = vec![
            frame(3, Some("inner"), None),
            frame(0x1002, None, Some("/lib/libx.so")),
            frame(1, None, None),
        ];
        let mut folded = Folded::default();
        folded.add(&vcpu(frames.clone(), true));
        folded.add(&vcpu(frames, true));
        let mut text = Vec::new();
        folded.write(&mut text).unwrap();
        assert_eq!(String::from_utf8(text).unwrap(), "[user];0x1;libx.so+0x2;inner 2\n");
    }

    #[test]
    fn a_name_cannot_end_its_frame_or_line() {
        let odd = frame(1, Some("<[u8; 4] as T>::f\n x"), None);
        assert_eq!(line(&vcpu(vec![odd], true)), "[user];<[u8: 4] as T>::f\\n x");
    }

    #[test]
    fn what_the_vcpu_does_and_what_is_missing_comes_first() {
        assert_eq!(line(&vcpu(vec![], false)), "[user];[incomplete]");
        let idle = VcpuReport { halted: true, privilege: "kernel", ..vcpu(vec![], true) };
        assert_eq!(line(&idle), "[idle]");
        let kernel = VcpuReport { privilege: "kernel", ..vcpu(vec![], true) };
        assert_eq!(line(&kernel), "[kernel]");
        let narrow = VcpuReport { arch: Some("ia32"), ..vcpu(vec![], true) };
        assert_eq!(line(&narrow), "[user 32-bit]");
    }

    #[test]
    fn the_kernels_frames_follow_those_of_the_code_that_has_entered_it() {
        let VcpuReport { arch, end, .. } = vcpu(vec![], false);
        let user = Some(UserReport { arch, frames: vec![frame(1, Some("main"), None)], end });
        let kernel = vcpu(vec![frame(2, Some("read"), None)], true);
        let kernel = VcpuReport { privilege: "kernel", user, ..kernel };
        assert_eq!(line(&kernel), "[user];[incomplete];main;[kernel];read");
    }
}
