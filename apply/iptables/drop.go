package iptables

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/proxyc/proxyc/apply"
	"github.com/proxyc/proxyc/apply/run"
	"github.com/proxyc/proxyc/ir"
	rules "github.com/proxyc/proxyc/render/iptables"
)

// MayDrop lists the built-in chains of the legacy variant that may drop what
// ours would let pass: by their policy, by a rule, or by one in a chain that
// they lead to. They are the host's business: nobody changes them. Chains named
// KUBE- do not count. Those of the nft variant are chains of nf_tables like all
// others there.
func MayDrop(ctx context.Context) (all []string, err error) {
	for _, f := range ir.Families() {
		tables, err := os.ReadFile(legacyNames(f))
		if err != nil {
			continue // the kernel has none
		}
		for _, table := range slices.Sorted(strings.FieldsSeq(string(tables))) {
			t := dropping{chains: map[string]*apply.ChainEffect{}, policies: map[string]string{}}
			err := run.To(ctx, nil, &t, tool(f, Legacy, "save"), "-t", table)
			if err != nil {
				return nil, err
			}
			for _, chain := range t.builtIn {
				if why := t.why(chain); why != "" {
					all = append(all, fmt.Sprintf("%s-legacy table %s chain %s: %s", rules.Tool(f), table, chain, why))
				}
			}
		}
	}
	return all, nil
}

// dropping reads what iptables-save writes of a table.
type dropping struct {
	begun    []byte
	builtIn  []string
	policies map[string]string // of built-in chains
	chains   map[string]*apply.ChainEffect
}

func (d *dropping) Write(text []byte) (int, error) {
	n := len(text)
	for {
		line, rest, ok := bytes.Cut(text, []byte("\n"))
		d.begun = append(d.begun, line...)
		if !ok {
			return n, nil
		}
		d.line(string(d.begun))
		d.begun, text = d.begun[:0], rest
	}
}

func (d *dropping) chain(name string) *apply.ChainEffect {
	if d.chains[name] == nil {
		d.chains[name] = &apply.ChainEffect{}
	}
	return d.chains[name]
}

func (d *dropping) line(line string) {
	words := strings.Fields(unquoted(line))
	switch {
	case len(words) < 2:
	case words[0][0] == ':' && words[1] != "-": // others than built-in ones have no policy
		name := words[0][1:]
		d.builtIn = append(d.builtIn, name)
		d.policies[name] = words[1]
	case words[0] == "-A" && !strings.HasPrefix(words[1], "KUBE-"):
		i := 1 + max(slices.Index(words, "-j"), slices.Index(words, "-g"))
		if i == 0 || i == len(words) {
			return
		}
		if of := d.chain(words[1]); words[i] == "DROP" || words[i] == "REJECT" {
			of.Drops = words[i]
		} else {
			of.To = append(of.To, words[i])
		}
	}
}

// unquoted is a line with nothing in quotation marks.
func unquoted(line string) string {
	if !strings.Contains(line, `"`) {
		return line
	}
	parts := strings.Split(strings.ReplaceAll(line, `\"`, ""), `"`)
	for i := 1; i < len(parts); i += 2 {
		parts[i] = ""
	}
	return strings.Join(parts, `"`)
}

// why tells by what a built-in chain may drop; empty: by nothing.
func (d *dropping) why(base string) string {
	if policy := d.policies[base]; policy == "DROP" {
		return "policy " + policy
	}
	in, drops, _ := apply.FindDrop(base, func(chain string) (*apply.ChainEffect, error) { return d.chains[chain], nil })
	if drops == "" {
		return ""
	}
	return drops + " in chain " + in
}
