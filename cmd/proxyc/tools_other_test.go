//go:build !linux

package main

import (
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// checkWithTools refuses to record what no tool of this system can judge.
func checkWithTools(t *testing.T, mode ir.Mode, outputs []render.Output) {
	if *update {
		t.Fatal("-update needs the tools of Linux")
	}
}
