//! The three jobs that users come for, each by no more types than its list says.
#![cfg(test)]
#![allow(clippy::arithmetic_side_effects, missing_docs, reason = "tests")]

/// Nine types.
mod walk {
    use unwind::{
        End, FramePc, Memory, Origin, SliceMemory, Trace, Unwinder, VirtAddr, X86_64Regs,
    };

    use crate::tables::made_of_eh_frame;

    fn sample(unwinder: &mut Unwinder<'_, 4>, regs: X86_64Regs, memory: &mut impl Memory) -> Stack {
        let mut trace = Trace::<[_; 16]>::new();
        unwinder.walk(regs, memory, &mut trace);
        let frames = trace.frames().map(|frame| (frame.pc, frame.provenance.origin()));
        (frames.collect(), trace.end().unwrap(), trace.is_complete())
    }

    type Stack = (Vec<(FramePc, Origin)>, End, bool);

    #[test]
    fn a_stack_is_walked_by_a_table_and_where_that_ends_by_frame_pointers() {
        let table = made_of_eh_frame();
        let mut unwinder = Unwinder::<4>::new();
        unwinder.add_module(0x1000..0x2000, &table, 0x3000).unwrap();
        // At 0x1004 the function has pushed a word. It was called from code without a
        // table, whose frame pointer leads to a return address of zero.
        let words = [7_u64, 0x9000, 0, 0];
        let stack: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut memory = SliceMemory::new(VirtAddr::new(0x7f00), &stack);
        let regs = X86_64Regs::new(0x1004, 0x7f00, 0x7f10);
        for _ in 0..2 {
            let (frames, end, is_complete) = sample(&mut unwinder, regs, &mut memory);
            let [sampled, caller] = frames[..] else { panic!("{frames:?}") };
            assert_eq!(sampled, (FramePc::Exact(VirtAddr::new(0x1004)), Origin::Registers));
            assert_eq!(caller, (FramePc::Return(VirtAddr::new(0x9000)), Origin::Table));
            assert!(matches!(end, End::Step(_)) && !is_complete, "{end:?}");
        }
        let stats = unwinder.cache_stats();
        assert_eq!((stats.hits > 0, stats.misses > 0), (true, true), "{stats:?}");
        assert!(unwinder.remove_module(0x1000) && !unwinder.remove_module(0x1000));
        unwinder.add_converted_module(0x1000..0x2000, &table, 0x3000).unwrap();
        let (frames, ..) = sample(&mut unwinder, regs, &mut memory);
        assert_eq!(frames[1].1, Origin::CallFrames);
        unwinder.clear();
        let (frames, ..) = sample(&mut unwinder, regs, &mut memory);
        assert!(frames.iter().all(|(_, origin)| *origin != Origin::Table), "{frames:?}");
    }

    #[test]
    fn l1_a_walk_has_as_many_frames_as_the_trace_has_room_for() {
        const DEPTH: u64 = 3_000;
        let mut unwinder = Unwinder::<1>::new();
        // A chain of frame pointers.
        let record = |at: u64| [0x7000_0000 + 16 * (at + 1), 0x9000];
        let words = (0..DEPTH).flat_map(record);
        let stack: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        let mut memory = SliceMemory::new(VirtAddr::new(0x7000_0000), &stack);
        let regs = X86_64Regs::new(0x9000, 0x7000_0000, 0x7000_0000);
        let mut large = Box::new(Trace::<[_; 4_096]>::new());
        unwinder.walk(regs, &mut memory, &mut *large);
        assert_eq!(large.len(), 1 + usize::try_from(DEPTH).unwrap());
        assert!(!matches!(large.end(), Some(End::FrameLimit)));
        let mut small = Trace::<[_; 5]>::new();
        unwinder.walk(regs, &mut memory, &mut small);
        assert_eq!((small.len(), small.end()), (5, Some(End::FrameLimit)));
    }

