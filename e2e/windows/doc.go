// Package windows runs the Windows binaries of proxyc and of kube-proxy under wine, each on a
// Host Networking Service of package apply/hns/hnstest and with a real API server. It compares
// the resulting states of the hosts.
//
// dll contains the libraries that wine lacks. Programs under wine use the network namespace of
// wine's server, which is the node's.
package windows
