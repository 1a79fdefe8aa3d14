package apply

// ChainEffect is what the rules of a netfilter chain do to packets that do not
// come back from it.
type ChainEffect struct {
	Drops string   // "drop" or "reject", as its tool has it; empty: no rule does either
	To    []string // chains that rules jump or go to
}

// FindDrop returns the first chain, of a base chain and those that it leads to,
// nearest first, whose rules drop or reject packets, and which of the two; empty:
// none. effect is asked once for each chain; nil: there is no such chain.
func FindDrop(base string, effect func(chain string) (*ChainEffect, error)) (in, drops string, err error) {
	seen := map[string]bool{}
	for todo := []string{base}; len(todo) > 0; todo = todo[1:] {
		chain := todo[0]
		if seen[chain] {
			continue
		}
		seen[chain] = true
		e, err := effect(chain)
		switch {
		case err != nil:
			return "", "", err
		case e == nil:
		case e.Drops != "":
			return chain, e.Drops, nil
		default:
			todo = append(todo, e.To...)
		}
	}
	return "", "", nil
}
