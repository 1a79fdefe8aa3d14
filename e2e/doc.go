// Package e2e holds proxyc against the software that it works with: a real API
// server, etcd and kube-proxy, which go.mod names as tools. It is a module of
// its own, so that what these need stays out of proxyc's. The module types
// below it holds the configuration's types against the published ones.
package e2e
