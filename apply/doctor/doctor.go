// Package doctor checks a node before proxyc runs on it: the features of its kernel, interference
// by other programs, and the connection to the API server. It changes nothing.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/daemon/host"
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
	Writer       func() (owner, killed string)         // the process that writes the node's rules, and a killed one; "" for none
	Missing      func(context.Context) (string, error) // which rules of Services are missing that proxyc wrote; "" for none
	Lock         func() error                          // why the writer's lock cannot be written
	API          *API                                  // optional
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
		{n.Missing != nil, e.missing},
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
	none  bool                   // the node has no rules for Services
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
	for _, f := range ir.Families() {
		severity, only := Error, ""
		if f != first {
			severity, only = Warning, ", if the cluster uses "+f.String()
		}
		switch s, problem := sysctl.Forwarding(e.Root, f); {
		case problem != "":
			e.add("forwarding", severity, "sysctl -w "+s.Name()+"=1, and set it in /etc/sysctl.d"+only, "%s", problem)
		case s.Have != "":
			e.add("forwarding", OK, "", "%s is %s", s.Name(), s.Have)
		}
	}
}

// localhost checks whether machines on the same link reach listeners on localhost.
func (e *examination) localhost(context.Context) {
	if exposed := sysctl.Exposure(e.Root, e.Mode); exposed != "" {
		e.add("localhost", Warning, "sysctl -w net.ipv4.conf.all.route_localnet=0, unless another program needs it", "%s", exposed)
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
	nft, legacy := counts["nft"], counts["legacy"]
	if nft > 0 && legacy > 0 {
		e.add(check, Warning, "configure all programs to use one variant (update-alternatives --set iptables …), and flush the other", "both variants have rules, and packets pass both: %d of nft, %d of legacy", nft, legacy)
	} else {
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
		e.add(check, Warning, "check that it accepts packets to Services and to their pods", "may drop: %s", rule)
	}
	for _, rule := range found.Diverts {
		e.add(check, Warning, "check that it does not match addresses of Services", "may divert: %s", rule)
	}
	for _, rule := range found.Sources {
		e.add(check, OK, "", "may change the client's address: %s", rule)
	}
	for _, rule := range found.Ignored {
		e.add(check, OK, "", "no Service has its family: %s", rule)
	}
	for _, setting := range found.Settings {
		if !slices.ContainsFunc(e.found, func(f Finding) bool { return f.Found == setting }) {
			e.add("routing", Warning, "check ip address, ip rule, ip route show table all, bridge -d link, and sysctl net", "%s", setting)
		}
	}
	if err == nil && len(found.Drops)+len(found.Diverts) == 0 {
		e.add(check, OK, "", "none that may drop or divert packets to Services")
	}
}

// leftovers checks for rules of kube-proxy, or of proxyc in other modes.
func (e *examination) leftovers(ctx context.Context) {
	const check = "kube-proxy"
	left, err := e.Leftovers(ctx)
	if err != nil {
		e.add(check, Warning, "run as root, in the node's network namespace", "%s", err)
		return
	}
	e.none = len(left) == 0
	who := ""
	if e.Writer != nil {
		who, _ = e.Writer()
	}
	peer := host.OfKubeProxy(left)
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
	owner, killed := e.Writer()
	if killed != "" {
		e.add("lock", Warning, "start proxyc watch, or run proxyc apply, or proxyc cleanup if the node needs no rules", "no proxyc updates this node's rules: %s was the last, and was killed", killed)
		return
	}
	e.add("lock", OK, "", "this node's rules are written by %s", cmp.Or(owner, "no proxyc"))
}

// missing checks for rules that proxyc wrote, and that another program removed.
func (e *examination) missing(ctx context.Context) {
	const check = "rules"
	missing, err := e.Missing(ctx)
	if err != nil && e.none {
		missing = "there are none for Services, although proxyc wrote some"
	}
	switch {
	case missing != "":
		e.add(check, Error, "run proxyc status: it shows what a daemon waits for; or start proxyc watch, or run proxyc apply, or proxyc cleanup if the node needs none", "%s", missing)
	case err != nil:
		e.add(check, Warning, "start proxyc watch, or add --snapshot", "%s", err)
	}
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
