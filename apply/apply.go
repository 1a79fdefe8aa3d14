// Package apply makes a node's kernel hold what the compiler wants: it reads
// what is there, plans the difference, commits it, and checks that it holds.
//
// Each dataplane is a Target in a package below. Planning is pure; reading and
// committing touch the kernel.
package apply

import (
	"context"
	"fmt"
	"strings"

	"github.com/proxyc/proxyc/ir"
)

// Target is one dataplane of a node, whose state is an R: the lowered Rulesets
// of both families.
type Target[R any] interface {
	// Read reads what the node has now.
	Read(ctx context.Context) (R, error)
	// Plan compares. It reads no kernel and changes nothing.
	Plan(have, want R) Plan
	// Commit carries a Plan of the same Target out. The order of its steps is
	// such that no packet meets half a Service. When the kernel refuses some
	// Services, the rest is committed and a *Quarantine is returned; any other
	// error means that the node is as it was.
	Commit(ctx context.Context, p Plan) error
}

// Plan is the difference between what a node has and what it should have.
type Plan interface {
	// Empty tells that there is nothing to do.
	Empty() bool
	// Operations calls yield for each operation in the order of commit, until
	// it returns false.
	Operations(yield func(Operation) bool)
	// Gone are the frontends that the node has and will not have any longer.
	Gone() []ir.Match
}

// Partial is a Plan of which some objects can be left out.
type Partial interface {
	Plan
	// Without gives the Plan without the operations on the objects. ok is false
	// where they cannot be told from the others.
	Without(objects map[string]bool) (rest Plan, ok bool)
}

// TableCount is how many rules one table of a family has.
type TableCount struct {
	Family  ir.Family
	Table   string
	Rules   int // after the Plan
	Written int // by it, those that are written again included
}

// Tabled is a Plan of a dataplane that keeps rules in tables.
type Tabled interface {
	Plan
	Tables() []TableCount
}

// Cleaning is a Plan whose Commit goes on where the kernel still holds to what
// nothing needs any more.
type Cleaning interface {
	Plan
	// Kept is how many objects of a family the last Commit therefore left.
	Kept(ir.Family) int
}

// Verb is what an operation does.
type Verb uint8

const (
	Add Verb = iota
	Change
	Remove
)

// String gives add, change or remove.
func (v Verb) String() string { return [...]string{"add", "change", "remove"}[v] }

// MarshalText gives String.
func (v Verb) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Operation is one change of one rule, chain or element.
type Operation struct {
	Verb    Verb      `json:"verb"`
	Object  string    `json:"object"`           // as the dataplane's tool lists it
	Service ir.Name   `json:"service,omitzero"` // zero: the fixed part, shared by all
	Origin  ir.Origin `json:"origin,omitzero"`  // of what is wanted; zero for what goes
}

// Refusal is one Service that the kernel did not take.
type Refusal struct {
	Service ir.Name
	Reason  error // the kernel's
}

// Quarantine is the error of a Commit that left some Services out and put the
// rest in force.
type Quarantine struct{ Refused []Refusal }

func (q *Quarantine) Error() string {
	parts := make([]string, len(q.Refused))
	for i, r := range q.Refused {
		parts[i] = fmt.Sprintf("Service %s: the kernel refuses its rules: %v", r.Service, r.Reason)
	}
	return strings.Join(parts, "; ")
}

// FamilyError is the error of a Commit that one family's rules gave rise to.
type FamilyError struct {
	Family ir.Family
	Err    error
}

func (e *FamilyError) Error() string { return e.Err.Error() }
func (e *FamilyError) Unwrap() error { return e.Err }

// Foreign is the error of a Read that met an object under proxyc's name which
// somebody else owns.
type Foreign struct {
	Object string // "table ip proxyc"
	Why    string
}

func (f *Foreign) Error() string { return f.Object + ": belongs to somebody else: " + f.Why }
