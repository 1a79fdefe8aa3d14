package gates

import (
	"maps"
	"slices"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	_ "k8s.io/kubernetes/cmd/kube-proxy/app" // registers all that kube-proxy knows

	"github.com/proxyc/proxyc/compiler/config"
)

// ofOtherReleases are the gates that proxyc takes and this kube-proxy does not
// know: a configuration of any release can be read.
var ofOtherReleases = []string{
	"EndpointSliceProxying", "EndpointSliceTerminatingCondition", "IPTablesOwnershipCleanup", "IPv6DualStack",
	"KubeProxyDrainingTerminatingNodes", "LoadBalancerIPMode", "MinimizeIPTablesRestore", "ProxyTerminatingEndpoints",
	"SCTPSupport", "ServiceInternalTrafficPolicy", "ServiceLBNodePortControl", "ServiceTopology",
	"ServiceTrafficDistribution", "StableLoadBalancerNodeSet", "TopologyAwareHints", "WindowsEndpointSliceProxying",

	"KubeProxyIPVS", "KubeProxyNFTablesLocalhostNodePorts", "NFTablesNetlink", // newer
}

// TestGates notices a gate that proxyc lacks, or has too many.
func TestGates(t *testing.T) {
	known := utilfeature.DefaultMutableFeatureGate.GetAll()
	if len(known) < 200 {
		t.Fatalf("kube-proxy has registered only %d gates", len(known))
	}
	for _, name := range config.GateNames() {
		_, ok := known[featuregate.Feature(name)]
		if other := slices.Contains(ofOtherReleases, name); ok == other {
			t.Errorf("%s: known to kube-proxy: %t, of another release: %t", name, ok, other)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		for _, on := range []bool{false, true} {
			want := known[name].LockToDefault && on != known[name].Default
			if found := validate(string(name), on); found.HasErrors() != want {
				t.Errorf("%s: %t is an error for kube-proxy: %t, for proxyc: %v", name, on, want, found)
			}
		}
	}
}

func validate(gate string, on bool) interface{ HasErrors() bool } {
	c := config.Default()
	config.Complete(c)
	c.FeatureGates = map[string]bool{gate: on}
	return config.Validate(c)
}
