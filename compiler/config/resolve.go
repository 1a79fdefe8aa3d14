package config

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"maps"
	"reflect"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/ir"
)

// Resolved is the effective configuration, complete and valid after defaults and
// flags, with the source of each value.
type Resolved struct {
	Config *Config
	// NodeName is hostnameOverride, trimmed and in lower case (SNAP-70); "" if
	// the host's own name applies.
	NodeName string
	// File is the content of the file; nil without one.
	File []byte

	sources sources
}

// Source returns the source of the value at a path.
func (r *Resolved) Source(path string) Source {
	if s, ok := r.sources[path]; ok {
		return s
	}
	return Source{isDefault: true}
}

// Load resolves a configuration file without flags.
func Load(file string, data []byte, strict bool) (*Resolved, diag.List) {
	f := &Flags{Config: &file}
	return f.Resolve(func(string) ([]byte, error) { return data, nil }, strict)
}

// Resolve returns the effective configuration from the file and the flags. It
// calls read with the file of --config. With a file, most flags are ignored and
// nothing is merged, as in kube-proxy. Resolve returns all findings. If one is an
// error, the result is suitable only for display; it is nil if no configuration
// was found.
func (f *Flags) Resolve(read func(path string) ([]byte, error), strict bool) (*Resolved, diag.List) {
	return f.ResolveFor(0, read, strict)
}

// ResolveFor is Resolve with the defaults and the checks of a release of kube-proxy. Release 0 is Peer,
// but accepts feature gates of other releases.
func (f *Flags) ResolveFor(release Release, read func(path string) ([]byte, error), strict bool) (*Resolved, diag.List) {
	r := &resolver{flags: f, release: release, bad: map[string]bool{}}
	if given(f.Config) {
		r.file = *f.Config
		r.load(read, strict)
	} else {
		r.c, r.sources = &Config{APIVersion: APIVersion, Kind: Kind}, sources{}
	}
	if r.c == nil {
		r.diags.Sort()
		return nil, r.diags
	}
	setDefaults(r.c, r.sources)
	r.setPaths()
	gates := r.featureGates()
	if r.file == "" {
		r.flagsOnly(gates)
	}
	r.vmodule()
	r.streams()
	complete(r.c, r.sources)
	r.hostname()
	r.removed()
	r.validate()
	if release != 0 {
		r.under()
	}
	r.diags.Sort()
	return &Resolved{Config: r.c, NodeName: nodeName(r.c.HostnameOverride), File: r.content, sources: r.sources}, r.diags
}

type resolver struct {
	flags   *Flags
	release Release // 0 if none is requested
	file    string  // "" if there is none
	content []byte  // of the file
	c       *Config
	sources sources
	bad     map[string]bool // paths with unreadable values, which keep their default
	diags   diag.List
}

func (r *resolver) load(read func(path string) ([]byte, error), strict bool) {
	data, err := read(r.file)
	if err != nil {
		r.diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: r.file, Msg: err.Error()})
		return
	}
	r.content = data
	r.c, r.sources, r.diags = parse(r.file, data, strict)
	for _, d := range r.diags {
		if d.Severity == diag.Error {
			r.bad[d.Path] = true
		}
	}
}

func (r *resolver) flagError(flag, format string, args ...any) {
	r.diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FlagValue, Object: flag, Msg: fmt.Sprintf(format, args...)})
}

func (r *resolver) flagNote(sev diag.Severity, flag, format string, args ...any) {
	r.diags.Add(diag.Diagnostic{Severity: sev, Code: diag.FlagNoEffect, Object: flag, Msg: fmt.Sprintf(format, args...)})
}

// set stores the value of a flag at a path of the configuration.
func (r *resolver) set(flag, path string, value reflect.Value) {
	dst := find(r.c, path)
	if value.Kind() == reflect.Pointer {
		value = value.Elem()
	}
	if d, ok := value.Interface().(time.Duration); ok {
		value = reflect.ValueOf(metav1.Duration{Duration: d})
	}
	if dst.Type() == reflect.TypeFor[FlushFrequency]() {
		dst = dst.Field(0)
	}
	if dst.Kind() == reflect.Pointer {
		dst.Set(reflect.New(dst.Type().Elem()))
		dst = dst.Elem()
	}
	dst.Set(value.Convert(dst.Type()))
	r.sources[path] = Source{Flag: flag}
}

