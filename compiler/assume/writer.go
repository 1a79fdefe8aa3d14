package assume

import (
	"bytes"
	"cmp"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"unicode/utf8"
)

// standIn matches addresses that may be stand-ins, with the kind of frontend before them, and ports
// of nodes.
var standIn = regexp.MustCompile(`(ClusterIP |LoadBalancer )?(?:\b(24[4-7]\.\d{1,3}\.\d{1,3}\.\d{1,3})|(\[?)\b(100::[0-9a-f:]*[0-9a-f])\]?)|(NodePort (?:node:)?|health-check |health check on port |node ports, such as )([3-6]\d{4})\b|(\d:)([3-6]\d{4})/(?:tcp|udp|sctp)`)

// command matches lines with a trace command, or in JSON its flags.
var command = regexp.MustCompile(`\bproxyc trace |^\s*"trace": `)

// Writer replaces stand-ins in the lines that are written to it by what they stand for.
type Writer struct {
	to   io.Writer
	of   *StandIns
	line []byte // the last one, without its end
}

// NewWriter returns a Writer to another one.
func NewWriter(to io.Writer, of *StandIns) *Writer { return &Writer{to: to, of: of} }

// Write writes complete lines, and keeps the rest. Without stand-ins it writes everything.
func (w *Writer) Write(text []byte) (int, error) {
	if w.of.Len() == 0 && len(w.line) == 0 {
		return w.to.Write(text)
	}
	w.line = append(w.line, text...)
	end := bytes.LastIndexByte(w.line, '\n') + 1
	_, err := w.to.Write(w.of.Replace(w.line[:end]))
	w.line = append(w.line[:0], w.line[end:]...)
	return len(text), err
}

// Flush writes what is left.
func (w *Writer) Flush() error {
	if len(w.line) == 0 {
		return nil
	}
	_, err := w.to.Write(w.of.Replace(w.line))
	w.line = nil
	return err
}

// Replace returns a text in which names replace stand-ins, except in commands, which need addresses.
// What follows " # " stays in its column.
func (s *StandIns) Replace(text []byte) []byte {
	var out []byte
	for line := range bytes.Lines(text) {
		if command.Match(line) {
			out = append(out, line...)
			continue
		}
		replaced := s.replace(line)
		at := bytes.Index(line, []byte(" # "))
		if i := bytes.Index(replaced, []byte(" # ")); i >= 0 && at >= 0 && i != at {
			said := bytes.TrimRight(replaced[:i], " ")
			pad := bytes.Repeat([]byte(" "), max(0, at-utf8.RuneCount(said)))
			replaced = slices.Concat(said, pad, replaced[i:])
		}
		out = append(out, replaced...)
	}
	return out
}

func (s *StandIns) replace(text []byte) []byte {
	return standIn.ReplaceAllFunc(text, func(found []byte) []byte {
		m := standIn.FindSubmatch(found)
		if number := cmp.Or(string(m[6]), string(m[8])); number != "" {
			port, _ := strconv.ParseInt(number, 10, 32)
			name := s.PortName(int32(port))
			if name == "" {
				return found
			}
			before, after := string(m[5]), string(found[len(m[5])+len(m[7])+len(number):])
			switch before {
			case "": // an address of a node before it
				before = string(m[7]) + "NodePort "
			case "NodePort node:":
				before = "NodePort "
			case "node ports, such as ":
				name = "the one"
			}
			return []byte(before + name + after)
		}
		a, err := netip.ParseAddr(string(m[2]) + string(m[4]))
		name := s.Name(a)
		if err != nil || name == "" {
			return found
		}
		if kind := m[1]; !bytes.HasPrefix([]byte(name), kind) {
			name = string(kind) + name
		}
		return []byte(name)
	})
}
