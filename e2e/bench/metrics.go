package main

// A metric is a row of the table: one figure of both programs.
type metric struct {
	key    string // in results
	what   string
	unit   string
	scale  float64 // from the result's unit (s, bytes, count) to this one
	better better
	plot   bool
}

type better bool

const (
	lower  better = false
	higher better = true
)

// metrics are all rows, in order.
var metrics = []metric{
	{"start", "start to all Services in the kernel", "s", 1, lower, true},
	{"start.cpu", "CPU until it rests", "s", 1, lower, false},
	{"endpoint.p50", "one endpoint changed, median", "ms", 1e3, lower, true},
	{"endpoint.p90", "p90", "ms", 1e3, lower, false},
	{"endpoint.cpu", "CPU of one", "ms", 1e3, lower, true},
	{"added.p50", "one Service added, median", "ms", 1e3, lower, true},
	{"added.p90", "p90", "ms", 1e3, lower, false},
	{"removed.p50", "one Service removed, median", "ms", 1e3, lower, true},
	{"removed.p90", "p90", "ms", 1e3, lower, false},
	{"addremove.cpu", "CPU of one added or removed", "ms", 1e3, lower, false},
	{"burst.p50", "many endpoints at once, until the last, median", "ms", 1e3, lower, true},
	{"burst.cpu", "CPU of all of them", "ms", 1e3, lower, false},
	{"memory.all", "peak memory with children", "MB", 1e-6, lower, true},
	{"memory.daemon", "peak of the daemon", "MB", 1e-6, lower, false},
	{"memory.child", "peak of its largest child", "MB", 1e-6, lower, false},
	{"connect.rate", "new connections per second, last Service", "1/s", 1, higher, true},
	{"connect.p50", "connect, median", "µs", 1e6, lower, false},
	{"connect.p99", "connect, p99", "µs", 1e6, lower, false},
	{"churn.rate", "new connections per second, while endpoints change", "1/s", 1, higher, true},
	{"churn.p50", "connect, median", "µs", 1e6, lower, false},
	{"churn.p99", "connect, p99", "µs", 1e6, lower, false},
	{"restart.gap", "restart: longest time without an answer", "ms", 1e3, lower, false},
	{"restart.kernel", "restart: until a change made meanwhile is in the kernel", "s", 1, lower, true},
	{"api.start", "bytes from the API server at start", "kB", 1e-3, lower, true},
	{"api.endpoint", "bytes from the API server for one endpoint changed", "kB", 1e-3, lower, false},
	{"api.idle", "bytes from the API server in a minute of rest", "kB", 1e-3, lower, false},
}
