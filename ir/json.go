package ir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"
)

// APIVersion and DocumentKind identify the JSON document.
const (
	APIVersion   = "proxyc.dev/v1alpha1"
	DocumentKind = "Programs"
)

type document struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Programs   []*Program `json:"programs"`
}

// WriteJSON writes the programs of one node as a versioned document. ReadJSON
// returns equal Programs.
func WriteJSON(w io.Writer, programs Programs) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	d := document{APIVersion: APIVersion, Kind: DocumentKind, Programs: []*Program{}}
	for _, p := range Present(programs) {
		d.Programs = append(d.Programs, p)
	}
	return enc.Encode(d)
}

// IsJSON reports whether data may be a document written by WriteJSON, of any version and possibly
// truncated.
func IsJSON(data []byte) bool {
	const start = `{"apiVersion":"proxyc.dev/`
	text := strings.Join(strings.Fields(string(data[:min(len(data), 100)])), "")
	return strings.HasPrefix(text, start) || strings.HasPrefix(start, text)
}

// ReadJSON reads a document written by WriteJSON and validates it. Unknown fields
// are errors.
func ReadJSON(r io.Reader) (programs Programs, err error) {
	dec := json.NewDecoder(r)
	dec.DisallowUnknownFields()
	var d document
	if err := dec.Decode(&d); err != nil {
		return programs, fmt.Errorf("ir: %w", err)
	}
	if d.APIVersion != APIVersion || d.Kind != DocumentKind {
		return programs, fmt.Errorf("ir: apiVersion and kind must be %s %s, got %q %q", APIVersion, DocumentKind, d.APIVersion, d.Kind)
	}
	var errs []error
	for _, p := range d.Programs {
		at := programs.At(p.Family)
		if *at != nil {
			errs = append(errs, fmt.Errorf("ir: programs: must hold one of %s, got two", p.Family))
		}
		*at = p
		errs = append(errs, p.Validate()...)
	}
	return programs, errors.Join(errs...)
}

// duration is a time.Duration in the JSON form "3h0m0s".
type duration time.Duration

func (d duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

func (d *duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	*d = duration(v)
	return err
}

type affinityJSON struct {
	Timeout duration `json:"timeout"`
	Origin  Origin   `json:"origin"`
}

func (a Affinity) MarshalJSON() ([]byte, error) {
	return json.Marshal(affinityJSON{duration(a.Timeout), a.Origin})
}

func (a *Affinity) UnmarshalJSON(data []byte) error {
	var j affinityJSON
	err := json.Unmarshal(data, &j)
	*a = Affinity{time.Duration(j.Timeout), j.Origin}
	return err
}

type ipvsJSON struct {
	Scheduler     string         `json:"scheduler"`
	ExcludeCIDRs  []netip.Prefix `json:"excludeCIDRs,omitzero"`
	StrictARP     bool           `json:"strictARP,omitzero"`
	TCPTimeout    duration       `json:"tcpTimeout,omitzero"`
	TCPFinTimeout duration       `json:"tcpFinTimeout,omitzero"`
	UDPTimeout    duration       `json:"udpTimeout,omitzero"`
}

func (i IPVS) MarshalJSON() ([]byte, error) {
	return json.Marshal(ipvsJSON{i.Scheduler, i.ExcludeCIDRs, i.StrictARP,
		duration(i.TCPTimeout), duration(i.TCPFinTimeout), duration(i.UDPTimeout)})
}

func (i *IPVS) UnmarshalJSON(data []byte) error {
	var j ipvsJSON
	err := json.Unmarshal(data, &j)
	*i = IPVS{j.Scheduler, j.ExcludeCIDRs, j.StrictARP,
		time.Duration(j.TCPTimeout), time.Duration(j.TCPFinTimeout), time.Duration(j.UDPTimeout)}
	return err
}

type userspaceJSON struct {
	BindAddress    netip.Addr `json:"bindAddress,omitzero"`
	PortMin        uint16     `json:"portMin,omitzero"`
	PortMax        uint16     `json:"portMax,omitzero"`
	UDPIdleTimeout duration   `json:"udpIdleTimeout,omitzero"`
}

func (u Userspace) MarshalJSON() ([]byte, error) {
	return json.Marshal(userspaceJSON{u.BindAddress, u.PortMin, u.PortMax, duration(u.UDPIdleTimeout)})
}

func (u *Userspace) UnmarshalJSON(data []byte) error {
	var j userspaceJSON
	err := json.Unmarshal(data, &j)
	*u = Userspace{j.BindAddress, j.PortMin, j.PortMax, time.Duration(j.UDPIdleTimeout)}
	return err
}
