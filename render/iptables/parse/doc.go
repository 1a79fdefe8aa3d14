// Package parse parses the output of iptables-save and ip6tables-save, for rules
// of any author.
package parse
