package redact

import (
	"fmt"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Class is what a name is of. Names of one class are replaced alike, wherever they stand.
type Class string

// The classes, as stand-ins begin with them.
const (
	Namespace Class = "ns"
	Service   Class = "svc" // also of v1 Endpoints
	Slice     Class = "slice"
	Node      Class = "node"
	Pod       Class = "pod"
	Zone      Class = "zone"
	Port      Class = "port"
	Range     Class = "range" // ServiceCIDRs
	Label     Class = "label"
	Text      Class = "text" // where an address, a finding's code or one of a few words should stand
)

// Redactor knows the stand-ins of what it was made for.
type Redactor struct {
	v4, v6 *addresses
	seen   map[netip.Prefix]bool
	names  map[Class]map[string]string
}

// New makes stand-ins for what stands in objects and a configuration, which may be nil, for
// the name of a node, which may be none, and for more ranges, or addresses with the length
// of theirs.
func New(o *snapshot.Objects, c *config.Config, node string, more ...netip.Prefix) *Redactor {
	r := &Redactor{v4: newAddresses(false), v6: newAddresses(true), seen: map[netip.Prefix]bool{}, names: map[Class]map[string]string{}}
	see := &visitor{
		name: func(of Class, name string) string {
			if r.names[of] == nil {
				r.names[of] = map[string]string{}
			}
			r.names[of][name] = ""
			return name
		},
		prefix: func(p netip.Prefix) netip.Prefix {
			if !r.seen[p] {
				r.seen[p] = true
				r.family(p.Addr()).add(p)
			}
			return p
		},
	}
	see.objects(o)
	if c != nil {
		see.config(c)
	}
	see.set(Node, &node)
	for _, p := range more {
		see.prefix(p)
		if p != p.Masked() {
			see.prefix(netip.PrefixFrom(p.Addr(), p.Addr().BitLen()))
		}
	}
	for of, known := range r.names {
		width := len(fmt.Sprint(len(known)))
		for i, name := range slices.Sorted(maps.Keys(known)) {
			known[name] = fmt.Sprintf("%s-%0*d", of, width, i+1)
		}
	}
	return r
}

// Objects puts the stand-ins in place of what stands in objects.
func (r *Redactor) Objects(o *snapshot.Objects) { r.visitor().objects(o) }

// Config returns a configuration with stand-ins, and without the way to the API server
// and the file patterns of the log, which are free text and shape no rule.
func (r *Redactor) Config(c *config.Config) *config.Config {
	out := *c
	r.visitor().config(&out)
	out.ClientConnection.Kubeconfig, out.ResourceContainer = "", ""
	out.Logging.VModule = nil
	return &out
}

func (r *Redactor) visitor() *visitor { return &visitor{name: r.Name, prefix: r.Prefix} }

// Name returns the stand-in of a name, or the name where there is none.
func (r *Redactor) Name(of Class, name string) string {
	if out, ok := r.names[of][name]; ok {
		return out
	}
	return name
}

// All calls yield for each stand-in with its original: names by class, then ranges and
// addresses, each in order, until it returns false.
func (r *Redactor) All(yield func(standIn, original string) bool) {
	for _, of := range slices.Sorted(maps.Keys(r.names)) {
		for _, name := range slices.Sorted(maps.Keys(r.names[of])) {
			if !yield(r.names[of][name], name) {
				return
			}
		}
	}
	for _, p := range slices.SortedFunc(maps.Keys(r.seen), netip.Prefix.Compare) {
		standIn, original := r.Prefix(p).String(), p.String()
		if p.IsSingleIP() {
			standIn, original = r.Addr(p.Addr()).String(), p.Addr().String()
		}
		if !yield(standIn, original) {
			return
		}
	}
}

// Addr returns the stand-in of an address, which it may not have seen.
func (r *Redactor) Addr(a netip.Addr) netip.Addr {
	if a.Is4In6() {
		return netip.AddrFrom16(r.v4.of(a.Unmap()).As16())
	}
	return r.family(a).of(a)
}

// Prefix returns the stand-in of a range, or of an address with the length of its range.
func (r *Redactor) Prefix(p netip.Prefix) netip.Prefix {
	out := netip.PrefixFrom(r.Addr(p.Addr()), p.Bits())
	if p == p.Masked() {
		return out.Masked()
	}
	return out
}

func (r *Redactor) family(a netip.Addr) *addresses {
	if a.Is4() {
		return r.v4
	}
	return r.v6
}

// visitor knows where what is replaced stands. What its functions return takes the place.
type visitor struct {
	name   func(Class, string) string
	prefix func(netip.Prefix) netip.Prefix
}

func (v *visitor) objects(o *snapshot.Objects) {
	for _, s := range o.Services {
		v.service(s)
	}
	for _, s := range o.Slices {
		v.slice(s)
	}
	for _, e := range o.Endpoints {
		v.meta(&e.ObjectMeta, Service)
		for i := range e.Subsets {
			v.subset(&e.Subsets[i])
		}
	}
	for _, n := range o.Nodes {
		v.meta(&n.ObjectMeta, Node)
		v.cidrs(n.Spec.PodCIDRs)
		for i := range n.Status.Addresses {
			word(v, &n.Status.Addresses[i].Type)
			v.addr(&n.Status.Addresses[i].Address)
		}
	}
	for _, c := range o.ServiceCIDRs {
		v.meta(&c.ObjectMeta, Range)
		v.cidrs(c.Spec.CIDRs)
	}
}

func (v *visitor) meta(m *metav1.ObjectMeta, of Class) {
	v.set(Namespace, &m.Namespace)
	v.set(of, &m.Name)
	for label, class := range map[string]Class{discoveryv1.LabelServiceName: Service, corev1.LabelTopologyZone: Zone} {
		if value, ok := m.Labels[label]; ok {
			v.set(class, &value)
			m.Labels[label] = value
		}
	}
	if text, ok := m.Annotations[snapshot.AnnotationIgnore]; ok {
		m.Annotations[snapshot.AnnotationIgnore] = ignoreWords.ReplaceAllStringFunc(text, func(word string) string {
			if !code.MatchString(word) { // somebody's reason, maybe
				v.set(Text, &word)
			}
			return word
		})
	}
}

// What the annotation of findings that are accepted has: words between commas and
// blanks, which should be codes.
var (
	ignoreWords = regexp.MustCompile(`[^, ]+`)
	code        = regexp.MustCompile(`^PX\d+$`)
)

// set replaces a name; none stays none.
func (v *visitor) set(of Class, name *string) {
	if *name != "" {
		*name = v.name(of, *name)
	}
}

// words are those that may stand where one of a few must.
var words = []string{"", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "TCP", "UDP", "SCTP", "IPv4", "IPv6", "FQDN", "VIP", "Proxy",
	"InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS",
	"maglev", "maglev-251", "maglev-1021", "maglev-4099", "maglev-16381", "maglev-65537"}

// word replaces what is none of the few that may stand there: it may be anything.
func word[T ~string](v *visitor, text *T) {
	if !slices.Contains(words, string(*text)) {
		*text = T(v.name(Text, string(*text)))
	}
}

func (v *visitor) service(s *corev1.Service) {
	v.meta(&s.ObjectMeta, Service)
	if text, ok := s.Annotations[snapshot.AnnotationBalance]; ok {
		word(v, &text)
		s.Annotations[snapshot.AnnotationBalance] = text
	}
	spec := &s.Spec
	word(v, &spec.Type)
	for i := range spec.IPFamilies {
		word(v, &spec.IPFamilies[i])
	}
	v.addr(&spec.ClusterIP)
	v.addrs(spec.ClusterIPs)
	v.addrs(spec.ExternalIPs)
	v.cidrs(spec.LoadBalancerSourceRanges)
	for i := range spec.Ports {
		v.set(Port, &spec.Ports[i].Name)
		word(v, &spec.Ports[i].Protocol)
	}
	if len(spec.Selector) > 0 {
		selector := map[string]string{}
		for key, value := range spec.Selector {
			selector[v.name(Label, key)] = v.name(Label, value)
		}
		spec.Selector = selector
	}
	for i := range s.Status.LoadBalancer.Ingress {
		in := &s.Status.LoadBalancer.Ingress[i]
		v.addr(&in.IP)
		if in.IPMode != nil {
			word(v, in.IPMode)
		}
	}
}

func (v *visitor) slice(s *discoveryv1.EndpointSlice) {
	v.meta(&s.ObjectMeta, Slice)
	word(v, &s.AddressType)
	for i := range s.Ports {
		if name := s.Ports[i].Name; name != nil {
			v.set(Port, name)
		}
		if s.Ports[i].Protocol != nil {
			word(v, s.Ports[i].Protocol)
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		v.addrs(e.Addresses)
		v.place(e.NodeName, e.TargetRef)
		if e.Hints == nil {
			continue
		}
		for j := range e.Hints.ForZones {
			v.set(Zone, &e.Hints.ForZones[j].Name)
		}
		for j := range e.Hints.ForNodes {
			v.set(Node, &e.Hints.ForNodes[j].Name)
		}
	}
}

func (v *visitor) subset(s *corev1.EndpointSubset) {
	for i := range s.Ports {
		v.set(Port, &s.Ports[i].Name)
		word(v, &s.Ports[i].Protocol)
	}
	for i := range s.Addresses {
		v.addr(&s.Addresses[i].IP)
		v.place(s.Addresses[i].NodeName, s.Addresses[i].TargetRef)
	}
}

// place replaces what tells where an endpoint is.
func (v *visitor) place(node *string, target *corev1.ObjectReference) {
	if node != nil {
		v.set(Node, node)
	}
	if target != nil {
		v.set(Pod, &target.Name)
	}
}

func (v *visitor) addrs(texts []string) {
	for i := range texts {
		v.addr(&texts[i])
	}
}

// addr replaces a text that should be an address.
func (v *visitor) addr(text *string) {
	a, ok := inet.ParseAddr(*text)
	switch {
	case *text == corev1.ClusterIPNone:
		return
	case !ok:
		v.set(Text, text)
		return
	}
	mapped := a.Is4In6()
	a = v.prefix(netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())).Addr()
	if mapped {
		a = netip.AddrFrom16(a.As16())
	}
	out := a.String()
	if _, err := netip.ParseAddr(*text); err != nil && a.Is4() {
		out = "0" + out // zeros before numbers are worth a finding
	}
	*text = out
}

func (v *visitor) cidrs(texts []string) {
	for i := range texts {
		v.cidr(&texts[i])
	}
}

// cidr replaces a text that should be a CIDR; blanks around it stay.
func (v *visitor) cidr(text *string) {
	trimmed := strings.TrimSpace(*text)
	p, ok := inet.ParsePrefix(trimmed)
	if !ok {
		v.set(Text, text)
		return
	}
	before, after, _ := strings.Cut(*text, trimmed)
	out := v.prefix(p)
	written := out.String()
	if addr, _, _ := strings.Cut(trimmed, "/"); !isBase(addr, p) {
		written = netip.PrefixFrom(lastBit(out.Addr()), out.Bits()).String()
	}
	*text = before + written + after
}

// isBase reports whether an address is the first one of a range, and not another.
func isBase(addr string, of netip.Prefix) bool {
	a, _ := inet.ParseAddr(addr)
	return a.Unmap() == of.Addr()
}

// lastBit sets the last bit of an address.
func lastBit(a netip.Addr) netip.Addr {
	bytes := a.AsSlice()
	bytes[len(bytes)-1] |= 1
	out, _ := netip.AddrFromSlice(bytes)
	return out
}

// config replaces what stands in a configuration. Its lists are not changed, but replaced.
func (v *visitor) config(c *config.Config) {
	v.set(Node, &c.HostnameOverride)
	v.optional(&c.BindAddress)
	v.hostPort(&c.HealthzBindAddress)
	v.hostPort(&c.MetricsBindAddress)
	v.optional(&c.Winkernel.SourceVip)
	clusters := strings.Split(c.ClusterCIDR, ",")
	v.cidrs(clusters)
	c.ClusterCIDR = strings.Join(clusters, ",")
	for _, list := range []*[]string{&c.NodePortAddresses, &c.IPVS.ExcludeCIDRs} {
		*list = slices.Clone(*list)
		for i := range *list {
			if text := &(*list)[i]; strings.Contains(*text, "/") { // else it is a word
				v.cidr(text)
			}
		}
	}
}

// optional replaces an address, if there is one.
func (v *visitor) optional(text *string) {
	if _, ok := inet.ParseAddr(*text); ok {
		v.addr(text)
	}
}

// hostPort replaces the address of one with a port.
func (v *visitor) hostPort(text *string) {
	if at, err := netip.ParseAddrPort(*text); err == nil {
		host := at.Addr().String()
		v.addr(&host)
		*text = netip.AddrPortFrom(netip.MustParseAddr(host), at.Port()).String()
		return
	}
	v.optional(text)
}
