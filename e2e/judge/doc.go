// Package judge compares proxyc with kube-proxy's own unit tests.
//
// The tables in testdata are recorded. kube-proxy's tests run from its Go module, with taps in
// its code. The taps write down the input of the tests (objects, settings, packets, conntrack
// entries) and the results while they pass. None of its source is kept here. "go test ./judge
// -update" records again. Without -update the tables are compared with the module, and proxyc
// with the tables. differences.yaml gives the reason of each intentional difference.
package judge
