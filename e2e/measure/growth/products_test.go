package growth

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler"
	kubeproxy "github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// size is a number of parts of an object that may multiply each other.
type size int

const (
	services size = iota
	ports
	externals
	balancers
	ranges
	endpoints
	sizes
)

// policy is a property of an object that may multiply its parts.
type policy int

const (
	nodePorts policy = iota
	affinity
	externalLocal
	internalLocal
	stable // the annotation for stable backends
	onNode
	dualStack
	policies
)

// product is the description of one or several equal Services with their endpoints.
type product struct {
	size [sizes]int
	with [policies]bool
}

func (p product) String() string {
	var b strings.Builder
	for i, name := range [...]string{"services", "ports", "externalIPs", "load balancer addresses", "source ranges", "endpoints"} {
		if p.size[i] > 0 {
			fmt.Fprintf(&b, "%d %s, ", p.size[i], name)
		}
	}
	for i, name := range [...]string{"node ports", "affinity", "externalTrafficPolicy Local", "internalTrafficPolicy Local", "stable backends", "endpoints on the node", "dual stack"} {
		if p.with[i] {
			b.WriteString(name + ", ")
		}
	}
	return strings.TrimSuffix(b.String(), ", ")
}

type fields = map[string]any

// objects returns the Services and EndpointSlices. copy makes their names and addresses unique.
func (p product) objects(copy int) (all []any) {
	families := []string{"IPv4", "IPv6"}[:1+btoi(p.with[dualStack])]
	// address i of a network, IPv6 for odd i with dualStack
	address := func(network, service, i int) string {
		if i%len(families) == 1 {
			return fmt.Sprintf("fd%02x:%x::%x", network, copy*16+service, i+1)
		}
		return fmt.Sprintf("%d.%d.%d.%d", network, copy*16+service, i/250, i%250+1)
	}
	list := func(n int, part func(i int) any) (all []any) {
		for i := range n {
			all = append(all, part(i))
		}
		return all
	}
	for n := range p.size[services] {
		name := fmt.Sprintf("s%d-%d", copy, n)
		clusterIPs := list(len(families), func(i int) any { return address(11, n, i) })
		spec := fields{"clusterIP": clusterIPs[0], "clusterIPs": clusterIPs, "ipFamilies": families,
			"ports": list(p.size[ports], func(i int) any {
				port := fields{"name": fmt.Sprint(i), "port": i + 1}
				if p.with[nodePorts] {
					port["nodePort"] = 1 + (copy*p.size[services]+n)*p.size[ports] + i
				}
				return port
			})}
		if p.size[externals] > 0 {
			spec["externalIPs"] = list(p.size[externals], func(i int) any { return address(20, n, i) })
		}
		if p.with[affinity] {
			spec["sessionAffinity"] = "ClientIP"
		}
		if p.with[internalLocal] {
			spec["internalTrafficPolicy"] = "Local"
		}
		meta := fields{"namespace": "tenant", "name": name}
		service := fields{"apiVersion": "v1", "kind": "Service", "metadata": meta, "spec": spec}
		if p.with[nodePorts] || p.size[balancers] > 0 {
			spec["type"] = "NodePort"
			spec["externalTrafficPolicy"] = [...]string{"Cluster", "Local"}[btoi(p.with[externalLocal])]
			if p.with[externalLocal] && p.size[balancers] > 0 {
				spec["healthCheckNodePort"] = 65535 - copy*p.size[services] - n
			}
		}
		if p.size[balancers] > 0 {
			spec["type"] = "LoadBalancer"
			spec["allocateLoadBalancerNodePorts"] = p.with[nodePorts]
			service["status"] = fields{"loadBalancer": fields{"ingress": list(p.size[balancers], func(i int) any { return fields{"ip": address(21, n, i)} })}}
			if p.size[ranges] > 0 {
				spec["loadBalancerSourceRanges"] = list(p.size[ranges], func(i int) any {
					if i%len(families) == 1 {
						return fmt.Sprintf("fd16:%x::/64", i)
					}
					return fmt.Sprintf("22.%d.%d.0/24", i/256, i%256)
				})
			}
		}
		if p.with[stable] {
			meta["annotations"] = fields{"proxyc.dev/balance": "maglev"}
		}
		all = append(all, service)
		for f, family := range families {
			all = append(all, fields{"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": family,
				"metadata": fields{"namespace": meta["namespace"], "name": fmt.Sprint(name, "-", f), "labels": fields{"kubernetes.io/service-name": name}},
				"ports":    list(p.size[ports], func(i int) any { return fields{"name": fmt.Sprint(i), "port": 8000 + i} }),
				"endpoints": list(p.size[endpoints], func(i int) any {
					e := fields{"addresses": []string{address(12, n, i*len(families)+f)}}
					if p.with[onNode] {
						e["nodeName"] = "node1"
					}
					return e
				})})
		}
	}
	return all
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// text returns the objects as JSON, without what a list adds.
func text(objects ...any) []byte {
	data, err := json.Marshal(fields{"apiVersion": "v1", "kind": "List", "items": objects})
	if err != nil {
		panic(err)
	}
	return data
}

// cost returns the number of rules and elements of a mode on a node, and the findings.
func (p product) cost(t *testing.T, mode ir.Mode) (entries int, found map[diag.Code]bool) {
	t.Helper()
	cfg := kubeproxy.Default()
	cfg.Mode, cfg.ClusterCIDR = string(mode), "10.0.0.0/8,fd10::/16"
	kubeproxy.Complete(cfg)
	snap := snapshot.New()
	diags := manifest.Decode(snap, "cluster", text(append(p.objects(0), aNode)...))
	programs, more := compiler.Compile(cfg, snap, compiler.Facts{NodeName: "node1"})
	found = map[diag.Code]bool{}
	for _, d := range append(diags, more...) {
		if found[d.Code] = true; d.Severity == diag.Error && d.Code != diag.TooManyFrontends && d.Code != diag.TooManyBackends {
			t.Fatal(p, d)
		}
	}
	review.Modes[mode].Lower(programs).Explain(func(render.Entry) { entries++ })
	return entries, found
}

var aNode = fields{"apiVersion": "v1", "kind": "Node", "metadata": fields{"name": "node1"},
	"status": fields{"addresses": []fields{{"type": "InternalIP", "address": "192.0.2.11"}, {"type": "InternalIP", "address": "fd01::11"}}}}

// limited are the products that grow, by mode, with the limit that ends this. No other product
// grows.
var limited = []struct {
	of    []size
	modes []ir.Mode // empty: all
	code  diag.Code
}{
	{[]size{ports, externals}, nil, diag.TooManyFrontends},
	{[]size{ports, balancers}, nil, diag.TooManyFrontends},
	{[]size{ports, endpoints}, nil, diag.TooManyBackends},
	{[]size{ports, ranges}, []ir.Mode{ir.ModeIPTables, ir.ModeIPVS}, diag.TooManyFrontends},
	{[]size{balancers, ranges}, []ir.Mode{ir.ModeIPVS}, diag.TooManyFrontends},
	{[]size{ports, balancers, ranges}, []ir.Mode{ir.ModeIPVS}, diag.TooManyFrontends},
	{[]size{externals, endpoints}, []ir.Mode{ir.ModeIPVS}, diag.TooManyFrontends},
	{[]size{balancers, endpoints}, []ir.Mode{ir.ModeIPVS}, diag.TooManyFrontends},
	{[]size{ports, externals, endpoints}, []ir.Mode{ir.ModeIPVS}, diag.TooManyFrontends},
	{[]size{ports, balancers, endpoints}, []ir.Mode{ir.ModeIPVS}, diag.TooManyFrontends},
}

// If all sizes of a product double, the number of rules and elements doubles, too, unless the
// product has a limit.
func TestProducts(t *testing.T) {
	for _, mode := range []ir.Mode{ir.ModeNFTables, ir.ModeIPTables, ir.ModeIPVS} {
		empty, _ := product{}.cost(t, mode)
		for _, with := range [][]policy{nil, {nodePorts}, {affinity, nodePorts}, {externalLocal, nodePorts, onNode}, {internalLocal, affinity, externalLocal}, {stable}} {
			t.Run(fmt.Sprint(mode, with), func(t *testing.T) {
				t.Parallel()
				for set := 1 << ports; set < 1<<sizes; set += 1 << ports {
					once := product{size: [sizes]int{1, 2, 2, 2, 2, 2}}
					for _, w := range with {
						once.with[w] = true
					}
					twice := once
					var of []size
					for s := ports; s < sizes; s++ {
						if set>>s&1 == 1 {
							of = append(of, s)
							once.size[s], twice.size[s] = 24, 48
						}
					}
					if len(of) > 3 {
						continue
					}
					power := 1
					for _, l := range limited {
						if (l.modes == nil || slices.Contains(l.modes, mode)) && !slices.ContainsFunc(l.of, func(s size) bool { return !slices.Contains(of, s) }) {
							power = max(power, len(l.of))
						}
					}
					one, _ := once.cost(t, mode)
					two, _ := twice.cost(t, mode)
					if got := math.Log2(float64(two-empty) / float64(one-empty)); got > float64(power)+.25 {
						t.Errorf("%v: %d rules and elements, twice as many parts: %d, power %.2f, want at most %d", once, one, two, got, power)
					}
				}
			})
		}
	}
	for _, l := range limited {
		p := product{size: [sizes]int{1, 2, 2, 2, 2, 2}}
		for _, s := range l.of {
			p.size[s] = 600
		}
		for _, mode := range append(l.modes, ir.ModeNFTables)[:1] {
			if n, found := p.cost(t, mode); !found[l.code] {
				t.Errorf("%s: %v: %d rules and elements without %s", mode, p, n, l.code)
			}
		}
	}
}
