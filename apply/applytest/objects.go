package applytest

import (
	"context"
	"fmt"
	"strings"

	"github.com/proxyc/proxyc/apply"
)

// Services returns a snapshot with a Service for each name, in namespace ns, with one endpoint
// each. Names of one letter have distinct addresses.
func Services(names ...string) string {
	var b strings.Builder
	for _, name := range names {
		fmt.Fprintf(&b, `apiVersion: v1
kind: Service
metadata: {name: %[1]s, namespace: ns}
spec: {type: ClusterIP, clusterIP: 10.96.0.%[2]d, clusterIPs: [10.96.0.%[2]d], ipFamilies: [IPv4], ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %[1]s-1, namespace: ns, labels: {kubernetes.io/service-name: %[1]s}}
addressType: IPv4
endpoints: [{addresses: [10.244.1.%[2]d]}]
ports: [{port: 8080, name: ""}]
---
`, name, name[0])
	}
	return b.String()
}

// Compare reads what a node has, and returns the difference from there to what was last applied.
func Compare(ctx context.Context, d apply.Dataplane) (apply.Plan, error) {
	applied := d.Applied().Programs()
	if err := d.Read(ctx, applied); err != nil {
		return nil, err
	}
	return d.Plan(applied), nil
}
