// SPDX-License-Identifier: MIT OR GPL-2.0
/*
 * The tables of a program, by its ELF headers where they are mapped. Its file is not read: others may have a say in who reads
 * that, and the task itself may be one of them.
 */
#include <linux/elf.h>
#include <linux/fs.h>
#include <linux/slab.h>
#include <linux/uaccess.h>

#include "module.h"

#define SEGMENT_EH_FRAME 0x6474e550
#define SEGMENT_SFRAME 0x6474e554

/* Of either class. */
struct segment {
	u32 type;
	u32 flags;
	u64 offset;
	u64 address;
	u64 file_bytes;
	u64 bytes;
};

union header {
	u8 ident[EI_NIDENT];
	struct elf32_hdr narrow;
	struct elf64_hdr wide;
};

union segments {
	struct elf32_phdr narrow[MAX_HEADERS];
	struct elf64_phdr wide[MAX_HEADERS];
};

static bool read_at(const struct mapping *mapping, u64 offset, void *to, size_t len)
{
	u64 there = mapping->header_end - mapping->header;

	return offset < there && len <= there - offset &&
	       !copy_from_user(to, (void __user *)(mapping->header + offset), len);
}

/* Returns how many there are, or 0. */
static u32 read_segments(const struct mapping *mapping, union segments *segments, bool *is_wide)
{
	union header header;
	u64 offset;
	u32 len, each;

	if (!read_at(mapping, 0, &header, sizeof(header.narrow)) || memcmp(header.ident, ELFMAG, SELFMAG))
		return 0;
	*is_wide = header.ident[EI_CLASS] == ELFCLASS64;
	if (*is_wide && !read_at(mapping, 0, &header, sizeof(header.wide)))
		return 0;
	offset = *is_wide ? header.wide.e_phoff : header.narrow.e_phoff;
	len = *is_wide ? header.wide.e_phnum : header.narrow.e_phnum;
	each = *is_wide ? sizeof(segments->wide[0]) : sizeof(segments->narrow[0]);
	if ((*is_wide ? header.wide.e_phentsize : header.narrow.e_phentsize) != each || len > MAX_HEADERS ||
	    !read_at(mapping, offset, segments, len * each))
		return 0;
	return len;
}

static struct segment segment_at(const union segments *segments, bool is_wide, u32 at)
{
	const struct elf32_phdr *narrow = &segments->narrow[at];
	const struct elf64_phdr *wide = &segments->wide[at];

	if (is_wide)
		return (struct segment){ wide->p_type, wide->p_flags, wide->p_offset,
					 wide->p_vaddr, wide->p_filesz, wide->p_memsz };
	return (struct segment){ narrow->p_type, narrow->p_flags, narrow->p_offset,
				 narrow->p_vaddr, narrow->p_filesz, narrow->p_memsz };
}

static const struct table *table_of(const struct mapping *mapping, struct tables *tables)
{
	u32 len = tables && mapping->file ? smp_load_acquire(&tables->len) : 0, at;
	const struct inode *inode = len ? file_inode(mapping->file) : NULL;

	/* Code of a file in layers, as in a container, is mapped from the layer. */
	for (at = 0; at < len; at++)
		if (d_real_inode(tables->each[at].file->f_path.dentry) == inode)
			return &tables->each[at];
	return NULL;
}

/*
 * Fills in the format, and where the table is: one that was handed in, otherwise .sframe, otherwise .eh_frame, otherwise one
 * that is to be handed in.
 */
void program_look(const struct mapping *mapping, struct tables *tables, struct unwind_module *module)
{
	union segments *segments = kmalloc(sizeof(*segments), GFP_KERNEL);
	const struct table *held = table_of(mapping, tables);
	struct segment eh_frame = {}, sframe = {};
	bool is_wide, is_known = false;
	u64 bias = 0;
	u32 len, at;

	module->format = UNWIND_FORMAT_NONE;
	len = segments ? read_segments(mapping, segments, &is_wide) : 0;
	for (at = 0; at < len; at++) {
		struct segment segment = segment_at(segments, is_wide, at);

		if (segment.type == SEGMENT_EH_FRAME) {
			eh_frame = segment;
		} else if (segment.type == SEGMENT_SFRAME) {
			sframe = segment;
		} else if (segment.type == PT_LOAD && segment.flags & PF_X && !is_known &&
			   mapping->offset >= (segment.offset & PAGE_MASK) &&
			   mapping->offset - (segment.offset & PAGE_MASK) < segment.file_bytes + PAGE_SIZE) {
			is_known = true;
			bias = mapping->start - mapping->offset - (segment.address - segment.offset);
		}
	}
	kfree(segments);
	if (!is_known)
		return;
	if (held && held->bytes) {
		module->format = UNWIND_FORMAT_SFRAME_OF_CALL_FRAMES;
		module->table = module->held_addr = held->address + bias;
		module->held = held->bytes;
		module->held_len = held->len;
	} else if (sframe.type && sframe.bytes <= U32_MAX) {
		module->format = UNWIND_FORMAT_SFRAME;
		module->table = sframe.address + bias;
		module->table_len = sframe.bytes;
	} else if (eh_frame.type) {
		module->format = UNWIND_FORMAT_EH_FRAME;
		module->table = eh_frame.address + bias;
	} else if (!held && mapping->file && tables && tables->are_awaited) {
		module->format = UNWIND_FORMAT_AWAITED;
	}
}
