// A goroutine that computes below others of its functions, as many times as the first argument says has letters.
package main

import "os"

var sum int

//go:noinline
func computes(rounds int) {
	for ; rounds > 0; rounds-- {
		sum += rounds
	}
}

//go:noinline
func descends(depth int) {
	if depth > 0 {
		descends(depth - 1)
	} else {
		computes(1000000)
	}
	sum++
}

func main() {
	done := make(chan bool)
	go func() {
		for range os.Args[1] {
			descends(10)
		}
		done <- true
	}()
	<-done
}
