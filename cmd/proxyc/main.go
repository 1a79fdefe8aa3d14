// Command proxyc compiles kube-proxy's configuration and a snapshot of a cluster into the rules of
// a node, and traces packets through them.
package main

import (
	"os"
	"runtime/debug"
)

func main() { os.Exit(start(osEnv())) }

// start runs the program in its own process.
func start(e *env) int {
	if os.Getenv("GOGC") == "" {
		// A compilation allocates and keeps much memory, and then ends. Rare garbage collection saves a
		// third of its time, and the limit bounds it for large clusters.
		debug.SetGCPercent(400)
		debug.SetMemoryLimit(1 << 30)
	}
	return run(e)
}
