// Package daemon maintains the rules of one node. It implements proxyc watch.
//
// A session is the life of the daemon: it has one configuration, and with another one the process
// executes itself again (restart.go). It is composed of types that own their fields and goroutines:
//
//	session      start and end (session.go)
//	  configFile   ends the session when its file has another configuration
//	  input        objects of the cluster; the follower compiles those that changed
//	  rules        dataplane and reconciler
//	    restorer     applies the last Programs until there are objects
//	    observer     health, metrics, log and status of syncs
//	    effects      work after a sync: stale flows, health checks, boot file
//	    takeover     leftovers of other proxies; peer tracks a running kube-proxy
//	  servers      health, metrics, debug pages and status
//
// Changes of the cluster arrive in a watch.Store, which the input fills. The reconciler in package
// reconcile applies the difference through an apply.Dataplane, which package host opens.
package daemon
