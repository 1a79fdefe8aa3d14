package assume

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// change is a Service of a manifest, and its version in the snapshot; nil for a new one.
type change struct {
	svc, old *snapshot.Service
	w, was   *manifest.Written
}

// immutable are the fields of a Service that the API server does not let change. values returns two
// equal texts if it accepts the change.
var immutable = [...]struct {
	path   string
	code   diag.Code
	values func(*change) (from, to string)
}{
	{"spec.clusterIP", diag.VIPValue, func(c *change) (from, to string) {
		if hasClusterIP(c.svc) && hasClusterIP(c.old) {
			from, to = c.old.ClusterIP, c.svc.ClusterIP
		}
		return from, to
	}},
	{"spec.type", diag.FieldWord, func(c *change) (from, to string) {
		if c.svc.ClusterIP == "" && c.old.ClusterIP == corev1.ClusterIPNone && needsNodePorts(c.svc) {
			from, to = string(corev1.ServiceTypeClusterIP), c.svc.Type // spec.clusterIP remains None
		}
		return from, to
	}},
	{"spec.clusterIPs[1]", diag.VIPValue, func(c *change) (from, to string) {
		if len(c.svc.ClusterIPs) == 2 && len(c.old.ClusterIPs) == 2 {
			from, to = c.old.ClusterIPs[1], c.svc.ClusterIPs[1]
		}
		return from, to
	}},
	{"spec.ipFamilies[0]", diag.FieldWord, func(c *change) (from, to string) {
		if c.svc.ClusterIP == "" && c.svc.Type != externalName && hasClusterIP(c.old) && c.old.ClusterIP != corev1.ClusterIPNone && len(c.svc.IPFamilies) > 0 && len(c.old.IPFamilies) > 0 {
			from, to = c.old.IPFamilies[0], c.svc.IPFamilies[0]
		}
		return from, to
	}},
	{"spec.ipFamilyPolicy", diag.FieldWord, func(c *change) (from, to string) {
		one := string(corev1.IPFamilyPolicySingleStack)
		if policy := cmp.Or(c.w.FamilyPolicy, c.was.FamilyPolicy, one); hasClusterIP(c.old) && c.svc.Type != externalName && policy != one && c.w.Families == 1 && len(c.old.IPFamilies) == 2 {
			from, to = one, policy // to release a family
		}
		return from, to
	}},
	{"spec.loadBalancerClass", diag.FieldWord, func(c *change) (from, to string) {
		if balanced(c.svc) && balanced(c.old) && c.w.Class != "" { // a webhook may have set it
			from, to = c.was.Class, c.w.Class
		}
		return from, to
	}},
	{"spec.healthCheckNodePort", diag.PortValue, func(c *change) (from, to string) {
		if needsHealthPort(c.svc) && needsHealthPort(c.old) && c.svc.HealthPort != 0 && c.old.HealthPort != 0 {
			from, to = fmt.Sprint(c.old.HealthPort), fmt.Sprint(c.svc.HealthPort)
		}
		return from, to
	}},
}

// admit removes the objects that the API server rejects from manifests that it has not seen.
func (c *cluster) admit() (found diag.List) {
	for _, w := range c.snap.Workloads() {
		written := c.written[w.Object]
		if wrong := because(rejectedWorkload(w, nil, &written), false); wrong != nil {
			found.Add(wrong...)
			c.snap.DeleteWorkload(w.Object)
			c.snap.SetCustom(w) // its pods are unknown
		}
	}
	numbers := owners{}
	var fresh []*snapshot.Service
	for _, svc := range c.snap.Services() {
		if w := c.written[svc.Object]; !svc.ProxyName && (!w.Live || incomplete(svc, &w) && svc.Type != externalName) {
			fresh = append(fresh, svc)
		} else {
			c.set(numbers, svc, nil)
		}
	}
	for _, svc := range c.inOrder(fresh) {
		w := c.written[svc.Object]
		x := &change{svc: svc, w: &w}
		if last, ok := c.last[svc.Name]; ok {
			if x.old, x.was = last.Service, &last.written; len(x.immutable()) > 0 {
				x.old = nil // another object of this name
			}
		}
		wrong := c.rejected(x)
		if wrong == nil {
			wrong = c.taken(numbers, svc, nil)
		}
		if wrong != nil {
			wrong = because(wrong, false)
			found.Add(wrong...)
			c.skip(svc, wrong)
			continue
		}
		c.set(numbers, svc, nil)
	}
	return found
}

