// Package eval looks packets up among the load balancers of a Windows node.
package eval
