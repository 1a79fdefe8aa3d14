package assume

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// assume adds an EndpointSlice for each family of a Service and workload that it selects.
func (c *cluster) assume(svc *snapshot.Service, w *manifest.Written) {
	for _, load := range c.workloads.Select(svc.Name.Namespace, w.Selector) {
		for _, slice := range c.slicesOf(svc, PortsOf(svc, w, load), load, indices(c.number(load)), w.Selector) {
			for i := range slice.Endpoints {
				if e := &slice.Endpoints[i]; c.snap.Node(e.NodeName) != nil {
					c.setHints(e, w.Distribution != "", w.Distribution == corev1.ServiceTrafficDistributionPreferSameNode)
				}
			}
			c.snap.SetSlice(slice)
		}
	}
}

// setHints sets the hints of an endpoint for its zone and node, as far as they are known.
func (c *cluster) setHints(e *snapshot.Endpoint, zone, node bool) {
	var h snapshot.Hints
	if n := c.snap.Node(e.NodeName); zone && n != nil && n.Zone != "" {
		h.Zones = []string{n.Zone}
	}
	if node && e.NodeName != "" {
		h.Nodes = []string{e.NodeName}
	}
	if e.Hints = nil; h.Zones != nil || h.Nodes != nil {
		e.Hints = &h
	}
}

// slicesOf returns an EndpointSlice for each family of a Service, with those of some pods of a
// workload that a selector names.
func (c *cluster) slicesOf(svc *snapshot.Service, ports []snapshot.EndpointPort, load *snapshot.Workload, some []int, selector map[string]string) (out []*snapshot.EndpointSlice) {
	one, _ := podsWith(load, selector)
	for _, family := range svc.IPFamilies {
		out = append(out, &snapshot.EndpointSlice{
			Name:        ir.Name{Namespace: svc.Name.Namespace, Name: strings.ToLower(fmt.Sprintf("%s-%s-%s-%s", svc.Name.Name, load.Kind, load.Name.Name, family))},
			Object:      snapshot.AssumedFrom + load.Object,
			Service:     svc.Name,
			AddressType: family,
			Ports:       ports,
			Endpoints:   c.pods(load, ir.FamilyNamed(family), some, one),
		})
	}
	return out
}

// PortsOf returns the ports of a Service on the pods of a workload. A named target port that no
// container has is left out, as the EndpointSlice controller does.
func PortsOf(svc *snapshot.Service, w *manifest.Written, load *snapshot.Workload) (out []snapshot.EndpointPort) {
	for i, p := range svc.Ports {
		target := intstr.FromInt32(p.Port)
		if i < len(w.TargetPorts) {
			target = w.TargetPorts[i]
		}
		if port, ok := targetPort(load, target, p.Protocol); ok {
			out = append(out, snapshot.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: port, HasName: true, HasPort: true})
		}
	}
	return out
}

// targetPort returns the number of a target port on the pods of a workload, and whether they have it.
func targetPort(load *snapshot.Workload, target intstr.IntOrString, protocol string) (int32, bool) {
	if target.Type == intstr.Int {
		return target.IntVal, true
	}
	for _, p := range load.Ports {
		if p.Name == target.StrVal && p.ContainerPort > 0 && p.ContainerPort <= 65535 && cmp.Or(p.Protocol, corev1.ProtocolTCP) == cmp.Or(corev1.Protocol(protocol), corev1.ProtocolTCP) {
			return p.ContainerPort, true
		}
	}
	return 0, false
}

// derived makes the EndpointSlices of one Service, as the EndpointSlice controller would.
type derived struct {
	*applied
	svc   *snapshot.Service
	old   *snapshot.Service // in the snapshot; nil for a new one
	w     manifest.Written
	given bool                 // the Service is in the Overlay
	anew  bool                 // its selector is new
	loads []*snapshot.Workload // those that it selects
	// samePorts reports that its ports and their targets are those of the snapshot.
	samePorts bool
	have      []*snapshot.EndpointSlice
}

