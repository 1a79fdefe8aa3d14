// Package doctor checks a node before proxyc runs on it: the features of its kernel, interference
// by other programs, and the connection to the API server. It changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/sysctl"
	"github.com/proxyc/proxyc/compiler"
	"github.com/proxyc/proxyc/ir"
)

// Status is the result of a check.
type Status string

const (
	OK      Status = "ok"
	Warning Status = "warning" // may be intended, or may fail later
	Error   Status = "error"   // proxyc does not work on this node
)

// Finding is the result of a check with its description.
type Finding struct {
	Check  string `json:"check"` // "mode nftables"
	Status Status `json:"status"`
	Found  string `json:"found"`
	Fix    string `json:"do,omitempty"` // fix
}

// Node contains the functions that query a node. Checks whose function is nil are skipped.
type Node struct {
	Root         sysctl.Root // root of the kernel's files
	Mode         ir.Mode     // configured mode
	Modes        []ir.Mode   // modes to try
	Try          func(ctx context.Context, mode ir.Mode) error
	Settings     func() ([]sysctl.Setting, error) // that differ from the required ones
	Bridges      func() ([]string, error)         // in the fast path of mode nftables
	RuleCounts   func(ctx context.Context) (map[string]int, error)
	Interference func(ctx context.Context) (apply.Interference, error)
	Leftovers    func(ctx context.Context) ([]apply.Leftover, error)
	Interfaces   func() ([]compiler.Interface, error)
	Writer       func() string // the process that writes the node's rules; "" for none
	Lock         func() error  // why the writer's lock cannot be written
	API          *API          // optional
}

// limit is the timeout of a check.
const limit = 30 * time.Second

// Examine runs all checks in order, and returns their findings.
func (n *Node) Examine(ctx context.Context) []Finding {
	e := &examination{Node: n}
	for _, check := range []struct {
		enabled bool
		run     func(context.Context)
	}{
		{true, e.modes},
		{n.Settings != nil, e.settings},
		{n.Interfaces != nil, e.interfaces},
		{true, e.forwarding},
		{true, e.localhost},
		{true, e.conntrack},
		{n.Bridges != nil, e.fastpath},
		{n.RuleCounts != nil, e.variants},
		{n.Interference != nil, e.interference},
		{n.Leftovers != nil, e.leftovers},
		{n.Writer != nil, e.writer},
		{n.API != nil, (&apiCheck{e, n.API}).run},
	} {
		if check.enabled {
			limited, cancel := context.WithTimeout(ctx, limit)
			check.run(limited)
			cancel()
		}
	}
	return e.found
}

// Healthy reports whether no finding is an error.
func Healthy(found []Finding) bool {
	return !slices.ContainsFunc(found, func(f Finding) bool { return f.Status == Error })
}

type examination struct {
	*Node
	found []Finding
	addrs ir.PerFamily[[]string] // interface addresses
}

func (e *examination) add(check string, s Status, do, found string, args ...any) {
	e.found = append(e.found, Finding{Check: check, Status: s, Found: strings.TrimSpace(fmt.Sprintf(found, args...)), Fix: do})
}

// modes tries each mode in the kernel. Each mode requires the lock.
func (e *examination) modes(ctx context.Context) {
	if e.Lock != nil {
		if err := e.Lock(); err != nil {
			do := "make /run/proxyc writable for root"
			if errors.Is(err, syscall.ENOSPC) {
				do = "free space in /run"
			}
			e.add("lock", Error, do, "cannot be written, so no mode can work, and none was tried: %s", err)
			return
		}
	}
	for _, m := range e.Modes {
		check := "mode " + string(m)
		switch err := e.Try(ctx, m); {
		case err == nil:
			e.add(check, OK, "", "the rules of a small cluster were written in a temporary network namespace")
		case m == e.Mode:
			e.add(check, Error, "fix the reported error, or choose another mode", "the configured mode does not work: %s", err)
		default:
			e.add(check, Warning, "nothing, unless you want this mode", "does not work: %s", err)
		}
	}
}

