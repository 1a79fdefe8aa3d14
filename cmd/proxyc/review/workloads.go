package review

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/compiler/assume"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// Workloads are the workloads of an Input, by what Services need of them. It is safe for concurrent use.
type Workloads struct {
	*Input
	everywhere func() map[netip.Addr][]string // by address of an endpoint
	hosts      map[netip.Addr]bool            // addresses of Nodes, which many workloads share
	selected   func() assume.Workloads
}

// Workloads returns the workloads of the Input, which may not change afterwards.
func (j *Input) Workloads() *Workloads {
	w := &Workloads{Input: j, hosts: map[netip.Addr]bool{}}
	for _, n := range j.Snapshot.Nodes() {
		for _, text := range n.Addresses {
			if a, err := netip.ParseAddr(text.Address); err == nil {
				w.hosts[a] = true
			}
		}
	}
	w.everywhere = sync.OnceValue(func() map[netip.Addr][]string {
		all := map[netip.Addr][]string{}
		for _, slice := range j.Snapshot.Document().Slices {
			w.add(all, slice)
		}
		return all
	})
	w.selected = sync.OnceValue(func() assume.Workloads { return assume.NewWorkloads(j.Snapshot.Workloads()) })
	return w
}

// Endpoints returns the serving addresses behind a Service, each with the workloads that it belongs
// to: "Deployment shop/web", or "shop/web" if only the name of the pod is known; none if the input
// does not state it. Of a Service without a selector, an author chose each address. An address in slices of
// several Services belongs to the workloads of all of them, except for the host network.
func (w *Workloads) Endpoints(service ir.Name) map[netip.Addr][]string {
	all := map[netip.Addr][]string{}
	serving := map[netip.Addr]bool{}
	for _, slice := range w.Snapshot.Slices(service) {
		w.add(all, slice)
		for _, e := range slice.Endpoints {
			serving[e.Addr] = serving[e.Addr] || e.Ready || e.Serving
		}
	}
	maps.DeleteFunc(all, func(a netip.Addr, _ []string) bool { return !serving[a] })
	written, known := w.Reader.Written()[snapshot.ObjectName("Service", service)]
	chosen := known && !written.Reduced && len(written.Selector) == 0
	for a := range all {
		if of := w.everywhere()[a]; len(of) > 0 && !w.hosts[a] {
			all[a] = of
		} else if chosen && len(of) == 0 {
			all[a] = []string{"address " + a.String()}
		}
	}
	return all
}

// Resolved returns what clients reach by the name of a Service without rules: the external name, or the workloads behind
// it; nil for others.
func (w *Workloads) Resolved(service ir.Name) []string {
	svc := w.Snapshot.Service(service)
	if svc == nil || svc.ProxyName || svc.Type != "ExternalName" && svc.ClusterIP != "None" {
		return nil
	}
	if name, ok := w.Reader.Written()[svc.Object].Settings["spec.externalName"].(string); ok {
		return []string{name}
	}
	out := []string{}
	for _, of := range w.Endpoints(service) {
		out = append(out, cmp.Or(strings.Join(of, " and "), "other endpoints"))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// add adds the addresses of a slice.
func (w *Workloads) add(to map[netip.Addr][]string, slice *snapshot.EndpointSlice) {
	object := strings.TrimPrefix(slice.Object, snapshot.AssumedFrom)
	for i := range slice.Endpoints {
		e := &slice.Endpoints[i]
		if !e.Addr.IsValid() {
			continue
		}
		of := ""
		switch pod := (ir.Name{Namespace: slice.Name.Namespace, Name: e.Pod}); {
		case slice.Assumed() && !strings.HasPrefix(object, "EndpointSlice "):
			of = w.workload(object)
		case e.Pod != "":
			of = w.workload(snapshot.ObjectName("Pod", pod))
		}
		if of != "" && w.hosts[e.Addr] {
			of += " in the host network"
		}
		switch all := to[e.Addr]; {
		case of != "" && !slices.Contains(all, of):
			to[e.Addr] = append(all, of)
		case all == nil:
			to[e.Addr] = nil
		}
	}
}

// workload returns the workload that an object belongs to, with its kind if the input states it. The
// name decides only if the input does not state the owner.
func (w *Workloads) workload(object string) string {
	const owners = 3 // at most
	known := w.Snapshot.Workload(object)
	for range owners {
		if known != nil && known.Owner != "" {
			object = known.Owner
			known = w.Snapshot.Workload(object)
		}
	}
	kind, name, _ := strings.Cut(object, " ")
	maker, made := assume.MakerName(kind, name)
	if !made || known != nil && kind == "Pod" {
		return object
	}
	return maker
}

// Ports returns the ports that a workload declares, with their names and protocols.
func (w *Workloads) Ports(workload string) map[uint16]string {
	all := map[uint16]string{}
	if load := w.Snapshot.Workload(workload); load != nil {
		for _, p := range load.Ports {
			all[uint16(p.ContainerPort)] = p.Name + "/" + string(p.Protocol)
		}
	}
	return all
}

// Paused returns a workload without pods that a Service selects; "" for none. It considers only
// Services that the cluster has not seen: the others have an EndpointSlice, even without endpoints.
func (w *Workloads) Paused(service ir.Name) string {
	svc := w.Snapshot.Service(service)
	if svc == nil || slices.ContainsFunc(w.Snapshot.Slices(service), func(s *snapshot.EndpointSlice) bool { return !s.Assumed() }) {
		return ""
	}
	all := w.selected()
	for _, one := range all.Select(service.Namespace, w.Reader.Written()[svc.Object].Selector) {
		if one.Pods == 0 {
			return one.Object
		}
	}
	return ""
}