    /// Counts the reads outside of the stack.
    struct Counting<'s> {
        stack: SliceMemory<'s>,
        reads: usize,
    }

    impl Memory for Counting<'_> {
        fn read(&mut self, addr: VirtAddr, bytes: &mut [u8]) -> Result<(), unwind::ReadError> {
            let found = self.stack.read(addr, bytes);
            self.reads += usize::from(found.is_err());
            found
        }
    }

    #[test]
    fn l2_code_without_a_table_is_looked_for_once_and_stays_a_guess() {
        let table = made_of_eh_frame();
        let mut unwinder = Unwinder::<4>::new();
        unwinder.add_module(0x1000..0x2000, &table, 0x3000).unwrap();
        let record = |at: u64| [0x7f00 + 16 * (at + 1), 0x9000 + 0x100 * at];
        let stack: Vec<u8> = (0..20).flat_map(record).flat_map(u64::to_le_bytes).collect();
        let regs = X86_64Regs::new(0x9000, 0x7f00, 0x7f00);
        let mut walk = || {
            let stack = SliceMemory::new(VirtAddr::new(0x7f00), &stack);
            let mut memory = Counting { stack, reads: 0 };
            let (frames, _, is_complete) = sample(&mut unwinder, regs, &mut memory);
            assert_eq!((frames.len(), is_complete), (16, false));
            assert!(frames[1..].iter().all(|(_, origin)| *origin == Origin::FramePointer));
            memory.reads
        };
        let first = walk();
        // The instructions of the sampled frame are looked at each time.
        let again = walk();
        assert!(first > 16 && again < 10, "{first} {again}");
        assert!(unwinder.remove_module(0x1000));
        let stack = SliceMemory::new(VirtAddr::new(0x7f00), &stack);
        let mut memory = Counting { stack, reads: 0 };
        sample(&mut unwinder, regs, &mut memory);
        assert_eq!(memory.reads, first, "forgotten with the modules");
    }

    #[test]
    fn a_module_that_cannot_be_added_changes_nothing() {
        use unwind::ModuleError;
        use unwind::walk::MapError;

        let table = made_of_eh_frame();
        let mut unwinder = Unwinder::<1>::new();
        assert_eq!(unwinder.add_module(0..8, &[], 0), Err(ModuleError::NoTable));
        assert!(matches!(unwinder.add_module(0..8, &[1; 40], 0), Err(ModuleError::Table(_))));
        let empty = ModuleError::Map(MapError::EmptyRange);
        assert_eq!(unwinder.add_module(8..8, &table, 0x3000), Err(empty));
        unwinder.add_module(0x1000..0x2000, &table, 0x3000).unwrap();
        let overlap = ModuleError::Map(MapError::Overlap(VirtAddr::new(0x1000)));
        assert_eq!(unwinder.add_module(0x1fff..0x2001, &table, 0x3000), Err(overlap));
        let full = ModuleError::Map(MapError::Full);
        assert_eq!(unwinder.add_module(0x5000..0x6000, &table, 0x3000), Err(full));
        for (error, text) in [
            (ModuleError::NoTable, "the section is not about 64-bit x86 code"),
            (full, "no room for another module"),
        ] {
            assert_eq!(error.to_string(), text);
        }
    }
}

/// Seven types.
mod tables {
    use unwind::sframe::{Abi, Builder, CfiSection, Error, Format, Row, Table};

    /// A function of 8 bytes at 0x1000, which has pushed a word after 4 bytes.
    pub(crate) fn made_of_eh_frame() -> Vec<u8> {
        let eh_frame = [
            0x14, 0, 0, 0, 0, 0, 0, 0, // CIE of 20 bytes
            1, b'z', b'R', 0, 1, 0x78, 16, 1, 0x1b, // code 1, data -8, RA 16, pc-relative
            0x0c, 7, 8, 0x90, 1, 0, 0, // CFA = rsp+8, RA at CFA-8
            0x10, 0, 0, 0, 0x1c, 0, 0, 0, // FDE of 16 bytes, CIE 28 bytes back
            0xe0, 0x0f, 0, 0, 8, 0, 0, 0, // from 0x1000 on, 8 bytes
            0, 0x44, 0x0e, 16, // 4 bytes on: CFA = rsp+16
        ];
        let mut builder = Builder::new(Format::V3, Abi::Amd64Little).unwrap();
        builder.add_cfi(CfiSection::eh_frame(&eh_frame, 0), |lost| panic!("{lost}")).unwrap();
        builder.finish(0x3000, |lost| panic!("{lost}")).unwrap()
    }

