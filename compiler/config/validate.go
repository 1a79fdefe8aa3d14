package config

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/ir"
)

// Validate checks a configuration with defaults, by the rules of the newest
// kube-proxy. It returns all errors (CFG-10), sorted by path. It checks only the
// sections that the mode uses (CFG-12), and iptables.masqueradeBit.
func Validate(c *Config) diag.List {
	v := &validator{c: c, release: Peer}
	return v.all()
}

func (v *validator) all() diag.List {
	v.gates()
	v.general()
	v.logging()
	v.addresses()
	v.mode()
	v.detectLocal()
	v.nodePortAddresses()
	v.notNegative("conntrack.maxPerCore", "conntrack.min", "conntrack.tcpEstablishedTimeout", "conntrack.tcpCloseWaitTimeout",
		"conntrack.udpTimeout", "conntrack.udpStreamTimeout")
	v.userspace()
	v.diags.Sort()
	return v.diags
}

type validator struct {
	c       *Config
	release Release
	exact   bool // gates of other releases are errors
	diags   diag.List
}

// wrong reports a value if is holds.
func (v *validator) wrong(is bool, path, format string, args ...any) {
	if is {
		v.errorf(path, format, args...)
	}
}

func (v *validator) errorf(path, format string, args ...any) {
	v.diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.ConfigValue, Path: path, Msg: fmt.Sprintf(format, args...)})
}

func (v *validator) general() {
	c := v.c
	v.notNegative("clientConnection.burst")
	v.wrong(c.ClientConnection.Burst == 0 && c.ClientConnection.QPS > 0, "clientConnection.burst", "must be more than 0 if qps is, got 0")
	v.positive("configSyncPeriod", c.ConfigSyncPeriod)
	if adj := c.OOMScoreAdj; adj != nil {
		v.within("oomScoreAdj", *adj, -1000, 1000)
	}
	hidden := c.ShowHiddenMetricsForVersion
	v.wrong(hidden != "" && !isMinor(hidden), "showHiddenMetricsForVersion", `must be empty or a minor release such as "1.35", got %q`, hidden)
	v.wrong(c.HostnameOverride != "" && nodeName(c.HostnameOverride) == "", "hostnameOverride", "must be empty or a name, got %q", c.HostnameOverride)
}

func (v *validator) addresses() {
	c := v.c
	v.wrong(!inet.IsAddr(c.BindAddress), "bindAddress", "must be an IP address, got %q", c.BindAddress)
	if c.HealthzBindAddress != "" {
		v.hostPort("healthzBindAddress", c.HealthzBindAddress)
	}
	// The empty address is an error here, although the help of the flags states
	// that it disables the server (CFG-13).
	v.hostPort("metricsBindAddress", c.MetricsBindAddress)
}

func (v *validator) hostPort(path, value string) {
	host, port, ok := splitHostPort(value)
	_, isIP := inet.ParseAddr(host)
	n, err := strconv.Atoi(port)
	v.wrong(!ok || !isIP || err != nil || n < 1 || n > math.MaxUint16, path,
		`must be IP:port such as "127.0.0.1:10249" or "[::1]:10249", port 1-65535, got %q`, value)
}

func (v *validator) mode() {
	c := v.c
	v.masqueradeBit("iptables.masqueradeBit", c.IPTables.MasqueradeBit)
	switch c.ProxyMode() {
	case ir.ModeIPTables, ir.ModeKernelspace, ir.ModeUserspace, "":
		v.syncPeriods("iptables", c.IPTables.SyncPeriod, c.IPTables.MinSyncPeriod)
	case ir.ModeIPVS:
		v.ipvs()
	case ir.ModeNFTables:
		v.modeGate(gateNFTables)
		v.masqueradeBit("nftables.masqueradeBit", c.NFTables.MasqueradeBit)
		v.syncPeriods("nftables", c.NFTables.SyncPeriod, c.NFTables.MinSyncPeriod)
	default:
		v.oneOf("mode", c.Mode, ir.ModeNames()...)
	}
}

// modeGate checks that the gate of the mode is on.
func (v *validator) modeGate(gate string) {
	v.wrong(!enabledIn(v.release, v.c.FeatureGates, gate), "mode", "must not be %s while feature gate %s is off", v.c.Mode, gate)
}

func (v *validator) ipvs() {
	c := v.c
	v.modeGate(gateIPVS)
	v.syncPeriods("ipvs", c.IPVS.SyncPeriod, c.IPVS.MinSyncPeriod)
	v.scheduler()
	v.notNegative("ipvs.tcpTimeout", "ipvs.tcpFinTimeout", "ipvs.udpTimeout")
	for i, cidr := range c.IPVS.ExcludeCIDRs {
		v.wrong(!inet.IsPrefix(cidr), fmt.Sprintf("ipvs.excludeCIDRs[%d]", i), `must be a CIDR such as "10.0.0.0/8", got %q`, cidr)
	}
}

// schedulers are the schedulers of Linux.
var schedulers = [...]string{"rr", "wrr", "lc", "wlc", "lblc", "lblcr", "sh", "dh", "sed", "nq", "fo", "ovf", "mh"}

