package userspace

// The chains, as kube-proxy named them (USR-2).
const (
	chainPortalsContainer  = "KUBE-PORTALS-CONTAINER"  // what comes in by an interface, to addresses of Services
	chainPortalsHost       = "KUBE-PORTALS-HOST"       // what the node itself sends there
	chainNodePortContainer = "KUBE-NODEPORT-CONTAINER" // what comes in to node ports
	chainNodePortHost      = "KUBE-NODEPORT-HOST"      // what the node itself sends there
	chainNodePortNonLocal  = "KUBE-NODEPORT-NON-LOCAL" // filter: lets connections to proxy ports in
)
