// Package types holds proxyc's configuration against the newest published
// types of KubeProxyConfiguration. It is a module of its own, for these are
// newer than the kube-proxy that the end-to-end tests run.
package types
