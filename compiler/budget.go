package compiler

import (
	"maps"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/ir"
)

// Limits of all Services of a namespace, and of all Services of a node, in one
// family. They count the products of boundsPass: frontends at external addresses,
// source ranges of frontends, and endpoints of ports after the first. One
// namespace can thus add some 100 MB to every node, whatever its number of
// Services. A cluster with 10,000 Services, each with two ports, two load
// balancer addresses and 50 endpoints, uses a quarter of the limits of a node.
var (
	namespaceLimit = cost{5 * maxFrontends, 5 * maxAdmitted, 2 * maxBackends}
	nodeLimit      = cost{20 * maxFrontends, 20 * maxAdmitted, 20 * maxBackends}
)

// cost is a number of rules or elements for products of a Service.
type cost struct{ frontends, admitted, backends int }

func (c *cost) add(o cost, sign int) {
	c.frontends, c.admitted, c.backends = c.frontends+sign*o.frontends, c.admitted+sign*o.admitted, c.backends+sign*o.backends
}

// excess is whether frontends or backends exceed a limit.
type excess struct {
	frontends, backends bool
	of                  string // whose limit, for messages
	limit               cost
}

func (c cost) exceeds(limit cost) excess {
	return excess{frontends: c.frontends > limit.frontends || c.admitted > limit.admitted, backends: c.backends > limit.backends}
}

// budget is the cost of all Services of one family. While the sums are within the
// limits, a change costs the same for any number of Services. Otherwise the
// youngest Services lose their external addresses, or the endpoints of all ports
// but the first. All nodes decide alike, since costs do not depend on the node.
type budget struct {
	family     ir.Family
	all        map[*entry]bool // with a cost
	namespaces map[string]cost
	crowded    int // namespaces over their limit
	node       cost
	moved      bool // since settle
	over       bool // some Service is over a limit
}

func newBudget(f ir.Family) *budget {
	return &budget{family: f, all: map[*entry]bool{}, namespaces: map[string]cost{}}
}

// replace accounts for a Service whose cost was another one.
func (b *budget) replace(e *entry, old cost) {
	now, sum := e.costs.Of(b.family), b.namespaces[e.name.Namespace]
	count := func(by int) {
		if sum.exceeds(namespaceLimit) != (excess{}) {
			b.crowded += by
		}
	}
	count(-1)
	for _, total := range []*cost{&b.node, &sum} {
		total.add(old, -1)
		total.add(now, 1)
	}
	count(1)
	if b.namespaces[e.name.Namespace] = sum; sum == (cost{}) {
		delete(b.namespaces, e.name.Namespace)
	}
	if b.all[e] = true; now == (cost{}) {
		delete(b.all, e)
	}
	b.moved = true
}

// settle decides which Services are over a limit. It calls touched with those for
// which this changed.
func (b *budget) settle(touched func(*entry)) {
	if !b.moved {
		return
	}
	b.moved = false
	within := b.crowded == 0 && b.node.exceeds(nodeLimit) == (excess{})
	if within && !b.over {
		return
	}
	b.over = !within
	var node cost
	namespaces := map[string]cost{}
	for _, e := range slices.SortedFunc(maps.Keys(b.all), (*entry).age) {
		c, sum := e.costs.Of(b.family), namespaces[e.name.Namespace]
		over := c.fit(&sum, namespaceLimit, "namespace "+e.name.Namespace)
		if rest := c.fit(&node, nodeLimit, "a node"); over == (excess{}) {
			over = rest
		} else {
			over.frontends, over.backends = over.frontends || rest.frontends, over.backends || rest.backends
		}
		namespaces[e.name.Namespace] = sum
		if at := e.over.At(b.family); *at != over {
			*at = over
			touched(e)
		}
	}
}

// fit adds the cost to a sum, and returns what exceeds the limit. It removes that
// from the cost.
func (c *cost) fit(sum *cost, limit cost, of string) excess {
	next := *sum
	next.add(*c, 1)
	over := next.exceeds(limit)
	if over.frontends {
		c.frontends, c.admitted = 0, 0
	}
	if over.backends {
		c.backends = 0
	}
	if sum.add(*c, 1); over != (excess{}) {
		over.of, over.limit = of, limit
	}
	return over
}

// why returns the message for a Service that is over a limit: n of what.
func (o excess) why(n func(cost) int, what string, f ir.Family) string {
	return "older Services use the limit of " + o.of + ", " + strconv.Itoa(n(o.limit)) + " " + what + " in " + f.String()
}
