// Package gates compares what proxyc accepts with the code of the real kube-proxy: its feature
// gates, its flags, and the result of its decoder and validation for each field. It links
// kube-proxy, and so is separate from the tests that run it.
package gates
