// Package eval evaluates packets against the load balancers of a Windows node.
package eval
