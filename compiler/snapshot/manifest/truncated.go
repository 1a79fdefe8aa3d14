package manifest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/proxyc/proxyc/compiler/diag"
)

// The rest of a truncated YAML file may still be a list of valid documents. The
// end of the file can then show that it was truncated.

// mayBeTruncated returns the evidence that a YAML file was truncated, or "". refused
// reports whether the API server would reject the last object. last is the last
// part of the file.
func mayBeTruncated(data []byte, last *part) (why string, refused bool) {
	if last.yaml == nil || last.closed {
		return "", false
	}
	if why, refused = last.unfinished(); why == "" && data[len(data)-1] != '\n' {
		why = "ends in the middle of a line"
	}
	return why, refused
}

// unfinished returns what the last object of a part lacks.
func (p *part) unfinished() (why string, refused bool) {
	text, _, err := toJSON(p.document())
	if err != nil {
		return "", false // reported elsewhere
	}
	leaves, err := scanLeaves(text)
	if err != nil || len(leaves) == 0 {
		return "", false
	}
	if key := danglingKey(p.yaml); key != "" {
		return "ends with " + key + ", which has no value", false
	}
	l := &leaves[len(leaves)-1]
	kind, version := l.kind, l.apiVersion
	if p.item && kind == "" && version == "" {
		kind, version = p.kind, p.apiVersion
	}
	var o outline
	if decoderOf(version, kind) == nil || json.Unmarshal(l.text, &o) != nil {
		return "", false
	}
	if field := o.missing(kind); field != "" {
		return "ends with " + named(kind, o.Metadata.Name) + " without " + field, true
	}
	if field := o.missingFromServer(kind); field != "" {
		return "ends with " + named(kind, o.Metadata.Name) + " without " + field + ", which every object from an API server has", false
	}
	return "", false
}

func named(kind, name string) string { return strings.TrimSpace(kind + " " + name) }

// danglingKey returns the key or dash without a value at the end of a text in
// block style.
func danglingKey(text []byte) string {
	lines := bytes.Split(bytes.TrimRight(text, " \n"), []byte("\n"))
	last := bytes.TrimLeft(lines[len(lines)-1], " -")
	switch {
	case len(last) == 0:
		return `"-"`
	case last[0] == '#' || last[len(last)-1] != ':':
		return ""
	}
	if _, _, ok := splitKey(last); !ok {
		return ""
	}
	return string(last)
}

// outline is the fields of an object that show whether it is complete.
type outline struct {
	Metadata struct {
		Name              string
		GenerateName      string
		UID               string
		ResourceVersion   string
		CreationTimestamp *string
	}
	Spec *struct {
		Type      string
		ClusterIP string
		Ports     []struct{ Port json.RawMessage }
		CIDRs     []json.RawMessage
	}
	Status    json.RawMessage
	Endpoints *[]struct{ Addresses *[]json.RawMessage }
	Ports     *[]struct{ Port, Protocol json.RawMessage }
}

// missing returns a missing field without which the API server rejects the object,
// or "".
func (o *outline) missing(kind string) string {
	if o.Metadata.Name+o.Metadata.GenerateName == "" {
		return "metadata.name"
	}
	switch kind {
	case "Service":
		switch {
		case o.Spec == nil:
			return "spec"
		case o.Spec.Type == string(corev1.ServiceTypeExternalName) || o.Spec.ClusterIP == corev1.ClusterIPNone:
		case len(o.Spec.Ports) == 0:
			return "spec.ports"
		case o.Spec.Ports[len(o.Spec.Ports)-1].Port == nil:
			return fmt.Sprintf("spec.ports[%d].port", len(o.Spec.Ports)-1)
		}
	case "EndpointSlice":
		if e := o.Endpoints; e != nil && len(*e) > 0 && (*e)[len(*e)-1].Addresses == nil {
			return fmt.Sprintf("endpoints[%d].addresses", len(*e)-1)
		}
	case "ServiceCIDR":
		if o.Spec == nil || len(o.Spec.CIDRs) == 0 {
			return "spec.cidrs"
		}
	}
	return ""
}

// missingFromServer returns a missing field that is the last one in every object from
// an API server, or "". It applies only to objects whose metadata shows that they
// are from an API server.
func (o *outline) missingFromServer(kind string) string {
	if m := &o.Metadata; m.UID == "" && m.ResourceVersion == "" && m.CreationTimestamp == nil {
		return ""
	}
	switch {
	case (kind == "Service" || kind == "Node") && o.Status == nil:
		return "status"
	case kind == "EndpointSlice" && o.Endpoints == nil:
		return "endpoints"
	case kind == "EndpointSlice" && o.Ports == nil:
		return "ports"
	case kind == "EndpointSlice" && len(*o.Ports) > 0:
		if last := len(*o.Ports) - 1; (*o.Ports)[last].Protocol == nil {
			return fmt.Sprintf("ports[%d].protocol", last)
		}
	}
	return ""
}

// reportTruncated reports evidence that the file was truncated.
func (r *Reader) reportTruncated(to *diag.Gatherer, file string, data []byte, last *part) {
	why, refused := mayBeTruncated(data, last)
	if r.Truncated == 0 || why == "" {
		return
	}
	end := len(bytes.TrimRight(data, "\n"))
	d := diag.Diagnostic{Severity: r.Truncated, Code: diag.FileTruncated, File: file, Doc: last.doc, Msg: "may be cut off: it " + why,
		Line:   1 + bytes.Count(data[:end], []byte("\n")),
		Column: end - bytes.LastIndexByte(data[:end], '\n')}
	switch {
	case refused:
		d.Severity = diag.Error
	case why == "ends in the middle of a line":
		d.Hint = "if it is not, end it with a line break"
	}
	to.Add(d, nil)
}
