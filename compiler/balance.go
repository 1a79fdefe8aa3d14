package compiler

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

const balanceField = "metadata.annotations." + snapshot.AnnotationBalance

// fairSlots is how many slots each backend should have, so that shares differ by no
// more than a tenth.
const fairSlots = 10

// balancePass reads how the Service wants its backends to be chosen: "maglev", or
// "maglev-1021" for a table of so many slots. What a mode makes of it is its matter.
func (c *cluster) balancePass(s *service) {
	if s.Balance == "" {
		return
	}
	slots, ok := maglevSlots(s.Balance)
	if !ok {
		s.report(diag.BalanceValue, balanceField, fmt.Sprintf("must be maglev, or maglev- and one of %v, got %q: backends are taken at random", ir.MaglevSlots(), s.Balance))
		return
	}
	why := s.unbalanced(slots)
	if why == "" {
		s.maglev = &ir.Maglev{Slots: slots, Origin: ir.Origin{Object: s.object, Field: balanceField, Reason: "the client's address and port choose"}}
	}
	switch more := s.moreSlots(slots); {
	case !c.caps.Has(ir.StableBackends):
		s.warn(diag.ModeBalance, balanceField, "mode "+string(c.mode)+" has no choice of backends by the client: they are chosen as without the annotation")
	case why != "":
		s.warn(diag.BalanceNoEffect, balanceField, "has no effect: "+why)
	case more > slots:
		s.warn(diag.BalanceFewSlots, balanceField, fmt.Sprintf("%d slots are few for the endpoints of a port: maglev-%d has more", slots, more))
	}
}

// moreSlots returns the size of a table with fairSlots for each endpoint, or the
// largest one; no less than slots.
func (s *service) moreSlots(slots uint32) uint32 {
	most := 0
	for _, v := range s.views.All() {
		for _, of := range v.endpoints {
			most = max(most, len(of))
		}
	}
	for _, n := range ir.MaglevSlots() {
		if int(slots) < fairSlots*most {
			slots = max(slots, n)
		}
	}
	return slots
}

// maglevSlots reads the annotation's value.
func maglevSlots(value string) (uint32, bool) {
	if value == "maglev" {
		return ir.MaglevSlots()[0], true
	}
	text, ok := strings.CutPrefix(value, "maglev-")
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), ok && err == nil && slices.Contains(ir.MaglevSlots(), uint32(n)) && text == strconv.FormatUint(n, 10)
}

// unbalanced returns why no frontend of the Service can have a table; "": some have.
func (s *service) unbalanced(slots uint32) string {
	external := 0 // frontends of the family that has more
	for _, v := range s.views.All() {
		n := 0
		for _, a := range v.addrs {
			if a.kind.External() {
				n += len(s.ports)
			}
		}
		for i := range s.ports {
			count(&n, s.ports[i].nodePort != 0 && v.has(ir.ClusterIP))
		}
		external = max(external, n)
	}
	switch {
	case external == 0:
		return "the Service has no external address and no node port"
	case s.policy(ir.NodePort) == ir.Local:
		return "externalTrafficPolicy is Local"
	case s.AffinityIP:
		return "sessionAffinity is ClientIP"
	case external*int(slots) > maxBackends:
		return fmt.Sprintf("%d frontends of %d slots each are more than %d", external, slots, maxBackends)
	}
	return ""
}
