package review

import (
	"testing"

	"github.com/proxyc/proxyc/ir"
)

func TestEveryModeHasABackEnd(t *testing.T) {
	for _, mode := range ir.Modes() {
		if m := Modes[mode]; m.Lower == nil || m.Evaluate == nil {
			t.Errorf("mode %s lacks Lower or Evaluate", mode)
		}
	}
}
