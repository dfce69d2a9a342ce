// Eight functions of different work, each of which takes a part of the time. The first argument
// says how many rounds, the second how many percent more one of them, lookUp, does: no other
// function sees what comes of that.
package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync/atomic"
)

const entries = 1 << 15

var table [entries]uint32
var unused uint64
var words = make(map[uint64]uint64)

//go:noinline
func multiply(count int, value uint64) uint64 {
	for i := 0; i < count; i++ {
		value = value*6364136223846793005 + 1442695040888963407
	}
	return value
}

//go:noinline
func divide(count int, value uint64) uint64 {
	for i := 1; i <= count; i++ {
		value += (value | 1) / uint64(i*7)
	}
	return value
}

//go:noinline
func lookUp(count, more int, value uint64) uint64 {
	result := value
	for i := 0; i < count+more; i++ {
		value = uint64(table[value%entries]) + value>>9
		if i == count-1 {
			result = value
		}
	}
	// What comes next waits for that, and gets the same.
	atomic.StoreUint64(&unused, value)
	return result + (atomic.LoadUint64(&unused) - value)
}

//go:noinline
func choose(count int, value uint64) uint64 {
	for i := 0; i < count; i++ {
		value ^= value << 13
		value ^= value >> 7
		value ^= value << 17
		if value&64 != 0 {
			value += 3
		}
	}
	return value
}

//go:noinline
func joinText(count int, value uint64) uint64 {
	parts := make([]string, count)
	for i := range parts {
		parts[i] = strconv.FormatUint(value+uint64(i), 16)
	}
	return value + uint64(len(strings.Join(parts, ",")))
}

//go:noinline
func countWords(count int, value uint64) uint64 {
	for i := 0; i < count; i++ {
		words[value>>uint(i%32)&1023]++
	}
	return value + words[value&1023]
}

//go:noinline
func addUp(count int, value uint64) uint64 {
	sum := float64(value % 1000)
	for i := 1; i < count; i++ {
		sum += 1 / float64(i)
	}
	return value + uint64(sum)
}

//go:noinline
func sortSome(count int, value uint64) uint64 {
	numbers := make([]int, 48)
	for i := 0; i < count; i++ {
		for at := range numbers {
			value = value*6364136223846793005 + 1
			numbers[at] = int(value >> 33)
		}
		sort.Ints(numbers)
		value += uint64(numbers[7])
	}
	return value
}

func main() {
	rounds, err := strconv.Atoi(os.Args[1])
	if err != nil {
		panic(err)
	}
	more, err := strconv.Atoi(os.Args[2])
	if err != nil {
		panic(err)
	}
	value := uint64(88172645463325252)
	for i := range table {
		value = value*6364136223846793005 + 1
		table[i] = uint32(value)
	}
	for round := 0; round < rounds; round++ {
		value = multiply(3000, value)
		value = divide(400, value)
		value = lookUp(1000, 10*more, value)
		value = choose(800, value)
		value = joinText(40, value)
		value = countWords(100, value)
		value = addUp(900, value)
		value = sortSome(3, value)
	}
	fmt.Println(value)
}
