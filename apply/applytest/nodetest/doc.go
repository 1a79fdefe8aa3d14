// Package nodetest runs proxyc as on a node, in a network namespace.
package nodetest
