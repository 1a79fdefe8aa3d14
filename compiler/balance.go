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

// fairSlots is the minimum number of slots per backend, so that shares differ by
// at most a tenth.
const fairSlots = 10

// balancePass parses the Service's balance annotation: "maglev", or "maglev-1021"
// for a table of 1021 slots. Each mode decides how it balances with the table.
func (c *cluster) balancePass(s *service) {
	if s.Balance == "" {
		return
	}
	slots, ok := maglevSlots(s.Balance)
	if !ok {
		s.report(diag.BalanceValue, balanceField, fmt.Sprintf("must be maglev, or maglev- and one of %v, got %s: backends are chosen at random", ir.MaglevSlots(), diag.Quote(s.Balance)))
		return
	}
	number := s.tablesOf(slots)
	why := s.unbalanced(number)
	if why == "" {
		s.tables = &tables{number: number,
			Maglev: ir.Maglev{Slots: slots, Origin: ir.Origin{Object: s.object, Field: balanceField, Reason: "the client's address and port determine the backend"}}}
	}
	switch more := s.moreSlots(slots); {
	case !c.caps.Has(ir.StableBackends):
		s.warn(diag.ModeBalance, balanceField, "mode "+string(c.mode)+" does not support a choice of backends by client: the annotation is ignored")
	case why != "":
		s.warn(diag.BalanceNoEffect, balanceField, "has no effect: "+why)
	default:
		s.tables.noRoom = s.tables.finding(diag.BalanceNoEffect, "has no effect: "+s.tables.tooMany())
		if more > slots {
			s.tables.fitting = s.tables.finding(diag.BalanceFewSlots, fmt.Sprintf("%d slots are few for the endpoints of a port: use maglev-%d, which has more", slots, more))
		}
	}
}

// moreSlots returns the smallest table size with fairSlots for each endpoint, or
// the largest size. The result is at least slots.
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

// maglevSlots parses the annotation's value.
func maglevSlots(value string) (uint32, bool) {
	if value == "maglev" {
		return ir.MaglevSlots()[0], true
	}
	text, ok := strings.CutPrefix(value, "maglev-")
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), ok && err == nil && slices.Contains(ir.MaglevSlots(), uint32(n)) && text == strconv.FormatUint(n, 10)
}

// tablesOf returns the number of tables of the Service in each family: one for
// each port whose external frontends share a pool, otherwise one for each of them.
func (s *service) tablesOf(slots uint32) (n ir.PerFamily[int]) {
	for f, v := range s.views.All() {
		addrs := 0
		for _, a := range v.addrs {
			count(&addrs, a.kind.External())
		}
		for i := range s.ports {
			of := addrs
			count(&of, s.ports[i].nodePort != 0 && v.has(ir.ClusterIP))
			if (of-1)*int(slots) >= ir.MinShared {
				of = 1
			}
			*n.At(f) += of
		}
	}
	return n
}

// unbalanced returns why no external frontend of the Service can have a table, or
// "".
func (s *service) unbalanced(tables ir.PerFamily[int]) string {
	switch {
	case tables == ir.PerFamily[int]{}:
		return "the Service has no external address and no node port"
	case s.policy(ir.NodePort) == ir.Local:
		return "externalTrafficPolicy is Local"
	case s.AffinityIP:
		return "sessionAffinity is ClientIP"
	}
	return ""
}
