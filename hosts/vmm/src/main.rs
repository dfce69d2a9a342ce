//! Runs the guest of this example and says what became of the samples.

use std::path::PathBuf;
use std::process::ExitCode;
use std::{env, io};

use demo_vmm::{Machine, Options, has_kvm};

const USAGE: &str = "usage: demo-vmm [--samples NUMBER] [--absent] [--made-up] [--output FILE]";

fn main() -> ExitCode {
    match options().map(run) {
        Some(Ok(is_right)) => {
            if is_right {
                ExitCode::SUCCESS
            } else {
                ExitCode::FAILURE
            }
        }
        Some(Err(error)) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn options() -> Option<Options> {
    let mut options = Options {
        vcpus: 2,
        samples: 1000,
        hertz: 1000,
        absent: false,
        kvm: has_kvm(),
        output: None,
    };
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        match &*arg {
            "--samples" => options.samples = args.next()?.parse().ok()?,
            "--output" => options.output = Some(PathBuf::from(args.next()?)),
            "--absent" => options.absent = true,
            "--made-up" => options.kvm = false,
            _ => return None,
        }
    }
    Some(options)
}

fn run(options: Options) -> io::Result<bool> {
    println!("vCPUs: {} {}", options.vcpus, if options.kvm { "of KVM" } else { "made up" });
    let report = Machine::new(options)?.run()?;
    println!("{report}");
    Ok(report.is_right())
}
