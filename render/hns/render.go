package hns

import (
	"bufio"
	"encoding/json"
	"io"

	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// LowerAll returns the lowered Programs of a node.
func LowerAll(programs ir.Programs) render.Rendered { return rendered{render.Each(programs, Lower)} }

// rendered are the Rulesets of one node.
type rendered struct{ ir.PerFamily[*Ruleset] }

// Outputs returns one document for both families.
func (x rendered) Outputs() []render.Output {
	return []render.Output{{Format: "hns", File: "hns.json", Write: func(w io.Writer) error { return Write(w, x.PerFamily) },
		Note: "No command loads it: it lists what the Host Networking Service is to hold, endpoints and load balancers as the HCN API takes them, endpoints first. A ref stands for the ID that HNS gives to the endpoint."}}
}

// endpointJSON and loadBalancerJSON are the entries of hns.json.
type endpointJSON struct {
	Ref      string              `json:"ref"`
	Role     Role                `json:"role"`
	Endpoint HostComputeEndpoint `json:"endpoint"`
}

type loadBalancerJSON struct {
	Kind         string                  `json:"kind"`
	ServicePort  string                  `json:"servicePort"`
	Identity     string                  `json:"identity"`
	NoOptimize   bool                    `json:"noOptimize,omitempty"`
	LoadBalancer HostComputeLoadBalancer `json:"loadBalancer"`
}

// Write writes the objects of a node as one JSON document: the network, its
// endpoints, its load balancers.
func Write(w io.Writer, rulesets ir.PerFamily[*Ruleset]) error {
	d := document{w: bufio.NewWriter(w)}
	var network, networkType string
	for _, r := range ir.Present(rulesets) {
		network, networkType = r.Network, r.NetworkType
	}
	d.raw("{\n  \"network\": ")
	d.value(network)
	d.raw(",\n  \"networkType\": ")
	d.value(networkType)
	d.raw(",\n  \"endpoints\": [")
	d.list(rulesets, func(r *Ruleset) {
		for _, e := range r.Endpoints {
			d.entry(endpointJSON{e.Ref, e.Role, e.HCN})
		}
	})
	d.raw("],\n  \"loadBalancers\": [")
	d.list(rulesets, func(r *Ruleset) {
		for i := range r.LoadBalancers {
			l := &r.LoadBalancers[i]
			d.entry(loadBalancerJSON{l.Kind.String(), l.Port.String(), l.Identity(l.Endpoints()), l.NoOptimize, l.HCN})
		}
	})
	d.raw("]\n}\n")
	if d.err != nil {
		return d.err
	}
	return d.w.Flush()
}

// document writes JSON with one list entry per line, so that it can be read and
// compared with diff.
type document struct {
	w     *bufio.Writer
	first bool
	err   error
}

func (d *document) raw(s string) { _, _ = d.w.WriteString(s) }

func (d *document) value(v any) {
	b, err := json.Marshal(v)
	if err != nil && d.err == nil {
		d.err = err
	}
	_, _ = d.w.Write(b)
}

func (d *document) list(rulesets ir.PerFamily[*Ruleset], entries func(*Ruleset)) {
	d.first = true
	for _, r := range ir.Present(rulesets) {
		entries(r)
	}
	if !d.first {
		d.raw("\n  ")
	}
}

func (d *document) entry(v any) {
	if !d.first {
		d.raw(",")
	}
	d.first = false
	d.raw("\n    ")
	d.value(v)
}

// Explain adds endpoints and load balancers, by family.
func (x rendered) Explain(add func(render.Entry)) {
	for _, r := range ir.Present(x.PerFamily) {
		for _, e := range r.Endpoints {
			add(render.Entry{Where: "endpoint " + e.Ref, Port: e.Port, Origin: e.Origin})
		}
		for i := range r.LoadBalancers {
			l := &r.LoadBalancers[i]
			add(render.Entry{Where: "load balancer " + l.name(), Match: l.Match.String(), Port: l.Port, Origin: l.Origin})
		}
	}
}

func (l *LoadBalancer) name() string { return l.Kind.String() + " " + l.Match.String() }
