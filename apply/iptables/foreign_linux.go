package iptables

import (
	"bytes"
	"context"
	"errors"
	"os/exec"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// Interference returns the effects of foreign rules of the legacy variant on packets to Services.
// It ignores chains named KUBE-. Package nftables checks the chains of the nft variant.
func Interference(ctx context.Context, mark uint32) (all apply.Interference, err error) {
	for _, f := range ir.Families() {
		tables, _ := LegacyTables(f) // none without root
		for _, table := range tables {
			t := foreignTable{rules: map[string][]apply.RuleEffect{}}
			if err := run.To(ctx, nil, &lines{each: t.line}, tool(f, Legacy, "save"), "-t", table); err != nil {
				return apply.Interference{}, err
			}
			t.addTo(&all, rules.Tool(f)+"-legacy ", table, mark)
		}
	}
	return all, nil
}

// RuleCounts returns the number of rules of each variant in both families. It omits a variant whose
// tools are not installed.
func RuleCounts(ctx context.Context) (map[string]int, error) {
	counts := map[string]int{}
	var errs []error
	for _, v := range []Variant{NFT, Legacy} {
		for _, f := range ir.Families() {
			if tables, err := LegacyTables(f); v == Legacy && len(tables) == 0 {
				errs = append(errs, err)
				continue // running the tool would create tables
			}
			out, err := run.Run(ctx, nil, tool(f, v, "save"))
			if errors.Is(err, exec.ErrNotFound) {
				continue
			}
			errs = append(errs, err)
			counts[string(v)] += bytes.Count(out, []byte("\n-A "))
		}
	}
	return counts, errors.Join(errs...)
}
