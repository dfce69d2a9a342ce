//! Where a kernel's structures have what is read of them, by its types.

use unwind_core::Memory;

use crate::linux::btf::{Btf, Member};
use crate::linux::error::LinuxError;
use crate::linux::module::{ModuleLayout, ModuleOrc, ModuleSymbols};
use crate::linux::page_cache::{MappingTree, PageArray, PageCacheLayout};
use crate::linux::task::TaskLayout;

/// Of tasks and of modules.
pub(crate) fn layouts<M: Memory>(
    btf: &Btf,
    mem: &mut M,
) -> Result<(Option<TaskLayout>, Option<ModuleLayout>), LinuxError> {
    let of = |structure, member| Member { structure, member };
    let [comm, pid, tgid, list, name, mem_at, core, base, size, old_base, old_size, kallsyms, arch] =
        btf.offsets_of(
            [
                of("task_struct", "comm"),
                of("task_struct", "pid"),
                of("task_struct", "tgid"),
                of("module", "list"),
                of("module", "name"),
                of("module", "mem"),
                of("module", "core_layout"),
                of("module_memory", "base"),
                of("module_memory", "size"),
                of("module_layout", "base"),
                of("module_layout", "size"),
                of("module", "kallsyms"),
                of("module", "arch"),
            ],
            mem,
        )?;
    let [table, count, strings, orc_count, ips, entries, mm, root, named_root, stack] = btf
        .offsets_of(
            [
                of("mod_kallsyms", "symtab"),
                of("mod_kallsyms", "num_symtab"),
                of("mod_kallsyms", "strtab"),
                of("mod_arch_specific", "num_orcs"),
                of("mod_arch_specific", "orc_unwind_ip"),
                of("mod_arch_specific", "orc_unwind"),
                of("task_struct", "mm"),
                // In a structure without a name that is the first thing there.
                of("", "pgd"),
                of("mm_struct", "pgd"),
                of("task_struct", "stack"),
            ],
            mem,
        )?;
    let page_table = || Some([mm?, named_root.or(root)?]);
    let task = || {
        let (comm, pid, tgid) = (comm?, pid?, tgid?);
        Some(TaskLayout { comm, pid, tgid, page_table: page_table(), stack })
    };
    let sum = |outer: Option<u32>, inner: Option<u32>| outer?.checked_add(inner?);
    // Code is the first of the kinds of memory that a module has.
    let text = || Some((sum(mem_at, base)?, sum(mem_at, size)?));
    let old_text = || Some((sum(core, old_base)?, sum(core, old_size)?));
    let symbols = || {
        let (table, count, strings) = (table?, count?, strings?);
        Some(ModuleSymbols { at: kallsyms?, table, count, strings })
    };
    let orc = || {
        let (count, ips) = (sum(arch, orc_count)?, sum(arch, ips)?);
        Some(ModuleOrc { count, ips, entries: sum(arch, entries)? })
    };
    let module = || {
        let text = text().or_else(old_text)?;
        Some(ModuleLayout { list: list?, name: name?, text, symbols: symbols(), orc: orc() })
    };
    Ok((task(), module()))
}

/// Of the pages of files.
pub(crate) fn page_cache_layout<M: Memory>(
    pages: PageArray,
    btf: &Btf,
    mem: &mut M,
) -> Result<Option<PageCacheLayout>, LinuxError> {
    let of = |structure, member| Member { structure, member };
    // In a structure without a name that is the first thing there, or not.
    let unnamed = "";
    let [mm, tree, named_tree, maple, old_tree, old_named_tree, node] = btf.offsets_of(
        [
            of("task_struct", "mm"),
            of(unnamed, "mm_mt"),
            of("mm_struct", "mm_mt"),
            of("maple_tree", "ma_root"),
            of(unnamed, "mm_rb"),
            of("mm_struct", "mm_rb"),
            of("vm_area_struct", "vm_rb"),
        ],
        mem,
    )?;
    let [place, file, protection, uptodate, mapping, pages_at, head, shift, slots] = btf
        .offsets_of(
            [
                of("vm_area_struct", "vm_pgoff"),
                of("vm_area_struct", "vm_file"),
                of("vm_area_struct", "vm_page_prot"),
                of("pageflags", "PG_uptodate"),
                of("file", "f_mapping"),
                of("address_space", "i_pages"),
                of("xarray", "xa_head"),
                of("xa_node", "shift"),
                of("xa_node", "slots"),
            ],
            mem,
        )?;
    let maple = || Some(MappingTree::Maple(named_tree.or(tree)?.checked_add(maple?)?));
    let red_black =
        || Some(MappingTree::RedBlack { root: old_named_tree.or(old_tree)?, node: node? });
    let layout = || {
        Some(PageCacheLayout {
            pages,
            mm: mm?,
            mappings: maple().or_else(red_black)?,
            place: place?,
            file: file?,
            protection,
            mapping: mapping?,
            head: pages_at?.checked_add(head?)?,
            shift: shift?,
            slots: slots?,
            uptodate,
        })
    };
    Ok(layout())
}
