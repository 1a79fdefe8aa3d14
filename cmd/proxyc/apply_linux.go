package main

import (
	"fmt"
	"os"
)

// lockDir holds the lock files of the node's network namespaces. It is root's
// alone; a pod has to have the node's.
const lockDir = "/run/proxyc"

func needRoot(verb string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s: needs root, to read and write the node's rules", verb)
	}
	return nil
}
