// Package eval evaluates packets against iptables rules in the order of the
// kernel. It uses only tables, chains and rules, and does not depend on Services.
package eval
