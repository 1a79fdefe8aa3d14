package docs

import (
	"os"
	"strings"
	"testing"
)

// proxyc passes each spec of Kubernetes' own tests that kube-proxy passes, as README.md states.
func TestKubernetesSpecs(t *testing.T) {
	text, err := os.ReadFile("reference/kubernetes-e2e.tsv")
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	runs := strings.Split(lines[0], "\t")
	compared := 0
	for _, line := range lines[1:] {
		cells := strings.Split(line, "\t")
		state := map[string]string{}
		for i, run := range runs {
			state[run] = cells[i]
		}
		for run, is := range state {
			if mode, ok := strings.CutPrefix(run, "kube-proxy-"); ok && is == "passed" {
				if compared++; state["proxyc-"+mode] != "passed" {
					t.Errorf("%s: %s under proxyc-%s", cells[0], state["proxyc-"+mode], mode)
				}
			}
		}
	}
	if compared == 0 {
		t.Error("no spec passed under kube-proxy")
	}
}
