/* What a chain leaves behind for whoever checks a walk of it. */
#ifndef CHAIN_H
#define CHAIN_H

#include <stdint.h>

#define WITNESS_FRAMES 32

/* `Witness` in chain.rs has the same layout. */
struct witness {
    int32_t fd;      /* what the innermost function waits on */
    uint32_t parked; /* 1 once it waits, or is about to */
    uint32_t depth;  /* how many functions have begun */
    struct {
        uint64_t return_address;
        uint64_t cfa;
    } frames[WITNESS_FRAMES]; /* outermost first */
};

#endif
