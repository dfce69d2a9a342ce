// Goroutines that compute in recursions, allocate, wait for each other and sleep.
// Says "ready" and runs for ever.
package main

import (
	"fmt"
	"sort"
	"strings"
	"time"
)

//go:noinline
func descend(depth int, words []string) int {
	if depth > 0 {
		return descend(depth-1, words) + 1
	}
	copied := append([]string(nil), words...)
	sort.Slice(copied, func(a, b int) bool { return copied[a] < copied[b] })
	return len(strings.Join(copied, ","))
}

func work(depth int, results chan<- int) {
	words := make([]string, 200)
	for round := 0; ; round++ {
		for index := range words {
			words[index] = fmt.Sprint((index*7919 + round) % 1000)
		}
		results <- descend(depth, words)
		if round%16 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
}

func main() {
	fmt.Println("ready")
	results := make(chan int)
	for depth := 0; depth < 40; depth += 10 {
		go work(depth, results)
	}
	for range results {
	}
}
