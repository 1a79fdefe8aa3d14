// Package e2e holds proxyc against the software that it works with: the
// published types of Kubernetes, real API servers, real kube-proxies. It is a
// module of its own, so that what these need stays out of proxyc's.
package e2e
