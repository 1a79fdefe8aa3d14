package watch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/ir"
)

// The types of a Recorded, as the API's watches have them, and that of the one behind the
// objects that there were at first.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	Synced   = "SYNCED"
)

// Recorded is a change of an object of a cluster, as it stands in a recording: a line of JSON.
type Recorded struct {
	At     time.Time       `json:"at"` // when it was heard of
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object,omitempty"` // of one that is deleted kind and name alone

	Line int `json:"-"` // in the recording
}

// Record writes what the cluster has, and then each change of it, as lines of Recorded to w, until ctx
// ends or w fails; each is one Write. synced is called when all that there was at first is
// written. What differs in nothing that compiling or lint looks at is no change. It keeps a checksum
// of each object.
func (c *Cluster) Record(ctx context.Context, w io.Writer, now func() time.Time, synced func()) error {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	r := &recorder{w: w, now: now, known: map[string]map[ir.Name][sha256.Size]byte{}, end: end}
	var kinds []kind
	for _, k := range c.kinds() {
		kinds = append(kinds, r.kind(k))
	}
	c.api.run(ctx, kinds, func() {
		r.write(Recorded{Type: Synced})
		synced()
	})
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// recorder writes what is not known yet.
type recorder struct {
	now func() time.Time
	end func(error)

	mu    sync.Mutex
	w     io.Writer
	known map[string]map[ir.Name][sha256.Size]byte // by kind
}

func (r *recorder) kind(k everything) kind {
	return kind{
		name: k.resource, client: k.client, typed: k.typed, expected: k.expected, optional: k.optional,
		options: noSelector, reduce: snapshot.Trim,
		last: func(namespace, name string) any {
			return r.last(k.typed.kind, ir.Name{Namespace: namespace, Name: name})
		},
		set:     func(obj any) { r.set(k.typed.kind, obj) },
		remove:  func(namespace, name string) { r.remove(&k, ir.Name{Namespace: namespace, Name: name}) },
		replace: func(all []any) { r.replace(&k, all) },
	}
}

// kept stands for an object that is broken now, and stays as it was.
type kept ir.Name

func (r *recorder) last(kind string, name ir.Name) any {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.known[kind][name]; known {
		return kept(name)
	}
	return nil
}

// set writes an object, if it is not known to be like this.
func (r *recorder) set(kind string, obj any) (name ir.Name) {
	name = nameOf(obj)
	text, err := snapshot.Line(obj)
	if err != nil {
		r.end(err)
		return name
	}
	sum := sha256.Sum256(text)
	r.mu.Lock()
	if r.known[kind] == nil {
		r.known[kind] = map[ir.Name][sha256.Size]byte{}
	}
	before, known := r.known[kind][name]
	r.known[kind][name] = sum
	r.mu.Unlock()
	switch {
	case !known:
		r.write(Recorded{Type: Added, Object: text})
	case before != sum:
		r.write(Recorded{Type: Modified, Object: text})
	}
	return name
}

// nameOf returns the name of what Trim left.
func nameOf(obj any) ir.Name {
	meta := obj.(metav1.Object)
	return ir.Name{Namespace: meta.GetNamespace(), Name: meta.GetName()}
}

func (r *recorder) remove(k *everything, name ir.Name) {
	r.mu.Lock()
	_, known := r.known[k.typed.kind][name]
	delete(r.known[k.typed.kind], name)
	r.mu.Unlock()
	if !known {
		return
	}
	meta := map[string]string{"name": name.Name}
	if name.Namespace != "" {
		meta["namespace"] = name.Namespace
	}
	version := "v1"
	if k.group != "" {
		version = k.group + "/v1"
	}
	text, err := json.Marshal(map[string]any{"apiVersion": version, "kind": k.typed.kind, "metadata": meta})
	if err != nil {
		r.end(err)
		return
	}
	r.write(Recorded{Type: Deleted, Object: text})
}

// replace writes what differs from all that is known of a kind.
func (r *recorder) replace(k *everything, all []any) {
	there := map[ir.Name]bool{}
	all = slices.DeleteFunc(all, func(obj any) bool {
		name, is := obj.(kept)
		if is {
			there[ir.Name(name)] = true
		}
		return is
	})
	slices.SortFunc(all, func(a, b any) int { return nameOf(a).Compare(nameOf(b)) })
	for _, obj := range all {
		there[r.set(k.typed.kind, obj)] = true
	}
	r.mu.Lock()
	known := slices.SortedFunc(maps.Keys(r.known[k.typed.kind]), ir.Name.Compare)
	r.mu.Unlock()
	for _, name := range known {
		if !there[name] {
			r.remove(k, name)
		}
	}
}

func (r *recorder) write(e Recorded) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e.At = r.now().UTC()
	var line bytes.Buffer
	enc := json.NewEncoder(&line)
	enc.SetEscapeHTML(false)
	err := enc.Encode(e)
	if err == nil {
		_, err = r.w.Write(line.Bytes())
	}
	if err != nil {
		r.end(err)
	}
}

