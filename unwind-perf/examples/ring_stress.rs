//! A ring beside its reader: one thread writes, interrupted by writers in the place of NMIs,
//! another one reads. Each record has to be read once, whole and in the order of its writer, or be
//! told to be lost.
//!
//! Writers interrupt the first one inside its records, at every fourth word, and by a timer
//! signal at any instruction. `ThreadSanitizer` delays signals that come by themselves:
//! `--hertz 0` leaves them out.
//!
//! `cargo run --release -p unwind-perf --example ring_stress -- [--records N] [--hertz N]`
#![allow(
    clippy::arithmetic_side_effects,
    clippy::as_conversions,
    clippy::expect_used,
    clippy::indexing_slicing,
    reason = "a program that reads nothing from outside"
)]

#[cfg(not(target_os = "linux"))]
fn main() {
    eprintln!("this example has linux timers as its nmis");
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    let mut options = stress::Options { records: 2_000_000, hertz: 5_000 };
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        let number = args.next().and_then(|arg| arg.parse().ok()).expect("a number follows");
        match arg.as_str() {
            "--records" => options.records = number,
            "--hertz" => options.hertz = number,
            other => {
                eprintln!("unknown option {other}");
                return std::process::ExitCode::from(2);
            }
        }
    }
    stress::run(&options)
}

#[cfg(target_os = "linux")]
mod stress {
    use std::mem;
    use std::process::ExitCode;
    use std::ptr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread;

    use unwind_perf::record::{
        AttrFlags, BranchSampleType, CallchainDeferred, DeferredLayout, EventFormat, Lost,
        LostSamples, ReadFormat, Record, RecordType, SampleId, SampleType,
    };
    use unwind_perf::ring::{CpuRing, Direction, MmapPage, RingReader};

    pub(crate) struct Options {
        /// How many records are to be written.
        pub(crate) records: u64,
        /// How often a timer interrupts the writer; never if zero.
        pub(crate) hertz: u64,
    }

    const FORMAT: EventFormat = EventFormat {
        sample_type: SampleType::empty(),
        read_format: ReadFormat::empty(),
        flags: AttrFlags::empty(),
        branch_sample_type: BranchSampleType::empty(),
    };
    const WORDS: usize = 1 << 13;

    /// Who writes, the one that is interrupted first.
    const THREAD: u64 = 0;
    const INSIDE: u64 = 1;
    const TIMER: u64 = 2;
    const WRITERS: usize = 3;

    static RING: OnceLock<CpuRing<'static>> = OnceLock::new();
    /// How many records each writer has tried to write. Only that one changes its number.
    static TRIED: [AtomicU64; WRITERS] = [const { AtomicU64::new(0) }; WRITERS];

    fn ring() -> &'static CpuRing<'static> {
        RING.get().expect("it is there before it is used")
    }

    /// The words of a record: as many and such as its cookie says. Those of the first writer
    /// are interrupted.
    #[derive(Clone)]
    struct Words {
        cookie: u64,
        at: u64,
    }

    impl Words {
        const fn new(cookie: u64) -> Self {
            Self { cookie, at: 0 }
        }

        const fn word(&self) -> u64 {
            self.cookie.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ self.at
        }
    }

    impl Iterator for Words {
        type Item = u64;

        fn next(&mut self) -> Option<u64> {
            if self.at == self.cookie % 7 {
                return None;
            }
            let word = self.word();
            if self.cookie >> WRITER_AT == THREAD && word % 8 == 0 {
                write(INSIDE);
            }
            self.at += 1;
            Some(word)
        }
    }

    /// The bit of a cookie from which on it names its writer.
    const WRITER_AT: u32 = 60;

    /// Writes the next record of a writer; whether there was room.
    fn write(writer: u64) -> bool {
        let tried = &TRIED[usize::try_from(writer).expect("one of three")];
        let number = tried.load(Ordering::Relaxed) + 1;
        tried.store(number, Ordering::Relaxed);
        let cookie = writer << WRITER_AT | number;
        let (ips, id) = (Words::new(cookie), SampleId::default());
        let record = CallchainDeferred { cookie: Some(cookie), ips, id };
        ring().write(&record, FORMAT, 7, id).is_ok()
    }

    extern "C" fn on_timer(_: libc::c_int) {
        write(TIMER);
    }

    /// Has a timer interrupt this thread.
    fn start_timer(hertz: u64) -> libc::timer_t {
        // SAFETY: all zeros are a valid value of this C structure.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        // SAFETY: as above.
        let mut event: libc::sigevent = unsafe { mem::zeroed() };
        action.sa_sigaction = on_timer as *const () as usize;
        action.sa_flags = libc::SA_RESTART;
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGPROF;
        let period = libc::timespec {
            tv_sec: 0,
            tv_nsec: i64::try_from(1_000_000_000 / hertz).expect("less than a second"),
        };
        let times = libc::itimerspec { it_interval: period, it_value: period };
        let mut timer = ptr::null_mut();
        // SAFETY: it has no conditions.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        // SAFETY: the pointers are valid for the call; the handler makes atomic accesses only.
        let set = unsafe { libc::sigaction(libc::SIGPROF, &action, ptr::null_mut()) };
        // SAFETY: as above.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) };
        // SAFETY: as above, and the timer was made.
        let started = unsafe { libc::timer_settime(timer, 0, &times, ptr::null_mut()) };
        assert_eq!((set, made, started), (0, 0, 0), "{}", std::io::Error::last_os_error());
        timer
    }

