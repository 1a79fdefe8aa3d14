package assume

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

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
		if bytes.Contains(line, []byte("trace")) && command.Match(line) {
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
		out = append(append(out, said...), bytes.Repeat([]byte(" "), pad)...)
		out = append(out, replaced[i:]...)
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
	out, done := text[:0:0], 0
	for i := 0; i < len(text); i++ {
		if i > 0 && isWord(text[i-1]) {
			continue
		}
		start, end, name := s.address(text, i)
		if name == "" {
			start, end, name = s.port(text, i)
		}
		if name != "" && start >= done {
			out = append(append(out, text[done:start]...), name...)
			done, i = end, end-1
		}
	}
	if done == 0 {
		return text
	}
	return append(out, text[done:]...)
}

func isWord(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || c == '.' || c == '_'
}

// address returns the extent of an address that begins at i, with the kind of frontend before it,
// and its name; "" if it is no stand-in.
func (s *StandIns) address(text []byte, i int) (start, end int, name string) {
	rest := text[i:]
	if !bytes.HasPrefix(rest, []byte("24")) && !bytes.HasPrefix(rest, []byte("100::")) {
		return 0, 0, ""
	}
	end = i
	for end < len(text) && (isWord(text[end]) || text[end] == ':' && rest[1] == '0') {
		end++
	}
	a, err := netip.ParseAddr(strings.TrimRight(string(text[i:end]), ":."))
	if err != nil || s.Name(a) == "" {
		return 0, 0, ""
	}
	start, end, name = i, i+len(a.String()), s.Name(a)
	if start > 0 && text[start-1] == '[' && end < len(text) && text[end] == ']' {
		start, end = start-1, end+1
	}
	for _, one := range []string{"/32\"", "/128\""} { // a prefix in JSON
		if bytes.HasPrefix(text[end:], []byte(one)) {
			return start, end + len(one) - 1, name
		}
	}
	if protocol := after(text, end+1+digits); end+digits < len(text) && text[end] == ':' && protocol != "" {
		if port := s.portName(text[end+1 : end+1+digits]); port != "" { // of a node
			return start, end + 1 + digits, "NodePort " + port
		}
	}
	for _, kind := range []string{"ClusterIP ", "LoadBalancer "} {
		if bytes.HasSuffix(text[:start], []byte(kind)) {
			if !strings.HasPrefix(name, kind) {
				name = kind + name
			}
			return start - len(kind), end, name
		}
	}
	return start, end, name
}

// digits is the number of digits of the port of a stand-in.
const digits = 5

// after returns the protocol at i, such as "/tcp"; "" for other texts.
func after(text []byte, i int) string {
	for _, protocol := range []string{"/tcp", "/udp", "/sctp"} {
		if i <= len(text) && bytes.HasPrefix(text[i:], []byte(protocol)) {
			return protocol
		}
	}
	return ""
}

// port returns the extent of a port that begins at i, with what is before it, and its name; "" if it
// is no stand-in.
func (s *StandIns) port(text []byte, i int) (start, end int, name string) {
	end = i + digits
	if text[i] < '3' || text[i] > '6' || end > len(text) || end < len(text) && isWord(text[end]) && text[end] != '.' {
		return 0, 0, ""
	}
	of := s.portName(text[i:end])
	if of == "" {
		return 0, 0, ""
	}
	protocol, before := after(text, end), string(text[max(0, i-50):i])
	ends := func(with string) bool { return strings.HasSuffix(before, with) }
	switch {
	case ends(":") && protocol != "": // an address of a node
		start = i - 1
		if start > 0 && text[start-1] == ']' {
			start = bytes.LastIndexByte(text[:start], '[')
		} else {
			for start > 0 && isWord(text[start-1]) {
				start--
			}
		}
		if kind := []byte("NodePort "); bytes.HasSuffix(text[:start], kind) {
			start -= len(kind)
		}
		return start, end, "NodePort " + of
	case ends("NodePort node:"):
		return i - len("NodePort node:"), end, "NodePort " + of
	case ends("such as "):
		return i, end + len(protocol), "the one"
	case ends(`"port": `):
		return i, end, strconv.Quote("port " + of)
	case ends("NodePort "), ends("health-check "), ends("health check on port "):
		return i, end, of
	case protocol != "" && !ends("-"):
		return i, end, "port " + of
	}
	return 0, 0, ""
}

// portName is PortName of a port as text.
func (s *StandIns) portName(text []byte) string {
	port, _ := strconv.ParseInt(string(text), 10, 32)
	return s.PortName(int32(port))
}
