// Package e2e tests proxyc with the software that it works with: a real API server, etcd and
// kube-proxy, which go.mod names as tools. It is a module of its own, to keep their dependencies
// out of proxyc's. The module types below it compares the configuration's types with the
// published ones.
package e2e