// scheduler warns of a scheduler that Linux does not provide. kube-proxy accepts
// any name, and the kernel rejects the Services unless a module of that name
// exists.
func (v *validator) scheduler() {
	name, _, ok := ir.ParseScheduler(v.c.Scheduler())
	if !ok || name != "" && !ir.IsInterfaceName(name) { // the kernel limits both names in the same way
		v.errorf("ipvs.scheduler", `must be a name such as "rr", for mh and sh with flags such as "mh,mh-fallback,mh-port", got %q`, v.c.IPVS.Scheduler)
		return
	}
	if !slices.Contains(schedulers[:], name) {
		v.diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.ConfigValue, Path: "ipvs.scheduler", Hint: diag.DidYouMean(name, schedulers[:]),
			Msg: fmt.Sprintf("is none of %s, got %q: a kernel without its module rejects all Services", strings.Join(schedulers[:], ", "), name)})
	}
}

// detectBy checks the name that detectLocalMode requires.
func (v *validator) detectBy(field, must, suffix, name string) {
	if path := "detectLocal." + field; name == "" {
		v.errorf(path, "%s, because detectLocalMode is %s", must, v.c.DetectLocalMode)
	} else {
		v.interfaceName(path, suffix, name)
	}
}

func (v *validator) detectLocal() {
	c := v.c
	switch c.DetectLocalMode {
	case "", DetectClusterCIDR:
		v.clusterCIDR()
	case DetectNodeCIDR:
	case DetectBridgeInterface:
		v.detectBy("bridgeInterface", "must name an interface", "", c.DetectLocal.BridgeInterface)
	case DetectInterfaceNamePrefix:
		v.detectBy("interfaceNamePrefix", "must be the prefix of interface names", "+", c.DetectLocal.InterfaceNamePrefix)
	default:
		v.oneOf("detectLocalMode", c.DetectLocalMode, DetectClusterCIDR, DetectNodeCIDR, DetectBridgeInterface, DetectInterfaceNamePrefix)
	}
}

// interfaceName checks a name to which the tools add a suffix. kube-proxy accepts any name, and all its
// syncs fail.
func (v *validator) interfaceName(path, suffix, name string) {
	if m := v.c.ProxyMode(); m == ir.ModeKernelspace || m == ir.ModeUserspace {
		return
	}
	limit := 15 - len(suffix)
	v.wrong(!ir.IsInterfaceName(name) || len(name) > limit, path,
		`must have 1-%d characters of a name that "ip link" lists, without @ and what follows, blanks, /, :, quotes, \, !, + and *, got %q`, limit, name)
}

// clusterCIDR checks that the value is empty, a CIDR, or a pair with one CIDR of
// each family.
func (v *validator) clusterCIDR() {
	const example = `such as "10.244.0.0/16" or "10.244.0.0/16,fd00:10:244::/56"`
	value := v.c.ClusterCIDR
	if value == "" {
		return
	}
	var prefixes []netip.Prefix
	for _, part := range strings.Split(value, ",") {
		p, ok := inet.ParsePrefix(part)
		if !ok {
			v.errorf("clusterCIDR", "must be a CIDR, or one of each family %s, got %q in %q", example, part, value)
			return
		}
		prefixes = append(prefixes, p)
	}
	v.wrong(len(prefixes) > 2 || len(prefixes) == 2 && prefixes[0].Addr().Is4() == prefixes[1].Addr().Is4(), "clusterCIDR",
		"must be a CIDR, or one of each family %s, got %q", example, value)
}

func (v *validator) nodePortAddresses() {
	for i, entry := range v.c.NodePortAddresses {
		path := fmt.Sprintf("nodePortAddresses[%d]", i)
		switch entry {
		case NodePortsPrimary, NodePortsLocalhost, NodePortsAll:
			switch {
			case v.release < keywordsSince && (entry != NodePortsPrimary || len(v.c.NodePortAddresses) > 1):
				v.errorf(path, `must be a CIDR, or only "primary", before release %s, got %q`, keywordsSince, entry)
			case slices.Contains(v.c.NodePortAddresses[:i], entry): // the same CIDR twice is no error
				v.errorf(path, "must occur only once, got %q again", entry)
			}
			continue
		}
		v.wrong(!inet.IsPrefix(entry), path, `must be a CIDR such as "192.168.0.0/16", or one of primary, localhost, all, got %q`, entry)
	}
}

// userspace checks the settings of mode userspace.
func (v *validator) userspace() {
	if v.c.ProxyMode() != ir.ModeUserspace {
		return
	}
	_, _, ok := parsePortRange(v.c.PortRange)
	v.wrong(!ok, "portRange", `must be a range of ports such as "30000-32000" or "30000+2000", a port, or empty, got %q`, v.c.PortRange)
	v.positive("udpIdleTimeout", v.c.UDPIdleTimeout)
}

