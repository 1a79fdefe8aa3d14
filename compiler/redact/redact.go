package redact

import (
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/compiler/snapshot"
)

// Class is the kind of object that a name identifies. Equal names of one class
// have the same stand-in everywhere.
type Class string

// The classes, which are the prefixes of their stand-ins.
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
	Link      Class = "link" // interfaces, and networks and endpoints of HNS
	Text      Class = "text" // invalid text in place of an address, a code or a keyword
)

// Redactor maps the names and addresses of its input to their stand-ins.
type Redactor struct {
	v4, v6 *addresses
	seen   map[netip.Prefix]bool
	names  map[Class]map[string]string
}

// New returns a Redactor for objects, a configuration (optional), the name of a
// node (optional) and of its interfaces, and more ranges or addresses with prefix length.
func New(o *snapshot.Objects, c *config.Config, node string, links []string, more ...netip.Prefix) *Redactor {
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
	for _, link := range links {
		see.set(Link, &link)
	}
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

// Objects replaces names and addresses in objects by their stand-ins.
func (r *Redactor) Objects(o *snapshot.Objects) { r.visitor().objects(o) }

// Config returns a copy of a configuration with stand-ins. It omits the access to
// the API server, the file patterns of the log, and the removed field
// resourceContainer, which are free text and affect no rule.
func (r *Redactor) Config(c *config.Config) *config.Config {
	out := *c
	r.visitor().config(&out)
	out.ClientConnection, out.ResourceContainer = config.ClientConnection{QPS: c.ClientConnection.QPS, Burst: c.ClientConnection.Burst}, ""
	out.Logging.VModule = nil
	return &out
}

func (r *Redactor) visitor() *visitor { return &visitor{name: r.Name, prefix: r.Prefix} }

// Name returns the stand-in of a name, or the name itself if it is unknown.
func (r *Redactor) Name(of Class, name string) string {
	if out, ok := r.names[of][name]; ok {
		return out
	}
	return name
}

// All calls yield for each stand-in with its original until yield returns false:
// names by class, then ranges and addresses, each sorted.
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

// Addr returns the stand-in of an address, even if it is not in the input.
func (r *Redactor) Addr(a netip.Addr) netip.Addr {
	if a.Is4In6() {
		return netip.AddrFrom16(r.v4.of(a.Unmap()).As16())
	}
	return r.family(a).of(a)
}

// Prefix returns the stand-in of a range, or of an address with the prefix length
// of its range.
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

// visitor visits all fields that are replaced. It stores the results of its
// functions in these fields.
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
		for i := range n.Spec.Taints {
			v.set(Label, &n.Spec.Taints[i].Key)
			v.set(Label, &n.Spec.Taints[i].Value)
			word(v, &n.Spec.Taints[i].Effect)
		}
		for i := range n.Status.Addresses {
			word(v, &n.Status.Addresses[i].Type)
			v.addr(&n.Status.Addresses[i].Address)
		}
		for _, v := range []*string{&n.Status.NodeInfo.KernelVersion, &n.Status.NodeInfo.KubeletVersion} {
			*v = version.FindString(*v) // without the builder's suffix
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
			if !code.MatchString(word) { // possibly free text
				v.set(Text, &word)
			}
			return word
		})
	}
}

// The value of the annotation for suppressed findings: words separated by commas
// and blanks. Valid words are codes.
var (
	ignoreWords = regexp.MustCompile(`[^, ]+`)
	code        = regexp.MustCompile(`^PX\d+$`)
	version     = regexp.MustCompile(`^v?\d+(\.\d+)*`)
	portRange   = regexp.MustCompile(`^[\d+-]*$`)
)

// set replaces a name unless it is nil or empty.
func (v *visitor) set(of Class, name *string) {
	if name != nil && *name != "" {
		*name = v.name(of, *name)
	}
}

// words are the valid keywords of all fields that require a keyword.
var words = []string{"", "ClusterIP", "NodePort", "LoadBalancer", "ExternalName", "TCP", "UDP", "SCTP", "IPv4", "IPv6", "FQDN", "VIP", "Proxy",
	"SingleStack", "PreferDualStack", "RequireDualStack", "PreferClose", "PreferSameZone", "PreferSameNode", "Local", "Cluster",
	"NoSchedule", "PreferNoSchedule", "NoExecute", "InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS",
	"maglev", "maglev-251", "maglev-1021", "maglev-4099", "maglev-16381", "maglev-65537",
	"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh", "mh-port", "mh-fallback"}

// word replaces an invalid keyword, which may be any text; nil for none.
func word[T ~string](v *visitor, text *T) {
	if text != nil && !slices.Contains(words, string(*text)) {
		*text = T(v.name(Text, string(*text)))
	}
}