// settings checks the kernel settings that the configuration requires.
func (e *examination) settings(context.Context) {
	differ, err := e.Settings()
	for _, s := range differ {
		e.add("setting "+s.Name(), Warning, "proxyc apply --init-only", "is %s, must be %s", s.Have, s.Want)
	}
	switch {
	case err != nil:
		e.add("settings", Warning, "mount /proc/sys, or run in the node's namespaces", "%s", err)
	case len(differ) == 0:
		e.add("settings", OK, "", "match the configuration")
	}
}

// forwarding checks a setting that the configuration does not contain. Without it in the node's
// first family no pod is reachable. A cluster may not use the other family.
func (e *examination) forwarding(context.Context) {
	first := ir.IPv4
	if len(e.addrs.IPv4) == 0 && len(e.addrs.IPv6) > 0 {
		first = ir.IPv6
	}
	for _, f := range [...]struct {
		family     ir.Family
		path, name string
	}{
		{ir.IPv4, "proc/sys/net/ipv4/ip_forward", "net.ipv4.ip_forward"},
		{ir.IPv6, "proc/sys/net/ipv6/conf/all/forwarding", "net.ipv6.conf.all.forwarding"},
	} {
		severity, only := Error, ""
		if f.family != first {
			severity, only = Warning, ", if the cluster uses "+f.family.String()
		}
		switch value, err := e.Root.Read(f.path); {
		case err != nil: // the family does not exist
		case value == "0":
			e.add("forwarding", severity, "sysctl -w "+f.name+"=1, and set it in /etc/sysctl.d"+only, "%s is 0: the node forwards no packet to or from a pod", f.name)
		default:
			e.add("forwarding", OK, "", "%s is %s", f.name, value)
		}
	}
}

// localhost checks whether route_localnet is set although a process serves node ports on localhost.
// Mode iptables sets it for them, and protects listeners there by rules that other modes lack.
func (e *examination) localhost(context.Context) {
	if e.Mode.Capabilities().Has(ir.ProxiesLocalhost) && sysctl.RoutesLocalnet(e.Root) {
		e.add("localhost", Warning, "sysctl -w net.ipv4.conf.all.route_localnet=0, unless another program needs it",
			"net.ipv4.conf.all.route_localnet is 1, which mode %s does not need: machines on the same link can reach listeners on 127.0.0.1, unless foreign rules, such as kubelet's chain KUBE-FIREWALL, prevent it", e.Mode)
	}
}

// fastpath checks whether bridges keep packets from the fast path, if it is used.
func (e *examination) fastpath(context.Context) {
	const check = "fast path"
	bridges, err := e.Bridges()
	if err != nil {
		e.add(check, Warning, "nft list table inet proxyc-fastpath", "%s", err)
	}
	for _, name := range bridges {
		if on := sysctl.CallsIPTables(e.Root, name); on != "" {
			e.add(check, Warning, "set it to 0 if pods of this node reach each other by routes, not through the bridge",
				"packets of pods on bridge %s are translated before they reach the flowtable, so one direction of each connection does not use the fast path: %s", name, on)
		} else {
			e.add(check, OK, "", "packets of pods on bridge %s use it", name)
		}
	}
}

// variants checks which iptables variants contain rules. Each variant shows only its own.
func (e *examination) variants(ctx context.Context) {
	const check = "iptables"
	counts, err := e.RuleCounts(ctx)
	if err != nil {
		e.add(check, Warning, "run it manually", "%s", err)
		return
	}
	nft, hasNFT := counts["nft"]
	legacy, hasLegacy := counts["legacy"]
	switch {
	case nft > 0 && legacy > 0:
		e.add(check, Warning, "configure all programs to use one variant (update-alternatives --set iptables …), and flush the other", "both variants have rules, and packets pass both: %d of nft, %d of legacy", nft, legacy)
	case !hasNFT && !hasLegacy:
		e.add(check, OK, "", "no tools, or no tables; mode nftables requires none")
	default:
		e.add(check, OK, "", "rules: %d of nft, %d of legacy", nft, legacy)
	}
}

