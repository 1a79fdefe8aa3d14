package doctor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// Missing describes rules that proxyc wrote and the kernel lacks; "" if it lacks none. want is the
// rules of a snapshot; without one, the boot file shows which they were.
func Missing(ctx context.Context, cfg *config.Config, want ir.Programs, snapshot bool) (string, error) {
	bootFile, wrote := host.Wrote()
	if !wrote {
		return "", nil
	}
	if !snapshot {
		text, err := os.ReadFile(bootFile)
		if err == nil {
			want, err = ir.ReadJSON(bytes.NewReader(text))
		}
		if err != nil || want.IPv4 == nil {
			return "", errors.New("no daemon repairs them, and no snapshot or boot file shows which they were")
		}
	}
	o := host.Options(cfg, apply.IPVS{})
	o.ReadOnly = true
	dataplane, err := host.Open(ctx, want.IPv4.Node.Mode, o)
	if err != nil {
		return "", err
	}
	defer dataplane.Close()
	plan, _, err := apply.Once(ctx, dataplane, want, func(apply.Plan) bool { return false })
	if err != nil {
		return "", err
	}
	missing, first := 0, ""
	for op := range plan.Operations {
		if op.Verb != apply.Remove {
			missing, first = missing+1, cmp.Or(first, op.Object)
		}
	}
	if missing == 0 {
		return "", nil
	}
	return fmt.Sprintf("are not in force: of their objects, %d are missing or differ, such as %s", missing, first), nil
}