func (v *visitor) service(s *corev1.Service) {
	snapshot.WithoutSettings(s)
	v.meta(&s.ObjectMeta, Service)
	if text, ok := s.Annotations[snapshot.AnnotationBalance]; ok {
		word(v, &text)
		s.Annotations[snapshot.AnnotationBalance] = text
	}
	spec := &s.Spec
	word(v, &spec.Type)
	word(v, spec.IPFamilyPolicy)
	word(v, spec.TrafficDistribution)
	v.set(Text, spec.LoadBalancerClass)
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
		v.set(Port, &spec.Ports[i].TargetPort.StrVal)
	}
	spec.Selector, s.Labels = v.labels(spec.Selector), v.labels(s.Labels)
	for i := range s.Status.LoadBalancer.Ingress {
		in := &s.Status.LoadBalancer.Ingress[i]
		v.addr(&in.IP)
		word(v, in.IPMode)
	}
}

// labels replaces keys and values, except keys that affect packets.
func (v *visitor) labels(all map[string]string) map[string]string {
	if len(all) == 0 {
		return nil
	}
	out := make(map[string]string, len(all))
	for key, value := range all {
		if key != snapshot.LabelProxyName && key != corev1.IsHeadlessService {
			v.set(Label, &key)
		}
		v.set(Label, &value)
		out[key] = value
	}
	return out
}

func (v *visitor) slice(s *discoveryv1.EndpointSlice) {
	v.meta(&s.ObjectMeta, Slice)
	word(v, &s.AddressType)
	for i := range s.Ports {
		v.set(Port, s.Ports[i].Name)
		word(v, s.Ports[i].Protocol)
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

// place replaces the fields that identify where an endpoint runs.
func (v *visitor) place(node *string, target *corev1.ObjectReference) {
	v.set(Node, node)
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
		out = "0" + out // keep leading zeros, which cause a finding
	}
	*text = out
}

func (v *visitor) cidrs(texts []string) {
	for i := range texts {
		v.cidr(&texts[i])
	}
}

// cidr replaces a text that should be a CIDR and keeps the blanks around it.
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
	addr, _, _ := strings.Cut(trimmed, "/")
	if a, _ := inet.ParseAddr(addr); a.Unmap() != p.Addr() { // not the first address of the range
		written = netip.PrefixFrom(lastBit(out.Addr()), out.Bits()).String()
	}
	*text = before + written + after
}

// lastBit sets the last bit of an address.
func lastBit(a netip.Addr) netip.Addr {
	bytes := a.AsSlice()
	bytes[len(bytes)-1] |= 1
	out, _ := netip.AddrFromSlice(bytes)
	return out
}

// config replaces names and addresses in a configuration. It replaces its lists
// without changing the originals.
func (v *visitor) config(c *config.Config) {
	v.set(Node, &c.HostnameOverride)
	v.optional(&c.BindAddress)
	v.hostPort(&c.HealthzBindAddress)
	v.hostPort(&c.MetricsBindAddress)
	if c.Winkernel.SourceVip != "" {
		v.addr(&c.Winkernel.SourceVip)
	}
	for _, name := range []*string{&c.Winkernel.NetworkName, &c.Winkernel.RootHnsEndpointName, &c.DetectLocal.BridgeInterface, &c.DetectLocal.InterfaceNamePrefix} {
		v.set(Link, name)
	}
	scheduler := strings.Split(c.IPVS.Scheduler, ",") // with its flags
	for i := range scheduler {
		word(v, &scheduler[i])
	}
	c.IPVS.Scheduler = strings.Join(scheduler, ",")
	if !portRange.MatchString(c.PortRange) {
		v.set(Text, &c.PortRange)
	}
	clusters := strings.Split(c.ClusterCIDR, ",")
	v.cidrs(clusters)
	c.ClusterCIDR = strings.Join(clusters, ",")
	for _, list := range []*[]string{&c.NodePortAddresses, &c.IPVS.ExcludeCIDRs} {
		*list = slices.Clone(*list)
		for i := range *list {
			if text := &(*list)[i]; *text != config.NodePortsPrimary {
				v.cidr(text)
			}
		}
	}
}

// optional replaces a text if it is an address.
func (v *visitor) optional(text *string) {
	if inet.IsAddr(*text) {
		v.addr(text)
	}
}

// hostPort replaces the address in a host:port pair.
func (v *visitor) hostPort(text *string) {
	if at, err := netip.ParseAddrPort(*text); err == nil {
		host := at.Addr().String()
		v.addr(&host)
		*text = netip.AddrPortFrom(netip.MustParseAddr(host), at.Port()).String()
		return
	}
	v.optional(text)
}

// WriteAll writes each stand-in with its original, one per line.
func (r *Redactor) WriteAll(w io.Writer) (err error) {
	for standIn, original := range r.All {
		if _, err = fmt.Fprintf(w, "%s\t%s\n", standIn, original); err != nil {
			break
		}
	}
	return err
}

// Facts replaces the names and addresses of a node's Facts.
func (r *Redactor) Facts(f *compiler.Facts) {
	f.NodeName = r.Name(Node, f.NodeName)
	for i := range f.Interfaces {
		f.Interfaces[i].Name = r.Name(Link, f.Interfaces[i].Name)
		for j, a := range f.Interfaces[i].Addrs {
			f.Interfaces[i].Addrs[j] = r.Prefix(a)
		}
	}
}
