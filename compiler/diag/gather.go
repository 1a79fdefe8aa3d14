package diag

// A Gatherer collects findings incrementally. It keeps a limited number of
// similar findings and counts the rest, so that memory does not grow with the
// input. The zero value keeps all.
type Gatherer struct {
	// MaxSimilar is the limit of similar findings, as in Summarize; 0 keeps all.
	MaxSimilar int

	list   List // findings, if all are kept
	groups map[Diagnostic]*group
}

// group is similar findings: up to Most of them, or one with a count.
type group struct {
	held  List
	count int
}

// Add adds a finding. If the finding is kept, Add calls complete, which fills in
// expensive fields. complete is optional.
func (g *Gatherer) Add(d Diagnostic, complete func(*Diagnostic)) {
	if g.MaxSimilar == 0 {
		g.list.Add(completed(d, complete))
		return
	}
	if g.groups == nil {
		g.groups = map[Diagnostic]*group{}
	}
	similarityKey := d.similarityKey()
	of := g.groups[similarityKey]
	if of == nil {
		of = new(group)
		g.groups[similarityKey] = of
	}
	if of.count += 1 + d.More; of.count <= g.MaxSimilar || len(of.held) == 0 {
		of.held.Add(completed(d, complete))
	} else {
		of.held = of.held[:1:1]
	}
}

func completed(d Diagnostic, complete func(*Diagnostic)) Diagnostic {
	if complete != nil {
		complete(&d)
	}
	return d
}

// List returns the collected findings, sorted.
func (g *Gatherer) List() List {
	list := append(List{}, g.list...)
	for _, of := range g.groups {
		if of.count > g.MaxSimilar {
			of.held[0].More = of.count - 1
		}
		list.Add(of.held...)
	}
	list.Sort()
	return list
}
