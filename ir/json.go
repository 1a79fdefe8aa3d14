package ir

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
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

// durations returns the options that represent a duration as "3h0m0s".
func durations() json.Options {
	return json.JoinOptions(
		json.WithMarshalers(json.MarshalFunc(func(d time.Duration) ([]byte, error) { return json.Marshal(d.String()) })),
		json.WithUnmarshalers(json.UnmarshalFunc(func(data []byte, d *time.Duration) (err error) {
			var text string
			if err = json.Unmarshal(data, &text); err == nil {
				*d, err = time.ParseDuration(text)
			}
			return err
		})))
}

// WriteJSON writes the programs of one node as a versioned document. ReadJSON
// returns equal Programs.
func WriteJSON(w io.Writer, programs Programs) error {
	d := document{APIVersion: APIVersion, Kind: DocumentKind, Programs: []*Program{}}
	for _, p := range Present(programs) {
		d.Programs = append(d.Programs, p)
	}
	return json.MarshalEncode(jsontext.NewEncoder(w, jsontext.WithIndent("  ")), d, durations())
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
	var d document
	if err := json.UnmarshalDecode(jsontext.NewDecoder(r), &d, durations(), json.RejectUnknownMembers(true)); err != nil {
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
