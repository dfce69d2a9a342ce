//! Walking the stack of a sample that has registers and a copy of the stack.

use std::fmt;
use std::ops::Range;

use unwind_core::{
    Arch, CacheStats, End, Frame, PackedFrame, Registers as _, RowCache, RowSource, RowStore,
    TableError, Trace, Walker,
};
use unwind_perf::record::{Callchain, UserAbi, UserState};
use unwind_target::rows::frame_pointers::FramePointerRows;
use unwind_target::rows::program_start::ProgramStart;
use unwind_target::stack::walk::{ia32_arch, ia32_registers, x86_64_registers};
use unwind_target::target::registers::UserRegisters;
use unwind_x86::{
    Ia32, InstructionAnalysis, LinkageEntries, SignalTrampolines, StackSwitches, UnrecordedPushes,
    X86_64,
};

use crate::mapped::address_spaces::Space;
use crate::mapped::generated_code::V8Returns;
use crate::mapped::probed_returns::ProbedReturns;
use crate::mapped::recorded_tables::{
    Code, RecordedKeys, RecordedSwitches, RecordedTables, SampleMemory,
};
use crate::mapped::running_code::{KnownProofs, ProvenRows, RunningCode};
use crate::recording::code_names::CodeNames;
use crate::recording::told_stack::ToldCalls;
use crate::walks::stack_end::why_ended;
use crate::walks::walked_stack::{WalkedFrame, WalkedStack};

/// The most frames of a stack: more than a copied stack of 64 KiB can have are of no use.
const MAX_FRAMES: u32 = 8192;
/// The same, as room.
const TRACE: usize = 8192;

/// The CFA of each frame, where it is known.
type Cfas = Vec<Option<u64>>;

/// How many rows a thread keeps of all files of a recording, in 512 KiB.
const SAMPLE_ROWS: usize = 32_768;

/// What a thread walks samples with.
#[derive(Debug)]
pub(crate) struct SampleWalker {
    frame_pointers: FramePointerRows,
    /// Rows of tables, whichever processes map them.
    rows: Box<RowCache<SAMPLE_ROWS>>,
    /// Code of which there are no files.
    running: RunningCode,
    /// What that proves.
    proofs: KnownProofs,
    /// The stack that it walked last.
    trace: Box<Trace<[PackedFrame; TRACE]>>,
}

impl SampleWalker {
    pub(crate) fn new(frame_pointers: FramePointerRows) -> Self {
        Self {
            frame_pointers,
            rows: Box::default(),
            running: RunningCode::default(),
            proofs: KnownProofs::default(),
            trace: Box::default(),
        }
    }

    /// Walks the stack in `state` in a process with these mappings. The kernel's chain, if
    /// there is one with a user part, says where watched functions return to.
    pub(crate) fn walk(
        &mut self,
        state: &UserState<'_>,
        chain: Option<Callchain<'_>>,
        space: &Space,
    ) -> WalkedStack {
        self.walk_noting(state, chain, space, (&[], None))
    }

