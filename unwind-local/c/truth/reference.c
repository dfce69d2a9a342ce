// Walks the stops that recorder.c has written once more, by elfutils' libdw: from the same registers,
// all of them, over the same bytes of the stack. Compares the addresses and prints how many are equal,
// and a few of each other kind.
//
//   reference <FILE
//
// Exit status 1: a stack was called complete of which libdw has other frames, or more, though call frame
// information tells of the last frame that both have. Where that is wrong, as some of 32-bit code is, libdw
// shows it: it has an address of no code, or takes a word below the stack pointer for a return address.
#define _GNU_SOURCE
#include <elfutils/libdwfl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stops.h"

enum { SHOWN = 3, MOST_BYTES = 1 << 20 };

typedef struct {
    truth_header header;
    uint64_t addresses[TRUTH_MOST];
    char *bytes;
} stop;

static stop now;

static pid_t next_thread(Dwfl *dwfl, void *argument, void **thread) {
    (void)dwfl;
    (void)argument;
    // The one and only.
    bool is_first = *thread == NULL;
    *thread = &now;
    return is_first ? 1 : 0;
}

static bool get_thread(Dwfl *dwfl, pid_t id, void *argument, void **thread) {
    (void)dwfl;
    (void)id;
    (void)argument;
    *thread = &now;
    return true;
}

static bool memory_read(Dwfl *dwfl, Dwarf_Addr address, Dwarf_Word *result, void *argument) {
    (void)dwfl;
    (void)argument;
    uint64_t at = address - now.header.stack;
    if (address < now.header.stack || at + now.header.word_size > now.header.bytes) return false;
    *result = 0;
    memcpy(result, now.bytes + at, now.header.word_size);
    return true;
}

static bool set_initial_registers(Dwfl_Thread *thread, void *argument) {
    (void)argument;
    Dwarf_Word registers[TRUTH_REGISTERS];
    for (size_t at = 0; at < TRUTH_REGISTERS; at++) registers[at] = now.header.registers[at];
    return dwfl_thread_state_registers(thread, 0, now.header.registers_count, registers);
}

static const Dwfl_Thread_Callbacks THREAD = {
    .next_thread = next_thread,
    .get_thread = get_thread,
    .memory_read = memory_read,
    .set_initial_registers = set_initial_registers,
};

// What is in the files themselves, without a search for more.
static int no_debuginfo(Dwfl_Module *module, void **data, const char *name, Dwarf_Addr base, const char *file,
                        const char *link, GElf_Word sum, char **found) {
    (void)module, (void)data, (void)name, (void)base, (void)file, (void)link, (void)sum, (void)found;
    return -1;
}

static const Dwfl_Callbacks FILES = {.find_elf = dwfl_linux_proc_find_elf, .find_debuginfo = no_debuginfo};

typedef struct {
    uint64_t addresses[TRUTH_MOST];
    size_t count;
} found;

static int keep(Dwfl_Frame *frame, void *argument) {
    found *to = argument;
    Dwarf_Addr pc;
    if (to->count == TRUTH_MOST || !dwfl_frame_pc(frame, &pc, NULL)) return DWARF_CB_ABORT;
    to->addresses[to->count++] = pc;
    return DWARF_CB_OK;
}

static void show(Dwfl *dwfl, const char *who, const uint64_t *addresses, size_t at, size_t count) {
    if (at >= count) return (void)printf("    %s: no frame %zu\n", who, at);
    Dwfl_Module *module = dwfl_addrmodule(dwfl, addresses[at]);
    const char *name = module ? dwfl_module_info(module, NULL, NULL, NULL, NULL, NULL, NULL, NULL) : NULL;
    const char *symbol = module ? dwfl_module_addrname(module, addresses[at]) : NULL;
    Dwarf_Addr base = 0;
    if (module) dwfl_module_info(module, NULL, &base, NULL, NULL, NULL, NULL, NULL);
    printf("    %s: frame %zu %#llx %s+%#llx %s\n", who, at, (unsigned long long)addresses[at], name ? name : "?",
           (unsigned long long)(addresses[at] - base), symbol ? symbol : "");
}

// Whether call frame information tells of the code of a frame: libdw guesses by its frame pointer else.
static bool has_rows(Dwfl *dwfl, const uint64_t *addresses, size_t at) {
    Dwarf_Addr pc = addresses[at] - (at ? 1 : 0), bias = 0;
    Dwfl_Module *module = dwfl_addrmodule(dwfl, pc);
    if (!module) return false;
    Dwarf_CFI *tables[2] = {dwfl_module_eh_cfi(module, &bias), NULL};
    Dwarf_Addr biases[2] = {bias, 0};
    tables[1] = dwfl_module_dwarf_cfi(module, &biases[1]);
    for (size_t table = 0; table < 2; table++) {
        Dwarf_Frame *frame = NULL;
        if (tables[table] && dwarf_cfi_addrframe(tables[table], pc - biases[table], &frame) == 0) {
            free(frame);
            return true;
        }
    }
    return false;
}

