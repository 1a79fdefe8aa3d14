// Package packets sends packets through the rules that proxyc writes on a node in namespaces, while rules, endpoints and
// programs change.
package packets
