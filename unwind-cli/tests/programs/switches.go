// A goroutine that changes to the stack of its thread: "c" to sleep in C, "system" to write the
// stacks of all goroutines again and again, "clock" to ask what time it is. Before that it writes its own stack as Go's runtime
// sees it, up to an empty line, and says "ready".
package main

// #include <unistd.h>
// static void sleep_in_c(void) { for (;;) pause(); }
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

// The thread that is looked at is the first one, which a goroutine may leave at any call.
func init() {
	if os.Args[1] == "c" {
		runtime.LockOSThread()
	}
}

//go:noinline
func outer(do func()) {
	middle(do)
	runtime.KeepAlive(do)
}

//go:noinline
func middle(do func()) {
	do()
	runtime.KeepAlive(do)
}

func main() {
	buffer := make([]byte, 1<<20)
	for count := 0; count < 500; count++ {
		go func() { select {} }()
	}
	outer(func() {
		fmt.Println("ready")
		length := runtime.Stack(buffer, false)
		fmt.Printf("%s\n\n", buffer[:length])
		if os.Args[1] == "c" {
			C.sleep_in_c()
		}
		for os.Args[1] == "clock" {
			time.Now()
		}
		for {
			runtime.Stack(buffer, true)
		}
	})
}