// derive changes the EndpointSlices of a Service if the Overlay affects its pods or their ports.
func (a *applied) derive(svc *snapshot.Service) {
	d := derived{applied: a, svc: svc, old: svc, w: a.Written[svc.Object], have: a.snap.Slices(svc.Name)}
	if len(d.w.Selector) == 0 || svc.Type == externalName || a.Objects.HasEndpoints(svc.Name) ||
		slices.ContainsFunc(d.have, func(s *snapshot.EndpointSlice) bool { return a.Objects.Slice(s.Name) == s }) {
		return
	}
	if svc.ClusterIP == "" {
		allocated := *svc
		allocated.IPFamilies = a.familiesOf(svc, &d.w)
		svc, d.svc = &allocated, &allocated
	}
	was := a.was(svc.Name)
	if old, ok := a.before[svc.Name]; ok {
		d.old, d.given = old, true
		d.anew = old == nil || len(was.Selector) > 0 && !maps.Equal(was.Selector, d.w.Selector)
	}
	if len(d.have) == 0 && d.old != nil && !d.anew && len(was.Selector) > 0 {
		return // see Complete
	}
	d.samePorts = d.old != nil && slices.Equal(was.TargetPorts, d.w.TargetPorts) && slices.EqualFunc(d.old.Ports, svc.Ports, func(p, q snapshot.ServicePort) bool {
		return p.Name == q.Name && p.Protocol == q.Protocol && p.Port == q.Port
	})
	controlled, own := d.have, []*snapshot.EndpointSlice(nil)
	if d.old != nil && len(was.Selector) == 0 { // the EndpointSlice controller made none
		d.anew = true
		own = slices.DeleteFunc(slices.Clone(d.have), func(s *snapshot.EndpointSlice) bool { return s.FromEndpoints || a.mirrored(s) })
		controlled = nil
	}
	d.loads = a.workloads.Select(svc.Name.Namespace, d.w.Selector)
	has := map[*pod]bool{}
	var out []*snapshot.EndpointSlice
	for _, slice := range controlled {
		out = append(out, d.split(slice, slice.Name.Name, slice.Object, func(p *pod) bool {
			has[p] = true
			return d.keeps(p)
		})...)
	}
	out = d.secondFamily(append(out, d.gained(has)...))
	for _, load := range d.loads {
		// The missing pods of a Job may have ended.
		if some := a.missing[load]; len(some) > 0 && !a.OnlyReal && (d.anew || a.applies(load) && load.Kind != "Job" && load.Kind != "CronJob") {
			ports := PortsOf(svc, &d.w, load)
			if !d.given && d.w.NoTargets && len(d.have) > 0 {
				ports = d.have[0].Ports
			}
			out = append(out, a.slicesOf(svc, ports, load, some, d.w.Selector)...)
		}
	}
	if out = append(d.hint(out, was.Distribution), own...); !slices.Equal(out, d.have) {
		a.replace(svc.Name, out)
	}
}

// keeps reports whether an endpoint of the Service remains one. A running pod may have more labels than
// its template, since programs set some. So an unchanged selector loses a pod only if the template does
// not let the pod have a label.
func (d *derived) keeps(p *pod) bool {
	switch {
	case p.gone:
		return false
	case d.anew:
		return d.selects(p)
	case !d.applies(p.load) || d.unchanged(p, func(old, now *snapshot.Workload) bool { return maps.Equal(old.Labels, now.Labels) }):
		return true
	}
	for key, value := range d.w.Selector {
		if has, set := p.load.Labels[key]; set && has != value || !set && d.removes(p, key) {
			return false
		}
	}
	return true
}

// removes reports whether the template of a pod's workload had a label in the snapshot, and has it no more.
func (a *applied) removes(p *pod, key string) bool {
	was := a.old[p.load.Object]
	if was == nil {
		return false
	}
	_, had := was.Labels[key]
	_, has := p.load.Labels[key]
	return had && !has
}

