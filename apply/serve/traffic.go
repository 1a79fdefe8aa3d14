package serve

import (
	"cmp"
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// maxSeries is the maximum number of service ports with series of their own.
const maxSeries = 1000

// others is the service port of the series of all others.
var others = ir.ServicePort{Service: ir.Name{Name: "others"}}

// CountServices exports the new connections of the Services of some namespaces, or of all. read is called at
// each scrape. Nothing is exported after an error.
func (m *Metrics) CountServices(namespaces []string, read func() (map[ir.ServicePort]apply.Traffic, error)) {
	labels := []string{"namespace", "service", "port"}
	connections := prometheus.NewDesc("proxyc_service_connections_total", "New connections to a Service, including refused and dropped ones.", labels, nil)
	refused := prometheus.NewDesc("proxyc_service_refused_total", "New connections to a Service that were refused or dropped.", append(labels, "reason"), nil)
	own, last := map[ir.ServicePort]bool{}, map[ir.ServicePort]apply.Traffic{}
	m.registry.add(linux, scraped{[]*prometheus.Desc{connections, refused}, func(ch chan<- prometheus.Metric) {
		sums, err := read()
		if err != nil {
			return
		}
		all := portsIn(sums, namespaces)
		last = bound(all, own, last)
		for p, t := range all {
			values := []string{p.Service.Namespace, p.Service.Name, p.Port}
			ch <- prometheus.MustNewConstMetric(connections, prometheus.CounterValue, float64(t.Connections), values...)
			for r, n := range t.Refused {
				if n > 0 {
					ch <- prometheus.MustNewConstMetric(refused, prometheus.CounterValue, float64(n), append(values, render.Reason(r).String())...)
				}
			}
		}
	}})
}

// portsIn returns the traffic of ports by name. Ports of a Service have distinct names.
func portsIn(sums map[ir.ServicePort]apply.Traffic, namespaces []string) map[ir.ServicePort]apply.Traffic {
	all := map[ir.ServicePort]apply.Traffic{}
	for p, t := range sums {
		if p.Protocol = 0; len(namespaces) == 0 || slices.Contains(namespaces, p.Service.Namespace) {
			all[p] = plus(all[p], t, apply.Traffic{})
		}
	}
	return all
}

// bound adds up all but maxSeries service ports, first those with the most connections. Ports keep
// their series while they exist, since a sum must not decrease. last and the result are the previous and
// new values of the others and of their sum.
func bound(all map[ir.ServicePort]apply.Traffic, own map[ir.ServicePort]bool, last map[ir.ServicePort]apply.Traffic) map[ir.ServicePort]apply.Traffic {
	var more []ir.ServicePort
	for p := range all {
		if _, counted := last[p]; !own[p] && !counted {
			more = append(more, p)
		}
	}
	slices.SortFunc(more, func(a, b ir.ServicePort) int {
		return cmp.Or(cmp.Compare(all[b].Connections, all[a].Connections), a.Compare(b))
	})
	for p := range own {
		if _, ok := all[p]; !ok {
			delete(own, p)
		}
	}
	for _, p := range more[:min(len(more), maxSeries-len(own))] {
		own[p] = true
	}
	rest, now := last[others], map[ir.ServicePort]apply.Traffic{}
	for p, t := range all {
		if !own[p] {
			rest, now[p] = plus(rest, t, last[p]), t
			delete(all, p)
		}
	}
	if len(now) > 0 || rest.Connections > 0 {
		now[others], all[others] = rest, rest
	}
	return now
}

// plus returns the sum of a and the increase from last to t. A Service that was created again starts at 0.
func plus(a, t, last apply.Traffic) apply.Traffic {
	if t.Connections < last.Connections {
		last = apply.Traffic{}
	}
	a.Connections += t.Connections - last.Connections
	for r := range a.Refused {
		a.Refused[r] += t.Refused[r] - min(t.Refused[r], last.Refused[r])
	}
	return a
}
