// Package daemon keeps the rules of one node: it is proxyc watch, and proxyc
// apply, which is its OneShot.
//
// Run runs one session after the other, each under one configuration. A session is
// composed of types that own their fields and goroutines:
//
//	process        sessions one after the other, and what they share
//	  session      start and end of one (session.go)
//	    configFile   ends the session when its file has another configuration
//	    input        objects of the cluster; the follower compiles those that changed
//	    rules        lock, dataplane and reconciler
//	      holder       what was last in force, until there are objects
//	      observer     health, metrics, log and status of syncs
//	      effects      what follows a sync: stale flows, health checks, boot file
//	      takeover     what other proxies left; peer is a kube-proxy that runs
//	    servers      health, metrics, debug pages and status
//
// What changes in the cluster comes from a watch.Store, which the input fills. The
// reconciler of the package below puts the difference in force through an
// apply.Dataplane, which the table in dataplanes.go opens for the mode.
//
// What a session shares with a OneShot (settings, lock, leftovers, stale flows) is in
// node.go.
package daemon
