// Package monitor reports when other programs may have changed the node's rules. For nf_tables it
// uses the kernel's notifications. For iptables-legacy, which has none, it polls the tables.
//
// Changes made inside [Monitor].Own are not reported. Changes of other programs at the same time
// are.
package monitor
