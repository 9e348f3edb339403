// Command expfmt parses an exposition with prometheus/common/expfmt and prints the CPU nanoseconds
// of each round: expfmt FILE ROUNDS. A first parse, which is not printed, grows the heap.
package main

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

func main() {
	if len(os.Args) != 3 {
		fail(fmt.Errorf("usage: expfmt FILE ROUNDS"))
	}
	body, err := os.ReadFile(os.Args[1])
	if err != nil {
		fail(err)
	}
	rounds, err := strconv.Atoi(os.Args[2])
	if err != nil {
		fail(err)
	}
	parse(body)
	for range rounds {
		start := cpuNanoseconds()
		parse(body)
		fmt.Println(cpuNanoseconds() - start)
	}
}

func parse(body []byte) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	if _, err := parser.TextToMetricFamilies(bytes.NewReader(body)); err != nil {
		fail(err)
	}
}

// cpuNanoseconds returns the CPU time of all threads, the garbage collector's included.
func cpuNanoseconds() int64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(err)
	}
	return usage.Utime.Nano() + usage.Stime.Nano()
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "expfmt:", err)
	os.Exit(1)
}
