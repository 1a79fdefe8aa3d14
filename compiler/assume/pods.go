package assume

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// applied is the state while an Overlay is applied.
type applied struct {
	cluster
	*Overlay
	before     map[ir.Name]*snapshot.Service // of the Overlay's Services; nil for a new one
	kept       map[string]bool               // workloads of the Overlay that the API server rejects
	namespaces map[string][]*pod             // the pods of each namespace that changes
	byName     map[ir.Name]*pod
	at         map[place]*pod
	made       map[*snapshot.Workload][]*pod // those that are not terminating
	old        map[string]*snapshot.Workload // of the snapshot, by Object
	sliced     map[string]bool               // the workloads whose pods the EndpointSlices of a Service show
	missing    map[*snapshot.Workload][]int  // the indices of pods that no EndpointSlice has yet
}

// place is an endpoint.
type place struct {
	*snapshot.EndpointSlice
	i int
}

// pod is a pod of the snapshot's EndpointSlices.
type pod struct {
	name   string
	labels map[string]string  // those that the selectors of its Services imply
	load   *snapshot.Workload // that makes it; nil if unknown
	ready  bool
	ending bool // it is terminating
	gone   bool // its workload has no room for it
	places []place
	i      int // among those of its workload
}

// findPods finds the pods of the namespaces that change, and the workloads that make them.
func (a *applied) findPods() {
	loads := map[ir.Name][]*snapshot.Workload{}
	for namespace := range a.namespaces {
		for _, w := range a.workloads.In(namespace) {
			loads[w.Name] = append(loads[w.Name], w)
		}
	}
	services := map[ir.Name][]*pod{}
	earlier := NewWorkloads(slices.Collect(maps.Values(a.old)))
	for _, slice := range a.snap.Document().Slices {
		namespace := slice.Name.Namespace
		if _, ok := a.namespaces[namespace]; !ok {
			continue
		}
		selector := a.was(slice.Service).Selector
		if _, ok := services[slice.Service]; !ok && len(selector) > 0 {
			services[slice.Service] = nil
			for _, w := range earlier.Select(namespace, selector) {
				if one, _ := podsWith(w, selector); one == everyPod {
					a.sliced[w.Object] = true
				}
			}
		}
		for i, e := range slice.Endpoints {
			key := ir.Name{Namespace: namespace, Name: cmp.Or(e.Pod, e.Address)}
			p := a.byName[key]
			if p == nil {
				p = &pod{name: e.Pod, labels: map[string]string{}, load: maker(loads, key)}
				a.byName[key] = p
				a.namespaces[namespace] = append(a.namespaces[namespace], p)
			}
			maps.Copy(p.labels, selector)
			p.ready, p.ending = p.ready || e.Ready, p.ending || e.Terminating
			p.places = append(p.places, place{slice, i})
			a.at[place{slice, i}] = p
			services[slice.Service] = append(services[slice.Service], p)
		}
	}
	for _, service := range slices.SortedFunc(maps.Keys(services), ir.Name.Compare) {
		a.guess(service, services[service])
	}
	for _, pods := range a.namespaces {
		for _, p := range pods {
			if p.load != nil && !p.ending {
				a.made[p.load] = append(a.made[p.load], p)
			}
		}
	}
	for namespace := range a.namespaces {
		for _, w := range a.workloads.In(namespace) {
			a.scale(w, a.made[w])
		}
	}
}

// was returns the written fields of a Service in the snapshot.
func (a *applied) was(service ir.Name) manifest.Written {
	return a.Was[snapshot.ObjectName("Service", service)]
}

// A pod's name is that of its workload and letters of k8s.io/apimachinery/pkg/util/rand, or numbers.
const letters = `[bcdfghjklmnpqrstvwxz2456789]`

var podNames = map[string]*regexp.Regexp{
	"Pod":         regexp.MustCompile(`^$`),
	"Deployment":  regexp.MustCompile(`^-` + letters + `{1,10}-` + letters + `{5}$`),
	"StatefulSet": regexp.MustCompile(`^-\d+$`),
	"CronJob":     regexp.MustCompile(`^-\d+(-\d+)?-` + letters + `{5}$`),
	"":            regexp.MustCompile(`^(-\d+)?-` + letters + `{5}$`), // DaemonSet, Job and others
}

