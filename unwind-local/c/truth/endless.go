// Go that calls C, which calls Go, and computes in each of them, without an end.
package main

// #include <stdint.h>
// #include <stdlib.h>
// #include <string.h>
//
// uint64_t back(uint64_t depth);
//
// static uint64_t in_c(uint64_t depth) {
//     volatile char room[256];
//     memset((char *)room, (int)depth, sizeof room);
//     uint64_t sum = 0;
//     for (uint64_t at = 0; at < 2000; at++) sum += (uint64_t)room[at % sizeof room] * at;
//     free(malloc(100 + depth));
//     return depth ? sum + back(depth - 1) : sum;
// }
import "C"

import (
	"fmt"
	"sort"
)

//export back
func back(depth C.uint64_t) C.uint64_t {
	numbers := make([]int, 100+int(depth))
	for at := range numbers {
		numbers[at] = (at * 7919) % 101
	}
	sort.Ints(numbers)
	return C.in_c(depth) + C.uint64_t(numbers[0])
}

func main() {
	sum := C.uint64_t(0)
	for {
		sum += back(4)
		if sum == 1 {
			fmt.Println(sum)
		}
	}
}