    /// The same with the calls of V8 that an engine read where it copied the stack.
    pub(crate) fn walk_with_calls(
        &mut self,
        state: &UserState<'_>,
        chain: Option<Callchain<'_>>,
        space: &Space,
        (calls, names): (ToldCalls<'_>, &CodeNames),
    ) -> WalkedStack {
        let mut cfas = Cfas::new();
        let code = calls.runs().map(|(frame, _)| frame.code[0]..frame.code[1]);
        let code: Vec<_> = code.filter(|code| !code.is_empty()).collect();
        // Without calls no frame is found by its CFA.
        let noted = (!calls.words().is_empty()).then_some(&mut cfas);
        let walked = self.walk_noting(state, chain, space, (&code, noted));
        walked.with_calls_of_v8(&cfas, calls, (names, space))
    }

    /// Walks with functions that an engine tells of, and takes note of the CFA of each frame, if that is asked for.
    fn walk_noting(
        &mut self,
        state: &UserState<'_>,
        chain: Option<Callchain<'_>>,
        space: &Space,
        (told, cfas): (&[Range<u64>], Option<&mut Cfas>),
    ) -> WalkedStack {
        let Some(regs) = UserRegisters::of_sample(state) else { return no_start() };
        self.running.forget_old();
        match state.abi {
            UserAbi::Bits64 => self.walk_x86_64(&regs, state, chain, (space, told, cfas)),
            UserAbi::Bits32 => self.walk_ia32(&regs, state, space),
        }
    }

    /// How often a row was kept, and how often it was looked up.
    pub(crate) fn stats(&self) -> CacheStats {
        self.rows.stats()
    }

    fn walk_x86_64(
        &mut self,
        regs: &UserRegisters,
        state: &UserState<'_>,
        chain: Option<Callchain<'_>>,
        (space, told, cfas): (&Space, &[Range<u64>], Option<&mut Cfas>),
    ) -> WalkedStack {
        let (arch, sp) = (address_width(regs), regs.rsp);
        let returns = &ProbedReturns::new(chain, state, (sp, regs.rbp), space);
        let regs = x86_64_registers(regs);
        let (rows, keys) = (&mut *self.rows, RecordedKeys { space });
        let tables = LinkageEntries::new(RecordedTables { space });
        let source = RowSource::<X86_64>::or(tables, SignalTrampolines);
        let source = RowSource::<X86_64>::or(source, ProgramStart { files: space });
        let source = RowSource::<X86_64>::or(source, V8Returns { space });
        let proven = ProvenRows { space, known: &mut self.proofs, told };
        let source = RowSource::<X86_64>::or(source, proven);
        let source = RowSource::<X86_64>::or(source, InstructionAnalysis);
        let source = UnrecordedPushes::new(source);
        let source = StackSwitches::new(RecordedSwitches { space }, source);
        let walker = Walker::new(arch, source).cache_by_key(rows, keys);
        let walker = walker.fallback(self.frame_pointers);
        let walker = walker.max_frames(MAX_FRAMES).return_addresses(Code { space, returns });
        let walk = SampleWalk { walker, regs, sp, state, space, running: &mut self.running };
        match cfas {
            Some(cfas) => walk.collect(|frame| cfas.push(frame.cfa)),
            None => walk.trace(&mut self.trace),
        }
    }

    fn walk_ia32(
        &mut self,
        regs: &UserRegisters,
        state: &UserState<'_>,
        space: &Space,
    ) -> WalkedStack {
        let (rows, keys) = (&mut *self.rows, RecordedKeys { space });
        let (arch, regs) = (ia32_arch(regs), ia32_registers(regs));
        let sp = regs.sp();
        let tables = LinkageEntries::new(RecordedTables { space });
        let source = RowSource::<Ia32>::or(tables, SignalTrampolines);
        let source = RowSource::<Ia32>::or(source, ProgramStart { files: space });
        let proven = ProvenRows { space, known: &mut self.proofs, told: &[] };
        let source = RowSource::<Ia32>::or(source, proven);
        let source = UnrecordedPushes::new(RowSource::<Ia32>::or(source, InstructionAnalysis));
        let walker =
            Walker::new(arch, source).cache_by_key(rows, keys).fallback(self.frame_pointers);
        let returns = &ProbedReturns::default();
        let walker = walker.max_frames(MAX_FRAMES).return_addresses(Code { space, returns });
        SampleWalk { walker, regs, sp, state, space, running: &mut self.running }
            .trace(&mut self.trace)
    }
}

/// Why a stack cannot be walked at all.
fn no_start() -> WalkedStack {
    let cut = Some("the sample has no pc or no stack pointer".into());
    WalkedStack { frames: Vec::new(), cut, end: "no-start", calls: Vec::new() }
}

/// How wide the addresses of 64-bit code with these registers are: above 47 bits a program gets
/// some only on a CPU with 57, and only if it asks for them.
fn address_width(regs: &UserRegisters) -> X86_64 {
    let is_wide = |addr| (1_u64 << 47..1 << 56).contains(&addr);
    if is_wide(regs.rip) || is_wide(regs.rsp) { X86_64::FIVE_LEVEL } else { X86_64::FOUR_LEVEL }
}

/// A walk of the stack that a sample has a copy of.
struct SampleWalk<'s, A: Arch, S, F, C> {
    walker: Walker<A, S, F, Code<'s>, C>,
    regs: A::Regs,
    sp: u64,
    state: &'s UserState<'s>,
    space: &'s Space,
    running: &'s mut RunningCode,
}

