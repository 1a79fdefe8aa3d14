package apply

import (
	"context"

	"github.com/proxyc/proxyc/ir"
)

// Memory is a Dataplane without a kernel. Its Plans list no operations.
type Memory struct {
	// Committed, if set, is called with each commit, by the goroutine that commits.
	Committed func(Desired)

	applied Applied
}

func (*Memory) Read(context.Context, ir.Programs) error        { return nil }
func (*Memory) Plan(want ir.Programs) Plan                     { return given{Desired{Full: true, Programs: want}} }
func (*Memory) PlanChanges(changes ir.Changes) Plan            { return given{Desired{Changes: changes}} }
func (m *Memory) Applied() *Applied                            { return &m.applied }
func (*Memory) Drift(context.Context) (<-chan struct{}, error) { return nil, nil }
func (*Memory) Close() error                                   { return nil }

func (m *Memory) Commit(_ context.Context, p Plan) (Result, error) {
	d := p.(given).Desired
	m.applied.Take(d)
	if m.Committed != nil {
		m.Committed(d)
	}
	return Result{}, nil
}

// given is a Plan without operations.
type given struct{ Desired }

func (given) Empty() bool                      { return false }
func (given) Operations(func(Operation) bool)  {}
func (given) Differences(func(Operation) bool) {}
func (given) RemovedFrontends() []ir.Match     { return nil }
