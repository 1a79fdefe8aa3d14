package gates

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	_ "k8s.io/kubernetes/cmd/kube-proxy/app" // registers all gates and flags of kube-proxy

	"github.com/proxyc/proxyc/compiler/config"
)

// TestGates detects a gate that proxyc lacks, or whose stage, default or lock differs from
// kube-proxy's.
func TestGates(t *testing.T) {
	known := utilfeature.DefaultMutableFeatureGate.GetAll()
	if len(known) < 200 {
		t.Fatalf("kube-proxy has registered only %d gates", len(known))
	}
	got := map[string]config.Feature{}
	for _, f := range config.Default().Features() {
		got[f.Name] = f
	}
	for name := range got {
		if _, ok := known[featuregate.Feature(name)]; !ok {
			t.Errorf("%s: kube-proxy does not know it", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(known)) {
		spec, f := known[name], got[string(name)]
		if want := (config.Feature{Name: string(name), Stage: string(spec.PreRelease), On: spec.Default}); f != want {
			t.Errorf("%s: %+v, kube-proxy has %+v", name, f, want)
		}
		for _, on := range []bool{false, true} {
			compare(t, map[string]bool{string(name): on})
		}
	}
	for _, name := range config.GateNames() {
		if _, ok := known[featuregate.Feature(name)]; ok {
			continue
		}
		for _, on := range []bool{false, true} {
			if l := validate(map[string]bool{name: on}); l.HasErrors() {
				t.Errorf("%s=%t of another release is an error: %v", name, on, l)
			}
		}
	}
}

// TestManyGates sets many gates together, since they depend on each other and on those that set a
// whole stage.
func TestManyGates(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	names := slices.Sorted(maps.Keys(utilfeature.DefaultMutableFeatureGate.GetAll()))
	for range 3000 {
		set := map[string]bool{}
		for range r.IntN(12) {
			set[string(names[r.IntN(len(names))])] = r.IntN(2) == 0
		}
		for _, all := range []string{"AllAlpha", "AllBeta"} {
			if n := r.IntN(6); n < 2 {
				set[all] = n == 0
			}
		}
		compare(t, set)
	}
}

// compare compares the effect of gates in kube-proxy and in proxyc.
func compare(t *testing.T, set map[string]bool) {
	t.Helper()
	real := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	err := real.SetFromMap(set)
	if l := validate(set); l.HasErrors() != (err != nil) {
		t.Errorf("%v: kube-proxy: %v, proxyc: %v", set, err, l)
	}
	if err != nil {
		return
	}
	c := config.Default()
	c.FeatureGates = set
	for _, f := range c.Features() {
		if f.On != real.Enabled(featuregate.Feature(f.Name)) {
			t.Errorf("%v: %s is on in kube-proxy: %t, in proxyc: %t", set, f.Name, !f.On, f.On)
		}
	}
}

func validate(set map[string]bool) interface{ HasErrors() bool } {
	c := config.Default()
	config.Complete(c)
	c.FeatureGates = set
	return config.Validate(c)
}
