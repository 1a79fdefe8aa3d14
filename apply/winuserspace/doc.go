// Package winuserspace proxies connections to Services in a process of a Windows node, as
// kube-proxy's mode userspace did there until 1.25. It uses no rules. The addresses of Services are
// added to an interface of the node, and the process listens on each of their ports, and on node
// ports. The Proxy of package userspace serves the listeners.
//
//   - Host is the interface to the node's addresses. One file, for Windows only,
//     implements it for the real node.
//   - An existing address of the node is used, and never removed. Added addresses are
//     first recorded in a file. Only those are removed: when no Service requires them, at
//     cleanup, and after a crash.
//   - The plan and its order are pure functions, on all systems.
//
// The addresses stay when the process ends, so that clients are rejected immediately.
package winuserspace
