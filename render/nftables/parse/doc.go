// Package parse parses the output of nft list ruleset: the tables of proxyc and
// kube-proxy (ParseList), and all tables that packets of a family traverse
// (ParseWhole).
package parse
