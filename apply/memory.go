package apply

import (
	"context"

	"github.com/proxyc/proxyc/ir"
)

// Memory is a Dataplane without a kernel: it has what it is given, and its Plans name no operation.
type Memory struct {
	// Committed, if set, is told of each commit, by the goroutine that makes it.
	Committed func(Desired)

	applied Applied
}

func (*Memory) Read(context.Context) error                     { return nil }
func (*Memory) Plan(want ir.Programs) Plan                     { return given{Desired{Full: true, Programs: want}} }
func (*Memory) PlanChanges(changes ir.Changes) Plan            { return given{Desired{Changes: changes}} }
func (*Memory) Compare(context.Context) (Plan, error)          { return given{}, nil }
func (m *Memory) Applied() ir.Programs                         { return m.applied.Programs() }
func (*Memory) Drift(context.Context) (<-chan struct{}, error) { return nil, nil }
func (*Memory) Leftovers(context.Context) ([]Leftover, error)  { return nil, nil }
func (*Memory) Counters() Counters                             { return Counters{} }
func (*Memory) Close() error                                   { return nil }

func (m *Memory) Commit(_ context.Context, p Plan) (Result, error) {
	d := p.(given).Desired
	m.applied.Take(d)
	if m.Committed != nil {
		m.Committed(d)
	}
	return Result{}, nil
}

// given is a Plan that names no operation.
type given struct{ Desired }

func (given) Empty() bool                          { return false }
func (given) Operations(func(Operation) bool)      {}
func (given) Differences(func(Operation) bool)     {}
func (given) RemovedFrontends() []ir.Match         { return nil }
func (given) Without(map[string]bool) (Plan, bool) { return nil, false }
