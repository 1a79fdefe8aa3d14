// Package reconcile keeps a node's rules equal to what a cluster wants.
//
// A [Source] says what is wanted. An [apply.Dataplane] reads and writes the kernel.
// The [Reconciler] decides when to do what. All of its decisions, and readiness, follow
// from one value, [State]: which version is wanted and which one was applied, how many
// reasons there are to doubt the kernel and how many of them a reading has cleared, and
// whether the kernel's content is known at all.
//
//		                 start
//		                   │
//		                   ▼              Replace succeeds
//		              ┌─────────┐ ─────────────────────────────► ┌─────────┐
//		   ┌─────────►│ unknown │                                │  known  │◄─┐ Change succeeds
//		   │ Replace  └─────────┘ ◄───────────────────────────── └─────────┘──┘ Repair succeeds
//		   └── fails    │     ▲     Change or Repair fails            │
//		                └─────┘                                       ▼
//		                                              Compare, beside further Changes
//
//	  - Replace reads the kernel and commits the difference to the whole wanted Programs. It
//	    settles everything that was wanted, and every doubt, when it began.
//	  - Change commits the difference of the Services that changed. It settles what was
//	    wanted when it began, and no doubt.
//	  - Compare reads the kernel while Changes go on. Repair commits what it found, without
//	    the objects that Changes wrote meanwhile, and settles the doubts that there were
//	    when Compare began. Compare counts only for the State that it began in: after a
//	    Replace or a failed Change its result is dropped.
//
// The kernel is unknown after a start and after each failed sync; then only a Replace
// follows. A failed Compare leaves the kernel known and adds a doubt, so that the
// comparison is repeated while Changes go on. Where a Repair is not possible beside
// Changes, or Services are refused, a Replace takes its place.
//
// Foreign changes of the rules add a doubt. So does each failure. The node is in force
// ([State.InForce]) only when the kernel is known, the wanted version was applied and no
// doubt is left.
package reconcile
