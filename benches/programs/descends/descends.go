package main

import (
	"sort"
	"strconv"
)

func descend(level, round int) (found int) {
	defer func() {
		if recover() != nil {
			found = level
		}
	}()
	if level > 0 {
		return descend(level-1, round) + len(strconv.Itoa(round))
	}
	list := make([]int, 40)
	for i := range list {
		list[i] = i * round * 7919 % 101
	}
	sort.Ints(list)
	if round%3 == 0 {
		panic("an odd round")
	}
	return list[0]
}

func main() {
	found := make(chan int)
	go func() {
		for round := 1; ; round++ {
			found <- descend(5, round)
		}
	}()
	for round := 1; ; round++ {
		descend(round%12, round+<-found)
	}
}
