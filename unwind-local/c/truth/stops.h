// What recorder.c writes and reference.c reads: for each stop a header, its addresses, and the bytes of
// its stack; and the list of mapped files whenever that has changed.
#ifndef TRUTH_STOPS_H
#define TRUTH_STOPS_H

#include <stdint.h>

enum { TRUTH_STOP = 0x504f5453, TRUTH_MAPS = 0x5350414d, TRUTH_MOST = 512, TRUTH_REGISTERS = 17 };

// All frames were found; the number of a word's bytes; as many DWARF registers as the CPU has.
typedef struct {
    uint32_t kind, word_size, registers_count, is_complete;
    uint64_t registers[TRUTH_REGISTERS];
    uint64_t addresses_count;
    uint64_t stack;
    // Of the stack, or of the list of maps.
    uint64_t bytes;
} truth_header;

#endif
