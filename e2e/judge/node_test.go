package judge

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// TestNodePortAddresses checks that nodePortAddresses selects the same addresses of the node's
// interfaces, and localhost.
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
			case "explicitLoopback":
				n++
				nft := newWorld(t, ir.ModeNFTables)
				nft.family, nft.settings = w.family, w.settings
				nft.settings.FeatureGates = map[string]bool{config.GateLocalhost: true}
				diffs.compare(t, fmt.Sprintf("nodePorts %s %s: localhost", w.family, w.settings.NodePortAddresses),
					text(decode[bool](t, f.Is)), text(nft.program().Node.NodePorts.Proxied))
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
	if n < 35 {
		t.Errorf("only %d cases", n)
	}
}

// TestKeywords checks that keywords in nodePortAddresses select the same addresses as what
// kube-proxy replaces them by.
func TestKeywords(t *testing.T) {
	diffs := loadDifferences(t, "keywords")
	n := 0
	for _, test := range load(t, "cmd-kube-proxy-app") {
		for _, f := range test.Facts {
			v := decode[struct {
				Addresses, Expanded []string
				NodeIPs             map[string]netip.Addr
			}](t, f.Is)
			for _, family := range ir.Families() {
				n++
				selected := func(addresses []string) string {
					w := newWorld(t, ir.ModeNFTables)
					w.family, w.local = family, []string{"10.1.2.3", "fd01::2", "192.0.2.1", "2001:db8::1"}
					w.settings = settings{NodePortAddresses: fmt.Sprint(addresses), FeatureGates: map[string]bool{config.GateLocalhost: true}}
					for _, ip := range v.NodeIPs {
						if !ip.IsLoopback() {
							w.settings.NodeIP += " " + ip.String()
							w.local = append(w.local, ip.String())
						}
					}
					ports := w.program().Node.NodePorts
					var out []string
					for _, l := range w.local {
						if addr := netip.MustParseAddr(l); family.Has(addr) && ports.Has(addr, true) {
							out = append(out, l)
						}
					}
					if ports.Proxied {
						out = append(out, "localhost")
					}
					slices.Sort(out)
					return text(list(out))
				}
				diffs.compare(t, fmt.Sprintf("keywords %s %s", test.Test, family), selected(v.Expanded), selected(v.Addresses))
			}
		}
	}
	if n < 16 {
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
