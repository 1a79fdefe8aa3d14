// Package loop keeps a node's kernel at what a cluster wants: it waits for
// changes, has the Services that they touch compiled, puts the difference in
// force in one commit, and now and then compares everything with what the
// kernel really has.
//
//   - Schedule: when the next sync is due, and of which kind. It is told the
//     time and does nothing else.
//   - Loop: waits, syncs and tells what came of it.
//   - Input: where the Programs come from.
//   - Kernel: where they go. Plane makes one of any apply.Target.
package loop