// unchanged reports whether the workload of a pod is in the snapshot, and a part of it is the same.
func (a *applied) unchanged(p *pod, same func(old, now *snapshot.Workload) bool) bool {
	return p.load != nil && a.old[p.load.Object] != nil && same(a.old[p.load.Object], p.load)
}

// selects reports whether a pod has the labels of the Service's selector: those of its template, and
// those that the selectors of the snapshot imply and the template does not contradict.
func (d *derived) selects(p *pod) bool {
	if p.load == nil {
		return labels.SelectorFromSet(d.w.Selector).Matches(labels.Set(p.labels))
	}
	rest := maps.Clone(d.w.Selector)
	maps.DeleteFunc(rest, func(key, value string) bool {
		_, set := p.load.Labels[key]
		has, known := p.labels[key]
		return !set && known && has == value && !d.removes(p, key)
	})
	one, ok := podsWith(p.load, rest)
	n, numbered := podNumber(p.load, p.name)
	return ok && (one == everyPod || numbered && n == one)
}

// candidates returns the pods that may become endpoints of the Service: if its selector is new, all of its
// namespace, and otherwise those of the workloads that it selects.
func (d *derived) candidates() (out []*pod) {
	if d.anew {
		return d.namespaces[d.svc.Name.Namespace]
	}
	for _, load := range d.loads {
		if d.applies(load) {
			out = append(out, d.made[load]...)
		}
	}
	return out
}

// gained returns parts of the EndpointSlices of other Services, with the pods that become endpoints of
// the Service. has are its own.
func (d *derived) gained(has map[*pod]bool) (out []*snapshot.EndpointSlice) {
	added := map[*snapshot.EndpointSlice]map[*pod]bool{}
	var sources []*snapshot.EndpointSlice
	for _, p := range d.candidates() {
		if has[p] || p.gone || p.ending || !d.selects(p) {
			continue
		}
		families := map[string]bool{}
		for _, at := range p.places {
			slice := at.EndpointSlice
			if families[slice.AddressType] || !slices.Contains(d.svc.IPFamilies, slice.AddressType) {
				continue
			}
			if families[slice.AddressType] = true; added[slice] == nil {
				added[slice] = map[*pod]bool{}
				sources = append(sources, slice)
			}
			added[slice][p] = true
		}
	}
	for _, slice := range sources {
		out = append(out, d.split(slice, d.svc.Name.Name+"-"+slice.Name.Name, snapshot.AssumedFrom+slice.Object, func(p *pod) bool { return added[slice][p] })...)
	}
	return out
}

// split returns the part of an EndpointSlice whose pods the Service has, as slices that each have one
// list of ports. It returns the slice itself if nothing changes.
func (d *derived) split(slice *snapshot.EndpointSlice, name, object string, has func(*pod) bool) (out []*snapshot.EndpointSlice) {
	same := slice.Service == d.svc.Name
	for i, e := range slice.Endpoints {
		p := d.at[place{slice, i}]
		if !has(p) {
			same = false
			continue
		}
		ports := d.ports(slice, p)
		same = !d.move(p, &e) && !d.publish(slice.Service, &e) && same && slices.Equal(ports, slice.Ports)
		at := slices.IndexFunc(out, func(s *snapshot.EndpointSlice) bool { return slices.Equal(s.Ports, ports) })
		if at < 0 {
			at = len(out)
			part := *slice
			part.Name.Name, part.Object, part.Service, part.Ports, part.Endpoints = name, object, d.svc.Name, ports, nil
			part.Headless, part.FromEndpoints, part.Addresses = false, false, nil
			if slice.FromEndpoints || at > 0 {
				part.Name.Name = strings.ToLower(fmt.Sprintf("%s-%d-%d-%s", name, slice.Subset, at, slice.AddressType))
			}
			out = append(out, &part)
		}
		out[at].Endpoints = append(out[at].Endpoints, e)
	}
	if same {
		return []*snapshot.EndpointSlice{slice}
	}
	return out
}

