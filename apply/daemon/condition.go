package daemon

import (
	"time"

	"github.com/proxyc/proxyc/apply/node"
	"github.com/proxyc/proxyc/apply/watch"
)

// patience is how long after a start nothing is said that takes back what an earlier process
// said of the node: its rules are still in force.
const patience = time.Minute

// newCondition makes what keeps Node condition ServicesProgrammed; nil: nobody asked for it.
func (in *input) newCondition() *watch.NodeCondition {
	if !in.process.NodeCondition {
		return nil
	}
	booted, err := node.Booted()
	if err != nil {
		in.log.Warn("when the machine was started is not known: what its Node says of before stays for a while", "err", err)
	}
	return watch.NewNodeCondition(in.node, in.log, booted, in.programmed)
}

// programmed says whether the rules do what the cluster's Services mean; false: this process does
// not know yet, and an earlier one may have. Services that the kernel refuses do not count: who writes one
// could take all nodes out of service.
func (in *input) programmed() (watch.Condition, bool) {
	cut := in.cutOff()
	switch {
	case !in.process.programmed.Load():
		sure := in.config.Config.ProxyMode().ByProcess() || time.Since(in.process.started) >= patience
		return watch.Condition{Status: watch.False, Reason: "Starting", Message: "no rules are in force yet that the API server's objects mean"}, sure
	case !in.health.Status().Healthy:
		return watch.Condition{Status: watch.False, Reason: "Behind", Message: "a change is not in force: " + in.health.Ready().Reason}, true
	case cut != "":
		return watch.Condition{Status: watch.Unknown, Reason: "InputStale", Message: cut}, true
	}
	return watch.Condition{Status: watch.True, Reason: "RulesInForce", Message: "the rules of all Services are in force"}, true
}
