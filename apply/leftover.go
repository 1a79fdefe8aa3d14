package apply

import "context"

// Leftover is an object that kube-proxy, or proxyc in another mode, left on the node.
type Leftover struct {
	Object string // as the tool lists it: "table ip kube-proxy", "iptables-legacy nat KUBE-SERVICES and 12 more chains"
	// KubeProxy reports whether only kube-proxy creates it. kube-proxy then ran on the node, and may
	// still run.
	KubeProxy bool
	// GuardsLocalhost reports whether it protects listeners on localhost from other machines. That is
	// necessary if the kernel routes localhost addresses.
	GuardsLocalhost bool
	// Remove removes it, and no objects of other programs. It returns no error if it does not exist.
	Remove func(ctx context.Context) error
	// Ease, if set, is called instead of Remove after a change of modes, when the new rules are applied.
	// It removes parts without connections, and returns the number of the others' connections. It is
	// called again until there are none.
	Ease func(ctx context.Context) (connections int, err error)
	// Eased reports whether it remains only until its connections end. It is then no difference from the
	// desired state.
	Eased bool
}
