package proof

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	iptparse "github.com/proxyc/proxyc/render/iptables/parse"
)

// ownTargets are the other targets of rules in kube-proxy's chains, besides the chains.
var ownTargets = []string{"ACCEPT", "DROP", "REJECT", "RETURN", "MARK", "MASQUERADE", "DNAT", "REDIRECT"}

// DependentRules returns the foreign rules in an iptables dump that depend on kube-proxy's chains:
// rules that jump to such a chain, and rules inside one that jump elsewhere. An incomplete dump is
// an error.
func DependentRules(file, text string) (found []string, err error) {
	const wanted = "use " + string(savedRules) + " on a node"
	if strings.TrimSpace(text) == "" {
		return nil, errors.New("is empty: " + wanted)
	}
	if err := checkComplete(text); err != nil {
		return nil, err
	}
	switch as := printedBy(text); as {
	case savedRules:
	case "":
		return nil, fmt.Errorf("must be %s, which begins with a table (*nat)", savedRules)
	default:
		return nil, fmt.Errorf("is %s: %s", as, wanted)
	}
	err = iptparse.EachSaved(text, func(table, line string) {
		words := iptparse.SavedWords(line)
		if len(words) < 2 || words[0] != "-A" {
			return
		}
		chain, target := words[1], iptparse.SavedTarget(words)
		builtIn := chain == strings.ToUpper(chain) && !strings.ContainsAny(chain, "-_") // such as PREROUTING
		switch ours := strings.HasPrefix(chain, "KUBE-"); {
		case strings.HasPrefix(target, "KUBE-") && !ours && !builtIn:
			found = append(found, fmt.Sprintf("%s: table %s: chain %s leads to %s: %s", file, table, chain, target, line))
		case ours && target != "" && !strings.HasPrefix(target, "KUBE-") && !slices.Contains(ownTargets, target):
			found = append(found, fmt.Sprintf("%s: table %s: chain %s leads to %s, which is not kube-proxy's: %s", file, table, chain, target, line))
		}
	})
	return found, cmp.Or(err, checkTables(text))
}
