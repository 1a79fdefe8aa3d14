package compiler

import (

	"github.com/proxyc/proxyc/compiler/config"
)

// The builders below make the objects of the tests. Everything is in
// namespace ns; endpoints are written as "10.244.1.10:8080 node1" and more
// words: not-ready, terminating (serving and terminating), dead (terminating),
// zone=zone-a, hint=node1.

func newConfig(mode string) *config.Config {
	c := &config.Config{Mode: mode, ClusterCIDR: "10.244.0.0/16,fd00:10:244::/56", DetectLocalMode: "ClusterCIDR"}
	return c
}

