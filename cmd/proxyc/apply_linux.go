package main

import (
	"fmt"
	"os"
)

func needRoot(verb string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("%s: needs root, to read and write the node's rules", verb)
	}
	return nil
}
