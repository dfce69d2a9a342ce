//! A vCPU, as far as samples need one.

use std::path::Path;
use std::sync::atomic::AtomicU8;

use kvm_bindings::{kvm_dtable, kvm_regs, kvm_segment, kvm_userspace_memory_region};
use kvm_ioctls::{Kvm, VcpuExit, VcpuFd, VmFd};
use unwind_guest::VcpuRegisters;

use crate::image::GuestImage;
use crate::ram::{self, DescriptorTable, GuestRam, USER_STACK};
use crate::raw;

/// What runs a guest's code.
pub trait Vcpu {
    /// Runs until a signal comes, or until the [byte](Self::immediate_exit) is not zero, also if it was
    /// before the call.
    fn run(&mut self);

    /// The registers, while it stands.
    fn registers(&self) -> VcpuRegisters;

    /// A byte that keeps the vCPU from being entered: KVM has it for signals that come between the last check
    /// for work and the entry.
    fn immediate_exit(&self) -> &'static AtomicU8;
}

/// Whether KVM can be used here.
pub fn has_kvm() -> bool {
    Path::new("/dev/kvm").exists() && Kvm::new().is_ok()
}

/// A vCPU of KVM.
#[derive(Debug)]
pub struct KvmVcpu {
    // Never closed, since handlers of signals write to what it shares.
    fd: &'static mut VcpuFd,
    immediate_exit: &'static AtomicU8,
}

impl KvmVcpu {
    /// A virtual machine with this memory.
    pub(crate) fn machine(ram: &GuestRam) -> VmFd {
        let vm = Kvm::new().and_then(|kvm| kvm.create_vm()).expect("KVM is there");
        let (userspace_addr, memory_size) = ram.host_range();
        let region = kvm_userspace_memory_region {
            slot: 0,
            flags: 0,
            guest_phys_addr: 0,
            memory_size,
            userspace_addr,
        };
        raw::set_memory(&vm, region);
        vm
    }

    /// The vCPU of this number, about to execute the guest's user code.
    pub(crate) fn new(vm: &VmFd, image: &GuestImage, number: u64) -> Self {
        let fd = vm.create_vcpu(number).expect("KVM is there");
        let mut sregs = fd.get_sregs().expect("it stands");
        sregs.cr3 = GuestRam::root(number);
        sregs.cr4 = 1 << 5;
        sregs.cr0 = 0x8005_0033;
        sregs.efer = 0x500;
        // Linux's segments of user code.
        sregs.cs = segment(0x33, 11, true);
        for register in [&mut sregs.ss, &mut sregs.ds, &mut sregs.es] {
            *register = segment(0x2b, 3, false);
        }
        let table = |part: DescriptorTable| kvm_dtable {
            base: part.at,
            limit: part.limit,
            ..Default::default()
        };
        (sregs.gdt, sregs.idt) = (table(ram::GDT), table(ram::IDT));
        let (base, limit) = (ram::TSS.at, ram::TSS.limit.into());
        sregs.tr = kvm_segment {
            base,
            limit,
            selector: 0x40,
            type_: 11,
            present: 1,
            ..Default::default()
        };
        fd.set_sregs(&sregs).expect("a state that there is");
        let rip = image.addr("user_start");
        let regs = kvm_regs { rip, rsp: USER_STACK - 8, rflags: 2, ..Default::default() };
        fd.set_regs(&regs).expect("a state that there is");
        let fd = Box::leak(Box::new(fd));
        let immediate_exit = raw::immediate_exit(fd);
        Self { fd, immediate_exit }
    }
}

impl Vcpu for KvmVcpu {
    fn run(&mut self) {
        match self.fd.run() {
            Err(error) if error.errno() == libc::EINTR => {}
            // A monitor has its devices here.
            Ok(VcpuExit::Intr) => {}
            other => {
                let other = format!("{other:?}");
                eprintln!("{:x?} {:x?}", self.fd.get_regs(), self.fd.get_sregs());
                panic!("the guest has no devices and does not halt: {other}");
            }
        }
    }

    fn registers(&self) -> VcpuRegisters {
        let regs = self.fd.get_regs().expect("it stands");
        let sregs = self.fd.get_sregs().expect("it stands");
        VcpuRegisters::from_kvm(&regs, &sregs)
    }

    fn immediate_exit(&self) -> &'static AtomicU8 {
        self.immediate_exit
    }
}

/// A flat segment of user code.
fn segment(selector: u16, type_: u8, is_code: bool) -> kvm_segment {
    kvm_segment {
        limit: u32::MAX,
        selector,
        type_,
        present: 1,
        dpl: 3,
        db: (!is_code).into(),
        s: 1,
        l: is_code.into(),
        g: 1,
        ..Default::default()
    }
}
