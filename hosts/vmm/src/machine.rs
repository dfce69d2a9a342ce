//! The virtual machine and its threads.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;
use std::{io, thread};

use kvm_ioctls::VmFd;
use unwind_core::deferred::ClientId;
use unwind_guest::{GuestRows, GuestStack};

use crate::absent_pages::AbsentPages;
use crate::delivery::{Standing, walk_patiently};
use crate::image::GuestImage;
use crate::made_up::MadeUpVcpu;
use crate::monitor::{Task, UNWIND, on_signal};
use crate::ram::GuestRam;
use crate::raw;
use crate::recording::Recording;
use crate::report::Report;
use crate::samples::Ring;
use crate::shared::Shared;
use crate::vcpu::{KvmVcpu, Vcpu};
use crate::vcpu_thread::VcpuThread;

/// What to run.
#[derive(Clone, Debug)]
pub struct Options {
    /// How many vCPUs.
    pub vcpus: u64,
    /// How many samples, of all vCPUs.
    pub samples: u64,
    /// How many a second and vCPU.
    pub hertz: u32,
    /// Whether the guest's pages are absent at first, and put away now and then.
    pub absent: bool,
    /// Whether the vCPUs are those of KVM.
    pub kvm: bool,
    /// Where the recording goes, if anywhere. The guest's file is written beside it.
    pub output: Option<PathBuf>,
}

/// A virtual machine of this example's guest.
#[derive(Debug)]
pub struct Machine {
    options: Options,
    image: Arc<GuestImage>,
    shared: Shared,
    vm: Option<VmFd>,
}

impl Machine {
    /// One that has not run yet.
    ///
    /// # Errors
    ///
    /// If this process may not handle faults of its own.
    pub fn new(options: Options) -> io::Result<Self> {
        let image = Arc::new(GuestImage::new());
        let ram = Arc::new(GuestRam::new(&image, options.vcpus));
        let vm = options.kvm.then(|| KvmVcpu::machine(&ram));
        let absent = if options.absent { Some(AbsentPages::new(&ram)?) } else { None };
        let shared = Shared::new(&image, ram, absent);
        Ok(Self { options, image, shared, vm })
    }

    /// Runs it until there are as many samples as are wanted.
    ///
    /// # Errors
    ///
    /// If the recording cannot be written.
    pub fn run(&self) -> io::Result<Report> {
        unwind_local::prepare();
        raw::handle_ticks(on_signal);
        let client = UNWIND.register().expect("there are fewer than 32 machines");
        let (to_start, from_threads) =
            (Barrier::new(self.options.vcpus as usize + 1), mpsc::channel());
        let is_served = AtomicBool::new(false);
        let patient_ring = Ring::new();
        let report = thread::scope(|scope| {
            let (patient, standing) = mpsc::channel();
            let mut vcpus = Vec::new();
            for number in 0..self.options.vcpus {
                let (patient, tell, to_start) =
                    (patient.clone(), from_threads.0.clone(), &to_start);
                let thread = thread::Builder::new().name(format!("vcpu {number}"));
                let run = move || match &self.vm {
                    Some(vm) => {
                        let vcpu = KvmVcpu::new(vm, &self.image, number);
                        self.run_vcpu(number, vcpu, client, patient, (&tell, to_start));
                    }
                    None => {
                        let ram = Arc::clone(&self.shared.ram);
                        let vcpu = MadeUpVcpu::new(Arc::clone(&self.image), ram, number);
                        self.run_vcpu(number, vcpu, client, patient, (&tell, to_start));
                    }
                };
                vcpus.push(thread.spawn_scoped(scope, run).expect("a thread can be had"));
            }
            drop(patient);
            let tasks: Vec<&'static Task> = from_threads.1.iter().take(vcpus.len()).collect();
            let patient = scope.spawn(|| walk_patiently(standing, &patient_ring, &self.shared));
            if let Some(absent) = &self.shared.absent {
                let (tasks, is_served) = (tasks.clone(), &is_served);
                scope.spawn(move || {
                    let is_walking = |thread| {
                        let task = tasks.iter().find(|task| task.thread.tid == thread);
                        task.is_some_and(|task| task.is_walking.load(Ordering::Relaxed))
                    };
                    let is_done = || is_served.load(Ordering::Relaxed);
                    absent.serve(&self.shared.ram, is_walking, is_done);
                });
            }
            let recorded = self.record(&tasks, &patient_ring, &to_start, || {
                vcpus.into_iter().for_each(|vcpu| vcpu.join().expect("it does not panic"));
                patient.join().expect("it does not panic");
            });
            is_served.store(true, Ordering::Relaxed);
            recorded.map(|()| self.report(&tasks, &patient_ring))
        });
        UNWIND.cancel(None, client).expect("it is registered");
        report
    }

    fn run_vcpu(
        &self,
        number: u64,
        vcpu: impl Vcpu,
        client: ClientId,
        patient: mpsc::Sender<Standing>,
        (tell, to_start): (&mpsc::Sender<&'static Task>, &Barrier),
    ) {
        // Never freed, since a handler of a signal may look at it at any time.
        let task: &'static Task = Box::leak(Box::new(Task::new(number, &vcpu, client)));
        tell.send(task).expect("the machine waits for it");
        to_start.wait();
        let (shared, rows, stack) = (&self.shared, GuestRows::new(), GuestStack::new());
        VcpuThread { vcpu, task, shared, rows, stack, patient }.run(self.options.hertz);
    }

    /// Empties the rings until there are as many samples as are wanted and all threads have ended.
    fn record(
        &self,
        tasks: &[&'static Task],
        patient: &Ring,
        to_start: &Barrier,
        join: impl FnOnce(),
    ) -> io::Result<()> {
        let rings: Vec<_> = tasks.iter().map(|task| &task.ring).chain([patient]).collect();
        let threads: Vec<_> = tasks.iter().map(|task| (task.thread, task.number)).collect();
        let recording = self.options.output.as_deref();
        let mut recording = Recording::start(recording, &self.image, &threads)?;
        let mut readers: Vec<_> = rings.iter().map(|ring| ring.reader()).collect();
        to_start.wait();
        let taken =
            || tasks.iter().map(|task| task.counts.samples.load(Ordering::Relaxed)).sum::<u64>();
        while taken() < self.options.samples {
            thread::sleep(Duration::from_millis(20));
            recording.take(&mut readers)?;
        }
        self.shared.end();
        join();
        recording.take(&mut readers)
    }

    fn report(&self, tasks: &[&Task], patient: &Ring) -> Report {
        let report = self.shared.report();
        let sum = |of: fn(&Task) -> &AtomicU64| {
            tasks.iter().map(|task| of(task).load(Ordering::Relaxed)).sum::<u64>()
        };
        let left = sum(|task| &task.counts.left);
        let mean = |total: u64, of: u64| Duration::from_nanos(total / of.max(1));
        let absent = self.shared.absent.as_ref();
        let of_absent = |of: fn(&AbsentPages) -> &AtomicU64| {
            absent.map_or(0, |absent| of(absent).load(Ordering::Relaxed))
        };
        Report {
            samples: sum(|task| &task.counts.samples),
            refused: sum(|task| &task.counts.refused),
            left,
            brought: of_absent(|absent| &absent.brought),
            waits: of_absent(|absent| &absent.waits),
            lost: tasks.iter().map(|task| task.ring.lost()).sum::<u64>() + patient.lost(),
            pause: mean(sum(|task| &task.counts.pause), report.stacks - left),
            long_pause: mean(sum(|task| &task.counts.long_pause), left),
            ..report
        }
    }
}
