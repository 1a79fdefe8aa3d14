// Package conformance plays the cases of testdata/conformance once more, with a
// real API server between the objects and the proxy; and through the last
// kube-proxy that had mode userspace, beside proxyc's.
package conformance
