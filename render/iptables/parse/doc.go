// Package parse reads what iptables-save and ip6tables-save print, of any author.
package parse
