package config

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/inet"
	"github.com/proxyc/proxyc/ir"
)

// Release is a minor release of kube-proxy 1: 37 is 1.37.
type Release int

// Peer is the release whose behaviour proxyc has.
const Peer Release = 37

// localhostSince is the first release that looks for 127.0.0.1 and ::1 in nodePortAddresses.
const localhostSince Release = 38

// keywordsSince is the first release in which nodePortAddresses accepts more than CIDRs or a single "primary".
const keywordsSince Release = 37

func (r Release) String() string { return "1." + strconv.Itoa(int(r)) }

// MarshalText returns String.
func (r Release) MarshalText() ([]byte, error) { return []byte(r.String()), nil }

// Releases returns the releases whose feature gates are known, in order.
func Releases() (all []Release) {
	for _, history := range entries(gatesText) {
		for _, part := range strings.Split(history, "; ") {
			since, _ := parseSince(part)
			all = append(all, since)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// UnmarshalText parses a release whose feature gates are known, such as 1.38.
func (r *Release) UnmarshalText(text []byte) error {
	var names []string
	for _, *r = range Releases() {
		if r.String() == string(text) {
			return nil
		}
		names = append(names, r.String())
	}
	return diag.NotOneOf(string(text), names)
}

// parseSince divides a part of a gate's history into the first release and the state.
func parseSince(part string) (Release, string) {
	release, state, _ := strings.Cut(part, " ")
	minor, err := strconv.Atoi(strings.TrimPrefix(release, "1."))
	if err != nil {
		panic("gates.txt: " + part) // the tests read the same text
	}
	return Release(minor), state
}

// stateIn returns the state with which the code behaves in a release, and why the release does not have
// the gate; "" if it has. Before a gate exists and after its removal, the first and the last state apply.
func stateIn(history string, r Release) (state, absence string) {
	for i, part := range strings.Split(history, "; ") {
		since, next := parseSince(part)
		switch {
		case since > r && i > 0:
		case since > r:
			state, absence = next, "a gate of release "+since.String()+" and newer"
		case next == "-":
			absence = "removed in release " + since.String()
		default:
			state, absence = next, ""
		}
	}
	return state, absence
}

// enabledIn reports whether a gate is on in a release with the given settings.
func enabledIn(r Release, set map[string]bool, name string) bool {
	state, absence := stateIn(entries(gatesText)[name], r)
	if absence != "" {
		return parseGate(state).on
	}
	return isOn(set, name, parseGate(state))
}

// under sets the gates whose effect differs from that in Peer, so that the rest of proxyc follows the
// requested release, and reports ranges that mean something else there.
func (r *resolver) under() {
	release, set := r.release, r.c.FeatureGates
	r.c.FeatureGates = maps.Clone(set)
	for _, e := range Effects() {
		if on := enabledIn(release, set, e.Gate); on != enabledIn(Peer, set, e.Gate) {
			r.c.FeatureGates[e.Gate] = on
			r.sources.setDefault(join("featureGates", e.Gate), "of release "+release.String())
			source := r.sources["featureGates"]
			source.Default, source.isDefault = "of release "+release.String(), len(set) == 0
			r.sources["featureGates"] = source
		}
	}
	if release < localhostSince || !r.c.Enabled(GateLocalhost) || r.c.ProxyMode() != ir.ModeNFTables {
		return
	}
	for i, entry := range r.c.NodePortAddresses {
		if p, ok := inet.ParsePrefix(entry); ok && p.Masked().Addr().IsLoopback() != namesLocalhost(p) {
			does := map[bool]string{true: "serves", false: "does not serve"}[namesLocalhost(p)]
			r.diags.Add(r.located(diag.Diagnostic{Severity: diag.Warning, Code: diag.ConfigNoEffect, Path: fmt.Sprintf("nodePortAddresses[%d]", i),
				Msg: fmt.Sprintf("%s localhost from release %s on: kube-proxy looks for 127.0.0.1 and ::1 in ranges above length 0", does, localhostSince)}))
		}
	}
}

// namesLocalhost reports whether an entry of nodePortAddresses requests node ports at localhost, by
// the rule of release 1.38. Earlier releases ask whether its first address is a loopback address.
func namesLocalhost(p netip.Prefix) bool {
	return p.Bits() > 0 && (p.Contains(netip.AddrFrom4([4]byte{127, 0, 0, 1})) || p.Contains(netip.IPv6Loopback()))
}
