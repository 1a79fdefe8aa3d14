package ir

import "reflect"

// Change is a Service that differs between two Programs. Old is nil if it was
// added, New is nil if it was removed.
type Change struct {
	Name     Name
	Old, New *Service
}

// Diff returns the Services that differ between two Programs of one family, in
// order of name. It ignores the nodes. It compares Origins, so that a rule whose
// reason changed is shown as changed.
func Diff(from, to *Program) []Change {
	var changes []Change
	a, b := from.Services, to.Services
	for len(a) > 0 || len(b) > 0 {
		var order int
		switch {
		case len(a) == 0:
			order = 1
		case len(b) == 0:
			order = -1
		default:
			order = a[0].Name.Compare(b[0].Name)
		}
		switch {
		case order < 0:
			changes = append(changes, Change{a[0].Name, &a[0], nil})
			a = a[1:]
		case order > 0:
			changes = append(changes, Change{b[0].Name, nil, &b[0]})
			b = b[1:]
		default:
			if !reflect.DeepEqual(a[0], b[0]) {
				changes = append(changes, Change{a[0].Name, &a[0], &b[0]})
			}
			a, b = a[1:], b[1:]
		}
	}
	return changes
}
