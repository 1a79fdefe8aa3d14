// Package gates holds what proxyc takes against the code of the real kube-proxy:
// its feature gates, its flags, and what its decoder and validation make of each
// field. It links kube-proxy, and so stands apart from the tests that run it.
package gates