// rejected returns the reasons why the API server rejects a Service.
func (c *cluster) rejected(x *change) (found diag.List) {
	for _, r := range x.w.Rejected {
		if !r.OfType || x.old == nil || !x.drops(r.Path) {
			found.Add(r.Diagnostic)
		}
	}
	add := func(path string, code diag.Code, hint, format string, args ...any) {
		found.Add(diag.Diagnostic{Severity: diag.Error, Code: code, Object: x.svc.Object, Path: path, Msg: fmt.Sprintf(format, args...), Hint: hint})
	}
	if x.old != nil {
		found.Add(x.immutable()...)
	}
	policy := x.w.FamilyPolicy
	if x.old != nil {
		policy = cmp.Or(policy, x.was.FamilyPolicy)
	}
	headless := x.svc.ClusterIP == corev1.ClusterIPNone && len(x.w.Selector) == 0
	if x.w.FamilyPolicy == "" && (policy == "" || policy == string(corev1.IPFamilyPolicySingleStack)) && len(x.svc.IPFamilies) > 1 && len(x.svc.ClusterIPs) < 2 && x.svc.Type != externalName && !headless {
		add("spec.ipFamilyPolicy", diag.FieldWord, "", "must be PreferDualStack or RequireDualStack with two families")
	}
	if c.allocates == nil || x.svc.Type == externalName || x.svc.ClusterIP == corev1.ClusterIPNone {
		return found
	}
	if x.old == nil || !hasClusterIP(x.old) {
		var cidrs []netip.Prefix
		for _, s := range c.snap.ServiceCIDRs() {
			cidrs = append(cidrs, s.CIDRs...)
		}
		for i, text := range x.svc.ClusterIPs {
			if a, ok := inet.ParseAddr(text); ok && !slices.ContainsFunc(cidrs, func(p netip.Prefix) bool { return p.Contains(a.Unmap()) }) {
				add(fmt.Sprintf("spec.clusterIPs[%d]", i), diag.VIPValue, "remove it", "must be an address of the ServiceCIDRs, got %s", text)
			}
		}
	}
	for i, f := range x.svc.IPFamilies {
		if !slices.Contains(c.allocates, f) && (f == ir.IPv4.String() || f == ir.IPv6.String()) {
			add(fmt.Sprintf("spec.ipFamilies[%d]", i), diag.FieldWord, "remove it", "must be a family of the ServiceCIDRs, %s, got %s", strings.Join(c.allocates, " or "), f)
		}
	}
	if x.w.FamilyPolicy == string(corev1.IPFamilyPolicyRequireDualStack) && len(c.allocates) == 1 {
		add("spec.ipFamilyPolicy", diag.FieldWord, "use PreferDualStack", "must not be RequireDualStack with ServiceCIDRs of %s only", c.allocates[0])
	}
	return found
}

// immutable returns findings about the fields that the API server does not let change.
func (x *change) immutable() (found diag.List) {
	for _, f := range immutable {
		if from, to := f.values(x); from != to {
			found.Add(diag.Diagnostic{Severity: diag.Error, Code: f.code, Object: x.svc.Object, Path: f.path, Hint: "remove it, or delete the Service first",
				Msg: fmt.Sprintf("must be %s, as in the snapshot, got %s", cmp.Or(from, "unset"), diag.Quote(to))})
		}
	}
	return found
}

// drops reports whether the API server drops a field that the new type of a Service does not have,
// since it is the same as before (dropTypeDependentFields).
func (x *change) drops(path string) bool {
	svc, old := x.svc, x.old
	switch path {
	case "spec.externalTrafficPolicy":
		return (needsNodePorts(old) || len(old.ExternalIPs) > 0) && svc.ExternalLocal == old.ExternalLocal
	case "spec.healthCheckNodePort":
		return needsHealthPort(old) && svc.HealthPort == old.HealthPort
	case "spec.loadBalancerClass":
		return balanced(old) && x.w.Class == x.was.Class
	case "spec.allocateLoadBalancerNodePorts":
		return balanced(old) && x.w.NoNodePorts == x.was.NoNodePorts
	case "spec.clusterIP":
		return svc.Type == externalName && hasClusterIP(old) && svc.ClusterIP == old.ClusterIP
	case "spec.ipFamilies":
		return hasClusterIP(old) && slices.Equal(svc.IPFamilies, old.IPFamilies)
	case "spec.ipFamilyPolicy":
		if svc.Type == externalName {
			return hasClusterIP(old) && x.w.FamilyPolicy == cmp.Or(x.was.FamilyPolicy, string(corev1.IPFamilyPolicySingleStack))
		}
		return slices.Equal(svc.IPFamilies, old.IPFamilies)
	}
	return strings.HasSuffix(path, ".nodePort") && needsNodePorts(old) && !slices.ContainsFunc(nodePorts(svc.Ports), func(n int32) bool { return !slices.Contains(nodePorts(old.Ports), n) })
}

// nodePorts returns the node ports of ports that have one.
func nodePorts(ports []snapshot.ServicePort) (out []int32) {
	for _, p := range ports {
		if p.NodePort != 0 {
			out = append(out, p.NodePort)
		}
	}
	return out
}