// setList stores the comma-separated values of all occurrences of a flag at a
// path.
func (r *resolver) setList(flag, path string, values []string) {
	list := []string{}
	for _, value := range values {
		if value == "" {
			continue
		}
		items, err := csv.NewReader(strings.NewReader(value)).Read()
		if err != nil {
			r.flagError(flag, "must be a list with commas between, got %q", value)
			return
		}
		list = append(list, items...)
	}
	r.set(flag, path, reflect.ValueOf(list))
}

// setPaths applies the flags that set one path each, and reports given flags
// without effect.
func (r *resolver) setPaths() {
	v := reflect.ValueOf(r.flags).Elem()
	for i := range v.NumField() {
		field, tag := v.Field(i), v.Type().Field(i).Tag
		if field.IsZero() {
			continue
		}
		flag := flagName(tag)
		path := tag.Get("config")
		switch {
		case r.noEffectFlag(tag):
			r.removedFlag(flag, tag)
		case has(tag, "address") && !r.address(flag, field.Elem().String()):
		case r.file != "" && !has(tag, "keep"):
			r.flagNote(diag.Warning, flag, "ignored, because --config is set")
		case has(tag, "address") && field.Elem().IsZero():
			r.flagNote(diag.Info, flag, "empty, so the default %q is kept", find(r.c, path))
		case has(tag, "own") && path == "mode" && field.Elem().IsZero():
			r.flagNote(diag.Info, flag, "empty, so %q is kept", find(r.c, path))
		case has(tag, "csv"):
			r.setList(flag, path, field.Interface().([]string))
		case path != "":
			r.set(flag, path, field)
		}
	}
}

// noEffectFlag reports whether a flag has lost its effect in the requested mode.
func (r *resolver) noEffectFlag(tag reflect.StructTag) bool {
	return has(tag, "until") && !(has(tag, "userspace") && r.c.ProxyMode() == ir.ModeUserspace)
}

func (r *resolver) removedFlag(flag string, tag reflect.StructTag) {
	d := diag.Diagnostic{Severity: diag.Info, Code: diag.FlagNoEffect, Object: flag, Msg: "has no effect since release " + tag.Get("until")}
	if has(tag, "userspace") {
		d.Msg += ", except in mode userspace"
	}
	if instead := tag.Get("instead"); instead != "" {
		d.Hint = "use " + instead
	}
	r.diags.Add(d)
}

// flagsOnly applies flags that are not a single path and apply only without a
// configuration file.
func (r *resolver) flagsOnly(gates map[string]bool) {
	for name, on := range gates {
		r.c.FeatureGates[name] = on
		r.sources["featureGates"] = Source{Flag: "--feature-gates"}
		r.sources[join("featureGates", name)] = Source{Flag: "--feature-gates"}
	}
	r.clusterCIDR()
	if b := r.flags.MasqueradeAll; b != nil {
		section := "iptables"
		if r.c.ProxyMode() == ir.ModeNFTables {
			section = "nftables"
		}
		r.set("--masquerade-all", section+".masqueradeAll", reflect.ValueOf(b))
	}
	r.syncPeriods()
	if r.c.ProxyMode() == ir.ModeKernelspace {
		fill(r.sources, "winkernel.rootHnsEndpointName", &r.c.Winkernel.RootHnsEndpointName, "cbr0", "of --root-hnsendpoint-name")
	}
	if !given(r.flags.WriteConfigTo) {
		r.port("--healthz-port", r.flags.HealthzPort, "healthzBindAddress", &r.c.HealthzBindAddress, HealthzPort)
		r.port("--metrics-port", r.flags.MetricsPort, "metricsBindAddress", &r.c.MetricsBindAddress, MetricsPort)
	}
}