// maker returns the workload that makes a pod, by its name; nil if there is none.
func maker(loads map[ir.Name][]*snapshot.Workload, pod ir.Name) *snapshot.Workload {
	const parts = 3 // that a name has at most besides that of the workload
	for of, i := pod, 0; i <= parts; i++ {
		for _, w := range loads[of] {
			form, ok := podNames[w.Kind]
			if !ok {
				form = podNames[""]
			}
			if form.MatchString(pod.Name[len(of.Name):]) {
				return w
			}
		}
		of.Name = of.Name[:max(0, strings.LastIndexByte(of.Name, '-'))]
	}
	return nil
}

// guess finds the maker of pods of a Service with names of another form, such as those that a person
// wrote: the only workload that the Service selects.
func (a *applied) guess(service ir.Name, pods []*pod) {
	selector := a.was(service).Selector
	if len(selector) == 0 || slices.ContainsFunc(pods, func(p *pod) bool { return p.load != nil }) {
		return
	}
	loads := a.workloads.Select(service.Namespace, selector)
	if len(loads) != 1 {
		return
	}
	for _, p := range pods {
		if p.name == "" || strings.HasPrefix(p.name, loads[0].Name.Name+"-") {
			p.load = loads[0]
		}
	}
}

// applies reports whether a workload is in the Overlay.
func (a *applied) applies(w *snapshot.Workload) bool {
	return w != nil && a.Objects.HasWorkload(w.Object)
}

// scale marks the pods that a workload loses, and notes those that it gains. What the Overlay does not
// change stays as the snapshot shows it: pods that are pending there, and those of a rollout.
func (a *applied) scale(w *snapshot.Workload, pods []*pod) {
	if a.snap.Workload(w.Object) == nil { // pruned
		for _, p := range pods {
			p.gone = true
		}
		return
	}
	a.readNodes()
	old, n, perNode := a.old[w.Object], a.number(w), w.Pods == snapshot.PerNode
	var was int
	if old != nil {
		was = a.number(old)
	}
	var nodes []*snapshot.Node
	if perNode {
		nodes = a.nodesFor(w)
	}
	index(w, pods, nodes)
	// Without the workload in the snapshot, the number that the manifest does not set is that of the pods.
	unset := old == nil && w.AnyNumber && len(pods) > 0
	if unset && !perNode {
		n = slices.MaxFunc(pods, func(p, q *pod) int { return p.i - q.i }).i + 1
	}
	resized := old == nil || !perNode && (n != was || w.First != old.First)
	moved := a.applies(w) && (old == nil || !samePlacement(old, w))
	used, left := map[int]bool{}, map[int]bool{}
	for _, p := range pods {
		node := a.snap.Node(p.node())
		left[p.i] = moved && node != nil && !a.fits(w, node, perNode || old == nil)
		p.gone = left[p.i] || resized && !unset && (p.i < 0 || p.i >= n)
		used[p.i] = used[p.i] || !p.gone
	}
	had := func(i int) bool { // in the snapshot, perhaps without an endpoint
		switch {
		case unset:
			return true
		case old == nil || !a.sliced[w.Object]:
			return false
		case perNode:
			return len(nodes) == 0 || a.fits(old, nodes[i], false)
		}
		i += w.First - old.First
		return i >= 0 && i < was
	}
	for i := range n {
		if !used[i] && (left[i] || !had(i)) {
			a.missing[w] = append(a.missing[w], i)
		}
	}
}

