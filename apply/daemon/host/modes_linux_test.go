package host

import (
	"testing"

	"github.com/proxyc/proxyc/ir"
)

func TestEveryModeHasADataplane(t *testing.T) {
	for _, mode := range ir.Modes() {
		if mode != ir.ModeKernelspace && ModeOf(mode).open == nil {
			t.Errorf("mode %s has none", mode)
		}
	}
}
