// Command proxyc compiles kube-proxy's configuration and a snapshot of a
// cluster into the rules of a node, and tells what happens to a packet and why.
package main

import (
	"os"
	"runtime/debug"
)

func main() {
	if os.Getenv("GOGC") == "" {
		// A compilation builds a lot, keeps it and ends: collecting seldom takes a
		// third off its time, and the limit keeps big clusters within bounds.
		debug.SetGCPercent(400)
		debug.SetMemoryLimit(640 << 20)
	}
	os.Exit(run(osEnv()))
}