// inOrder returns Services in the order of the input, in which kubectl apply applies them.
func (c *cluster) inOrder(all []*snapshot.Service) []*snapshot.Service {
	slices.SortStableFunc(all, func(a, b *snapshot.Service) int {
		return cmp.Compare(c.written[a.Object].Order, c.written[b.Object].Order)
	})
	return all
}

// owners are the Services with the addresses and ports that the API server allocates, as text. It
// allocates a port once for all protocols.
type owners map[string]*snapshot.Service

// taken returns findings about allocations that another Service has. old is the previous version of
// the Service, nil for a new one.
func (c *cluster) taken(by owners, svc, old *snapshot.Service) (found diag.List) {
	for i, p := range svc.Ports {
		if p.NodePort != 0 && slices.ContainsFunc(svc.Ports[:i], func(o snapshot.ServicePort) bool { return o.NodePort == p.NodePort && o.Protocol == p.Protocol }) {
			found.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.PortDuplicate, Object: svc.Object, Path: fmt.Sprintf("spec.ports[%d].nodePort", i),
				Msg: fmt.Sprintf("must be unique in the Service, got %d, which the snapshot has", p.NodePort), Hint: "set another one"})
		}
	}
	for _, one := range c.allocated(svc) {
		has := func(o allocation) bool { return o.value == one.value }
		if owner := by[one.value]; owner != nil && owner.Name != svc.Name && (old == nil || !slices.ContainsFunc(c.allocated(old), has)) {
			d := diag.Diagnostic{Severity: diag.Error, Code: diag.PortValue, Object: svc.Object, Path: one.path,
				Msg: fmt.Sprintf("must not be %s, which %s has", one.value, owner.Object), Hint: "use another port, or remove it"}
			if strings.HasPrefix(one.path, "spec.clusterIP") {
				d.Code, d.Hint = diag.VIPValue, "use another address, or remove it"
			}
			found.Add(d)
		}
	}
	return found
}

// set changes the allocations of a Service from those of its previous version, nil for a new one.
func (c *cluster) set(by owners, svc, old *snapshot.Service) {
	if old != nil {
		for _, one := range c.allocated(old) {
			if by[one.value] == old {
				delete(by, one.value)
			}
		}
	}
	for _, one := range c.allocated(svc) {
		by[one.value] = cmp.Or(by[one.value], svc)
	}
}

// allocation is a field of a Service with an allocated address or port.
type allocation struct{ path, value string }

// allocated returns the allocations of a Service that are no stand-ins.
func (c *cluster) allocated(svc *snapshot.Service) (all []allocation) {
	for i, text := range svc.ClusterIPs {
		if a, ok := inet.ParseAddr(text); ok && c.Name(a) == "" && svc.Type != externalName {
			all = append(all, allocation{fmt.Sprintf("spec.clusterIPs[%d]", i), a.String()})
		}
	}
	port := func(path string, n int32) {
		if n != 0 && c.PortName(n) == "" {
			all = append(all, allocation{path, fmt.Sprint(n)})
		}
	}
	for i, p := range svc.Ports {
		port(fmt.Sprintf("spec.ports[%d].nodePort", i), p.NodePort)
	}
	port("spec.healthCheckNodePort", svc.HealthPort)
	return all
}

// because returns findings with the effect that the API server rejects the object. kept reports that
// its version in the snapshot remains.
func because(found diag.List, kept bool) diag.List {
	for i := range found {
		if found[i].Msg += ": the API server rejects the "; kept {
			found[i].Msg += "change, and the object of the snapshot is kept"
		} else {
			kind, _, _ := strings.Cut(found[i].Object, " ")
			found[i].Msg += kind
		}
	}
	return found
}

// skip removes a Service of the snapshot that the API server rejects.
func (c *cluster) skip(svc *snapshot.Service, found diag.List) {
	c.snap.DeleteService(svc.Name)
	for _, d := range found {
		c.snap.SetInvalid(svc.Invalid(), d)
	}
}

// rejectedWorkload returns the reasons why the API server rejects a workload. old is nil for a new one.
func rejectedWorkload(w, old *snapshot.Workload, written *manifest.Written) (found diag.List) {
	for _, r := range written.Rejected {
		found.Add(r.Diagnostic)
	}
	if old != nil && w.Kind != "ReplicationController" && w.Selector != "" && old.Selector != "" && w.Selector != old.Selector {
		found.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.WorkloadSelector, Object: w.Object, Path: "spec.selector",
			Msg: fmt.Sprintf("must be %s, as in the snapshot, got %s", old.Selector, diag.Quote(w.Selector)), Hint: "use another name, or delete the " + w.Kind + " first"})
	}
	return found
}
