//! What a Linux guest has loaded, found in its memory: nothing is handed in but registers and memory.
//!
//! | type | what |
//! |---|---|
//! | [`GuestLinux`] | a kernel that was found: its symbols, its ORC tables, its modules, the task of a CPU |
//! | [`LinuxRows`] | the rows of its code, of ORC tables or of frame pointers |
//! | [`Kallsyms`] | the kernel's symbols, as it keeps them itself |
//! | [`Btf`] | where members of its structures are, as it tells programs itself |
//! | [`Module`] | a module that is loaded: name, code, symbols, ORC tables |
//! | [`Task`] | what a CPU, by its [number](cpu_number), runs: name, thread, process |
//! | [`TaskMemory`] | its memory, with pages of files that it has mapped and not touched |
//! | [`Program`] | an ELF object of user code by the header below its code: tables, symbols, build id |
//!
//! # Bounds
//!
//! All of it is the guest's and may lie; nothing panics, and each search ends:
//!
//! | search | bound |
//! |---|---|
//! | the kernel | [`IMAGE_PLACES`] places, then [`IMAGE_PAGES`] pages |
//! | symbols by their table's shape | [`SYMBOLS_LIMIT`] symbols, in that image, of 512 bytes each |
//! | ORC tables by their shape | that image once, and 64 arrays with 16 ends, of 65,536 entries each |
//! | a symbol by its address | 40 reads of an address, then 255 names |
//! | members of structures | [`BTF_LIMIT`] bytes of each of eight places that begin like types, and four times those of the kernel |
//! | a page of a file | 40 levels of a tree of mappings, 16 of one of pages |
//! | modules | [`MODULES_LIMIT`], of [`MODULE_SYMBOLS_LIMIT`] symbols each |
//! | the header of a program | [`PROGRAM_PAGES`] pages below the code, then [`HEADERS_LIMIT`] headers |
//! | the symbols of a program | 256 entries of its dynamic section, then 262,144 symbols |

mod btf;
mod error;
mod image;
mod kallsyms;
mod kallsyms_tables;
mod kernel;
mod layouts;
mod module;
mod orc_place;
mod page_cache;
mod program;
mod program_symbols;
mod rows;
mod symbol;
mod task;
mod task_memory;
mod task_space;
mod window;

pub use btf::{BTF_LIMIT, Btf, Member};
pub use error::LinuxError;
pub use image::{IMAGE_PAGES, IMAGE_PLACES};
pub use kallsyms::Kallsyms;
pub use kallsyms_tables::SYMBOLS_LIMIT;
pub use kernel::GuestLinux;
pub use module::{MODULE_SYMBOLS_LIMIT, MODULES_LIMIT, Module, ModuleList};
pub use program::{BuildId, HEADERS_LIMIT, PROGRAM_PAGES, Program, ProgramSearch};
pub use rows::LinuxRows;
pub use symbol::{Symbol, SymbolName};
pub use task::{Task, cpu_number};
pub use task_memory::{TaskFiles, TaskMemory};
