// Package hns lowers Programs for mode kernelspace of Windows to objects of the
// Host Compute Network service, schema 2.0: endpoints for backends, and load
// balancers in front of them. WIN-20 to WIN-26 define sources, ports, endpoints
// and reuse of load balancers. The JSON has the field names of that schema, so
// that it can be passed to the service.
//
// The program that commits the objects fills in values that only a Windows node
// has:
//
//   - Load balancers refer to their endpoints by Ref, an address or a name. The
//     service requires their ids, which it assigns to new endpoints.
//   - The network is given by name instead of id.
//   - On an overlay network, the provider address of a remote pod is that of its
//     remote subnet. The default written here, the node's own address, is for
//     pods in no remote subnet. The endpoints of a ClusterIP and of the source
//     have the MAC address of the host.
package hns
