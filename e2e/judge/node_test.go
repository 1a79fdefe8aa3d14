package judge

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// TestNodePortAddresses checks that nodePortAddresses selects the same addresses of the node's
// interfaces.
func TestNodePortAddresses(t *testing.T) {
	const table = "proxy-util"
	diffs := loadDifferences(t, "nodePorts")
	n := 0
	for _, test := range load(t, table) {
		w := newWorld(t, ir.ModeIPTables)
		w.settings.LocalhostNodePorts = true
		for _, f := range test.Facts {
			switch f.Kind {
			case "nodePorts":
				v := decode[struct {
					Family    string
					Addresses []string
				}](t, f.Is)
				w.family = family(v.Family)
				w.settings.NodePortAddresses = fmt.Sprint(v.Addresses)
			case "nodeIPs":
				n++
				v := decode[struct {
					Interfaces, Picked []string
					All                bool
				}](t, f.Is)
				eth0 := compiler.Interface{Name: "eth0"}
				for _, i := range v.Interfaces {
					eth0.Addrs = append(eth0.Addrs, netip.MustParsePrefix(i))
				}
				programs, _ := compiler.Compile(w.config(), w.snap, compiler.Facts{NodeName: w.nodeName(), Interfaces: []compiler.Interface{eth0}})
				ports := programs.Of(w.family).Node.NodePorts
				var picked []string
				for _, p := range eth0.Addrs {
					if w.family.Has(p.Addr()) && ports.Has(p.Addr(), true) {
						picked = append(picked, p.Addr().String())
					}
				}
				slices.Sort(v.Picked)
				diffs.compare(t, fmt.Sprintf("nodePorts %s %s of %v", w.family, w.settings.NodePortAddresses, v.Interfaces),
					fmt.Sprint(list(v.Picked), v.All), fmt.Sprint(list(picked), ports.All))
			}
		}
	}
	if n < 26 {
		t.Errorf("only %d cases", n)
	}
}

// TestClusterIPs checks that the same Services are skipped, and that the others have the same
// ClusterIP in each family.
func TestClusterIPs(t *testing.T) {
	diffs := loadDifferences(t, "clusterIP")
	n := 0
	for _, test := range load(t, "proxy-util") {
		i := 0
		for _, f := range test.Facts {
			v := struct {
				Service *corev1.Service
				Family  string
				IP      string
				Skip    bool
			}{}
			switch f.Kind {
			case "clusterIP", "skip":
				decodeInto(t, f.Is, &v)
			default:
				continue
			}
			n++
			i++
			w := newWorld(t, ir.ModeIPTables)
			w.family = family(v.Family)
			svc := snapshot.FromService(v.Service)
			if len(svc.Ports) == 0 {
				svc.Ports = []snapshot.ServicePort{{Port: 80}}
			}
			if svc.ClusterIP == "" && len(svc.ClusterIPs) > 0 {
				svc.ClusterIP = svc.ClusterIPs[0] // like the API server
			}
			w.snap.SetService(svc)
			got := "none"
			for _, s := range w.program().Services {
				for _, f := range s.Frontends {
					if f.Kind == ir.ClusterIP {
						got = f.Match.Addr.String()
					}
				}
			}
			want := v.IP
			if f.Kind == "skip" && !v.Skip {
				want = svc.ClusterIP
			}
			if want == "" {
				want = "none"
			}
			diffs.compare(t, fmt.Sprintf("clusterIP %s: %d", test.Test, i), want, got)
		}
	}
	if n < 18 {
		t.Errorf("only %d cases", n)
	}
}
