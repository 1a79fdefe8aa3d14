// Package hns applies mode kernelspace to a Windows node's Host Networking Service (HNS):
// endpoints, and load balancers for them.
//
//   - Host is the interface to the service. One file, for Windows only, implements it for
//     the real one. Package hnstest implements it for tests, with the service's quirks.
//   - Objects are listed and compared. The host assigns ids. After an error none is
//     trusted, since an unreachable object may still exist.
//   - Objects of proxyc and kube-proxy are adopted. Matching ones are kept, and objects
//     of other programs are not changed.
//   - The plan and its order are pure functions, on all systems. Only the plan of a change requests
//     its missing pods from HNS first, since the CNI plugin creates their endpoints.
//
// A change of one Service requires calls only for that Service. Each call takes milliseconds, and
// listing requires three calls per object.
package hns
