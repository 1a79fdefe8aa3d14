package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"sync"

	"go.yaml.in/yaml/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// kinds are the kinds of objects that can be sent, in this order.
var kinds = []struct {
	kind       string
	resource   schema.GroupVersionResource
	namespaced bool
	status     bool // has a subresource status that affects packets
}{
	{"Namespace", schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}, false, false},
	{"ServiceAccount", schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}, true, false},
	{"ClusterRole", schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterroles"}, false, false},
	{"ClusterRoleBinding", schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "clusterrolebindings"}, false, false},
	{"ValidatingAdmissionPolicy", schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicies"}, false, false},
	{"ValidatingAdmissionPolicyBinding", schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingadmissionpolicybindings"}, false, false},
	{"ServiceCIDR", schema.GroupVersionResource{Group: "networking.k8s.io", Version: "v1", Resource: "servicecidrs"}, false, false},
	{"Node", schema.GroupVersionResource{Version: "v1", Resource: "nodes"}, false, true},
	{"Pod", schema.GroupVersionResource{Version: "v1", Resource: "pods"}, true, true},
	{"Service", schema.GroupVersionResource{Version: "v1", Resource: "services"}, true, true},
	{"EndpointSlice", schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"}, true, false},
	{"ConfigMap", schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, true, false},
	{"DaemonSet", schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "daemonsets"}, true, false},
}

// An Object is an object as in a manifest.
type Object = map[string]any

// Manifests reads all objects of a file with YAML documents, or lists of them.
func Manifests(file string) ([]Object, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var objects []Object
	d := yaml.NewDecoder(strings.NewReader(string(data)))
	for {
		var o Object
		if err := d.Decode(&o); err != nil {
			if err.Error() == "EOF" {
				return objects, nil
			}
			return nil, &fs.PathError{Op: "decode", Path: file, Err: err}
		}
		if items, ok := o["items"].([]any); ok {
			for _, item := range items {
				objects = append(objects, item.(Object))
			}
		} else if o != nil {
			objects = append(objects, o)
		}
	}
}

// sendersAtOnce is the maximum number of concurrent requests.
const sendersAtOnce = 16

// Apply creates or updates objects, with their status. It deletes and creates an object if a
// field cannot change in place. It sends all objects of a kind concurrently, before those of the
// next.
func (c *Cluster) Apply(ctx context.Context, objects ...Object) error {
	return c.each(objects, func(to dynamic.ResourceInterface, status bool, o *unstructured.Unstructured) error {
		return apply(ctx, to, status, o)
	})
}

// Update replaces existing objects, whatever their state, with one request each.
func (c *Cluster) Update(ctx context.Context, objects ...Object) error {
	return c.each(objects, func(to dynamic.ResourceInterface, _ bool, o *unstructured.Unstructured) error {
		_, err := to.Update(ctx, o, metav1.UpdateOptions{})
		return err
	})
}

// Delete deletes objects. Missing ones are no error.
func (c *Cluster) Delete(ctx context.Context, objects ...Object) error {
	return c.each(objects, func(to dynamic.ResourceInterface, _ bool, o *unstructured.Unstructured) error {
		err := to.Delete(ctx, o.GetName(), metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	})
}

// DeleteAll deletes all Services, EndpointSlices and Nodes, except for the Service that every
// cluster has.
func (c *Cluster) DeleteAll(ctx context.Context) error {
	var errs []error
	for _, k := range kinds {
		switch k.kind {
		case "Service", "EndpointSlice", "Node":
		default:
			continue
		}
		list, err := c.objects.Resource(k.resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var objects []Object
		for _, o := range list.Items {
			if k.kind == "Service" && o.GetNamespace() == "default" && o.GetName() == "kubernetes" {
				continue
			}
			o.SetKind(k.kind)
			objects = append(objects, o.Object)
		}
		errs = append(errs, c.Delete(ctx, objects...))
	}
	return errors.Join(errs...)
}

// Snapshot writes the objects that affect packets to a file, like kubectl get
// services,endpointslices,nodes,servicecidrs -A -o json.
func (c *Cluster) Snapshot(ctx context.Context, file string) error {
	items := []Object{}
	for _, k := range kinds {
		switch k.kind {
		case "Service", "EndpointSlice", "Node", "ServiceCIDR":
		default:
			continue
		}
		list, err := c.objects.Resource(k.resource).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, o := range list.Items {
			items = append(items, o.Object)
		}
	}
	data, err := json.Marshal(Object{"apiVersion": "v1", "kind": "List", "items": items})
	if err != nil {
		return err
	}
	return os.WriteFile(file, data, 0o600)
}

// each sends objects kind by kind, and returns all errors with the names of the objects.
func (c *Cluster) each(objects []Object, send func(to dynamic.ResourceInterface, status bool, o *unstructured.Unstructured) error) error {
	byKind := map[string][]*unstructured.Unstructured{}
	for _, o := range objects {
		u, err := toUnstructured(o)
		if err != nil {
			return err
		}
		byKind[u.GetKind()] = append(byKind[u.GetKind()], u)
	}
	var mu sync.Mutex
	var errs []error
	for _, k := range kinds {
		slots := make(chan struct{}, sendersAtOnce)
		var all sync.WaitGroup
		for _, o := range byKind[k.kind] {
			var to dynamic.ResourceInterface = c.objects.Resource(k.resource)
			if k.namespaced {
				if o.GetNamespace() == "" {
					o.SetNamespace("default")
				}
				to = c.objects.Resource(k.resource).Namespace(o.GetNamespace())
			}
			slots <- struct{}{}
			all.Go(func() {
				defer func() { <-slots }()
				if err := send(to, k.status, o); err != nil {
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, fmt.Errorf("%s %s/%s: %w", k.kind, o.GetNamespace(), o.GetName(), err))
				}
			})
		}
		all.Wait()
		delete(byKind, k.kind)
	}
	for kind := range byKind {
		errs = append(errs, fmt.Errorf("kind: not one that can be sent: %q", kind))
	}
	return errors.Join(errs...)
}

// toUnstructured converts an object of a manifest to the form that clients require, with their
// types of numbers.
func toUnstructured(o Object) (*unstructured.Unstructured, error) {
	data, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	u := &unstructured.Unstructured{}
	return u, u.UnmarshalJSON(data)
}

func apply(ctx context.Context, to dynamic.ResourceInterface, status bool, o *unstructured.Unstructured) error {
	got, err := to.Create(ctx, o.DeepCopy(), metav1.CreateOptions{})
	// The API server rejects the address of an existing Service before it checks its name.
	if invalid := err; apierrors.IsAlreadyExists(err) || apierrors.IsInvalid(err) {
		if got, err = update(ctx, to, o); apierrors.IsNotFound(err) {
			err = invalid
		}
	}
	if err != nil || !status || o.Object["status"] == nil {
		return err
	}
	got.Object["status"] = o.Object["status"]
	_, err = to.UpdateStatus(ctx, got, metav1.UpdateOptions{})
	return err
}

// update replaces an existing object. If that is not allowed, it deletes and creates it.
func update(ctx context.Context, to dynamic.ResourceInterface, o *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	got, err := to.Update(ctx, o.DeepCopy(), metav1.UpdateOptions{})
	if !apierrors.IsInvalid(err) {
		return got, err
	}
	if err := to.Delete(ctx, o.GetName(), metav1.DeleteOptions{}); err != nil {
		return nil, err
	}
	return to.Create(ctx, o.DeepCopy(), metav1.CreateOptions{})
}