    #[test]
    fn a_table_is_read_row_by_row() {
        let bytes = made_of_eh_frame();
        let table = Table::parse(&bytes).unwrap().at(0x3000);
        let rows = |table: &Table<'_>| -> Result<Vec<(u64, Row)>, Error> {
            let mut rows = Vec::new();
            for fde in table.fdes() {
                let fde = fde?;
                for fre in table.fres(&fde)? {
                    let fre = fre?;
                    let addr = fde.range.start + u64::from(fre.start);
                    rows.push((addr, table.find(addr)?.unwrap().row()?));
                }
            }
            Ok(rows)
        };
        let rows = rows(&table).unwrap();
        assert_eq!(rows.iter().map(|row| row.0).collect::<Vec<_>>(), [0x1000, 0x1004]);
        for (addr, row) in rows {
            assert_eq!(table.find_row(addr), Ok(Some(row)));
        }
        assert_eq!(table.find_row(0x1008), Ok(None));
    }
}

/// Fifteen types.
mod defer {
    use core::sync::atomic::{AtomicBool, Ordering};

    use unwind::deferred::{
        DeferredUnwind, Host, Recipients, RequestContext, ScheduleError, SerialCookies, TaskKind,
        TaskState, UnwindCache, UserReturn,
    };
    use unwind::{SliceMemory, Trace, Unwinder, VirtAddr, X86_64Regs};

    #[derive(Default)]
    struct Task {
        unwind: TaskState,
        work: AtomicBool,
    }

    struct Kernel;

    impl Host for Kernel {
        type Task = Task;

        fn state<'t>(&self, task: &'t Task) -> &'t TaskState {
            &task.unwind
        }
        fn task_kind(&self, _: &Task) -> TaskKind {
            TaskKind::User
        }
        fn in_nmi(&self) -> bool {
            true
        }
        fn cpu(&self) -> u32 {
            0
        }
        fn schedule(&self, task: &Task, _: RequestContext) -> Result<(), ScheduleError> {
            task.work.store(true, Ordering::Relaxed);
            Ok(())
        }
        fn clock(&self) -> u64 {
            0
        }
        fn relax(&self) {}
    }

    static UNWIND: DeferredUnwind<Kernel> = DeferredUnwind::new(Kernel, SerialCookies::new());

    #[test]
    fn what_an_nmi_asks_for_is_walked_on_the_way_back_to_user_code() {
        let client = UNWIND.register().unwrap();
        let task = Task::default();
        let cookie = UNWIND.request(&task, client).cookie().unwrap();
        assert!(task.work.swap(false, Ordering::Relaxed));

        let table = crate::tables::made_of_eh_frame();
        let mut unwinder = Unwinder::<4>::new();
        unwinder.add_module(0x1000..0x2000, &table, 0x3000).unwrap();
        let stack: Vec<u8> = [0x1005_u64, 7, 0].iter().flat_map(|w| w.to_le_bytes()).collect();
        let mut memory = SliceMemory::new(VirtAddr::new(0x7f00), &stack);
        let walk = |trace: &mut Trace| {
            unwinder.walk(X86_64Regs::new(0x1000, 0x7f00, 0), &mut memory, trace);
        };
        let mut cache = UnwindCache::<[_; 16]>::new();
        let mut delivery = UNWIND.deliver(&task, Recipients::Requesters, Some(&mut cache), walk);
        let mut stacks = Vec::new();
        while let Some(guard) = delivery.next() {
            let pcs = guard.trace().unwrap().pcs().map(VirtAddr::get).collect::<Vec<_>>();
            stacks.push((guard.client(), guard.cookie(), pcs));
        }
        drop(delivery);
        assert_eq!(stacks, [(client, cookie, vec![0x1000, 0x1005])]);
        assert_eq!(UNWIND.user_return(&task), UserReturn::Ready);
        UNWIND.cancel(Some(&task), client).unwrap();
    }
}