// interference checks the effects of foreign rules on packets to Services.
func (e *examination) interference(ctx context.Context) {
	const check = "foreign rules"
	found, err := e.Interference(ctx)
	if err != nil {
		e.add(check, Warning, "run as root, in the node's network namespace", "%s", err)
	}
	for _, rule := range found.Drops {
		e.add(check, Warning, "check that it accepts packets to Services and to their pods", "may drop: %s (%s)", rule, owner(rule))
	}
	for _, rule := range found.Diverts {
		e.add(check, Warning, "check that it does not match addresses of Services", "may divert: %s (%s)", rule, owner(rule))
	}
	for _, rule := range found.Sources {
		e.add(check, OK, "", "may change the client's address: %s (%s)", rule, owner(rule))
	}
	if err == nil && len(found.Drops)+len(found.Diverts) == 0 {
		e.add(check, OK, "", "none that may drop or divert packets to Services")
	}
}

// owner returns the probable owner of a chain, by its name.
func owner(rule string) string {
	lower := strings.ToLower(rule)
	for _, o := range [...]struct{ sign, name string }{
		{"firewalld", "firewalld"}, {"docker", "Docker"}, {"cali", "Calico"}, {"cilium", "Cilium"}, {"antrea", "Antrea"}, {"flannel", "flannel"},
		{"kube-router", "kube-router"}, {"weave", "Weave"}, {"cni-", "a CNI plugin"}, {"ufw", "ufw"}, {"istio", "Istio"}, {"fail2ban", "fail2ban"}, {"f2b-", "fail2ban"},
		{"libvirt", "libvirt"}, {"lxc", "LXC"}, {"podman", "Podman"}, {"netavark", "Podman"},
	} {
		if strings.Contains(lower, o.sign) {
			return "probably of " + o.name
		}
	}
	return "unknown owner"
}

// leftovers checks for rules of kube-proxy, or of proxyc in other modes.
func (e *examination) leftovers(ctx context.Context) {
	const check = "kube-proxy"
	left, err := e.Leftovers(ctx)
	if err != nil {
		e.add(check, Warning, "run as root, in the node's network namespace", "%s", err)
		return
	}
	who := ""
	if e.Writer != nil {
		who = e.Writer()
	}
	if len(left) == 0 && who != "" {
		e.add("rules", Error, "run proxyc status: it shows what the daemon waits for", "there are none for Services, although %s writes them", who)
	}
	var peer []string
	for _, l := range left {
		if l.KubeProxy {
			peer = append(peer, l.Object)
		}
	}
	if len(peer) == 0 {
		e.add(check, OK, "", "has no rules on this node")
		return
	}
	if who != "" {
		e.add(check, Warning, "stop one of them", "its rules exist in addition to those of %s: %s", who, strings.Join(peer, ", "))
		return
	}
	e.add(check, Warning, "nothing, if you only review; to take over the node, stop kube-proxy, then run proxyc apply --yes-takeover or proxyc watch", "its rules exist: %s", strings.Join(peer, ", "))
}

func (e *examination) writer(context.Context) {
	if who := e.Writer(); who != "" {
		e.add("lock", OK, "", "this node's rules are written by %s", who)
		return
	}
	e.add("lock", OK, "", "no proxyc writes this node's rules")
}

func (e *examination) interfaces(context.Context) {
	all, err := e.Interfaces()
	if err != nil {
		e.add("addresses", Error, "run in the node's network namespace", "%s", err)
		return
	}
	for _, i := range all {
		for _, a := range i.Addrs {
			if addr := a.Addr(); addr.IsGlobalUnicast() {
				of := e.addrs.At(ir.FamilyOf(addr))
				*of = append(*of, addr.String())
			}
		}
	}
	for _, f := range ir.Families() {
		if of := e.addrs.Of(f); len(of) > 0 {
			e.add("addresses", OK, "", "%s: %s", f, strings.Join(of, ", "))
		}
	}
	if len(e.addrs.IPv4)+len(e.addrs.IPv6) == 0 {
		e.add("addresses", Error, "run in the node's network namespace (hostNetwork: true)", "no interface has an address that other machines can reach")
	}
}
