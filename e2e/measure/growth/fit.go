package growth

// slopes describe the growth of memory, for daemons that read a file.
type slopes struct {
	Resident plane `json:"resident"`
	Peak     plane `json:"peak"`
	Live     plane `json:"live"`
}

// plane is a plane: bytes at rest, per Service and per endpoint.
type plane struct {
	Rest     float64 `json:"rest"`
	Service  float64 `json:"service"`
	Endpoint float64 `json:"endpoint"`
}

// fit returns nil if the sizes do not separate Services from endpoints.
func fit(rows []*row) *slopes {
	of := func(value func(*row) float64) (plane, bool) {
		var m [3][4]float64 // the normal equations of the least squares
		for _, r := range rows {
			x := [3]float64{1, float64(r.Services), float64(r.Services * r.Endpoints)}
			for i := range x {
				for j := range x {
					m[i][j] += x[i] * x[j]
				}
				m[i][3] += x[i] * value(r)
			}
		}
		solved, ok := solve(m)
		return plane{solved[0], solved[1], solved[2]}, ok
	}
	resident, ok := of(func(r *row) float64 { return r.Snapshot.Resident })
	peak, _ := of(func(r *row) float64 { return r.Snapshot.Peak })
	live, _ := of(func(r *row) float64 { return r.Snapshot.Live })
	if !ok {
		return nil
	}
	return &slopes{resident, peak, live}
}

// solve solves three linear equations, whose matrix is symmetric and positive.
func solve(m [3][4]float64) (x [3]float64, ok bool) {
	diagonal := [3]float64{m[0][0], m[1][1], m[2][2]}
	for i := range m {
		pivot := m[i][i]
		if pivot <= 1e-9*diagonal[i] { // only rounding errors are left
			return x, false
		}
		for j := range m {
			if j == i {
				continue
			}
			factor := m[j][i] / pivot
			for k := range m[j] {
				m[j][k] -= factor * m[i][k]
			}
		}
	}
	for i := range m {
		x[i] = m[i][3] / m[i][i]
	}
	return x, true
}
