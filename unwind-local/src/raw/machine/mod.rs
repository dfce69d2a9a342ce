//! What depends on the CPU: its registers, and the instructions that nothing but assembly has.

#[cfg(target_arch = "x86")]
mod ia32;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "x86")]
pub use ia32::*;
#[cfg(target_arch = "x86_64")]
pub use x86_64::*;
