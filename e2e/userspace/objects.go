package main

import (
	"encoding/json"
	"fmt"
	"os"

	v1 "k8s.io/api/core/v1"
	discovery "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/api/v1/endpoints"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"
	"k8s.io/kubernetes/pkg/proxy/apis"
	"k8s.io/kubernetes/pkg/util/iptables"
	"sigs.k8s.io/yaml"
)

// A family contains the names of an IP family in several APIs.
type family struct {
	addressType discovery.AddressType
	protocol    iptables.Protocol
	anywhere    string
	markIP      string // a ClusterIP that no Service may have
}

var (
	ipv4Family = family{discovery.AddressTypeIPv4, iptables.ProtocolIPv4, "0.0.0.0", "10.96.255.254"}
	ipv6Family = family{discovery.AddressTypeIPv6, iptables.ProtocolIPv6, "::", "fd00:10:96::fffe"}
)

// objects are the input of a proxier.
type objects struct {
	services  map[types.NamespacedName]*v1.Service
	endpoints map[types.NamespacedName]*v1.Endpoints
}

// readObjects reads the objects of a List that kube-proxy requested from an API server, in the
// form that the server, and the controller of Endpoints, gave them.
func readObjects(file string, f family) (objects, error) {
	o := objects{services: map[types.NamespacedName]*v1.Service{}, endpoints: map[types.NamespacedName]*v1.Endpoints{}}
	data, err := os.ReadFile(file)
	if err != nil {
		return o, err
	}
	var list struct{ Items []json.RawMessage }
	if err := yaml.Unmarshal(data, &list); err != nil {
		return o, fmt.Errorf("%s: %w", file, err)
	}
	for i, item := range list.Items {
		if err := o.add(item, f); err != nil {
			return o, fmt.Errorf("%s: items[%d]: %w", file, i, err)
		}
	}
	for name, e := range o.endpoints {
		if o.services[name] == nil { // the controller deletes them with their Service
			delete(o.endpoints, name)
			continue
		}
		e.Subsets = endpoints.RepackSubsets(e.Subsets)
	}
	return o, nil
}

func (o objects) add(item json.RawMessage, f family) error {
	var meta metav1.TypeMeta
	if err := json.Unmarshal(item, &meta); err != nil {
		return err
	}
	switch meta.Kind {
	case "Service":
		s := &v1.Service{}
		if err := json.Unmarshal(item, s); err != nil {
			return err
		}
		corev1.SetObjectDefaults_Service(s)
		if _, other := s.Labels[apis.LabelServiceProxyName]; !other {
			o.services[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s
		}
	case "EndpointSlice":
		s := &discovery.EndpointSlice{}
		if err := json.Unmarshal(item, s); err != nil {
			return err
		}
		if s.AddressType == f.addressType {
			o.addSlice(s)
		}
	}
	return nil
}

// addSlice adds the slice to the Endpoints, which this mode read instead.
func (o objects) addSlice(s *discovery.EndpointSlice) {
	name := types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discovery.LabelServiceName]}
	if name.Name == "" {
		return
	}
	e := o.endpoints[name]
	if e == nil {
		e = &v1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name}}
		o.endpoints[name] = e
	}
	var subset v1.EndpointSubset
	for _, p := range s.Ports {
		if p.Port == nil { // Endpoints cannot express all ports
			continue
		}
		port := v1.EndpointPort{Port: *p.Port, Protocol: v1.ProtocolTCP}
		if p.Name != nil {
			port.Name = *p.Name
		}
		if p.Protocol != nil {
			port.Protocol = *p.Protocol
		}
		subset.Ports = append(subset.Ports, port)
	}
	for _, endpoint := range s.Endpoints {
		ready := endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready
		terminating := endpoint.Conditions.Terminating != nil && *endpoint.Conditions.Terminating
		address := v1.EndpointAddress{IP: endpoint.Addresses[0], NodeName: endpoint.NodeName}
		switch {
		case ready:
			subset.Addresses = append(subset.Addresses, address)
		case !terminating: // the controller removes terminating Pods, except for Services that publish all
			subset.NotReadyAddresses = append(subset.NotReadyAddresses, address)
		}
	}
	e.Subsets = append(e.Subsets, subset)
}

// mark is a Service whose port differs with each update.
func (f family) mark(update int) *v1.Service {
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "mark", Name: "mark"}, Spec: v1.ServiceSpec{
		ClusterIP: f.markIP, Ports: []v1.ServicePort{{Name: fmt.Sprintf("m%d", update), Port: 1}}}}
	corev1.SetObjectDefaults_Service(s)
	return s
}

// changes reports which objects were added, changed and deleted.
func changes[T any](old, new map[types.NamespacedName]*T, added func(*T), changed func(old, new *T), deleted func(*T)) {
	for name, o := range old {
		if new[name] == nil {
			deleted(o)
		}
	}
	for name, n := range new {
		switch o := old[name]; {
		case o == nil:
			added(n)
		case !equality.Semantic.DeepEqual(o, n):
			changed(o, n)
		}
	}
}
