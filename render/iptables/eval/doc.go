// Package eval walks packets through rules of iptables in the order of the kernel. It knows tables,
// chains and rules, and nothing of Services.
package eval
