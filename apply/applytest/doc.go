// Package applytest tests the effects of rules on packets. It builds a small cluster of network
// namespaces, sends packets between them, and compares the results with kube-proxy's
// (testdata/conformance).
//
// The namespaces have no names, and only this process keeps them open. The namespace in which the
// test was started is never changed, and nothing remains even after a panic or a kill. The parts
// that require a kernel build on Linux only, and require root.
//
//   - [Namespace]: a network namespace; runs functions, commands and sockets in it.
//   - [Topology]: the cluster of the conformance cases, with echo servers on each host.
//   - [Case], [Outcome]: the cases and the results of their flows, as files.
//   - [Runner]: runs a case against a node under test.
//   - [Load]: opens connections at a steady rate and records every failure, for tests that
//     allow no gap.
package applytest