impl<'s, A, S, F, C> SampleWalk<'s, A, S, F, C>
where
    A: Arch,
    S: RowSource<A>,
    S::Error: TableError + fmt::Display,
    F: RowSource<A>,
    F::Error: Into<S::Error>,
    C: RowStore,
{
    /// Walks into `trace`, which takes a part of the time of a walk frame by frame.
    fn trace(mut self, trace: &mut Trace<[PackedFrame; TRACE]>) -> WalkedStack {
        let Self { regs, sp, state, space, .. } = self;
        let mut memory = SampleMemory::new(sp, state, space, self.running);
        self.walker.trace(regs, &mut memory, trace);
        if let Some(End::Table(_)) = trace.end() {
            // A trace has no room for what is wrong with the table.
            return self.collect(|_| {});
        }
        let frames = trace.frames().map(|frame| WalkedFrame::new(frame.pc, frame.provenance));
        self.finish(frames.collect(), trace.end())
    }

    /// Walks frame by frame, and tells of each.
    fn collect(mut self, mut tell: impl FnMut(&Frame)) -> WalkedStack {
        let Self { regs, sp, state, space, .. } = self;
        let mut memory = SampleMemory::new(sp, state, space, self.running);
        let mut walked = self.walker.frames(regs, &mut memory);
        let frames = walked.by_ref().inspect(|frame| tell(frame));
        let frames = frames.map(|frame| WalkedFrame::new(frame.pc, frame.provenance));
        let (frames, end) = (frames.collect(), walked.end());
        self.finish(frames, end)
    }

    /// A stack of these frames, with why there are no more.
    fn finish<E: TableError + fmt::Display>(
        &self,
        frames: Vec<WalkedFrame>,
        end: Option<End<E>>,
    ) -> WalkedStack {
        let last = frames.last().map(|frame| frame.call);
        let (cut, end) = why_ended(end, last, self.sp, self.state, self.space);
        WalkedStack { frames, cut, end, calls: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io;
    use std::path::Path;
    use std::sync::Arc;

    use unwind_core::{Memory as _, ReadError, VirtAddr};
    use unwind_perf::merge::Outcome;
    use unwind_perf::record::Attr;

    use super::*;
    use crate::mapped::address_spaces::Spaces;
    use crate::mapped::files::RecordedFiles;
    use crate::mapped::ranges::Range;
    use crate::mapped::recorded_file::RecordedFile;
    use crate::recording::error::PerfError;
    use crate::recording::events::Events;
    use crate::recording::held::Held;
    use crate::recording::pipeline::{self, Options, Sink};
    use crate::recording::reader::PerfReader;

    const FRAME_POINTERS: FramePointerRows = FramePointerRows { is_trusted: false };

    /// The samples of a recording with what was mapped at their time.
    struct Samples {
        spaces: Spaces,
        samples: Vec<(Held, Attr, Space)>,
    }

    impl Sink for Samples {
        fn sample(&mut self, events: &Events, held: Held, _: &Outcome) -> io::Result<()> {
            let attr = events.get(held.event).unwrap().attr;
            let space = self.spaces.of(held.task, held.time);
            self.samples.push((held, attr, space));
            Ok(())
        }

        fn record(&mut self, _: &Events, held: Held) -> io::Result<()> {
            self.spaces.take(&held);
            Ok(())
        }

        fn tool_record(&mut self, _: &mut PerfReader) -> Result<(), PerfError> {
            Ok(())
        }

        fn settled(&mut self, _: u64) -> io::Result<()> {
            Ok(())
        }
    }

    /// Of a program that is put where it is recorded to have been.
    fn samples() -> Vec<(Held, Attr, Space)> {
        let (recorded, here) = (b"/tmp/unwind-walk-fixture/walk", "/tmp/unwind-cached-walks/walk");
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/perf-walk");
        fs::create_dir_all(Path::new(here).parent().unwrap()).unwrap();
        fs::copy(fixtures.join("walk"), here).unwrap();
        let mut bytes = fs::read(fixtures.join("dwarf.data")).unwrap();
        let places = memchr::memmem::find_iter(&bytes, recorded).collect::<Vec<_>>();
        for at in places {
            bytes[at..][..recorded.len()].copy_from_slice(here.as_bytes());
        }
        let mut reader = PerfReader::from_bytes(bytes).unwrap();
        let spaces = Spaces::new(RecordedFiles::new(reader.build_ids()));
        let mut samples = Samples { spaces, samples: Vec::new() };
        let options = Options {
            merge: true,
            memory: 1 << 20,
            frame_pointers: FRAME_POINTERS,
            stitch_lbr: false,
        };
        pipeline::run(&mut reader, options, &mut samples).unwrap().end.unwrap();
        samples.samples
    }

    /// The same walk as that of [`SampleWalker`], of each frame by its table.
    fn plain(state: &UserState<'_>, space: &Space) -> WalkedStack {
        let running = &mut RunningCode::default();
        let regs = UserRegisters::of_sample(state).unwrap();
        let (arch, sp) = (address_width(&regs), regs.rsp);
        let source =
            RowSource::<X86_64>::or(RecordedTables { space }, ProgramStart { files: space });
        let source = RowSource::<X86_64>::or(source, SignalTrampolines);
        let source = RowSource::<X86_64>::or(source, V8Returns { space });
        let known = &mut KnownProofs::default();
        let source = RowSource::<X86_64>::or(source, ProvenRows { space, known, told: &[] });
        let source = RowSource::<X86_64>::or(source, InstructionAnalysis);
        let source = StackSwitches::new(RecordedSwitches { space }, source);
        let walker = Walker::new(arch, source).fallback(FRAME_POINTERS);
        let returns = &ProbedReturns::default();
        let walker = walker.max_frames(MAX_FRAMES).return_addresses(Code { space, returns });
        SampleWalk { walker, regs: x86_64_registers(&regs), sp, state, space, running }
            .collect(|_| {})
    }

    /// The space after a file that is nowhere was mapped over the code at `pc`.
    fn replaced(space: &Space, pc: u64, generation: u64) -> Space {
        let range =
            Range { file: Arc::new(RecordedFile::nameless()), ..space.find(pc).unwrap().clone() };
        Space { ranges: space.ranges.with(range, 1), generation, ..space.clone() }
    }

    #[test]
    fn rows_that_are_kept_change_no_stack_whatever_is_mapped_in_between() {
        let mut walker = SampleWalker::new(FRAME_POINTERS);
        let (mut complete, mut cut) = (0, 0);
        let samples = samples();
        for _ in 0..2 {
            for (number, (held, attr, space)) in (1_000..).zip(&samples) {
                let record = held.record().unwrap();
                let state = UserState::decode(&record, attr).unwrap().unwrap();
                let expected = plain(&state, space);
                complete += u32::from(expected.is_complete());
                assert_eq!(walker.walk(&state, None, space), expected);
                // More spaces than are kept, one of which has another file in the place.
                let other = replaced(space, expected.frames[0].pc, number);
                let expected = plain(&state, &other);
                cut += u32::from(!expected.is_complete());
                assert_eq!(walker.walk(&state, None, &other), expected);
            }
        }
        assert!(complete > 20 && cut > 20, "{complete} {cut}");
        let stats = walker.stats();
        assert!(stats.hits > stats.misses, "{stats:?}");
    }

    #[test]
    fn memory_above_a_copy_that_was_cut_may_be_there_and_above_a_whole_one_is_none() {
        let samples = samples();
        let (held, attr, space) = &samples[0];
        let record = held.record().unwrap();
        let state = UserState::decode(&record, attr).unwrap().unwrap();
        let sp = UserRegisters::of_sample(&state).unwrap().rsp;
        let end = sp + u64::try_from(state.stack.len()).unwrap();
        let read = |room: usize, addr: u64| {
            let (mut state, running) = (state, &mut RunningCode::default());
            state.room = room;
            let mut memory = SampleMemory::new(sp, &state, space, running);
            memory.read_u64(VirtAddr::new(addr)).err()
        };
        let len = state.stack.len();
        for addr in [end - 4, end, end + 0x1000] {
            assert_eq!(read(len, addr), Some(ReadError::NotResident), "{addr:#x}");
            assert_eq!(read(len + 8, addr), Some(ReadError::Invalid), "{addr:#x}");
        }
        for addr in [sp - 8, 1 << 47, u64::MAX - 7] {
            assert_eq!(read(len, addr), Some(ReadError::Invalid), "{addr:#x}");
        }
        assert_eq!(read(len, end - 8), None);
    }
}