// index sets the indices of the pods of a workload: the ordinal in a StatefulSet, that of the Node in a
// DaemonSet, whose nodes these are, and otherwise the order in which scaling down keeps them.
func index(w *snapshot.Workload, pods []*pod, nodes []*snapshot.Node) {
	slices.SortStableFunc(pods, func(p, q *pod) int {
		switch {
		case p.ready && !q.ready:
			return -1
		case q.ready && !p.ready:
			return 1
		}
		return cmp.Or(len(p.name)-len(q.name), strings.Compare(p.name, q.name))
	})
	ordinals := w.Kind == "StatefulSet"
	for i, p := range pods {
		p.i = len(nodes) + i
		if at := slices.IndexFunc(nodes, func(n *snapshot.Node) bool { return n.Name == p.node() }); at >= 0 {
			p.i = at
		}
		_, ok := podNumber(w, p.name)
		ordinals = ordinals && ok
	}
	for _, p := range pods {
		if number, _ := podNumber(w, p.name); ordinals {
			p.i = number - w.First
		}
	}
}

// node returns the name of the Node where a pod runs.
func (p *pod) node() string { return p.places[0].Endpoints[p.places[0].i].NodeName }

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
	if len(d.w.Selector) == 0 || svc.Type == externalName || svc.ClusterIP == corev1.ClusterIPNone || a.Objects.HasEndpoints(svc.Name) ||
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
		for _, slice := range d.have {
			if !slice.FromEndpoints && !a.mirrored(slice) {
				own = append(own, slice)
			}
		}
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
	added := map[*snapshot.EndpointSlice]map[*pod]bool{}
	var sources []*snapshot.EndpointSlice
	for _, p := range d.candidates() {
		if has[p] || !d.gains(p) {
			continue
		}
		families := map[string]bool{}
		for _, at := range p.places {
			if slice := at.EndpointSlice; !families[slice.AddressType] && slices.Contains(svc.IPFamilies, slice.AddressType) {
				if families[slice.AddressType] = true; added[slice] == nil {
					added[slice] = map[*pod]bool{}
					sources = append(sources, slice)
				}
				added[slice][p] = true
			}
		}
	}
	for _, slice := range sources {
		out = append(out, d.split(slice, svc.Name.Name+"-"+slice.Name.Name, snapshot.AssumedFrom+slice.Object, func(p *pod) bool { return added[slice][p] })...)
	}
	out = d.secondFamily(out)
	for _, load := range d.loads {
		if some := a.missing[load]; len(some) > 0 && !a.OnlyReal && (d.anew || a.applies(load)) {
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

// keeps reports whether an endpoint of the Service remains one.
func (d *derived) keeps(p *pod) bool {
	switch {
	case p.gone:
		return false
	case !d.anew && d.unchanged(p, func(old, now *snapshot.Workload) bool { return maps.Equal(old.Labels, now.Labels) }):
		return true // a running pod may have more labels
	case d.applies(p.load) || d.anew && p.load != nil:
		return d.selects(p)
	}
	return !d.anew || contains(p.labels, d.w.Selector)
}

// unchanged reports whether the workload of a pod is in the snapshot, and a part of it is the same.
func (a *applied) unchanged(p *pod, same func(old, now *snapshot.Workload) bool) bool {
	return p.load != nil && a.old[p.load.Object] != nil && same(a.old[p.load.Object], p.load)
}

// selects reports whether the Service selects a pod of a known workload.
func (d *derived) selects(p *pod) bool {
	one, ok := podsWith(p.load, d.w.Selector)
	if n, numbered := podNumber(p.load, p.name); one != everyPod && (!numbered || n != one) {
		return false
	}
	return ok && slices.Contains(d.loads, p.load)
}

// candidates returns the pods of the workloads that the Service selects, and if its selector is new, those
// of none.
func (d *derived) candidates() (out []*pod) {
	for _, load := range d.loads {
		out = append(out, d.made[load]...)
	}
	if d.anew {
		for _, p := range d.namespaces[d.svc.Name.Namespace] {
			if p.load == nil {
				out = append(out, p)
			}
		}
	}
	return out
}

// gains reports whether a pod that was no endpoint of the Service becomes one.
func (d *derived) gains(p *pod) bool {
	switch {
	case p.gone || p.ending:
		return false
	case p.load != nil:
		return (d.anew || d.applies(p.load)) && d.selects(p)
	}
	return d.anew && contains(p.labels, d.w.Selector)
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
				e.Addr = d.addr(familyOf(family), "pod "+cmp.Or(e.Pod, e.Address))
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
