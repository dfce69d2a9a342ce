// Goroutines that compute in recursions, sort, make texts and wait for each other, a number of
// rounds that the first argument says; after each piece of as many results as the second argument says
// it writes an empty line.
package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
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

func work(depth, rounds int, results chan<- int) {
	words := make([]string, 200)
	for round := 0; round < rounds; round++ {
		for index := range words {
			words[index] = fmt.Sprint((index*7919 + round) % 1000)
		}
		results <- descend(depth, words)
	}
}

func main() {
	rounds, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	piece := 0
	if len(os.Args) > 2 {
		if piece, err = strconv.Atoi(os.Args[2]); err != nil {
			panic(err)
		}
	}
	results := make(chan int)
	for depth := 0; depth < 40; depth += 10 {
		go work(depth, rounds, results)
	}
	sum := 0
	for round := 0; round < 4*rounds; round++ {
		sum += <-results
		if piece > 0 && round%piece == 0 {
			fmt.Println()
		}
	}
	fmt.Println(sum)
}
