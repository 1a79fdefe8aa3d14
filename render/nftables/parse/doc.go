// Package parse reads what nft list ruleset prints: the tables of proxyc and kube-proxy (ParseList), and
// those of any author that packets of a family meet (ParseWhole).
package parse
