package config

import (
	_ "embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/proxyc/proxyc/compiler/diag"
)

// Gates with an effect.
const (
	gateExternalIPs      = "AllowServiceExternalIPs"
	gateIPVS             = "KubeProxyIPVS"
	gateNFTables         = "NFTablesProxyMode"
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

// All components of Kubernetes share one registry of gates, and clusters often set one list of gates on
// all of them. Most gates therefore belong to other components.
var (
	//go:embed gates.txt
	gatesText string
	//go:embed gates_other.txt
	otherGatesText string
)

// gate is a feature gate of kube-proxy in one release.
type gate struct {
	stage  string // as in kube-proxy's metrics: ALPHA, BETA, DEPRECATED, "" if generally available
	on     bool   // by default
	locked bool   // only the default is allowed
	needs  []string
}

// gates returns all gates of a release by name.
func gates(r Release) map[string]gate {
	all := map[string]gate{}
	for name, history := range entries(gatesText) {
		if state, absence := stateIn(history, r); absence == "" {
			all[name] = parseGate(state)
		}
	}
	return all
}

func parseGate(state string) gate {
	state, needs, _ := strings.Cut(state, " requires ")
	words := strings.Fields(state)
	return gate{strings.TrimPrefix(words[0], "GA"), words[1] == "on", len(words) > 2, strings.Fields(needs)}
}

// peerGates returns the gates of the newest kube-proxy, which proxyc follows.
var peerGates = sync.OnceValue(func() map[string]gate { return gates(Peer) })

// otherGates returns the state of gates that kube-proxy does not recognize in a release.
func otherGates(r Release) map[string]string {
	all := map[string]string{}
	for name, history := range entries(gatesText) {
		if _, absence := stateIn(history, r); absence != "" {
			all[name] = absence
		}
	}
	maps.Copy(all, entries(otherGatesText))
	return all
}

// entries returns the rest of each line by its first word. Lines that begin with # are comments.
func entries(text string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(text) {
		if name, rest, _ := strings.Cut(strings.TrimSpace(line), " "); name != "#" {
			all[name] = rest
		}
	}
	return all
}

// GateNames returns all names that featureGates accepts, in order.
func GateNames() []string {
	names := slices.AppendSeq(slices.Collect(maps.Keys(peerGates())), maps.Keys(otherGates(Peer)))
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
	known := peerGates()
	for _, name := range slices.Sorted(maps.Keys(known)) {
		out = append(out, Feature{name, known[name].stage, isOn(c.FeatureGates, name, known[name])})
	}
	return out
}

// Enabled reports whether a gate is on.
func (c *Config) Enabled(name string) bool { return isOn(c.FeatureGates, name, peerGates()[name]) }

// isOn reports whether a gate is on with the given settings.
func isOn(set map[string]bool, name string, g gate) bool {
	if on, ok := set[name]; ok {
		return on
	}
	if g.stage == "ALPHA" || g.stage == "BETA" {
		all := allAlpha
		if g.stage == "BETA" {
			all = allBeta
		}
		if on, ok := set[all]; ok && name != all {
			return on
		}
	}
	return g.on
}

// gates checks featureGates as kube-proxy does. Gates of other releases are no
// error, so that they do not prevent a start, unless a release is given.
func (v *validator) gates() {
	known, others := gates(v.release), otherGates(v.release)
	for _, name := range slices.Sorted(maps.Keys(v.c.FeatureGates)) {
		path, on := join("featureGates", name), v.c.FeatureGates[name]
		g, ok := known[name]
		state, other := others[name]
		switch {
		case ok && g.locked && on != g.on:
			v.refuse(path, "must be %t or absent, the gate is locked, got %t", g.on, on)
		case ok:
			v.noEffect(path, name)
		case other && v.exact:
			v.refuse(path, "is unknown to kube-proxy %s, which does not start: %s", v.release, state)
		case other:
			v.diags.Add(diag.Diagnostic{Severity: diag.Warning, Code: diag.GateForeign, Path: path, Msg: "has no effect: " + state})
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
	for _, name := range slices.Sorted(maps.Keys(known)) {
		off := slices.DeleteFunc(known[name].needs, func(need string) bool { return isOn(v.c.FeatureGates, need, known[need]) })
		if len(off) > 0 && isOn(v.c.FeatureGates, name, known[name]) {
			v.refuse(join("featureGates", name), "is on and requires %s, which must be on too", strings.Join(off, ", "))
		}
	}
}

// refuse adds an error about a gate with which kube-proxy does not start.
func (v *validator) refuse(path, format string, args ...any) {
	v.diags.Add(diag.Diagnostic{Severity: diag.Error, Code: diag.GateRefused, Path: path, Msg: fmt.Sprintf(format, args...)})
}
