// Package hnstest is a Host Networking Service for tests. It implements networks, endpoints and
// load balancers of version 2 of the HCN schema, behind the calls of computenetwork.dll. It rejects
// what the real service rejects, can stop and restart, and fails on request.
//
//   - Service.Call executes a call like the DLL. Service.Serve receives calls over a
//     connection from the DLLs of e2e/windows.
//   - Host translates the calls like hnslib: the same calls, in the same order.
//
// The rejections come from these sources, which comments name:
//
//	[results]  HcnHResult, the codes of HCN, in Microsoft's reference of its API
//	[schema]   the HCN JSON document schemas, there too
//	[hnslib]   github.com/Microsoft/hnslib, which requests nothing more than it needs
//	[winkernel] kube-proxy's own notes about HNS (pkg/proxy/winkernel)
//	[139519]   kubernetes/kubernetes#139519: a restart restores load balancers; creating
//	           them again is rejected with 0xb7
//	[137530]   kubernetes/kubernetes#137530: unused load balancers keep their ports:
//	           others are rejected with 0x803b0013
//	[135802]   kubernetes/kubernetes#135802: other programs remove load balancers
//	[113524]   kubernetes/kubernetes#113524: a delete fails, and the object stays
//	[strict]   no observation is known; proxyc must not rely on success
package hnstest
