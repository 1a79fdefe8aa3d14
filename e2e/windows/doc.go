// Package windows runs the Windows binaries of proxyc and of kube-proxy under
// wine, each against a Host Networking Service of package apply/hns/hnstest and a
// real API server: what the one makes a host hold is compared with what the other does.
//
// dll has the libraries that wine lacks. Programs under wine have the network
// namespace of wine's server, which is the node's.
package windows
