// Package serve contains the daemon's HTTP servers: the probes of the node's health, the health
// check node ports of Services, and the metrics server with its debug pages. Paths, codes, headers,
// bodies, metric names and labels are kube-proxy's, so that load balancers, kubelets and dashboards
// need no change.
//
// The package depends on neither a cluster nor a kernel. Callers report what happened, and own
// every goroutine through Run and Close.
package serve
