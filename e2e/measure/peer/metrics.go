package peer

// A metric is a row of the table: one value of both programs.
type metric struct {
	key    string // in results
	what   string
	unit   string
	scale  float64 // from the result's unit (s, bytes, count) to this one
	better better
	plot   bool
	// least is the resolution, in the result's unit. Smaller values count as this much, so that
	// ratios are understated rather than overstated.
	least float64
}

type better bool

const (
	lower  better = false
	higher better = true
)

// resolution is the resolution of probes, in seconds.
const resolution = 0.2e-3

// metrics are all rows, in order.
var metrics = []metric{
	{"start", "start to all Services in the kernel", "s", 1, lower, true, resolution},
	{"start.cpu", "CPU until it rests", "s", 1, lower, false, 0},
	{"endpoint.p50", "one endpoint changed, median", "ms", 1e3, lower, true, resolution},
	{"endpoint.p90", "p90", "ms", 1e3, lower, false, resolution},
	{"endpoint.whole", "median from the request on, with the API server", "ms", 1e3, lower, false, resolution},
	{"endpoint.cpu", "CPU of one", "ms", 1e3, lower, true, 0},
	{"added.p50", "one Service added, median", "ms", 1e3, lower, true, resolution},
	{"added.p90", "p90", "ms", 1e3, lower, false, resolution},
	{"removed.p50", "one Service removed, median", "ms", 1e3, lower, true, resolution},
	{"removed.p90", "p90", "ms", 1e3, lower, false, resolution},
	{"addremove.cpu", "CPU of one added or removed", "ms", 1e3, lower, false, 0},
	{"burst.p50", "many endpoints at once, until the last, median", "ms", 1e3, lower, true, resolution},
	{"burst.cpu", "CPU of all of them", "ms", 1e3, lower, false, 0},
	{"memory.all", "peak memory with children", "MB", 1e-6, lower, true, 0},
	{"memory.daemon", "peak of the daemon", "MB", 1e-6, lower, false, 0},
	{"memory.child", "peak of its largest child", "MB", 1e-6, lower, false, 0},
	{"connect.rate", "new connections per second, last Service", "1/s", 1, higher, true, 0},
	{"connect.p50", "connect, one at a time, median", "µs", 1e6, lower, false, 0},
	{"connect.p99", "p99", "µs", 1e6, lower, false, 0},
	{"churn.rate", "new connections per second, while endpoints change", "1/s", 1, higher, true, 0},
	{"churn.p50", "connect, one at a time, median", "µs", 1e6, lower, false, 0},
	{"churn.p99", "p99", "µs", 1e6, lower, false, 0},
	{"restart.gap", "restart: longest wait for an answer", "ms", 1e3, lower, false, 1e-3},
	{"restart.kernel", "restart: until a change made meanwhile is in the kernel", "s", 1, lower, true, resolution},
	{"api.start", "bytes from the API server at start", "kB", 1e-3, lower, true, 0},
	{"api.connections", "connections to the API server at start", "", 1, lower, false, 0},
	{"api.endpoint", "bytes from the API server for one endpoint changed", "kB", 1e-3, lower, false, 0},
	{"api.idle", "bytes from the API server in a minute of rest", "kB", 1e-3, lower, false, 0},
}
