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
func Diff(from, to *Program) (changes []Change) {
	a, b := from.Services, to.Services
	for len(a)+len(b) > 0 {
		order := len(b) - len(a) // if one list is empty, the other comes first
		if len(a) > 0 && len(b) > 0 {
			order = a[0].Name.Compare(b[0].Name)
		}
		var c Change
		if order <= 0 {
			c.Name, c.Old, a = a[0].Name, &a[0], a[1:]
		}
		if order >= 0 {
			c.Name, c.New, b = b[0].Name, &b[0], b[1:]
		}
		if c.Old == nil || c.New == nil || !reflect.DeepEqual(c.Old, c.New) {
			changes = append(changes, c)
		}
	}
	return changes
}
