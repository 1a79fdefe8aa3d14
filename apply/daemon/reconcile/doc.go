// Package reconcile makes a node's rules equal to the Programs of a cluster, continuously.
//
// A [Source] provides the desired Programs. A [Writer] writes them through an [apply.Dataplane]. The
// [Reconciler] schedules the syncs. Its decisions, and readiness, are functions of one value, [State]:
// the wanted and the applied version, the numbers of raised and of cleared doubts about the kernel,
// and whether the kernel's content is known at all.
//
// One goroutine reads, plans and commits. The operations:
//
//   - Replace reads the kernel and commits the difference to the wanted Programs. It applies
//     everything that was wanted, and clears every doubt, when it began.
//   - Change commits the difference of changed Services. It applies what was wanted when it began,
//     and clears no doubt.
//   - Compare reads the kernel, and clears the doubts that existed when it began. If the kernel
//     contains what was last applied, a Change follows, otherwise a Replace. Only a Replace retries
//     refused Services.
//
// The kernel is unknown after a start and after each failed sync. Only a Replace can follow. After a
// failed Compare the kernel is still known. It adds a doubt, so that Compare is repeated, and changes
// continue.
//
// In modes in which a reading takes seconds ([apply.ConcurrentReader]) it runs concurrently with
// Changes. A sync ends it, and another one begins. After maxDropped of these, Changes wait.
//
// Foreign changes of the rules add a doubt, and so does each failure. The rules are in force
// ([State.InForce]) if the kernel is known, the wanted version was applied and all doubts are cleared.
package reconcile
