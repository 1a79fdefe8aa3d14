package sysctl

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/config"
	"github.com/proxyc/proxyc/ir"
)

// maxConntrack caps the product of conntrack.maxPerCore and the number of CPUs. A larger table
// requires conntrack.min.
const maxConntrack = 1 << 20

// Host is the part of the host that the settings depend on.
type Host struct {
	CPUs   int
	Kernel Version
}

// Conntrack returns the connection tracking settings of the configuration, in any mode (DMN-33,
// conntrack sysctls are set once at start). Write them before the dataplane's rules, some of which
// depend on them.
func Conntrack(c *config.Conntrack, host Host) []Setting {
	var out []Setting
	add := func(key, field string, value int64) {
		out = append(out, conntrack(key, field, value))
	}
	if n := conntrackMax(c, host.CPUs); n > 0 {
		limit := conntrack("nf_conntrack_max", "conntrack.maxPerCore", n)
		// The kernel does not grow the hash table with the limit. Use four entries per bucket.
		buckets := conntrack("", "conntrack.maxPerCore", n/4)
		buckets.Path = hashsize
		limit.AtLeast, buckets.AtLeast = true, true // kube-proxy lowers the limit before 1.37
		out = append(out, limit, buckets)
	}
	if n := seconds(c.TCPEstablishedTimeout); n > 0 {
		add("nf_conntrack_tcp_timeout_established", "conntrack.tcpEstablishedTimeout", n)
	}
	if n := seconds(c.TCPCloseWaitTimeout); n > 0 {
		add("nf_conntrack_tcp_timeout_close_wait", "conntrack.tcpCloseWaitTimeout", n)
	}
	if c.TCPBeLiberal {
		add(beLiberal, "conntrack.tcpBeLiberal", 1)
	}
	if n := seconds(&c.UDPTimeout); n > 0 {
		add("nf_conntrack_udp_timeout", "conntrack.udpTimeout", n)
	}
	if n := seconds(&c.UDPStreamTimeout); n > 0 {
		add("nf_conntrack_udp_timeout_stream", "conntrack.udpStreamTimeout", n)
	}
	return out
}

// Liberal reports whether the kernel treats TCP packets outside the window as valid, whichever
// program set this.
func Liberal(root Root) bool {
	value, err := root.Read(procSys + "net/netfilter/" + beLiberal)
	return err == nil && value != "0"
}

// Forwarding returns the setting with which the kernel forwards packets of a family, with its value in
// Have; that is empty if the kernel lacks the family. problem is the effect of a wrong value.
func Forwarding(root Root, f ir.Family) (s Setting, problem string) {
	s = Setting{Path: map[ir.Family]string{ir.IPv4: procSys + "net/ipv4/ip_forward", ir.IPv6: procSys + "net/ipv6/conf/all/forwarding"}[f], Want: "1"}
	if s.Have, _ = root.Read(s.Path); s.Have == "0" {
		problem = fmt.Sprintf("%s is 0: the node forwards no %s packet to or from a pod", s.Name(), f)
	}
	return s, problem
}

// Tracked returns how many connections the kernel tracks, and how many at most; 0 if it tracks none yet. full is the
// effect if few or no more can be added.
func Tracked(root Root) (count, limit uint64, full string) {
	number := func(name string) uint64 {
		text, _ := root.Read(procSys + "net/netfilter/" + name)
		n, _ := strconv.ParseUint(text, 10, 64)
		return n
	}
	count, limit = number("nf_conntrack_count"), number("nf_conntrack_max")
	if limit > 0 && count*100 >= limit*95 {
		full = fmt.Sprintf("connection tracking is full or nearly (net.netfilter.nf_conntrack_max is %d): new connections may be dropped", limit)
	}
	return count, limit, full
}

// Exposure returns the effect of route_localnet, if it is set although a process serves node ports on
// localhost in the mode; otherwise "". Mode iptables sets it for them, and protects listeners there by
// rules that other modes lack.
func Exposure(root Root, mode ir.Mode) string {
	if !mode.Capabilities().Has(ir.ProxiesLocalhost) || !RoutesLocalnet(root) {
		return ""
	}
	return fmt.Sprintf("net.ipv4.conf.all.route_localnet is 1, which mode %s does not need: machines on the same link can reach listeners on 127.0.0.1, unless foreign rules, such as kubelet's chain KUBE-FIREWALL, prevent it", mode)
}

// RoutesLocalnet reports whether the kernel accepts packets to and from 127.0.0.0/8 on other
// interfaces than lo.
func RoutesLocalnet(root Root) bool {
	value, err := root.Read(routeLocalnet)
	return err == nil && value == "1"
}

// RequiresLocalnet reports whether the mode sends packets to and from 127.0.0.0/8 through other
// interfaces, and protects the listeners on those addresses.
func RequiresLocalnet(node *ir.Node) bool {
	of := &node.NodePorts
	overlaps := func(r ir.NodePortPrefix) bool { return r.Prefix.Overlaps(ir.IPv4.Loopback()) }
	return node.Mode.Capabilities().Has(ir.LocalhostNodePorts) && !node.Mode.ByProcess() && of.Loopback && (of.All || slices.ContainsFunc(of.Prefixes, overlaps))
}

// CallsIPTables returns the settings that pass packets from a bridge to the IPv4 and IPv6 hooks,
// including those of nf_tables, before they leave the bridge: "net.bridge.bridge-nf-call-iptables =
// 1"; "" if there is none. Each family has one setting per network namespace and one per bridge.
// One that is set suffices. Both require module br_netfilter, which provides the first.
func CallsIPTables(root Root, bridge string) string {
	var on []string
	for _, tables := range []string{"iptables", "ip6tables"} {
		all := procSys + "net/bridge/bridge-nf-call-" + tables
		if _, err := root.Read(all); err != nil {
			continue
		}
		for _, path := range []string{all, "sys/class/net/" + bridge + "/bridge/nf_call_" + tables} {
			if have, err := root.Read(path); err == nil && have != "0" {
				on = append(on, Setting{Path: path}.Name()+" = "+have)
			}
		}
	}
	return strings.Join(on, ", ")
}

