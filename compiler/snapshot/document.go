package snapshot

import (
	"slices"

	"github.com/proxyc/proxyc/ir"
)

// Document is the content of a Snapshot in a form that JSON can transport between
// two proxyc processes of the same version. It shares its objects with the
// Snapshot; they must not be changed.
type Document struct {
	Services     []*Service       `json:"services"`
	Slices       []*EndpointSlice `json:"endpointSlices"` // including those made from v1 Endpoints
	Nodes        []*Node          `json:"nodes"`
	ServiceCIDRs []*ServiceCIDR   `json:"serviceCIDRs"`
	Invalid      []*Invalid       `json:"invalid,omitempty"`
}

// Document returns the current content of s.
func (s *Snapshot) Document() *Document {
	d := &Document{Services: s.Services(), Nodes: s.Nodes(), ServiceCIDRs: s.ServiceCIDRs(), Invalid: s.Invalid(),
		Slices: slices.AppendSeq(make([]*EndpointSlice, 0, len(s.slices)), s.all)}
	slices.SortStableFunc(d.Slices, func(a, b *EndpointSlice) int { return a.Name.Compare(b.Name) })
	return d
}

// Snapshot returns a Snapshot with the content of the Document.
func (d *Document) Snapshot() *Snapshot {
	s := New()
	for _, svc := range d.Services {
		s.SetService(svc)
	}
	legacy := map[ir.Name][]*EndpointSlice{}
	for _, slice := range d.Slices {
		if slice.FromEndpoints {
			legacy[slice.Name] = append(legacy[slice.Name], slice)
		} else {
			s.SetSlice(slice)
		}
	}
	for name, made := range legacy {
		s.SetEndpoints(name, made)
	}
	for _, n := range d.Nodes {
		s.SetNode(n)
	}
	for _, c := range d.ServiceCIDRs {
		s.SetServiceCIDR(c)
	}
	for _, l := range d.Invalid {
		s.invalid[l.Object] = l
	}
	return s
}
