// Package reconcile makes a node's rules equal to the Programs of a cluster, continuously.
//
// A [Source] provides the desired Programs. A [Writer] writes them through an [apply.Dataplane]. The
// [Reconciler] schedules the syncs. Its decisions, and readiness, are functions of one value, [State]:
// the wanted and the applied version, the numbers of raised and of cleared doubts about the kernel,
// and whether the kernel's content is known at all.
//
//	              start
//	                │
//	                ▼              Replace succeeds
//	           ┌─────────┐ ─────────────────────────────► ┌─────────┐
//	┌─────────►│ unknown │                                │  known  │◄─┐ Change succeeds
//	│ Replace  └─────────┘ ◄───────────────────────────── └─────────┘──┘ Repair succeeds
//	└── fails    │     ▲     Change or Repair fails            │
//	             └─────┘                                       ▼
//	                                           Compare, concurrent with Changes
//
// The operations:
//
//   - Replace reads the kernel and commits the difference to the wanted Programs. It applies
//     everything that was wanted, and clears every doubt, when it began.
//   - Change commits the difference of changed Services. It applies what was wanted when it began,
//     and clears no doubt.
//   - Compare reads the kernel while Changes continue. The repair that follows commits the
//     differences, except those of objects that Changes wrote meanwhile. It clears the doubts that
//     existed when Compare began. Compare is valid only for the State in which it began. After a
//     Replace or a failed Change its result is dropped.
//
// The kernel is unknown after a start and after each failed sync. Only a Replace can follow. After a
// failed Compare the kernel is still known. It adds a doubt, so that the comparison is repeated while
// Changes continue. If a repair is not possible concurrently with Changes, or Services are
// quarantined, a Replace is used instead.
//
// Foreign changes of the rules add a doubt, and so does each failure. The rules are in force
// ([State.InForce]) if the kernel is known, the wanted version was applied and all doubts are cleared.
package reconcile
