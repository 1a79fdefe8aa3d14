package review

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/proxyc/proxyc/compiler/diag"
	"github.com/proxyc/proxyc/ir"
	"github.com/proxyc/proxyc/render"
)

// Outputs returns all outputs for the programs of a node: those of the mode, of which the first is
// the default, and the two forms of the IR.
func Outputs(programs ir.Programs) (own []render.Output, all []render.Output, rendered render.Rendered) {
	rendered = Modes[programs.IPv4.Node.Mode].Lower(programs)
	own = rendered.Outputs()
	all = append(own[:len(own):len(own)],
		render.Output{Format: "ir", Write: func(w io.Writer) error { return ir.WriteText(w, programs) }},
		render.Output{Format: "ir-json", Write: func(w io.Writer) error { return ir.WriteJSON(w, programs) }})
	return own, all, rendered
}

// WriteFormat writes the programs in a format; "" selects the mode's default.
func WriteFormat(w io.Writer, programs ir.Programs, format string) error {
	_, all, _ := Outputs(programs)
	names := make([]string, len(all))
	for i, o := range all {
		if o.Format == cmp.Or(format, all[0].Format) {
			return Buffered(w, o.Write)
		}
		names[i] = o.Format
	}
	return &FormatError{programs.IPv4.Node.Mode, names, format}
}

// FormatError is the error for a format that a mode does not support.
type FormatError struct {
	Mode   ir.Mode
	Writes []string
	got    string
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("-o: mode %s writes %s, got %q%s", e.Mode, strings.Join(e.Writes, ", "), e.got, diag.Meant(e.got, e.Writes))
}

// ParseIR parses the output of compile -o ir-json. name is that of its file.
func ParseIR(name string, text []byte) (ir.Programs, error) {
	programs, err := ir.ReadJSON(bytes.NewReader(text))
	if err == nil {
		return programs, nil
	}
	var head struct{ APIVersion, Kind string }
	switch wrong := json.Unmarshal(text, &head); {
	case len(bytes.TrimSpace(text)) == 0:
		err = errors.New("is empty")
	case wrong != nil:
		err = errors.New("is not JSON of that form")
	case head.Kind != ir.DocumentKind:
		err = fmt.Errorf("kind must be %s, got %q", ir.DocumentKind, head.Kind)
	}
	return programs, fmt.Errorf("%s: must be the output of compile -o ir-json: %w", name, err)
}
