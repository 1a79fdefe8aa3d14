package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
)

// stage is how ripe a feature is.
type stage uint8

const (
	alpha      stage = iota // off unless asked for
	beta                    // on unless refused
	locked                  // generally available: always on
	deprecated              // on, and on its way out
	gone                    // the feature was given up
)

// String says what a stage means for those who set the gate.
func (s stage) String() string {
	return [...]string{
		"alpha, off by default",
		"beta, on by default",
		"always on, `false` is an error",
		"on by default, to be removed",
		"dropped, no effect",
	}[s]
}

// gate is a feature gate that kube-proxy knows or once knew.
type gate struct {
	stage stage
	since string // release in which the feature got its stage
}

// Gates that other code asks about.
const (
	gateIPVS         = "KubeProxyIPVS"
	gateLoggingAlpha = "LoggingAlphaOptions"
	gateLoggingBeta  = "LoggingBetaOptions"
)

// GateNames lists the names that can stand in featureGates, in order.
func GateNames() []string {
	names := slices.AppendSeq([]string{allAlpha, allBeta}, maps.Keys(gates()))
	for _, g := range others() {
		names = append(names, strings.Fields(g.names)...)
	}
	slices.Sort(names)
	return names
}

// gates lists the feature gates that concern the service proxy, and those that
// every component has: of any release, so that a configuration of any is read.
func gates() map[string]gate {
	return map[string]gate{
		"EndpointSliceProxying":             {locked, "1.22"},
		"WindowsEndpointSliceProxying":      {locked, "1.22"},
		"EndpointSliceTerminatingCondition": {locked, "1.26"},
		"IPv6DualStack":                     {locked, "1.23"},
		"SCTPSupport":                       {locked, "1.20"},
		"ServiceTopology":                   {gone, "1.22"},
		"ServiceLBNodePortControl":          {locked, "1.24"},
		"ServiceInternalTrafficPolicy":      {locked, "1.26"},
		"TopologyAwareHints":                {locked, "1.33"},
		"ProxyTerminatingEndpoints":         {locked, "1.28"},
		"MinimizeIPTablesRestore":           {locked, "1.28"},
		"IPTablesOwnershipCleanup":          {locked, "1.28"},
		"KubeProxyDrainingTerminatingNodes": {locked, "1.31"},
		"NFTablesProxyMode":                 {locked, "1.33"},
		"LoadBalancerIPMode":                {locked, "1.32"},
		"MultiCIDRServiceAllocator":         {locked, "1.33"},
		"ServiceTrafficDistribution":        {locked, "1.33"},
		"PreferSameTrafficDistribution":     {locked, "1.35"},
		"StableLoadBalancerNodeSet":         {locked, "1.30"},
		"WinOverlay":                        {locked, "1.34"},
		"WinDSR":                            {locked, "1.34"},

		"AllowServiceExternalIPs":             {deprecated, "1.36"},
		gateIPVS:                              {deprecated, "1.37"},
		"NFTablesNetlink":                     {beta, "1.37"},
		"KubeProxyNFTablesLocalhostNodePorts": {alpha, "1.37"},

		"ComponentFlagz":    {beta, "1.36"},
		"ComponentStatusz":  {beta, "1.36"},
		"ContextualLogging": {beta, "1.30"},
		gateLoggingAlpha:    {alpha, "1.24"},
		gateLoggingBeta:     {beta, "1.24"},
	}
}

// Gates that set all of a stage.
const (
	allAlpha = "AllAlpha"
	allBeta  = "AllBeta"
)

// enabled tells whether a gate is on: as set itself, else as AllAlpha or
// AllBeta says for its stage, else by its default.
func (c *Config) enabled(name string) bool {
	if on, set := c.FeatureGates[name]; set {
		return on
	}
	switch gates()[name].stage {
	case alpha:
		return c.FeatureGates[allAlpha]
	case beta:
		if on, set := c.FeatureGates[allBeta]; set {
			return on
		}
	}
	return true
}

// gates refuses unknown names, and other values than that of a gate that is locked.
func (v *validator) gates() {
	for _, name := range slices.Sorted(maps.Keys(v.c.FeatureGates)) {
		path, on := join("featureGates", name), v.c.FeatureGates[name]
		if g, ok := gates()[name]; ok {
			v.gate(path, g, on)
		} else if g, ok := findOther(name); ok {
			v.otherGate(path, g, on)
		} else if name != allAlpha && name != allBeta {
			v.diags.Add(diag.Diagnostic{Severity: diag.Error, Path: path, Msg: "unknown feature gate", Hint: didYouMean(name, GateNames())})
		}
	}
}

func (v *validator) gate(path string, g gate, on bool) {
	switch {
	case g.stage == locked && !on:
		v.errorf(path, "must be true or absent, the feature is always on since release %s, got false", g.since)
	case g.stage == gone:
		v.diags.Add(diag.Diagnostic{Severity: diag.Warning, Path: path, Msg: fmt.Sprintf("has no effect since release %s, which dropped the feature", g.since)})
	}
}

func (v *validator) otherGate(path string, g otherGates, on bool) {
	if g.lock != nil && on != *g.lock {
		v.errorf(path, "must be %t or absent, the gate is locked, got %t", *g.lock, on)
		return
	}
	v.diags.Add(diag.Diagnostic{Severity: diag.Info, Path: path, Msg: "has no effect on a service proxy"})
}
