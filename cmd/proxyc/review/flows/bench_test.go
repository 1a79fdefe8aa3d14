package flows

import (
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/cmd/proxyc/review/reviewtest"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// repeated yields a text several times.
type repeated struct {
	text string
	left int
	now  *strings.Reader
}

func (r *repeated) Read(p []byte) (int, error) {
	n, err := r.now.Read(p)
	if err == io.EOF && r.left > 1 {
		r.left--
		r.now.Reset(r.text)
		return r.Read(p)
	}
	return n, err
}

// BenchmarkFlows judges a million connections, in the form of conntrack -L.
func BenchmarkFlows(b *testing.B) {
	const lines, all = 10_000, 1_000_000
	var text strings.Builder
	for i := range lines {
		client := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
		fmt.Fprintf(&text, "tcp      6 431999 ESTABLISHED src=%[1]s dst=10.96.0.10 sport=%[2]d dport=80 src=10.244.%[3]d.10 dst=%[1]s sport=8080 dport=%[2]d [ASSURED] mark=0 use=1\n", client, 1024+i, i%3)
	}
	programs := reviewtest.Demo(b, ir.ModeNFTables)
	b.ReportAllocs()
	for b.Loop() {
		r, err := New(&review.Input{Snapshot: snapshot.New()}, programs, Filter{})
		if err != nil {
			b.Fatal(err)
		}
		from := review.Files{Stdin: &review.Stdin{Reader: &repeated{text.String(), all / lines, strings.NewReader(text.String())}}}
		if err := r.Write(io.Discard, from, review.StandardInput, false, false); err != nil || r.counts[1]+r.counts[3] != all {
			b.Fatalf("%v, %v", err, r.counts)
		}
	}
}
