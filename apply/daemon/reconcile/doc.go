// Package reconcile keeps a node's rules at what a cluster wants: it waits for
// changes, has the Services that they touch compiled, puts the difference in
// force in one commit, and now and then compares everything with what the
// kernel really has.
//
//   - Schedule: when the next sync is due, and of which kind. It is told the
//     time and does nothing else.
//   - Reconciler: waits, syncs and tells what came of it. It leaves out Services
//     that the kernel refuses, and tries them again.
//   - Source: where the Programs come from. They go to an apply.Dataplane.
package reconcile