    /// Writes until as many records are written. Returns how many were not, and how many of
    /// these only told of the others.
    fn write_all(options: &Options) -> (u64, u64) {
        let timer = (options.hertz != 0).then(|| start_timer(options.hertz));
        let tried = || TRIED.iter().map(|tried| tried.load(Ordering::Relaxed)).sum::<u64>();
        while tried() < options.records + ring().lost() {
            if !write(THREAD) {
                thread::yield_now();
            }
        }
        if let Some(timer) = timer {
            // SAFETY: it was made above, and is deleted once.
            unsafe { libc::timer_delete(timer) };
        }
        // The last loss is told by a record after it.
        let last = LostSamples { count: 0, id: SampleId::default() };
        let mut tellers = 0;
        loop {
            let lost = ring().lost();
            if ring().write(&last, FORMAT, 7, SampleId::default()).is_ok() {
                return (lost, tellers);
            }
            tellers += 1;
            thread::yield_now();
        }
    }

    /// What a reader has seen.
    #[derive(Default)]
    struct Seen {
        read: [u64; WRITERS],
        last: [u64; WRITERS],
        told: u64,
        wrong: u64,
    }

    impl Seen {
        fn take(&mut self, record: &Record<'_>) {
            match record.kind() {
                RecordType::LOST => match Lost::decode(record, FORMAT) {
                    Ok(lost) if lost.event == 7 && lost.count != 0 => self.told += lost.count,
                    _ => self.wrong += 1,
                },
                RecordType::LOST_SAMPLES => {}
                _ => self.wrong += u64::from(self.stack(record).is_none()),
            }
        }

        /// `None` if a record is not as it was written, or comes too late.
        fn stack(&mut self, record: &Record<'_>) -> Option<()> {
            let stack = CallchainDeferred::decode(record, FORMAT, DeferredLayout::Cookie).ok()?;
            let cookie = stack.cookie?;
            let (writer, number) = (cookie >> WRITER_AT, cookie & ((1 << WRITER_AT) - 1));
            let writer = usize::try_from(writer).ok()?;
            let words = (0..cookie % 7).map(|at| Words { cookie, at }.word());
            let last = self.last.get_mut(writer)?;
            let is_right = stack.ips.eq(words) && number > *last;
            *last = number;
            self.read[writer] += 1;
            is_right.then_some(())
        }
    }

    fn read_all(mut reader: RingReader<'_>, is_done: &AtomicBool) -> Seen {
        let (mut seen, mut buf) = (Seen::default(), vec![0; RingReader::MAX_RECORD]);
        loop {
            let ends = is_done.load(Ordering::Acquire);
            loop {
                match reader.next(&mut buf) {
                    Ok(Some(record)) => seen.take(&record),
                    Ok(None) => break,
                    Err(_) => seen.wrong += 1,
                }
            }
            if ends {
                return seen;
            }
            thread::yield_now();
        }
    }

    pub(crate) fn run(options: &Options) -> ExitCode {
        let words = |count| -> &'static [AtomicU64] {
            Box::leak((0..count).map(|_| AtomicU64::new(0)).collect())
        };
        let (page, data) = (words(MmapPage::WORDS), words(WORDS));
        let page = MmapPage::new(page).expect("long enough");
        let ring = CpuRing::new(page, data, Direction::Forward, 4096).expect("a power of two");
        assert!(RING.set(ring).is_ok(), "it is set once");
        let is_done = AtomicBool::new(false);
        let ((lost, tellers), seen) = thread::scope(|threads| {
            let reader = RingReader::new(page, data).expect("a power of two");
            let reader = threads.spawn(|| read_all(reader, &is_done));
            let lost = write_all(options);
            is_done.store(true, Ordering::Release);
            (lost, reader.join().expect("it does not panic"))
        });
        let tried: u64 = TRIED.iter().map(|tried| tried.load(Ordering::Relaxed)).sum();
        let (read, [thread, inside, timer]) = (seen.read.iter().sum::<u64>(), seen.read);
        let Seen { told, wrong, .. } = seen;
        println!(
            "{read} records read: {thread} of the thread, {inside} inside of these, {timer} of \
             the timer; {lost} lost, {told} told; {wrong} wrong"
        );
        let is_right = read + lost == tried + tellers && told == lost && wrong == 0;
        let is_tried =
            read >= options.records && inside != 0 && (timer != 0) == (options.hertz != 0);
        if is_right && is_tried { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