// address checks the value of an address flag. As kube-proxy does, it checks
// flags without effect, too.
func (r *resolver) address(flag, value string) bool {
	if _, ok := inet.ParseAddr(value); ok || value == "" {
		return true
	}
	if flag == "--bind-address" {
		r.flagError(flag, "must be an IP address, got %q", value)
		return false
	}
	host, port, ok := splitHostPort(value)
	_, isIP := inet.ParseAddr(host)
	if _, err := strconv.ParseUint(port, 10, 16); !ok || !isIP || err != nil {
		r.flagError(flag, "must be an IP address or IP:port, got %q", value)
		return false
	}
	return true
}

// clusterCIDR rejects an empty flag if it applies, as kube-proxy does.
func (r *resolver) clusterCIDR() {
	value := r.flags.ClusterCIDR
	counts := r.c.DetectLocalMode == DetectClusterCIDR || r.c.DetectLocalMode == "" && r.c.ProxyMode() != ir.ModeKernelspace
	if value != nil && *value == "" && counts {
		r.flagError("--cluster-cidr", "must be a CIDR, or one of each family, got %q (omit the flag for none)", *value)
	}
}

// streams turns off the split streams of a file if their feature gate is off,
// because kube-proxy then ignores them.
func (r *resolver) streams() {
	if r.c.Enabled(gateLoggingAlpha) {
		return
	}
	for path, s := range map[string]*LogStreams{"logging.options.text.splitStream": &r.c.Logging.Options.Text, "logging.options.json.splitStream": &r.c.Logging.Options.JSON} {
		if src := r.sources[path]; s.SplitStream && src.Flag == "" {
			r.diags.Add(r.located(diag.Diagnostic{Severity: diag.Warning, Code: diag.ConfigNoEffect, Path: path, Msg: "has no effect unless feature gate " + gateLoggingAlpha + " is on"}))
			s.SplitStream = false
		}
	}
}

// featureGates parses --feature-gates, which must be valid even if it has no
// effect.
func (r *resolver) featureGates() map[string]bool {
	gates := map[string]bool{}
	for _, entry := range r.flags.FeatureGates {
		if entry == "" { // kube-proxy accepts a trailing comma
			continue
		}
		name, value, ok := strings.Cut(entry, "=")
		name = strings.TrimSpace(name)
		on, err := strconv.ParseBool(strings.TrimSpace(value))
		if !ok || err != nil || name == "" {
			r.flagError("--feature-gates", "must be NAME=true or NAME=false, got %q", entry)
			continue
		}
		gates[name] = on
	}
	return gates
}

// syncPeriods stores the periods in the section of the mode. The --ipvs-… flags
// apply to mode ipvs, the --iptables-… flags to all others.
func (r *resolver) syncPeriods() {
	section := "iptables"
	switch r.c.ProxyMode() {
	case ir.ModeNFTables:
		section = "nftables"
	case ir.ModeIPVS:
		section = "ipvs"
		// kube-proxy's flags start from the defaults of a file without a mode, so
		// that ipvs inherits this one.
		fill(r.sources, "ipvs.minSyncPeriod", &r.c.IPVS.MinSyncPeriod, seconds(1), "of flags without --config")
	}
	isIPVS := section == "ipvs"
	for _, p := range []struct {
		flag, field string
		value       *time.Duration
		counts      bool
	}{
		{"--iptables-sync-period", "syncPeriod", r.flags.IPTablesSync, !isIPVS},
		{"--iptables-min-sync-period", "minSyncPeriod", r.flags.IPTablesMinSync, !isIPVS},
		{"--ipvs-sync-period", "syncPeriod", r.flags.IPVSSync, isIPVS},
		{"--ipvs-min-sync-period", "minSyncPeriod", r.flags.IPVSMinSync, isIPVS},
	} {
		switch {
		case p.value == nil:
		case p.counts:
			r.set(p.flag, join(section, p.field), reflect.ValueOf(p.value))
		default:
			r.flagNote(diag.Info, p.flag, "ignored in mode %s", r.c.Mode)
		}
	}
}

// port applies a deprecated port flag. 0 clears the address. Another port applies
// only to an address without one, which the default is not.
func (r *resolver) port(flag string, port *int32, path string, addr *string, usual int) {
	switch {
	case port == nil:
		*addr = withPort(*addr, usual)
	case *port == 0:
		*addr = ""
		r.sources[path] = Source{Flag: flag}
	case withPort(*addr, int(*port)) != *addr:
		*addr = withPort(*addr, int(*port))
		r.sources[path] = Source{Flag: flag}
	default:
		r.flagNote(diag.Warning, flag, "ignored, because %s %q has a port", path, *addr)
	}
}

