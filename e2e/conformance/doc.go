// Package conformance plays the cases of testdata/conformance with a real API server between the
// objects and the proxy. It also plays them in mode userspace with proxyc and with the last
// kube-proxy that had that mode.
package conformance
