// Command proxyc compiles kube-proxy's configuration and a snapshot of a
// cluster into the rules of a node, and tells what happens to a packet and why.
package main

import "os"

func main() {
	os.Exit(run(osEnv()))
}
