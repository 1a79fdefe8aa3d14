// Package applytest shows what rules do to packets: it builds a small cluster out of network
// namespaces, lets clients talk to it, and holds what they saw against what kube-proxy did
// (testdata/conformance).
//
// All of it lives in namespaces without names, held open by this process alone: the namespace the test
// was started in is never written to, and nothing is left behind, even after a panic or a kill.
// The parts that need a kernel build on Linux only, and need root.
//
//   - [Namespace]: one network namespace; run functions, commands and sockets in it.
//   - [Topology]: the cluster of the conformance cases, with echo servers everywhere.
//   - [Case], [Outcome]: the cases and what came of their flows, as files.
//   - [Runner]: plays a case against a node under test.
//   - [Load]: opens connections at a steady rate and keeps every failure, for tests that allow no gap.
package applytest
