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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/compiler/snapshot"
	"github.com/proxyc/proxyc/compiler/snapshot/manifest"
	"github.com/proxyc/proxyc/ir"
)

// Types of a Recorded. Added, Modified and Deleted are those of the watch API. Synced marks the end
// of the initial objects.
const (
	Added    = "ADDED"
	Modified = "MODIFIED"
	Deleted  = "DELETED"
	Synced   = "SYNCED"
)

// Recorded is a change of an object of a cluster: one line of JSON in a recording.
type Recorded struct {
	At     time.Time       `json:"at"` // when the change arrived
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object,omitempty"` // only kind and name for Deleted

	Line int `json:"-"` // line number in the recording
}

// Record writes the objects of the cluster to w, and then each change, until ctx ends or w fails.
// Each change is a Recorded, one line of JSON, in one Write. Record calls synced after the initial
// objects, with the number of lines so far, and returns the number of all. Changes of fields that neither the compiler nor lint reads are skipped. Record keeps a
// checksum of each object.
func (c *Cluster) Record(ctx context.Context, w io.Writer, now func() time.Time, synced func(lines int)) (lines int, err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	r := &recorder{w: w, now: now, known: map[string]map[ir.Name][sha256.Size]byte{}, end: end}
	var kinds []kind
	for _, k := range c.api.clients.resources() {
		kinds = append(kinds, r.kind(k))
	}
	c.api.run(ctx, kinds, func() {
		r.write(Recorded{Type: Synced})
		r.mu.Lock()
		defer r.mu.Unlock()
		synced(r.lines)
	})
	if err = context.Cause(ctx); errors.Is(err, context.Canceled) {
		err = nil
	}
	return r.lines, err
}

// recorder writes objects that differ from those written before.
type recorder struct {
	now func() time.Time
	end func(error)

	mu    sync.Mutex
	w     io.Writer
	lines int                                      // written
	known map[string]map[ir.Name][sha256.Size]byte // checksums by kind and name
}

func (r *recorder) kind(k resource) kind {
	return kind{
		resource: k, options: noSelector, reduce: reduceRecorded,
		set:     func(obj any) { r.set(k.types.kind, obj) },
		remove:  func(name ir.Name) { r.remove(&k, name) },
		replace: func(all []any) { r.replace(&k, all) },
	}
}

// reduceRecorded keeps what a player of a recording reads.
func reduceRecorded(obj any) any {
	out := snapshot.Trim(obj)
	if svc, ok := out.(*corev1.Service); ok {
		snapshot.WithoutSettings(svc)
	}
	return out
}

// set writes an object if it changed.
func (r *recorder) set(kind string, obj any) (name ir.Name) {
	name = nameOf(obj.(metav1.Object))
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

// nameOf returns the name of an object.
func nameOf(meta metav1.Object) ir.Name {
	return ir.Name{Namespace: meta.GetNamespace(), Name: meta.GetName()}
}

func (r *recorder) remove(k *resource, name ir.Name) {
	r.mu.Lock()
	_, known := r.known[k.types.kind][name]
	delete(r.known[k.types.kind], name)
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
	text, err := json.Marshal(map[string]any{"apiVersion": version, "kind": k.types.kind, "metadata": meta})
	if err != nil {
		r.end(err)
		return
	}
	r.write(Recorded{Type: Deleted, Object: text})
}

// replace writes the differences between a list and all recorded objects of a kind.
func (r *recorder) replace(k *resource, all []any) {
	there := map[ir.Name]bool{}
	slices.SortFunc(all, func(a, b any) int { return nameOf(a.(metav1.Object)).Compare(nameOf(b.(metav1.Object))) })
	for _, obj := range all {
		there[r.set(k.types.kind, obj)] = true
	}
	r.mu.Lock()
	known := slices.SortedFunc(maps.Keys(r.known[k.types.kind]), ir.Name.Compare)
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
		r.lines++
		_, err = r.w.Write(line.Bytes())
	}
	if err != nil {
		r.end(err)
	}
}

// ReadRecording returns the content of a recording. cut reports that the last line is incomplete
// and was skipped, as after the recorder was killed: it has no newline, or its JSON ends early.
// Complete but invalid lines are errors.
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
			if _, is := errors.AsType[*json.SyntaxError](err); is || errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("is not JSON")
			}
			errs = append(errs, fmt.Errorf("line %d: must be an event in the format of proxyc record: %w", n, err))
			continue
		}
		events = append(events, e)
	}
	switch {
	case len(events) > 0:
	case len(errs) == 0:
		errs = append(errs, errors.New("has no event"))
	default: // every line is invalid: it is another file
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
		return errors.New("unexpected data after the object")
	}
	types := []string{Added, Modified, Deleted, Synced}
	if !slices.Contains(types, e.Type) {
		return fmt.Errorf("type: must be %s, got %q", strings.Join(types, ", "), e.Type)
	}
	if (e.Type == Synced) != (e.Object == nil) {
		return fmt.Errorf("object: must be set except for %s", Synced)
	}
	if e.Type == Synced {
		return nil
	}
	kind, name := e.identity()
	switch {
	case !slices.Contains(recordedKinds, kind):
		return fmt.Errorf("object.kind: must be %s, got %q", strings.Join(recordedKinds, ", "), kind)
	case name.Name == "":
		return errors.New("object.metadata.name: must be set")
	}
	return nil
}

// recordedKinds are the kinds of objects that Record writes.
var recordedKinds = []string{"Service", "EndpointSlice", "Node", "ServiceCIDR"}

// String returns a description such as "DELETED Service ns/web".
func (e *Recorded) String() string {
	kind, name := e.identity()
	if kind == "" {
		return e.Type
	}
	return e.Type + " " + kind + " " + strings.TrimPrefix(name.String(), "/")
}

func (e *Recorded) identity() (kind string, name ir.Name) {
	var of struct {
		Kind     string  `json:"kind"`
		Metadata ir.Name `json:"metadata"`
	}
	if json.Unmarshal(e.Object, &of) != nil {
		return "", name
	}
	return of.Kind, of.Metadata
}

// Play applies a recorded change to the Store. It returns findings about the object, which is then
// skipped. A deleted Node stays in the Store, as in the daemon.
func (s *Store) Play(e *Recorded) diag.List {
	if e.Type == Deleted {
		s.Delete(e.identity())
		return nil
	}
	if e.Type == Synced {
		return nil
	}
	one := snapshot.New()
	found := manifest.Decode(one, "", e.Object)
	d := one.Document()
	for _, svc := range d.Services {
		s.Set(svc)
	}
	for _, slice := range d.Slices {
		s.Set(slice)
	}
	for _, n := range d.Nodes {
		s.Set(n)
	}
	for _, c := range d.ServiceCIDRs {
		s.Set(c)
	}
	return found
}
