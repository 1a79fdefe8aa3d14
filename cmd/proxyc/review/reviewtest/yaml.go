package reviewtest

import "fmt"

// ServiceYAML returns the i-th Service, of namespace ns, with a part of its spec.
func ServiceYAML(name string, i int, spec string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {namespace: ns, name: %s}\nspec: {clusterIP: 10.96.%d.%d, %s}\n---\n", name, i/250, 1+i%250, spec)
}

// SliceYAML returns an EndpointSlice of a Service with two endpoints.
func SliceYAML(service, ports string) string {
	return fmt.Sprintf("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {namespace: ns, name: %[1]s-1, labels: {kubernetes.io/service-name: %[1]s}}\n"+
		"addressType: IPv4\nendpoints: [{addresses: [10.244.1.1]}, {addresses: [10.244.1.2]}]\nports: [%[2]s]\n---\n", service, ports)
}
