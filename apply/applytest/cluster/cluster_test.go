package cluster

import (
	"bytes"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
)

// Clusters of every shape are valid, and no two Services claim the same address or port.
func TestCluster(t *testing.T) {
	for _, c := range []Cluster{
		{Services: 12_000, Endpoints: 1}, // more than there are node ports
		{Services: 100, Endpoints: 101, DualStack: true},
		{Services: 100, Endpoints: 3, Plain: true},
	} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			var list bytes.Buffer
			if err := WriteList(&list, c.Objects()); err != nil {
				t.Fatal(err)
			}
			snap := snapshot.New()
			diags := manifest.Decode(snap, "cluster", list.Bytes())
			diags.Add(snap.Finish()...)
			for _, d := range diags {
				if d.Severity == diag.Error {
					t.Fatal(d)
				}
			}
			if got := len(snap.Services()); got != c.Services {
				t.Errorf("%d Services, want %d", got, c.Services)
			}
			claimed := map[string]string{}
			claim := func(s *corev1.Service, what string) {
				if other := claimed[what]; other != "" {
					t.Fatalf("%s is of %s and %s", what, other, s.Name)
				}
				claimed[what] = s.Name
			}
			for i := range c.Services {
				s := c.Service(i)
				for _, p := range s.Spec.Ports {
					if p.NodePort != 0 {
						claim(s, fmt.Sprintf("node port %d", p.NodePort))
					}
				}
				if p := s.Spec.HealthCheckNodePort; p != 0 {
					claim(s, fmt.Sprintf("node port %d", p))
				}
				if s.Spec.ClusterIP != corev1.ClusterIPNone {
					claim(s, s.Spec.ClusterIP)
				}
			}
		})
	}
}