func (v *validator) logging() {
	l := v.c.Logging
	v.wrong(l.FlushFrequency.Duration.Duration <= 0, "logging.flushFrequency", "must be more than 0s, got %s", l.FlushFrequency.Duration.Duration)
	if l.Format != "text" && l.Format != "json" {
		v.oneOf("logging.format", l.Format, "text", "json")
	}
	v.wrong(l.Format == "json" && !v.c.Enabled(gateLoggingBeta), "logging.format", "must not be json while feature gate %s is off", gateLoggingBeta)
	v.wrong(l.Format != "text" && len(l.VModule) > 0, "logging.vmodule", "must be empty, because logging.format is %s", l.Format)
	v.verbosity("logging.verbosity", l.Verbosity)
	for i, m := range l.VModule {
		path := fmt.Sprintf("logging.vmodule[%d]", i)
		v.wrong(m.FilePattern == "" || strings.ContainsAny(m.FilePattern, "=,"), path+".filePattern",
			"must be a file name or pattern without , and =, got %q", m.FilePattern)
		v.verbosity(path+".verbosity", m.Verbosity)
	}
	v.streams("logging.options.text", l.Options.Text)
	v.streams("logging.options.json", l.Options.JSON)
}

func (v *validator) verbosity(path string, level uint32) {
	v.wrong(level > math.MaxInt32, path, "must be 0-%d, got %d", math.MaxInt32, level)
}

func (v *validator) streams(path string, o LogStreams) {
	size, err := resource.ParseQuantity(string(o.InfoBufferSize))
	if err != nil {
		v.errorf(path+".infoBufferSize", `must be a size such as "512" or "4Ki", got %q`, string(o.InfoBufferSize))
		return
	}
	if v.c.Enabled(gateLoggingAlpha) {
		return
	}
	v.wrong(o.SplitStream, path+".splitStream", "must be false unless feature gate %s is on", gateLoggingAlpha)
	v.wrong(size.Value() != 0, path+".infoBufferSize", "must be 0 unless feature gate %s is on, got %q", gateLoggingAlpha, string(o.InfoBufferSize))
}

func (v *validator) masqueradeBit(path string, bit *int32) {
	if bit != nil {
		v.within(path, *bit, 0, 31)
	}
}

// syncPeriods checks the two periods of a section. A minSyncPeriod above
// syncPeriod is reported as an error of syncPeriod (CFG-11).
func (v *validator) syncPeriods(section string, period, minimum metav1.Duration) {
	v.positive(section+".syncPeriod", period)
	v.notNegative(section + ".minSyncPeriod")
	v.wrong(minimum.Duration > period.Duration, section+".syncPeriod", "must be at least minSyncPeriod, which is %s, got %s", minimum.Duration, period.Duration)
}

func (v *validator) positive(path string, d metav1.Duration) {
	v.wrong(d.Duration <= 0, path, "must be more than 0s, got %s", d.Duration)
}

// notNegative checks numbers and durations; nil is allowed.
func (v *validator) notNegative(paths ...string) {
	for _, path := range paths {
		value := reflect.Indirect(find(v.c, path))
		if !value.IsValid() {
			continue
		}
		switch n := value.Interface().(type) {
		case int32:
			v.wrong(n < 0, path, "must be 0 or more, got %d", n)
		case metav1.Duration:
			v.wrong(n.Duration < 0, path, "must be 0s or more, got %s", n.Duration)
		}
	}
}

func (v *validator) within(path string, n, lo, hi int32) {
	if n < lo || n > hi {
		dash := "-"
		if lo < 0 {
			dash = " to "
		}
		v.errorf(path, "must be %d%s%d, got %d", lo, dash, hi, n)
	}
}

func (v *validator) oneOf(path, got string, allowed ...string) {
	msg := fmt.Sprintf("must be one of %s, got %q", strings.Join(allowed, ", "), got)
	v.diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.ConfigValue, Path: path, Msg: msg, Hint: diag.DidYouMean(got, allowed)})
}

// isMinor reports whether a text is a minor release such as "1.35".
func isMinor(s string) bool {
	minor, ok := strings.CutPrefix(s, "1.")
	_, err := strconv.ParseUint(minor, 10, 8)
	return ok && err == nil
}

// parsePortRange parses the port range of mode userspace: "a-b", "a+n", a single
// port, or nothing (USR-1). Nothing, "0" and "0-0" are the range 0-0.
func parsePortRange(s string) (lo, hi uint16, ok bool) {
	s = strings.TrimSpace(s)
	if s == "" {
		return 0, 0, true
	}
	first, second, dash := strings.Cut(s, "-")
	plus := false
	if !dash {
		first, second, plus = strings.Cut(s, "+")
	}
	a, err := strconv.ParseUint(strings.TrimSpace(first), 10, 16)
	if err != nil {
		return 0, 0, false
	}
	b := a
	if dash || plus {
		if b, err = strconv.ParseUint(strings.TrimSpace(second), 10, 16); err != nil {
			return 0, 0, false
		}
	}
	if plus {
		b = min(a+b, math.MaxUint16)
	}
	return uint16(a), uint16(b), a <= b
}

// nodeName converts a host name to a node's name: trimmed, in lower case
// (SNAP-70).
func nodeName(host string) string { return strings.ToLower(strings.TrimSpace(host)) }
