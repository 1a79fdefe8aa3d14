// Package winuserspace carries connections to Services in a process of a Windows
// node, as kube-proxy's mode userspace did there until 1.25: without any rule. The
// addresses of Services are the node's own, on one of its interfaces, and the
// process listens at each of their ports, and at node ports. It is the Proxy of
// package userspace that does.
//
//   - Host is the node, as far as its addresses go. One file, for Windows only,
//     reaches the real one.
//   - An address that the node has already is listened at, and stays whatever
//     happens. Those that are added are noted in a file before, so that they, and no others,
//     go when no Service wants them any longer, at cleanup, and after a crash.
//   - The plan and its order are pure, and the same everywhere.
//
// The process that ends leaves the addresses: who connects meanwhile is refused at once.
package winuserspace
