package diag

// A Gatherer gathers findings one after the other. Of many that say the same it
// holds one, with a count, so that a long input takes no more memory for its
// findings than a short one. The zero value holds each.
type Gatherer struct {
	// Most is how many that say the same are held, as Fewer has it; 0: all.
	Most int

	list   List // where each is held
	groups map[Diagnostic]*group
}

// group are findings that say the same: the first ones, while they are no more
// than most, and one of them with a count after that.
type group struct {
	held  List
	count int
}

// Add adds a finding. Where it is held, complete is called, which may be nil, to
// fill in what is not worth its cost for one that is only counted.
func (g *Gatherer) Add(d Diagnostic, complete func(*Diagnostic)) {
	if g.Most == 0 {
		g.list.Add(completed(d, complete))
		return
	}
	if g.groups == nil {
		g.groups = map[Diagnostic]*group{}
	}
	gist := d.gist()
	of := g.groups[gist]
	if of == nil {
		of = new(group)
		g.groups[gist] = of
	}
	if of.count++; of.count <= g.Most {
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

// List returns what was gathered, in order.
func (g *Gatherer) List() List {
	list := append(List{}, g.list...)
	for _, of := range g.groups {
		if of.count > len(of.held) {
			of.held[0].More = of.count - 1
		}
		list.Add(of.held...)
	}
	list.Sort()
	return list
}
