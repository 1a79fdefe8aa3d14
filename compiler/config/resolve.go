package config

import (
	"encoding/csv"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/ir"
)

// Resolved is a configuration in force: read, with defaults and flags, complete
// and valid, and where each value comes from.
type Resolved struct {
	Config *Config
	// NodeName is what hostnameOverride makes of the node's name, trimmed and in
	// lower case (SNAP-70); "" if the host's own name counts.
	NodeName string

	sources sources
}

// Source returns where the value at a path comes from.
func (r *Resolved) Source(path string) Source {
	if s, ok := r.sources[path]; ok {
		return s
	}
	return Source{isDefault: true}
}

// Load resolves a configuration file without any flags.
func Load(file string, data []byte, strict bool) (*Resolved, diag.List) {
	f := &Flags{Config: &file}
	return f.Resolve(func(string) ([]byte, error) { return data, nil }, strict)
}

// Resolve makes the configuration in force of the file and the flags. read gets
// the file that --config names. With a file, most flags are thrown away, as
// kube-proxy does: there is no merge. All findings are given at once; if any is
// an error, the result is only good for being shown, and nil if there is none.
func (f *Flags) Resolve(read func(path string) ([]byte, error), strict bool) (*Resolved, diag.List) {
	r := &resolver{flags: f, bad: map[string]bool{}}
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
	r.direct()
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
	r.diags.Sort()
	return &Resolved{Config: r.c, NodeName: nodeName(r.c.HostnameOverride), sources: r.sources}, r.diags
}

type resolver struct {
	flags   *Flags
	file    string // "" if there is none
	c       *Config
	sources sources
	bad     map[string]bool // paths that could not be read, and keep their default
	diags   diag.List
}

func (r *resolver) load(read func(path string) ([]byte, error), strict bool) {
	data, err := read(r.file)
	if err != nil {
		r.diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.FileUnreadable, File: r.file, Msg: err.Error()})
		return
	}
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

// set puts the value of a flag at a path of the configuration.
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

// setList puts what each occurrence of a flag has between its commas at a path.
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

// direct applies the flags that set one path each, and says of the others that
// were given whether they count.
func (r *resolver) direct() {
	v := reflect.ValueOf(r.flags).Elem()
	for i := range v.NumField() {
		field, tag := v.Field(i), v.Type().Field(i).Tag
		if field.IsZero() {
			continue
		}
		flag := flagName(tag)
		path := tag.Get("config")
		switch {
		case r.dead(tag):
			r.removedFlag(flag, tag)
		case has(tag, "address") && !r.address(flag, field.Elem().String()):
		case r.file != "" && !has(tag, "keep"):
			r.flagNote(diag.Warning, flag, "ignored, since --config is given")
		case has(tag, "address") && field.Elem().IsZero():
			r.flagNote(diag.Info, flag, "empty, which leaves the default %q", find(r.c, path))
		case has(tag, "own") && path == "mode" && field.Elem().IsZero():
			r.flagNote(diag.Info, flag, "empty, which leaves %q", find(r.c, path))
		case has(tag, "csv"):
			r.setList(flag, path, field.Interface().([]string))
		case path != "":
			r.set(flag, path, field)
		}
	}
}

// dead reports whether a flag lost its effect, for the mode that is asked for.
func (r *resolver) dead(tag reflect.StructTag) bool {
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

// flagsOnly applies what counts when there is no configuration file, and is not
// one path.
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

// address judges the value of an address flag, which kube-proxy does as it reads
// the command line, whether the flag counts or not.
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

// clusterCIDR refuses the empty flag, as kube-proxy does where it counts.
func (r *resolver) clusterCIDR() {
	value := r.flags.ClusterCIDR
	counts := r.c.DetectLocalMode == DetectClusterCIDR || r.c.DetectLocalMode == "" && r.c.ProxyMode() != ir.ModeKernelspace
	if value != nil && *value == "" && counts {
		r.flagError("--cluster-cidr", "must be a CIDR, or one of each family, got %q (leave the flag out for none)", *value)
	}
}

// streams turns off the split streams of a file where the gate for them is off:
// kube-proxy never looks at those.
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

// featureGates reads --feature-gates, which has to be right where it does not
// count, too.
func (r *resolver) featureGates() map[string]bool {
	gates := map[string]bool{}
	for _, entry := range r.flags.FeatureGates {
		if entry == "" { // kube-proxy lets a comma end the list
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

// syncPeriods puts the periods into the section of the mode: --ipvs-… count in
// mode ipvs, --iptables-… in all others.
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

// port applies a deprecated port flag: 0 empties the address; another port
// counts only for an address without one, which the default is not.
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
		r.flagNote(diag.Warning, flag, "ignored, since %s %q has a port", path, *addr)
	}
}

// vmodule puts the flag's patterns before those of the file: the first match
// counts.
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
	for p := range r.sources {
		if strings.HasPrefix(p, path+"[") {
			delete(r.sources, p)
		}
	}
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

// removed reports the fields of the file that lost their effect.
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
		r.diags.Add(r.located(diag.Diagnostic{Severity: diag.Warning, Code: diag.ConfigNoEffect, Path: "showHiddenMetricsForVersion", Msg: "has no effect: no metric of proxyc is hidden"}))
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

// validate adds what Validate finds, but for values that could not be read and
// have been reported.
func (r *resolver) validate() {
	for _, d := range Validate(r.c) {
		if !r.bad[d.Path] {
			r.diags.Add(r.located(d))
		}
	}
}

// given reports whether a flag says something: kube-proxy takes "" for absent.
func given(flag *string) bool { return flag != nil && *flag != "" }

// isZero reports whether a value, or what it points to, says nothing.
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