const routeLocalnet = procSys + "net/ipv4/conf/all/route_localnet"

const beLiberal = "nf_conntrack_tcp_be_liberal"

func conntrack(key, field string, value int64) Setting {
	return Setting{
		Path: procSys + "net/netfilter/" + key,
		Want: strconv.FormatInt(value, 10),
		Why:  ir.Origin{Object: "config", Field: field},
	}
}

// conntrackMax returns the number of connections to track; 0 keeps the kernel's value.
func conntrackMax(c *config.Conntrack, cpus int) int64 {
	if c.MaxPerCore == nil || *c.MaxPerCore <= 0 {
		return 0
	}
	n := min(int64(*c.MaxPerCore)*int64(cpus), maxConntrack)
	if c.Min != nil {
		n = max(n, int64(*c.Min))
	}
	return n
}

// seconds returns whole seconds: 0 if unset or not positive, otherwise at least 1.
func seconds(d *metav1.Duration) int64 {
	if d == nil || d.Duration <= 0 {
		return 0
	}
	return max(1, int64(d.Duration/time.Second))
}

// Dataplane returns the settings that the mode requires. node is that of the IPv4 Program; its
// settings apply to both families.
func Dataplane(node *ir.Node, host Host) []Setting {
	switch {
	case RequiresLocalnet(node):
		// Packets from 127.0.0.1 to a node port leave the node after translation, which the
		// kernel rejects by default. The setting is never reset after rules used it, since
		// another program may depend on it.
		return []Setting{{
			Path: routeLocalnet, Want: "1",
			Why: ir.Origin{Object: "config", Field: "iptables.localhostNodePorts"},
		}}
	case node.IPVS != nil:
		return ipvs(node.IPVS, host.Kernel)
	}
	return nil
}

// ipvs returns the settings of mode ipvs (IPV-9). Both families set the same keys.
func ipvs(c *ir.IPVS, kernel Version) []Setting {
	mode := ir.Origin{Object: "config", Field: "mode", Reason: "ipvs"}
	set := func(key, value string) Setting {
		return Setting{Path: procSys + "net/ipv4/" + key, Want: value, Why: mode}
	}
	out := []Setting{set("vs/conntrack", "1")}
	// Before 5.9, a client port that was reused within two minutes was either delayed by a second or
	// sent to the old backend. 0 selects the latter, which is less harmful. Kernels before 4.1 lack
	// the setting.
	if !kernel.Before(4, 1) && kernel.Before(5, 9) {
		out = append(out, set("vs/conn_reuse_mode", "0"))
	}
	out = append(out, set("vs/expire_nodest_conn", "1"), set("vs/expire_quiescent_template", "1"), set("ip_forward", "1"))
	if c.StrictARP {
		for _, s := range []Setting{set("conf/all/arp_ignore", "1"), set("conf/all/arp_announce", "2")} {
			s.Why = ir.Origin{Object: "config", Field: "ipvs.strictARP"}
			out = append(out, s)
		}
	}
	return out
}

// OOMScore makes the kernel kill other processes before this one. It applies to a daemon, which
// also runs if it cannot be set.
func OOMScore(c *config.Config) []Setting {
	if c.OOMScoreAdj == nil {
		return nil
	}
	return []Setting{{
		Path: oomScore, Want: strconv.Itoa(int(*c.OOMScoreAdj)), Optional: true,
		Why: ir.Origin{Object: "config", Field: "oomScoreAdj"},
	}}
}

// Version is a kernel version.
type Version struct{ Major, Minor int }

// Before reports whether v is older than major.minor.
func (v Version) Before(major, minor int) bool {
	return v.Major < major || v.Major == major && v.Minor < minor
}

// ParseVersion parses the output of uname -r: "5.10.0-28-amd64". An invalid version is older than
// any other.
func ParseVersion(s string) Version {
	var out Version
	for i, field := range []*int{&out.Major, &out.Minor} {
		parts := strings.SplitN(s, ".", 3)
		if i >= len(parts) {
			break
		}
		digits := parts[i][:len(parts[i])-len(strings.TrimLeft(parts[i], "0123456789"))]
		n, err := strconv.Atoi(digits)
		if err != nil {
			return out
		}
		*field = n
	}
	return out
}

// ReadHost reads the number of CPUs and the kernel's version. It counts the CPUs that are online,
// which may be more than this process may use. fallback is used if they cannot be read.
func ReadHost(root Root, fallback int) Host {
	host := Host{CPUs: fallback}
	if online, err := root.Read("sys/devices/system/cpu/online"); err == nil {
		if n := countCPUs(online); n > 0 {
			host.CPUs = n
		}
	}
	if release, err := root.Read(procSys + "kernel/osrelease"); err == nil {
		host.Kernel = ParseVersion(release)
	}
	return host
}

// countCPUs counts the members of a list such as "0-3,8"; 0 if it is invalid.
func countCPUs(list string) int {
	n := 0
	for part := range strings.SplitSeq(list, ",") {
		first, last, ok := strings.Cut(part, "-")
		if !ok {
			last = first
		}
		a, errA := strconv.Atoi(first)
		b, errB := strconv.Atoi(last)
		if errA != nil || errB != nil || b < a {
			return 0
		}
		n += b - a + 1
	}
	return n
}
