// Package serve is what the daemon answers over HTTP: the probes of the node's
// health, the health check node ports of Services, and the metrics server with
// its pages for debugging. Paths, codes, headers, bodies, metric names and
// labels are kube-proxy's, so that load balancers, kubelets and dashboards need
// no change.
//
// Nothing here knows a cluster or a kernel: callers tell what happened, and
// own every goroutine through Run and Close.
package serve
