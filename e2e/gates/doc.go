// Package gates holds the feature gates that proxyc takes against those that
// the real kube-proxy registers. It links kube-proxy, and so stands apart from
// the tests that run it.
package gates
