// Package judge holds proxyc against kube-proxy's own unit tests.
//
// The tables in testdata are recorded: kube-proxy's tests are run from its Go
// module, with taps in its code that write down what the tests hand in (objects,
// settings, packets, conntrack entries) and what comes out while they pass.
// Nothing of its source is kept here. "go test ./judge -update" records anew;
// without -update the tables are held against the module, and proxyc against
// the tables. Where proxyc differs on purpose, differences.yaml says why.
package judge
