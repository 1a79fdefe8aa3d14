// Package hnstest is a Host Networking Service for tests: networks, endpoints
// and load balancers as version 2 of the HCN schema keeps them, behind the calls
// of computenetwork.dll. It refuses what the real one refuses, goes away and
// comes back, and fails where it is told to.
//
//   - Service.Call takes one call, as the DLL does; Service.Serve takes them over a
//     connection, from the DLLs of e2e/windows.
//   - Host makes of them what hnslib makes of them: the same calls, in the same order.
//
// What it refuses comes from these sources, which comments name:
//
//	[results]  HcnHResult, the codes of HCN, in Microsoft's reference of its API
//	[schema]   the HCN JSON document schemas, there too
//	[hnslib]   github.com/Microsoft/hnslib, which asks for nothing more than it needs
//	[winkernel] kube-proxy's own notes about HNS (pkg/proxy/winkernel)
//	[139519]   kubernetes/kubernetes#139519: a restart brings load balancers back; made
//	           again they are refused with 0xb7
//	[137530]   kubernetes/kubernetes#137530: load balancers that nobody needs keep their
//	           ports: others are refused with 0x803b0013
//	[135802]   kubernetes/kubernetes#135802: load balancers go by others' hands
//	[113524]   kubernetes/kubernetes#113524: a delete fails, and the object stays
//	[strict]   nobody is known to have seen it; whoever relies on it would rely on luck
package hnstest
