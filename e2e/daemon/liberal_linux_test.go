package daemon

import (
	"context"
	"strings"
	"syscall"
	"testing"

	"github.com/proxyc/proxyc/apply/applytest"
)

// A host whose conntrack accepts TCP packets outside the window has routes on which a proxy sees
// only one direction. Packets in state INVALID must pass there, even if the configuration does not
// say so.
func TestHostIsLiberal(t *testing.T) {
	t.Parallel()
	for _, liberal := range []string{"0", "1"} {
		t.Run(liberal, func(t *testing.T) {
			w := newWatched(t, "iptables-nft")
			must(t, w.NS.Sysctl("netfilter/nf_conntrack_tcp_be_liberal="+liberal))
			w.Sync(applytest.Services("a"))
			if drops := strings.Contains(w.Rules(), "--ctstate INVALID"); drops == (liberal == "1") {
				t.Errorf("packets in state INVALID are dropped: %t\n%s", drops, w.Rules())
			}
			check := w.NS.Command(context.Background(), "proxyc", append([]string{"apply", "--check"}, w.Args...)...)
			w.Stop(syscall.SIGTERM)
			if out, err := w.NS.Run(check); err != nil {
				t.Errorf("apply wants something else: %v\n%s", err, out)
			}
		})
	}
}
