package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
)

// Gates with an effect.
const (
	gateExternalIPs      = "AllowServiceExternalIPs"
	gateIPVS             = "KubeProxyIPVS"
	GateLocalhost        = "KubeProxyNFTablesLocalhostNodePorts"
	gateLoggingAlpha     = "LoggingAlphaOptions"
	gateLoggingBeta      = "LoggingBetaOptions"
	GateNativeHistograms = "NativeHistograms"
	GateFlagz            = "ComponentFlagz"
	GateStatusz          = "ComponentStatusz"
	allAlpha             = "AllAlpha" // sets all unset gates of a stage
	allBeta              = "AllBeta"
)

// Effect describes a gate that changes proxyc's behaviour, for the reference
// manual.
type Effect struct{ Gate, Means string }

// Effects returns the gates with an effect, in order of name.
func Effects() []Effect {
	return []Effect{
		{allAlpha, "All gates of stage ALPHA that are not set individually."},
		{allBeta, "All gates of stage BETA that are not set individually."},
		{gateExternalIPs, "spec.externalIPs of Services are served."},
		{GateFlagz, "`/flagz` of the metrics server."},
		{GateStatusz, "`/statusz` of the metrics server."},
		{gateIPVS, "Mode `ipvs` can be chosen."},
		{GateLocalhost, "`watch` in mode `nftables` serves node ports at 127.0.0.1 and ::1 over TCP, if nodePortAddresses contains these. All other packets to node ports there are rejected and counted (KEP-6032)."},
		{gateLoggingAlpha, "logging.options.*.splitStream and infoBufferSize can be set."},
		{gateLoggingBeta, "logging.format `json` can be chosen."},
		{GateNativeHistograms, "Histograms also have native buckets, which responses in the protobuf format contain."},
	}
}

// gatesOfOthers returns gates of the service proxy that kube-proxy 1.37 does not
// recognize, with their state and the release.
func gatesOfOthers() map[string]string {
	return map[string]string{
		"EndpointSliceProxying":             "always on since release 1.22",
		"WindowsEndpointSliceProxying":      "always on since release 1.22",
		"EndpointSliceTerminatingCondition": "always on since release 1.26",
		"IPv6DualStack":                     "always on since release 1.23",
		"SCTPSupport":                       "always on since release 1.20",
		"ServiceTopology":                   "dropped in release 1.22",
		"ServiceLBNodePortControl":          "always on since release 1.24",
		"ServiceInternalTrafficPolicy":      "always on since release 1.26",
		"TopologyAwareHints":                "always on since release 1.33",
		"ProxyTerminatingEndpoints":         "always on since release 1.28",
		"MinimizeIPTablesRestore":           "always on since release 1.28",
		"IPTablesOwnershipCleanup":          "always on since release 1.28",
		"KubeProxyDrainingTerminatingNodes": "always on since release 1.31",
		"LoadBalancerIPMode":                "always on since release 1.32",
		"ServiceTrafficDistribution":        "always on since release 1.33",
		"StableLoadBalancerNodeSet":         "always on since release 1.30",
	}
}

// gate is a feature gate of kube-proxy 1.37.
type gate struct {
	stage  string
	on     bool // by default
	locked bool
}

// gates returns all gates by name.
func gates() map[string]gate {
	all := map[string]gate{allAlpha: {stage: "ALPHA"}, allBeta: {stage: "BETA"}}
	for _, g := range gateGroups() {
		for name := range strings.FieldsSeq(g.names) {
			all[name] = gate{g.stage, g.on, g.locked}
		}
	}
	return all
}

// GateNames returns all names that featureGates accepts, in order.
func GateNames() []string {
	names := strings.Fields(gatesOfOld)
	names = slices.AppendSeq(names, maps.Keys(gates()))
	names = slices.AppendSeq(names, maps.Keys(gatesOfOthers()))
	slices.Sort(names)
	return names
}

// Feature is the effective state of a gate.
type Feature struct {
	Name  string
	Stage string // ALPHA, BETA, DEPRECATED; "" if generally available
	On    bool
}

// Features returns the effective state of all known gates, in order of name. A
// gate's own setting wins over AllAlpha or AllBeta for its stage, and that over
// its default.
func (c *Config) Features() []Feature {
	var out []Feature
	known := gates()
	for _, name := range slices.Sorted(maps.Keys(known)) {
		out = append(out, Feature{name, known[name].stage, c.isOn(name, known[name])})
	}
	return out
}

// Enabled reports whether a gate is on.
func (c *Config) Enabled(name string) bool { return c.isOn(name, gates()[name]) }

func (c *Config) isOn(name string, g gate) bool {
	if on, set := c.FeatureGates[name]; set {
		return on
	}
	if g.stage == "ALPHA" || g.stage == "BETA" {
		all := allAlpha
		if g.stage == "BETA" {
			all = allBeta
		}
		if on, set := c.FeatureGates[all]; set && name != all {
			return on
		}
	}
	return g.on
}

// gates checks featureGates as kube-proxy does. Gates of other releases are no
// error, so that they do not prevent a start.
func (v *validator) gates() {
	known := gates()
	for _, name := range slices.Sorted(maps.Keys(v.c.FeatureGates)) {
		path, on := join("featureGates", name), v.c.FeatureGates[name]
		g, ok := known[name]
		fate, other := gatesOfOthers()[name]
		switch {
		case ok && g.locked && on != g.on:
			v.refuse(path, "must be %t or absent, the gate is locked, got %t", g.on, on)
		case ok:
			v.noEffect(path, name)
		case other:
			v.warnf(path, "has no effect: %s", fate)
		case slices.Contains(strings.Fields(gatesOfOld), name):
			v.warnf(path, "has no effect: a gate of an older release")
		default:
			v.diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.GateRefused, Path: path, Msg: "unknown feature gate", Hint: diag.DidYouMean(name, GateNames())})
		}
	}
	v.gateNeeds(known)
}

// noEffect reports a gate without effect on proxyc.
func (v *validator) noEffect(path, name string) {
	if !slices.ContainsFunc(Effects(), func(e Effect) bool { return e.Gate == name }) {
		v.diags.Add(diag.Diagnostic{Severity: diag.Info, Code: diag.GateNoEffect, Path: path, Msg: "has no effect on proxyc"})
	}
}

// gateNeeds reports enabled gates whose required gates are disabled.
func (v *validator) gateNeeds(known map[string]gate) {
	for line := range strings.Lines(strings.TrimSpace(gateNeeds)) {
		name, needs, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if !v.c.isOn(name, known[name]) {
			continue
		}
		var off []string
		for _, need := range strings.Fields(needs) {
			if !v.c.isOn(need, known[need]) {
				off = append(off, need)
			}
		}
		if len(off) > 0 {
			v.refuse(join("featureGates", name), "is on and requires %s, which must be on too", strings.Join(off, ", "))
		}
	}
}

// refuse adds an error about a gate with which kube-proxy does not start.
func (v *validator) refuse(path, format string, args ...any) {
	v.diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.GateRefused, Path: path, Msg: fmt.Sprintf(format, args...)})
}

// warnf adds a warning about a gate without the intended effect.
func (v *validator) warnf(path, format string, args ...any) {
	v.diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.GateForeign, Path: path, Msg: fmt.Sprintf(format, args...)})
}