// publish sets the readiness of an endpoint that the EndpointSlice of a Service has, if only one of the
// two Services publishes addresses that are not ready, and reports whether it changes.
func (d *derived) publish(by ir.Name, e *snapshot.Endpoint) bool {
	was := e.Ready
	if d.w.NotReady != d.was(by).NotReady {
		e.Ready = d.w.NotReady || e.Serving && !e.Terminating
	}
	return e.Ready != was
}

// move sets the address of a pod that enters or leaves the network of its node, and reports whether
// it does.
func (d *derived) move(p *pod, e *snapshot.Endpoint) bool {
	node := d.snap.Node(e.NodeName)
	if !d.applies(p.load) || node == nil {
		return false
	}
	onHost := slices.ContainsFunc(node.Addresses, func(a snapshot.NodeAddress) bool { return a.Address == e.Address })
	if onHost == p.load.HostNetwork || d.OnlyReal && onHost || d.unchanged(p, func(old, now *snapshot.Workload) bool { return old.HostNetwork == now.HostNetwork }) {
		return false
	}
	addr := d.addrOf(p.load, ir.FamilyOf(e.Addr), p.i, e.NodeName)
	if !addr.IsValid() {
		return false
	}
	e.Addr, e.Address = addr, addr.String()
	return true
}

// ports returns the ports of the Service on a pod of an EndpointSlice.
func (d *derived) ports(slice *snapshot.EndpointSlice, p *pod) (out []snapshot.EndpointPort) {
	if slice.Service == d.svc.Name && d.samePorts && d.unchanged(p, func(old, now *snapshot.Workload) bool { return slices.Equal(old.Ports, now.Ports) }) {
		return slice.Ports // running pods may have others
	}
	if !d.given && (d.w.NoTargets || !d.applies(p.load)) {
		if slice.Service != d.svc.Name && len(d.have) > 0 {
			return d.have[0].Ports
		}
		return slice.Ports
	}
	for i, port := range d.svc.Ports {
		if n, ok := d.target(i, slice, p); ok {
			out = append(out, snapshot.EndpointPort{Name: port.Name, Protocol: port.Protocol, Port: n, HasName: true, HasPort: true})
		}
	}
	if len(out) == len(slice.Ports) && !slices.ContainsFunc(out, func(p snapshot.EndpointPort) bool { return !slices.Contains(slice.Ports, p) }) {
		return slice.Ports // in its order
	}
	return out
}

// target returns the number of a port of the Service on a pod of an EndpointSlice. The number of a
// named port follows from the workload, or else from a port of the slice with the same target.
func (d *derived) target(i int, slice *snapshot.EndpointSlice, p *pod) (int32, bool) {
	port, target := d.svc.Ports[i], intstr.FromInt32(d.svc.Ports[i].Port)
	if i < len(d.w.TargetPorts) {
		target = d.w.TargetPorts[i]
	}
	if target.Type == intstr.Int || p.load != nil {
		return targetPort(p.load, target, port.Protocol)
	}
	old, was := d.snap.Service(slice.Service), d.was(slice.Service)
	if before, ok := d.before[slice.Service]; ok {
		old = before
	}
	if old == nil {
		return 0, false
	}
	for j, o := range old.Ports {
		if o.Protocol != port.Protocol || j >= len(was.TargetPorts) || was.NoTargets && (o.Port != port.Port || old.Name != d.svc.Name) || !was.NoTargets && was.TargetPorts[j] != target {
			continue
		}
		for _, has := range slice.Ports {
			if has.Name == o.Name && has.Protocol == o.Protocol && has.HasPort {
				return has.Port, true
			}
		}
	}
	return 0, false
}

