// Package hns lowers Programs for the kernelspace mode of Windows to objects
// of the Host Compute Network service, schema 2.0: endpoints for backends and
// load balancers in front of them (rules WIN-20 to WIN-26). Their JSON has the
// field names of that schema, so that what is written can be handed to it.
//
// What only a Windows node knows stays open, and the one that commits the
// objects fills it in:
//
//   - Load balancers name their endpoints by Ref, an address or a name; the
//     service wants their ids, which it gives out as endpoints are made.
//   - The network is named, not given by its id.
//   - On an overlay network, the provider address of a remote pod is that of
//     the remote subnet it is in; the node's own, which is written, is for those in
//     none. The endpoints of a ClusterIP and of the source have the MAC address of the host.
package hns