// ReadRecording returns what Record wrote. cut reports that the last line is not
// whole, and left out, as where the recorder was killed: it has no end, or its JSON has none. What is
// whole and wrong is an error.
func ReadRecording(data []byte) (events []Recorded, cut bool, err error) {
	n, read := 0, 0
	var errs []error
	for line := range bytes.Lines(data) {
		n++
		read += len(line)
		text := bytes.TrimSpace(line)
		if len(text) == 0 {
			continue
		}
		e := Recorded{Line: n}
		err := e.read(text)
		if !bytes.HasSuffix(line, []byte("\n")) || read == len(data) && errors.Is(err, io.ErrUnexpectedEOF) {
			cut = true
			break
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: must be an event such as proxyc record writes: %w", n, err))
			continue
		}
		events = append(events, e)
	}
	switch {
	case len(events) > 0:
	case len(errs) == 0:
		errs = append(errs, errors.New("has no event"))
	default: // it is something else, in each line
		errs = errs[:1]
	}
	return events, cut, errors.Join(errs...)
}

func (e *Recorded) read(line []byte) error {
	dec := json.NewDecoder(bytes.NewReader(line))
	dec.DisallowUnknownFields()
	if err := dec.Decode(e); err != nil {
		return err
	}
	if _, err := dec.Token(); err != io.EOF {
		return errors.New("something stands behind it")
	}
	types := []string{Added, Modified, Deleted, Synced}
	if !slices.Contains(types, e.Type) {
		return fmt.Errorf("type: must be %s, got %q", strings.Join(types, ", "), e.Type)
	}
	if (e.Type == Synced) != (e.Object == nil) {
		return fmt.Errorf("object: must be there but for %s", Synced)
	}
	if e.Type == Synced {
		return nil
	}
	kind, name := e.named()
	switch {
	case !slices.Contains(recordedKinds, kind):
		return fmt.Errorf("object.kind: must be %s, got %q", strings.Join(recordedKinds, ", "), kind)
	case name.Name == "":
		return errors.New("object.metadata.name: must be given")
	}
	return nil
}

// recordedKinds are the kinds of objects that Record writes.
var recordedKinds = []string{"Service", "EndpointSlice", "Node", "ServiceCIDR"}

// String returns what happened: "DELETED Service ns/web".
func (e *Recorded) String() string {
	kind, name := e.named()
	if kind == "" {
		return e.Type
	}
	return e.Type + " " + kind + " " + strings.TrimPrefix(name.String(), "/")
}

func (e *Recorded) named() (kind string, name ir.Name) {
	var of struct {
		Kind     string  `json:"kind"`
		Metadata ir.Name `json:"metadata"`
	}
	if json.Unmarshal(e.Object, &of) != nil {
		return "", name
	}
	return of.Kind, of.Metadata
}

// Play makes the Store hold what it did after that, and returns what is wrong with the
// object, which is left out then. A Node that is deleted stays, as for the daemon.
func (s *Store) Play(e *Recorded) diag.List {
	if e.Type == Deleted {
		switch kind, name := e.named(); kind {
		case "Service":
			s.DeleteService(name)
		case "EndpointSlice":
			s.DeleteSlice(name)
		case "ServiceCIDR":
			s.deleteServiceCIDR(name.Name)
		}
		return nil
	}
	if e.Type == Synced {
		return nil
	}
	one := snapshot.New()
	found := snapshot.Decode(one, "", e.Object)
	d := one.Document()
	for _, svc := range d.Services {
		s.SetService(svc)
	}
	for _, slice := range d.Slices {
		s.SetSlice(slice)
	}
	for _, n := range d.Nodes {
		s.setNode(n)
	}
	for _, c := range d.ServiceCIDRs {
		s.setServiceCIDR(c)
	}
	return found
}
