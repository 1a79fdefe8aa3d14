package judge

import (
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render/ipvs"
)

// A state is the state of the kernel after a sync in mode ipvs.
type state struct {
	Servers []struct {
		At, Scheduler string
		Flags         uint32
		Timeout       int
		Real          []string
	}
	Sets map[string][]string
}

// TestIPVS checks that after each sync of kube-proxy's tests, proxyc wants the same virtual
// servers with the same real servers, and the same elements in the same sets.
func TestIPVS(t *testing.T) {
	const table = "proxy-ipvs"
	diffs := loadDifferences(t, table)
	syncs, servers, elements := 0, 0, 0
	for _, test := range load(t, table) {
		w := newWorld(t, ir.ModeIPVS)
		n := 0
		for _, f := range test.Facts {
			if w.take(f) {
				continue
			}
			syncs++
			n++
			want, got := map[string]string{}, map[string]string{}
			// Some tests omit the number of a Service's port, which kube-proxy treats as 0. That
			// is impossible in the API; here it becomes port 1.
			for _, svc := range w.snap.Services() {
				for i := range svc.Ports {
					svc.Ports[i].Port = max(svc.Ports[i].Port, 1)
				}
			}
			s := decode[state](t, json.RawMessage(portZero.ReplaceAll(f.Is, []byte("${1}1$2"))))
			for _, v := range s.Servers {
				servers++
				// ip_vs.h: only the kernel sets IP_VS_SVC_F_HASHED.
				want["server "+v.At] = fmt.Sprintf("%s flags %d timeout %d %s", v.Scheduler, v.Flags&^2, v.Timeout, list(v.Real))
			}
			for set, entries := range s.Sets {
				elements += len(entries)
				want[set] = list(entries)
			}
			r := ipvs.Lower(w.program())
			for _, v := range r.VirtualServers {
				var real []string
				for _, rs := range v.RealServers {
					real = append(real, rs.AddrPort.String())
				}
				got["server "+v.Key.String()] = fmt.Sprintf("%s flags %d timeout %d %s", v.Scheduler, v.Flags, int(v.Timeout.Seconds()), list(real))
			}
			of := map[string][]string{}
			for _, e := range r.Elements {
				of[e.Set.String()] = append(of[e.Set.String()], e.String())
			}
			for set, entries := range of {
				got[set] = list(entries)
			}
			all := maps.Clone(want)
			maps.Copy(all, got)
			for _, key := range slices.Sorted(maps.Keys(all)) {
				diffs.compare(t, strings.TrimSpace(fmt.Sprintf("%s %s: sync %d: %s", table, test.Test, n, key)), orNothing(want[key]), orNothing(got[key]))
			}
		}
	}
	if syncs < 50 || servers < 100 || elements < 200 {
		t.Errorf("only %d syncs, %d virtual servers, %d elements", syncs, servers, elements)
	}
}

var portZero = regexp.MustCompile(`(172\.20\.1\.1:|172\.20\.1\.1,tcp:)0(/tcp)?\b`)

func orNothing(s string) string {
	if s == "" {
		return "nothing"
	}
	return s
}