// vmodule inserts the flag's patterns before those of the file; the first match
// wins.
func (r *resolver) vmodule() {
	const flag, path = "--vmodule", "logging.vmodule"
	if !given(r.flags.VModule) {
		return
	}
	var items []VModule
	for _, entry := range strings.Split(*r.flags.VModule, ",") {
		if entry == "" {
			continue
		}
		pattern, level, _ := strings.Cut(entry, "=")
		n, err := strconv.ParseUint(level, 10, 31)
		if pattern == "" || err != nil {
			r.flagError(flag, "must be a list of PATTERN=N, got %q", entry)
			continue
		}
		items = append(items, VModule{FilePattern: pattern, Verbosity: uint32(n)})
	}
	r.c.Logging.VModule = append(items, r.c.Logging.VModule...)
	maps.DeleteFunc(r.sources, func(p string, _ Source) bool { return strings.HasPrefix(p, path+"[") })
	r.sources[path] = Source{Flag: flag}
}

func (r *resolver) hostname() {
	const flag = "--hostname-override"
	if !given(r.flags.HostnameOverride) {
		return
	}
	name := nodeName(*r.flags.HostnameOverride)
	if name == "" {
		r.flagError(flag, "must be a name, got %q", *r.flags.HostnameOverride)
		return
	}
	r.c.HostnameOverride = name
	r.sources["hostnameOverride"] = Source{Flag: flag}
}

// removed reports fields of the file that have lost their effect.
func (r *resolver) removed() {
	for _, f := range Fields() {
		src := r.sources[f.Path]
		if f.Until == "" || src.Line == 0 || src.isDefault || isZero(find(r.c, f.Path)) {
			continue
		}
		d := diag.Diagnostic{Severity: diag.Warning, Code: diag.ConfigNoEffect, Path: f.Path, Msg: "has no effect since release " + f.Until}
		if f.Modes == "U" {
			if r.c.ProxyMode() == ir.ModeUserspace {
				continue
			}
			d.Msg += ", except in mode userspace"
		}
		if f.Instead != "" {
			d.Hint = "use " + f.Instead
		}
		r.diags.Add(r.located(d))
	}
	if v := r.c.ShowHiddenMetricsForVersion; v != "" && isMinor(v) {
		r.diags.Add(r.located(diag.Diagnostic{Severity: diag.Warning, Code: diag.ConfigNoEffect, Path: "showHiddenMetricsForVersion", Msg: "has no effect: proxyc has no hidden metrics"}))
	}
	if c := r.c; c.WindowsRunAsService && c.ProxyMode() != ir.ModeKernelspace && c.ProxyMode() != ir.ModeUserspace {
		r.diags.Add(r.located(diag.Diagnostic{Severity: diag.Warning, Code: diag.ConfigNoEffect, Path: "windowsRunAsService", Msg: "has no effect on Linux"}))
	}
}

func (r *resolver) located(d diag.Diagnostic) diag.Diagnostic {
	l := diag.List{d}
	r.sources.locate(r.file, l)
	return l[0]
}

// validate adds the findings of Validate, except for unreadable values, which are
// already reported.
func (r *resolver) validate() {
	v := &validator{c: r.c, release: cmp.Or(r.release, Peer), exact: r.release != 0}
	for _, d := range v.all() {
		if !r.bad[d.Path] {
			r.diags.Add(r.located(d))
		}
	}
}

// given reports whether a flag is set. As in kube-proxy, "" means unset.
func given(flag *string) bool { return flag != nil && *flag != "" }

// isZero reports whether a value, or the value it points to, is zero.
func isZero(v reflect.Value) bool {
	return v.IsZero() || v.Kind() == reflect.Pointer && v.Elem().IsZero()
}

func flagName(tag reflect.StructTag) string {
	name := tag.Get("name")
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

func has(tag reflect.StructTag, key string) bool {
	_, ok := tag.Lookup(key)
	return ok
}
