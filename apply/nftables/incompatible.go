package nftables

import (
	"cmp"
	"slices"
	"strconv"

	"github.com/proxyc/proxyc/apply/nftables/codec"
	rules "github.com/proxyc/proxyc/render/nftables"
)

// incompatible returns the differences in the table's declaration, and in those of sets and
// base chains that both sides have. The kernel cannot change most of these in place, so the
// table is recreated.
func incompatible(have, want *rules.Ruleset) (why []string) {
	if have.Exists && !sameFlags(have.Flags, want.Flags) {
		why = append(why, "flags "+cmp.Or(have.Flags, "none"))
	}
	sets, chains := setsByName(have), chainsByName(have)
	for i := range want.Sets {
		w := &want.Sets[i]
		if h := sets[w.Name]; h != nil {
			if what := setDifference(h, w); what != "" {
				why = append(why, "set "+w.Name+": "+what)
			}
		}
	}
	for i := range want.Chains {
		w := &want.Chains[i]
		if h := chains[w.Name]; h != nil {
			if what := baseDifference(h.Base, w.Base); what != "" {
				why = append(why, "chain "+w.Name+": "+what)
			}
		}
	}
	return why
}

// sameFlags reports whether a table need not be recreated. To read-only programs it does not matter
// that a table belongs to a daemon.
func sameFlags(have, want string) bool {
	return have == want || have == codec.FlagsOwned || have == codec.FlagPersist && want == codec.FlagsOwned
}

// setDifference returns the first difference of two declarations of a set.
func setDifference(h, w *rules.Set) string {
	switch {
	case h.Timeout != w.Timeout:
		return "timeout " + h.Timeout.String()
	case h.Unsupported != "":
		return h.Unsupported
	case h.Data != w.Data || h.Interval != w.Interval || !slices.Equal(h.Key, w.Key):
		return "another type"
	case h.Counter != w.Counter:
		return "counters of connections"
	}
	return ""
}

// baseDifference returns the first difference of two base chains, except the policy.
func baseDifference(h, w *rules.Base) string {
	switch {
	case h == nil && w == nil:
		return ""
	case h == nil:
		return "no hook"
	case w == nil:
		return "hook " + h.Hook.String()
	case h.Unsupported != "":
		return h.Unsupported
	case h.NAT != w.NAT:
		return "type " + h.Type()
	case h.Hook != w.Hook:
		return "hook " + h.Hook.String()
	case h.Priority != w.Priority:
		return "priority " + strconv.Itoa(h.Priority)
	}
	return ""
}
