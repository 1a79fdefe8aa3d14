package apply

import "context"

// Leftover is something that a proxy left on the node: kube-proxy, or proxyc in
// another mode.
type Leftover struct {
	Object string // as its tool lists it: "table ip kube-proxy", "iptables-legacy nat KUBE-SERVICES and 12 more chains"
	// KubeProxy reports whether only kube-proxy makes it: a sign that it ran here, and may
	// still run.
	KubeProxy bool
	// GuardsLocalhost reports whether it keeps other machines from what listens on
	// localhost only, as is needed where the kernel routes such addresses.
	GuardsLocalhost bool
	// Remove takes it away, and nothing of anybody else's. It is no error when
	// it is gone already.
	Remove func(ctx context.Context) error
	// Ease, where it is not nil, is for a change of modes, once the new rules are in
	// force: it takes away what has no connections, and returns how many the rest has.
	// It is called again until there are none.
	Ease func(ctx context.Context) (connections int, err error)
	// Eased reports whether it is only there until its connections end: no
	// difference from what is wanted.
	Eased bool
}
