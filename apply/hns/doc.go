// Package hns makes a Windows node's Host Networking Service hold what the
// kernelspace mode wants: endpoints, and load balancers in front of them.
//
//   - Host is the service, as far as it is used here. One file, for Windows only,
//     reaches the real one; package hnstest has one for tests, with its teeth.
//   - The host is listed and compared. Ids are given out by it, and none is
//     trusted after an error: what cannot be reached is not gone.
//   - What proxyc or kube-proxy made is taken over as it is, whatever fits stays,
//     and what belongs to somebody else is not touched.
//   - The plan and its order are pure, and the same everywhere.
//
// A change of one Service costs calls for that Service alone: each call of the
// service takes milliseconds, and listing takes three for every object.
package hns
