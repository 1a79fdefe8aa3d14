// Package daemon keeps the rules of one node: it is proxyc watch, and proxyc
// apply, which is its OneShot.
//
// What changes in the cluster comes from a watch.Store, which an API server or
// files fill (source.go). A follower compiles the Services that changed; the
// reconciler of the package below puts the difference in force through an
// apply.Dataplane, which the table in dataplanes.go opens for the mode. Then
// stale flows go and health checks follow (rules.go, checks.go), and metrics,
// status, boot file and events tell of it.
//
// Run goes from one life to the next when the configuration changes; the rules
// stay. What it shares with a OneShot (settings, lock, leftovers, stale flows) is in
// node.go.
package daemon
