package assume

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"unicode/utf8"
)

// standIn matches what may contain a stand-in: an address of a node with a port, an address with the
// kind of frontend before it, or a port of nodes.
var standIn = regexp.MustCompile(`(\b\d{1,3}(?:\.\d{1,3}){3}|\[[0-9a-f:]+\]|\bnode):([3-6]\d{4})(/(?:tcp|udp|sctp))` +
	`|(ClusterIP |LoadBalancer )?(?:\b(24[4-7]\.\d{1,3}\.\d{1,3}\.\d{1,3})|\[?\b(100::[0-9a-f:]*[0-9a-f])\]?)` +
	`|(NodePort (?:node:)?|health-check |health check on port |such as |"port": |\b)([3-6]\d{4})(/(?:tcp|udp|sctp))?\b`)

// command matches lines with a trace command, or in JSON its flags.
var command = regexp.MustCompile(`\bproxyc trace |^\s*"trace": `)

// word matches the words of a command that may contain a stand-in.
var word = regexp.MustCompile("[^\\s\"'`]*[.:][^\\s\"'`]*")

// Writer replaces stand-ins in the lines that are written to it by what they stand for.
type Writer struct {
	to   io.Writer
	of   *StandIns
	line []byte // the last one, without its end
	// column is where comments of lines begin that are longer than others.
	column int
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
	_, err := w.to.Write(w.replace(w.line[:end]))
	w.line = append(w.line[:0], w.line[end:]...)
	return len(text), err
}

// Flush writes what is left.
func (w *Writer) Flush() error {
	if len(w.line) == 0 {
		return nil
	}
	_, err := w.to.Write(w.replace(w.line))
	w.line = nil
	return err
}

// columns are those of comments in the text of the IR, and of traces with their indentation in other
// output. Names move them by wider.
var columns = [...]int{56, 72, 76}

const wider = 28

// replace returns lines in which names replace stand-ins. Comments after " # " stay in one column.
func (w *Writer) replace(text []byte) []byte {
	if w.of.Len() == 0 {
		return text
	}
	var out []byte
	for line := range bytes.Lines(text) {
		if command.Match(line) {
			out = append(out, word.ReplaceAllFunc(line, w.of.quoted)...)
			continue
		}
		replaced := w.of.names(line)
		at, i := bytes.Index(line, []byte(" # ")), bytes.Index(replaced, []byte(" # "))
		if i < 0 || at < 0 {
			out = append(out, replaced...)
			continue
		}
		said := bytes.TrimRight(replaced[:i], " ")
		pad := at - len(bytes.TrimRight(line[:at], " "))
		switch column := utf8.RuneCount(line[:at]); {
		case pad > 1 || slices.Contains(columns[:], column):
			w.column = column + wider
			pad = max(0, w.column-utf8.RuneCount(said))
		case pad == 0: // the line was too long
			pad = max(0, w.column-utf8.RuneCount(said))
		}
		out = slices.Concat(out, said, bytes.Repeat([]byte(" "), pad), replaced[i:])
	}
	return out
}

// quoted returns a word of a command with the names of stand-ins.
func (s *StandIns) quoted(word []byte) []byte {
	named := s.names(word)
	if bytes.Equal(named, word) {
		return word
	}
	return fmt.Appendf(nil, "'%s'", named)
}

// names returns a text in which names replace stand-ins.
func (s *StandIns) names(text []byte) []byte {
	return standIn.ReplaceAllFunc(text, func(found []byte) []byte {
		m := standIn.FindSubmatch(found)
		if len(m[2]) > 0 { // an address of a node
			if name := s.portName(m[2]); name != "" {
				return fmt.Appendf(nil, "NodePort %s%s", name, m[3])
			}
			return fmt.Appendf(nil, "%s:%s%s", s.names(m[1]), m[2], m[3])
		}
		if len(m[8]) > 0 {
			name := s.portName(m[8])
			switch before, protocol := string(m[7]), string(m[9]); {
			case name == "" || before+protocol == "":
				return found
			case before == "NodePort node:":
				return []byte("NodePort " + name + protocol)
			case before == "such as ":
				return []byte(before + "the one")
			case before == `"port": `:
				return fmt.Appendf(nil, "%s%q", before, "port "+name)
			case before == "":
				return []byte("port " + name + protocol)
			default:
				return []byte(before + name + protocol)
			}
		}
		a, err := netip.ParseAddr(string(m[5]) + string(m[6]))
		name := s.Name(a)
		if err != nil || name == "" {
			return found
		}
		if kind := m[4]; !bytes.HasPrefix([]byte(name), kind) {
			name = string(kind) + name
		}
		return []byte(name)
	})
}

// portName is PortName of a port as text.
func (s *StandIns) portName(text []byte) string {
	port, _ := strconv.ParseInt(string(text), 10, 32)
	return s.PortName(int32(port))
}