// Whether a segment that can be executed has an address.
static bool is_code(Dwfl *dwfl, uint64_t address) {
    GElf_Addr bias = 0;
    Dwfl_Module *module = dwfl_addrmodule(dwfl, address);
    Elf *elf = module ? dwfl_module_getelf(module, &bias) : NULL;
    size_t count = 0;
    if (!elf || elf_getphdrnum(elf, &count) != 0) return false;
    for (size_t at = 0; at < count; at++) {
        GElf_Phdr header;
        if (!gelf_getphdr(elf, (int)at, &header) || header.p_type != PT_LOAD || !(header.p_flags & PF_X)) continue;
        if (address - bias - header.p_vaddr < header.p_memsz) return true;
    }
    return false;
}

// Whether libdw's first address that differs shows that the table is wrong there: in 32-bit code alone.
static bool is_led_astray(Dwfl *dwfl, const found *theirs, size_t same, size_t ours) {
    enum { ESP = 4, SLOT = 4 };
    if (now.header.word_size != SLOT || same == 0 || same >= theirs->count || same >= ours) return false;
    if (!is_code(dwfl, theirs->addresses[same])) return true;
    for (uint64_t below = SLOT; same == 1 && below <= 2 * SLOT; below += SLOT) {
        Dwarf_Word word;
        if (memory_read(dwfl, now.header.registers[ESP] - below, &word, NULL) && word == theirs->addresses[1]) return true;
    }
    return false;
}

enum { EQUAL, OURS_FURTHER, THEIRS_FURTHER, DIFFER, KINDS };
static const char *const KIND[KINDS] = {"equal", "ours has more", "libdw has more", "other frames"};

static bool get(void *to, size_t len) { return fread(to, 1, len, stdin) == len; }

int main(void) {
    Dwfl *dwfl = NULL;
    long counts[2][2][2][KINDS] = {0}, total = 0, astray = 0;
    now.bytes = malloc(MOST_BYTES);
    while (now.bytes && get(&now.header, sizeof now.header)) {
        if (now.header.bytes > MOST_BYTES || now.header.addresses_count > TRUTH_MOST) return 2;
        if (!get(now.addresses, now.header.addresses_count * sizeof *now.addresses)) return 2;
        if (!get(now.bytes, now.header.bytes)) return 2;
        if (now.header.kind == TRUTH_MAPS) {
            if (dwfl) dwfl_end(dwfl);
            dwfl = dwfl_begin(&FILES);
            FILE *maps = fmemopen(now.bytes, now.header.bytes, "r");
            if (!dwfl || !maps || dwfl_linux_proc_maps_report(dwfl, maps) != 0) return 2;
            fclose(maps);
            if (dwfl_report_end(dwfl, NULL, NULL) != 0) return 2;
            if (!dwfl_attach_state(dwfl, NULL, 1, &THREAD, NULL)) {
                fprintf(stderr, "%s\n", dwfl_errmsg(-1));
                return 2;
            }
            continue;
        }
        if (now.header.kind != TRUTH_STOP || !dwfl) return 2;
        found theirs = {.count = 0};
        bool is_whole = dwfl_getthread_frames(dwfl, 1, keep, &theirs) == 0;
        size_t ours = now.header.addresses_count, same = 0;
        while (same < ours && same < theirs.count && now.addresses[same] == theirs.addresses[same]) same++;
        int kind = same == ours && same == theirs.count ? EQUAL
                   : same == theirs.count               ? OURS_FURTHER
                   : same == ours                       ? THEIRS_FURTHER
                                                        : DIFFER;
        bool is_complete = now.header.is_complete;
        total++;
        if (is_complete && kind == DIFFER && is_led_astray(dwfl, &theirs, same, ours)) {
            astray++;
            continue;
        }
        bool is_guess = kind != EQUAL && same && !has_rows(dwfl, now.addresses, same - 1);
        long *count = &counts[is_complete][is_whole][is_guess][kind];
        if ((*count)++ < SHOWN && (kind != EQUAL || is_complete != is_whole)) {
            printf("  %s; ours is %scomplete, libdw's %s: %s\n", KIND[kind], is_complete ? "" : "not ",
                   is_guess ? "a guess" : is_whole ? "whole" : "cut", is_whole ? "" : dwfl_errmsg(-1));
            show(dwfl, "interrupted", now.addresses, 0, ours);
            if (same > 1) show(dwfl, "the last that are the same", now.addresses, same - 1, ours);
            show(dwfl, "ours", now.addresses, same, ours);
            show(dwfl, "libdw", theirs.addresses, same, theirs.count);
        }
    }
    printf("%ld stops:", total);
    long wrong = 0;
    for (int at = 7; at >= 0; at--) {
        bool ours = at & 4, theirs = at & 2, guess = at & 1;
        const long *of = counts[ours][theirs][guess];
        for (int kind = 0; kind < KINDS; kind++)
            if (of[kind])
                printf(" %ld %s (ours %s, libdw's %s%s);", of[kind], KIND[kind], ours ? "complete" : "not complete",
                       theirs ? "whole" : "cut", guess ? ", which guessed" : "");
        if (ours && !guess) wrong += of[DIFFER] + of[THEIRS_FURTHER];
    }
    if (astray) printf(" %ld other frames (ours complete, libdw has no return address);", astray);
    printf("\n");
    return total == 0 || wrong != 0;
}
