package daemon

import (
	"time"

	"github.com/proxyc/proxyc/apply/daemon/status"
)

// collector collects the Status from the parts of a session.
type collector struct {
	process status.Process
	now     func() time.Time
	parts   []func(*status.Status) // each adds its part, in this order
}

// get queries all parts. A Status that contains a sync must also contain its effects, so parts that
// learn about a sync earlier are queried later.
func (c *collector) get() status.Status {
	st := status.Status{Process: c.process}
	for _, part := range c.parts {
		part(&st)
	}
	st.SetNow(c.now())
	return st
}
