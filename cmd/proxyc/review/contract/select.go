package contract

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/proxyc/proxyc/cmd/proxyc/review"
	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/ir/prove"
)

// leave records that a part of the contract is not checked.
func (c *Checked) leave(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(c.Unchecked, text) {
		c.Unchecked = append(c.Unchecked, text)
	}
}

// missing records that an entry of the contract selects nothing, unless the contract is optional.
func (c *Checked) missing(path, format string, args ...any) {
	if !c.Optional {
		c.leave("%s: %s", path, fmt.Sprintf(format, args...))
	}
}

// selectServices selects the Services and ports of a contract. Each entry must select something. It is
// not known whether Services with unknown endpoints are always served, nor what applies to different versions.
func (r *checkRun) selectServices(c *Checked, services []*snapshot.Service, unknown, ambiguous map[ir.Name]string) {
	to := &c.Destinations
	written := r.input.Reader.Written()
	names, namespaces, ports := entries{}, entries{}, entries{}
	chosen := make([]bool, len(to.ports))
	for _, svc := range services {
		namespaces[svc.Name.Namespace] = true
		if len(to.Services.Namespaces) > 0 && !slices.Contains(to.Services.Namespaces, svc.Name.Namespace) {
			continue
		}
		names[svc.Name.Name] = true
		if len(to.Services.Names) > 0 && !slices.Contains(to.Services.Names, svc.Name.Name) || len(manifest.Mismatches(to.Services.Labels, written[svc.Object].Labels)) > 0 {
			continue
		}
		c.services++
		if why := unknown[svc.Name]; why != "" && c.Require == always {
			c.leave("%s: its endpoints are not known: %s", svc.Object, why)
		}
		if object := ambiguous[svc.Name]; object != "" {
			c.leave("%s: the input has different versions of %s, and only the last is checked", svc.Object, object)
		}
		r.of[svc.Name] = append(r.of[svc.Name], selected{c, to.portsOf(svc, chosen)})
		for _, p := range svc.Ports {
			ports[p.Name] = true
		}
	}
	c.entries("destinations.services.namespaces", "no Service is in namespace", to.Services.Namespaces, namespaces)
	c.entries("destinations.services.names", "no Service is named", to.Services.Names, names)
	if c.services == 0 && len(c.Unchecked) == 0 {
		c.missing("destinations.services", "no Service of the input is selected")
	}
	for i, is := range chosen {
		if !is && c.services > 0 {
			c.missing(fmt.Sprintf("destinations.ports[%d]", i), "no selected Service has port %s%s", to.Ports[i], diag.Meant(to.ports[i].name, ports.names()))
		}
	}
}

// entries are the names that a list of a contract may have.
type entries map[string]bool

func (e entries) names() []string { return slices.Sorted(maps.Keys(e)) }

// entries reports the entries of a list that do not exist.
func (c *Checked) entries(path, what string, list []string, all entries) {
	for i, name := range list {
		if !all[name] {
			c.missing(fmt.Sprintf("%s[%d]", path, i), "%s %q%s", what, name, diag.Meant(name, all.names()))
		}
	}
}

// portsOf returns the selected ports of a Service; nil for all. It marks the entries that select one.
func (d *Destinations) portsOf(svc *snapshot.Service, chosen []bool) map[portKey]bool {
	if len(d.ports) == 0 {
		return nil
	}
	out := map[portKey]bool{}
	for _, p := range svc.Ports {
		protocol, ok := ir.ParseProtocol(p.Protocol)
		if !ok {
			protocol = ir.TCP
		}
		for i, choice := range d.ports {
			is := choice.name == p.Name
			if choice.number != 0 {
				is = int32(choice.number) == p.Port
			}
			if is && (choice.protocol == 0 || choice.protocol == protocol) {
				chosen[i], out[portKey{p.Name, protocol}] = true, true
			}
		}
	}
	return out
}

// checkClients reports clients that the input does not have.
func (c *Checked) checkClients(j *review.Input) {
	nodes := entries{}
	for _, n := range j.Snapshot.Nodes() {
		nodes[n.Name] = true
	}
	c.entries("clients.nodes", "no Node is named", c.Clients.Nodes.Names, nodes)
	m := c.members
	if m.Pods == nil {
		return
	}
	if m.Pods.any() && len(m.ranges) > 0 || slices.ContainsFunc(m.pods, func(p *pod) bool { return m.Pods.selects(p) != no }) {
		return
	}
	text := "no pod of the input is selected"
	if len(m.ranges) > 0 {
		text += ", so that any address of the pod ranges may be one"
	}
	c.missing("clients.pods", "%s", text)
}

// meet marks the entries of Clients.External that have a client outside which can send packets to a
// node.
func (c *Checked) meet(v *view) {
	for i, p := range c.Clients.external {
		if !c.outside[i] && v.family.Has(p.Addr()) {
			all := packets{Addrs: prove.Addrs{First: p.Addr(), Last: ir.LastOf(p)}}
			c.outside[i] = c.members.first(v, &all, p, yes).IsValid()
		}
	}
}

// checkExternal reports entries of Clients.External without clients. A list for both families may
// have entries of a family without frontends.
func (c *Checked) checkExternal() {
	if c.Clients.Anyone || len(c.checked) == 0 {
		return
	}
	same := func(p netip.Prefix) bool { return c.families[ir.FamilyOf(p.Addr())] }
	if len(c.Clients.external) > 0 && !slices.ContainsFunc(c.Clients.external, same) {
		c.missing("clients.external", "no selected frontend is %s", ir.FamilyOf(c.Clients.external[0].Addr()))
	}
	for i, p := range c.Clients.external {
		switch {
		case c.outside[i] || !same(p):
		case contains(martians, p.Addr()).IsValid():
			c.missing(fmt.Sprintf("clients.external[%d]", i), "no packet from outside has a source in %s", c.Clients.External[i])
		default:
			c.missing(fmt.Sprintf("clients.external[%d]", i), "%s has only addresses of pods, Nodes and Services, which clients.pods and clients.nodes select", c.Clients.External[i])
		}
	}
}

// finish reports clients and required frontends that do not exist.
func (c *Checked) finish() {
	c.checkExternal()
	if c.Require != always && c.Require != keeps {
		return
	}
	if len(c.checked) == 0 && len(c.Unchecked) == 0 {
		c.missing("destinations", "the selected Services have no such frontend")
	}
	for i, name := range c.Destinations.Services.Names {
		if len(c.checked) > 0 && c.services > 0 && !c.hasFrontend(name) {
			c.missing(fmt.Sprintf("destinations.services.names[%d]", i), "Service %s has no such frontend", name)
		}
	}
}

func (c *Checked) hasFrontend(name string) bool {
	for number := range c.checked {
		seen := &c.numbers.keys[number]
		if seen.port.Service.Name == name {
			return true
		}
	}
	return false
}
