package page

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Overview contains the numbers of a node's objects.
type Overview struct {
	Node     string   `json:"node"`
	Mode     ir.Mode  `json:"mode"`
	Families []string `json:"families"`
	Services int      `json:"services"` // with rules
	Without  int      `json:"without"`  // without rules
	Nodes    int      `json:"nodes"`    // in the cluster
	// Frontends are the numbers of frontends by kind, in order of the kinds.
	Frontends [4]int `json:"frontends"`
	Backends  int    `json:"backends"`
	// Unserved are the Services with a frontend that has no backend for some clients.
	Unserved []string  `json:"unserved"`
	Settings []Setting `json:"settings"`
}

// Setting is a setting that applies to all Services of a node.
type Setting struct {
	What   string `json:"what"`
	Value  string `json:"value"`
	Origin string `json:"origin,omitempty"`
}

// NewOverview returns the Overview of a node's Programs.
func NewOverview(programs ir.Programs) Overview {
	o := Overview{}
	services, unserved := map[ir.Name]bool{}, map[ir.Name]bool{}
	backends := map[netip.AddrPort]bool{}
	for _, p := range ir.Present(programs) {
		o.Node, o.Mode = p.Node.Name, p.Node.Mode
		if len(p.Services) > 0 {
			o.Families = append(o.Families, p.Family.String())
		}
		for i := range p.Services {
			s := &p.Services[i]
			services[s.Name] = true
			for j := range s.Frontends {
				f := &s.Frontends[j]
				o.Frontends[f.Kind]++
				if !ir.RoutesAll(f.Routes) {
					unserved[s.Name] = true
				}
			}
			for j := range s.Pools {
				for _, b := range s.Pools[j].Backends {
					backends[b.AddrPort] = true
				}
			}
		}
		o.Settings = append(o.Settings, settingsOf(p)...)
	}
	o.Services, o.Backends = len(services), len(backends)
	o.Unserved = []string{}
	for _, n := range slices.SortedFunc(maps.Keys(unserved), ir.Name.Compare) {
		o.Unserved = append(o.Unserved, n.String())
	}
	return o
}

func settingsOf(p *ir.Program) (all []Setting) {
	n, family := &p.Node, p.Family.String()
	if n.IP.IsValid() {
		all = append(all, Setting{What: family + " address of the node", Value: n.IP.String()})
	}
	pods := "cannot be detected"
	switch d := &n.Detector; d.Mode {
	case ir.DetectCIDR:
		pods = "from " + d.Prefix.String()
	case ir.DetectInterface:
		pods = "by interface " + d.Interface
	case ir.DetectPrefix:
		pods = "by interface " + d.Interface + "*"
	}
	all = append(all, Setting{family + " pods", pods, n.Detector.Origin.String()})
	ports := "answer at all addresses of the node"
	if !n.NodePorts.All {
		ports = "answer at no address"
		for i, at := range n.NodePorts.Prefixes {
			if i == 0 {
				ports = "answer at "
			} else {
				ports += ", "
			}
			ports += at.Prefix.String()
		}
	}
	all = append(all, Setting{family + " node ports", ports, n.NodePorts.Origin.String()})
	for _, c := range n.ServiceCIDRs {
		all = append(all, Setting{family + " Service network", c.Prefix.String(), c.Origin.String()})
	}
	return all
}

// FrontendsText returns the numbers of frontends as text: "12 ClusterIPs, 1 NodePort".
func (o *Overview) FrontendsText() string {
	var words []string
	for kind, n := range o.Frontends {
		if n == 0 {
			continue
		}
		text := fmt.Sprintf("%d %s", n, ir.Kind(kind))
		if n > 1 {
			text += "s"
		}
		words = append(words, text)
	}
	if len(words) == 0 {
		return "no frontend"
	}
	return strings.Join(words, ", ")
}
