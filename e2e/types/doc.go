// Package types compares proxyc's configuration with the newest published types of
// KubeProxyConfiguration. It is a module of its own, since these are newer than the kube-proxy
// that the end-to-end tests run.
package types
