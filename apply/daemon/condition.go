package daemon

import (
	"time"

	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/watch"
)

// conditionGrace is how long after a start the condition of an earlier process is kept, since its rules
// are still in use.
const conditionGrace = time.Minute

// newCondition returns the maintainer of Node condition ServicesProgrammed; nil if it is not
// enabled.
func (in *input) newCondition() *watch.NodeCondition {
	if !in.NodeCondition {
		return nil
	}
	booted, err := node.BootTime()
	if err != nil {
		in.log.Warn("the boot time is unknown: an earlier condition of the Node is kept for a while", "err", err)
	}
	return watch.NewNodeCondition(in.node, in.log.Logger, booted, in.programmed)
}

// programmed returns the Node condition: whether the rules implement the cluster's Services. It
// returns false if this process does not know yet, while an earlier one may have. Services that the
// kernel refuses do not count: the author of a single Service could otherwise disable all nodes.
func (in *input) programmed() (watch.Condition, bool) {
	cut := in.outage()
	switch {
	case !in.inForce.Load():
		sure := in.config.Config.ProxyMode().ByProcess() || time.Since(in.started) >= conditionGrace
		return watch.Condition{Status: watch.False, Reason: "Starting", Message: "the rules of the API server's objects are not applied yet"}, sure
	case !in.health.Status().Healthy:
		return watch.Condition{Status: watch.False, Reason: "Behind", Message: "a change is not applied: " + in.health.Ready().Reason}, true
	case cut != "":
		return watch.Condition{Status: watch.Unknown, Reason: "InputStale", Message: cut}, true
	}
	return watch.Condition{Status: watch.True, Reason: "RulesInForce", Message: "the rules of all Services are applied"}, true
}