// secondFamily adds the endpoints of a family that the Service did not have: the addresses that other
// Services show, or else stand-ins.
func (d *derived) secondFamily(out []*snapshot.EndpointSlice) []*snapshot.EndpointSlice {
	if d.old == nil || d.OnlyReal {
		return out
	}
	for _, family := range d.svc.IPFamilies {
		if slices.Contains(d.old.IPFamilies, family) || slices.ContainsFunc(out, func(s *snapshot.EndpointSlice) bool { return s.AddressType == family }) {
			continue
		}
		for _, slice := range out {
			second := *slice
			second.Name.Name, second.Object, second.AddressType = strings.ToLower(slice.Name.Name+"-"+family), snapshot.AssumedFrom+slice.Object, family
			second.Endpoints = slices.Clone(slice.Endpoints)
			for i := range second.Endpoints {
				e := &second.Endpoints[i]
				e.Addr = d.addr(ir.FamilyNamed(family), "pod "+cmp.Or(e.Pod, e.Address))
				if p := d.byName[ir.Name{Namespace: slice.Name.Namespace, Name: e.Pod}]; p != nil {
					for _, at := range p.places {
						if at.AddressType == family {
							e.Addr = at.Endpoints[at.i].Addr
						}
					}
				}
				e.Address = e.Addr.String()
			}
			out = append(out, &second)
		}
	}
	return out
}

// hint sets the hints of endpoints if spec.trafficDistribution changes. Otherwise it sets those of
// new endpoints, if the others have some: without them, a proxy ignores all hints.
func (d *derived) hint(out []*snapshot.EndpointSlice, was string) []*snapshot.EndpointSlice {
	all := d.given && (d.old == nil || d.w.Distribution != was)
	zones, nodes := d.w.Distribution != "", d.w.Distribution == corev1.ServiceTrafficDistributionPreferSameNode
	if !all {
		zones, nodes = false, false
		for _, slice := range d.have {
			for i := range slice.Endpoints {
				zones, nodes = zones || len(slice.Endpoints[i].ZoneHints()) > 0, nodes || len(slice.Endpoints[i].NodeHints()) > 0
			}
		}
	}
	for i, slice := range out {
		if !all && (!slice.Assumed() || !zones && !nodes) {
			continue
		}
		hinted := *slice
		hinted.Endpoints = slices.Clone(slice.Endpoints)
		for j := range hinted.Endpoints {
			d.setHints(&hinted.Endpoints[j], zones, nodes)
		}
		out[i] = &hinted
	}
	return out
}

// mirror replaces the EndpointSlices that a controller made from v1 Endpoints which the Overlay has.
func (a *applied) mirror() {
	for _, svc := range a.snap.Services() {
		if !a.Objects.HasEndpoints(svc.Name) || len(a.Written[svc.Object].Selector) > 0 {
			continue
		}
		have := a.snap.Slices(svc.Name)
		if !slices.ContainsFunc(have, a.mirrored) {
			continue
		}
		for _, slice := range have {
			if a.mirrored(slice) {
				a.snap.DeleteSlice(slice.Name)
			}
		}
		if len(a.snap.Slices(svc.Name)) == 0 || a.snap.Slices(svc.Name)[0].FromEndpoints {
			continue
		}
		for _, made := range a.Objects.Slices(svc.Name) { // beside those of others
			slice := *made
			slice.Name.Name = strings.ToLower(fmt.Sprintf("%s-%d-%s", svc.Name.Name, slice.Subset, slice.AddressType))
			slice.FromEndpoints, slice.Addresses = false, nil
			a.snap.SetSlice(&slice)
		}
	}
}

// mirrored reports whether a controller made an EndpointSlice of the snapshot from v1 Endpoints.
func (a *applied) mirrored(slice *snapshot.EndpointSlice) bool {
	return a.Was[slice.Object].ManagedBy == "endpointslicemirroring-controller.k8s.io"
}

// replace replaces the EndpointSlices of a Service.
func (a *applied) replace(service ir.Name, by []*snapshot.EndpointSlice) {
	for _, slice := range slices.Clone(a.snap.Slices(service)) {
		a.snap.DeleteSlice(slice.Name)
	}
	a.snap.DeleteEndpoints(service)
	for _, slice := range by {
		a.snap.SetSlice(slice)
	}
}
